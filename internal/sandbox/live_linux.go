//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Live files are those whose content is made when it is read, as sysfs makes its attributes': counters. Each open gets a
// file of its own (memfd_create(2)) with the content of then. A read at its beginning, of a program that has gone back there to
// look again, is notified, and the file brought up to date before the kernel reads it: nothing is done for what nobody
// reads. So that no other reads are notified, the descriptors have a range of numbers of their own.
//
// What differs from sysfs: a descriptor at another number (a copy made by dup2, or where the range is full)
// shows what was there when it was opened.

// live is the Device of one such file.
type live struct {
	path string
	read func() (string, error)

	mu    sync.Mutex
	opens map[*File]*liveOpen
}

// liveOpen is one open of it: File.Data.
type liveOpen struct {
	mu   sync.Mutex
	file *os.File // ours, writable
	last string   // its content
}

// addLive makes a live file. What is in the tree itself is for listings.
func (t *tree) addLive(p string, read func() (string, error)) error {
	if err := t.addNode(&node{path: p, dev: &live{path: p, read: read, opens: map[*File]*liveOpen{}}, live: true}); err != nil {
		return fmt.Errorf("adding %s to the emulated tree: %w", p, err)
	}
	return nil
}

// Open answers in a goroutine: to read may take long, if another process has the NIC, and other calls go on.
func (l *live) Open(c Call, flags int) {
	go func() {
		n, err := l.open(c, flags&unix.O_CLOEXEC != 0)
		if err != nil {
			c.Fail(errnoOf(err))
			return
		}
		c.Reply(int64(n))
	}()
}

func (l *live) open(c Call, closeOnExec bool) (int, error) {
	content, err := l.read()
	if err != nil {
		return -1, unix.EIO
	}
	fd, err := unix.MemfdCreate("live", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	o := &liveOpen{file: os.NewFile(uintptr(fd), l.path)}
	err = o.set(content)
	var app int
	if err == nil {
		err = unix.Fchmod(fd, 0o444)
	}
	if err == nil {
		// The program's is another open: read only, with a close that can be told from ours.
		app, err = unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		o.file.Close()
		return -1, err
	}
	defer unix.Close(app)
	l.mu.Lock() // Closed finds it
	defer l.mu.Unlock()
	n, f, err := c.Inject(app, rangeLive, closeOnExec, o)
	if err == unix.EMFILE {
		n, f, err = c.Inject(app, RangeLow, closeOnExec, o)
	}
	if err != nil {
		o.file.Close()
		return -1, err
	}
	l.opens[f] = o
	return n, nil
}

// set makes content that of the file, and says why it could not.
func (o *liveOpen) set(content string) error {
	if content == o.last {
		return nil
	}
	if _, err := o.file.WriteAt([]byte(content), 0); err != nil {
		return errnoIn(err)
	}
	if len(content) < len(o.last) {
		if err := o.file.Truncate(int64(len(content))); err != nil {
			return errnoIn(err)
		}
	}
	o.last = content
	return nil
}

// errnoIn is the number in an error of package os.
func errnoIn(err error) error {
	if p, ok := err.(*os.PathError); ok {
		return p.Err
	}
	return err
}

// refresh gives an open file the content of now. If there is none, it keeps what it has.
func (l *live) refresh(o *liveOpen) {
	now, err := l.read()
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.set(now)
}

// Ioctl and Write are for descriptors that a program has moved to another range.
func (l *live) Ioctl(c Call, _ *File, _ uint64)    { c.Fail(syscall.ENOTTY) }
func (l *live) Write(c Call, _ *File, _, _ uint64) { c.Fail(syscall.EBADF) }
func (l *live) MemoryGone(int)                     {}

func (l *live) Closed(f *File) {
	l.mu.Lock()
	o := l.opens[f]
	delete(l.opens, f)
	l.mu.Unlock()
	if o != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.file.Close()
	}
}

// readLive comes before read and pread on a number of the range.
func (s *server) readLive(n *notif, k callKind) {
	f := s.fileArg(n)
	if f == nil || !f.reg.node.live || !s.readsStart(n, k) {
		s.proceed(n)
		return
	}
	go func(n notif) {
		f.reg.node.dev.(*live).refresh(f.Data.(*liveOpen))
		s.proceed(&n)
	}(*n)
}

// readsStart tells whether a call reads a file from its beginning: a reader that goes on must find the rest of what it has begun.
func (s *server) readsStart(n *notif, k callKind) bool {
	if k == callPread {
		return n.args[3] == 0
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(int(n.tid)) + "/fdinfo/" + strconv.Itoa(int(int32(n.args[0]))))
	return err == nil && fieldOf(b, "pos") == "0"
}

// AddLive makes a read-only file of the tree, and its parents, whose content is what read returns when a program opens it
// or reads it again from its beginning. An error is EIO to who opens it; who has it open reads what was there before. read may be
// called from any goroutine, several times at once, and may block. Call it before Serve.
func (s *Supervisor) AddLive(path string, read func() (string, error)) error {
	return s.tree.addLive(path, read)
}
