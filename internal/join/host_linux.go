package join

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/sandbox"
)

// Front is what a run gets of the NIC: the Device of its nodes, and what ends it.
type Front interface {
	sandbox.Device
	io.Closer
	// Describe answers Guest.Ask.
	Describe(question []byte) ([]byte, error)
}

// Host lets other runs in.
type Host struct {
	fd       int
	deaf     chan struct{} // closed when no run is let in any more; nil before Serve
	version  string
	admit    func(*Run) (Front, error)
	patience time.Duration // with who connects: introductionTime

	mu     sync.Mutex
	idle   *sync.Cond
	runs   map[*Run]struct{}
	ending bool
}

// Listen takes the name of a NIC, so that runs find it. They wait until Serve. ErrTaken: another process has it.
func Listen(key, version string) (*Host, error) {
	fd, err := listen(key)
	if err != nil {
		return nil, err
	}
	h := &Host{fd: fd, version: version, patience: introductionTime, runs: map[*Run]struct{}{}}
	h.idle = sync.NewCond(&h.mu)
	return h, nil
}

// Serve lets runs in from now on. admit makes the front of one and adds its files to the run's tree; its error is what that
// run's user reads.
func (h *Host) Serve(admit func(*Run) (Front, error)) {
	h.admit, h.deaf = admit, make(chan struct{})
	go func() {
		defer close(h.deaf)
		for {
			fd, _, err := unix.Accept4(h.fd, unix.SOCK_CLOEXEC)
			switch err {
			case nil:
				go h.welcome(newConn(fd))
			case unix.EINTR, unix.ECONNABORTED:
			case unix.EINVAL: // shut down
				return
			default: // no descriptor or memory left: those that knock wait until there is
				time.Sleep(acceptPause)
			}
		}
	}()
}

// introductionTime is how long who connects may take to say who it is: until then it counts as a run, for which the NIC lives.
const introductionTime = 30 * time.Second

// acceptPause is how long a host that has no descriptor left for a run waits for one.
const acceptPause = 20 * time.Millisecond

// Runs is the number of runs that have joined.
func (h *Host) Runs() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.runs)
}

// Finish waits until no run is left, and lets none in from then on: those that knock find nobody (ErrNone) and
// try again.
func (h *Host) Finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.runs) > 0 {
		h.idle.Wait()
	}
	h.ending = true
}

// FinishIdle is Finish if no run is left; else it does nothing and returns false.
func (h *Host) FinishIdle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.runs) > 0 {
		return false
	}
	h.ending = true
	return true
}

// Close gives the name back, when the NIC is gone.
func (h *Host) Close() {
	unix.Shutdown(h.fd, unix.SHUT_RDWR) // wakes Accept
	if h.deaf != nil {
		<-h.deaf
	}
	unix.Close(h.fd)
}

// enter and leave count the runs.
func (h *Host) enter(r *Run) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending {
		return false
	}
	h.runs[r] = struct{}{}
	return true
}

func (h *Host) leave(r *Run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.runs, r)
	h.idle.Broadcast()
}

// welcome serves one run until its end.
func (h *Host) welcome(calls *conn) {
	defer calls.close()
	r := &Run{host: h, calls: calls, files: map[uint64]hostFile{}, late: map[uint64]*call{}, spaces: map[int]*space{}}
	if !h.enter(r) {
		return
	}
	defer h.leave(r)
	if err := r.introduce(); err != nil {
		_ = calls.send(message{kind: kindRefused, body: []byte(err.Error())})
		r.end()
		return
	}
	r.serve()
	r.end()
}

// Run is a run that joins, as the host sees it: it is the tree of its files (uverbs.Tree), its sandbox's Forget, and
// the way to its programs' memory (uverbs.Programs).
type Run struct {
	host           *Host
	pid            int // of the guest
	calls, notices *conn
	updates        *queue
	hello          hello
	passed         []*os.File
	local          bool             // the guest is in our pid namespace
	devices        []sandbox.Device // of the nodes, by their numbers
	front          Front
	log            *logWriter

	treeMu sync.Mutex
	tree   []message // what the front has made of it
	ready  bool      // the tree is complete: changes go to updates
	lives  []func() (string, error)

	mu     sync.Mutex
	files  map[uint64]hostFile
	late   map[uint64]*call // calls that are answered later, by number
	lastID uint64

	spaceMu sync.RWMutex // held for reading while memory is touched on behalf of a call
	spaces  map[int]*space
}

// hostFile is a file of the run, with the device that it is of.
type hostFile struct {
	*sandbox.File
	dev sandbox.Device
}

// Config is what the guest gave in Request.Config, and Files are its open files, which belong to the run. PID is the guest's
// process.
func (r *Run) Config() []byte    { return r.hello.Config }
func (r *Run) Files() []*os.File { return r.passed }
func (r *Run) PID() int          { return r.pid }

// introduce hears who the guest is, makes its front and sends it the tree.
func (r *Run) introduce() (err error) {
	if r.pid, err = sameUser(r.calls.fd); err != nil {
		return err
	}
	m, err := r.calls.receiveWithin(r.host.patience)
	if err != nil {
		return err
	}
	if m.kind != kindHello || len(m.fds) < 2 {
		closeAll(m.fds)
		return fmt.Errorf("no introduction from process %d", r.pid)
	}
	r.notices, r.updates = newConn(m.fds[0]), newQueue(newConn(m.fds[1]))
	for i, fd := range m.fds[2:] {
		// A FIFO that nobody reads must not make the host wait. Not so standard error, which is the programs' too.
		var st unix.Stat_t
		if i > 0 && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			_ = unix.SetNonblock(fd, true)
		}
		r.passed = append(r.passed, os.NewFile(uintptr(fd), "passed"))
	}
	if err := json.Unmarshal(m.body, &r.hello); err != nil {
		return fmt.Errorf("introduction of process %d: %w", r.pid, err)
	}
	if m.num[0] != protocol || r.hello.Version != r.host.version {
		return fmt.Errorf("it is of rnic %s, and this is %s: use one of them for both, or wait until the runs that use the NIC have ended",
			r.host.version, r.hello.Version)
	}
	ns := pidNamespace()
	r.local = ns != 0 && r.hello.PIDNamespace == ns && !r.hello.FilesOnly && othersMayTrace()
	front, err := r.host.admit(r)
	if err != nil {
		return err
	}
	r.front = front
	r.treeMu.Lock()
	tree := r.tree
	r.tree, r.ready = nil, true
	r.treeMu.Unlock()
	for _, m := range append(tree, message{kind: kindReady, num: [numbers]uint64{uint64(os.Getpid())}}) {
		if err := r.calls.send(m); err != nil {
			return err
		}
	}
	return nil
}

// end ends what introduce made.
func (r *Run) end() {
	if r.notices != nil {
		r.notices.hangUp()
	}
	r.endLate()
	if r.front != nil {
		r.front.Close()
	}
	r.spaceMu.Lock()
	for pid, s := range r.spaces {
		s.close()
		delete(r.spaces, pid)
	}
	r.spaceMu.Unlock()
	if r.notices != nil {
		r.notices.close()
		r.updates.close()
	}
	r.log.close()
	for _, f := range r.passed {
		f.Close()
	}
}

// serve answers calls and notices until the guest is gone.
func (r *Run) serve() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.serveNotices()
		r.calls.hangUp()
	}()
	for {
		m, err := r.calls.receive()
		if err != nil {
			break
		}
		closeAll(m.fds)
		if !r.call(&m) {
			break
		}
	}
	r.notices.hangUp()
	<-done
}

// call hands one call to the front. If it is not answered when the front has done with it, it will be later.
func (r *Run) call(m *message) bool {
	c := &call{r: r, fd: -1}
	run := func() {}
	switch m.kind {
	case kindOpen:
		if m.num[4] >= uint64(len(r.devices)) {
			return false
		}
		c.dev = r.devices[m.num[4]]
		c.tid, c.pid, c.sizeLimit = int(m.num[1]), int(m.num[2]), m.num[3]
		run = func() { c.dev.Open(c, int(m.num[0])) }
	case kindIoctl, kindWrite:
		f, ok := r.file(m.num[0])
		switch {
		case !ok && m.kind == kindWrite: // closed by another thread in this moment
			c.tid, c.pid, c.fd = int(m.num[3]), int(m.num[4]), int(m.num[5])
			run = func() {
				if sandbox.Waits(c.ReadMem, m.num[1], m.num[2]) {
					time.AfterFunc(sandbox.WaitClosed, func() { c.Fail(unix.EBADF) })
				} else {
					c.Fail(unix.EBADF)
				}
			}
		case !ok:
			c.Fail(unix.EBADF)
		}
		if !ok {
			break
		}
		c.dev = f.dev
		if m.kind == kindIoctl {
			c.tid, c.pid, c.fd = int(m.num[2]), int(m.num[3]), int(m.num[4])
			run = func() { f.dev.Ioctl(c, f.File, m.num[1]) }
		} else {
			c.tid, c.pid, c.fd = int(m.num[3]), int(m.num[4]), int(m.num[5])
			run = func() { f.dev.Write(c, f.File, m.num[1], m.num[2]) }
		}
	default:
		return false
	}
	func() {
		// As in a run of its own, a panic of the front costs the program EIO.
		defer func() {
			if p := recover(); p != nil {
				fmt.Fprintf(r.Log(), "rnic run: internal error in a call of thread %d: %v\n%s", c.tid, p, debug.Stack())
				c.Fail(unix.EIO)
			}
		}()
		run()
	}()
	c.postpone()
	return true
}

// serveNotices tells the front what has ended.
func (r *Run) serveNotices() {
	for {
		m, err := r.notices.receive()
		if err != nil {
			return
		}
		closeAll(m.fds)
		switch m.kind {
		case kindClosed:
			if f, ok := r.file(m.num[0]); ok {
				r.drop(m.num[0])
				f.dev.Closed(f.File)
			}
		case kindAbandon:
			if r.notices.send(message{kind: m.kind, num: [numbers]uint64{truth(r.abandon(m.num[0]))}}) != nil {
				return
			}
			continue
		case kindGone:
			r.memoryGone(int(m.num[0]))
		case kindAsk:
			if !r.describe(m.body) {
				return
			}
			continue
		case kindRead:
			if r.notices.send(r.readLive(m.num[0])) != nil {
				return
			}
			continue
		default:
			return
		}
		if r.notices.send(message{kind: m.kind}) != nil {
			return
		}
	}
}

// describe answers a question of the guest's, in parts.
func (r *Run) describe(question []byte) bool {
	answer, err := r.front.Describe(question)
	if err != nil {
		answer = nil
	}
	for {
		part := answer[:min(len(answer), maxBody)]
		answer = answer[len(part):]
		if r.notices.send(message{kind: kindAsk, num: [numbers]uint64{truth(len(answer) > 0)}, body: part}) != nil {
			return false
		}
		if len(answer) == 0 {
			return true
		}
	}
}

func (r *Run) file(id uint64) (f hostFile, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok = r.files[id]
	return f, ok
}

// abandon gives up a call whose program has a signal to handle. False: it has been answered.
func (r *Run) abandon(num uint64) bool {
	r.mu.Lock()
	c := r.late[num]
	r.mu.Unlock()
	return c != nil && c.abandon()
}

func (r *Run) drop(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.files, id)
}

// Remove is the sandbox's: a part of the tree is gone.
func (r *Run) Remove(path string) error {
	return r.change(message{kind: kindRemove, body: []byte(path)})
}

// Forget is the sandbox's: a file that is not regular is gone.
func (r *Run) Forget(f *sandbox.File) {
	r.mu.Lock()
	var id uint64
	for i, g := range r.files {
		if g.File == f {
			id = i
		}
	}
	delete(r.files, id)
	r.mu.Unlock()
	if id != 0 {
		r.updates.post(message{kind: kindForget, num: [numbers]uint64{id}})
	}
}

// AddDir, AddFile, AddSymlink and AddDevice are the sandbox's.
func (r *Run) AddDir(path string) error {
	return r.change(message{kind: kindDir, body: []byte(path)})
}

func (r *Run) AddFile(path, content string) error {
	return r.change(message{kind: kindFile, num: [numbers]uint64{uint64(len(path))}, body: []byte(path + content)})
}

// AddLive is the sandbox's too. The guest asks for the content when a program of its reads it.
func (r *Run) AddLive(path string, read func() (string, error)) error {
	r.treeMu.Lock()
	num := uint64(len(r.lives))
	r.lives = append(r.lives, read)
	r.treeMu.Unlock()
	return r.change(message{kind: kindLive, num: [numbers]uint64{num}, body: []byte(path)})
}

// readLive answers a guest that reads one.
func (r *Run) readLive(num uint64) message {
	a := message{kind: kindRead}
	r.treeMu.Lock()
	var read func() (string, error)
	if num < uint64(len(r.lives)) {
		read = r.lives[num]
	}
	r.treeMu.Unlock()
	if read == nil {
		return a
	}
	if content, err := read(); err == nil && len(content) <= maxBody {
		a.num[0], a.body = 1, []byte(content)
	}
	return a
}

func (r *Run) AddSymlink(path, target string) error {
	return r.change(message{kind: kindSymlink, num: [numbers]uint64{uint64(len(path))}, body: []byte(path + target)})
}

func (r *Run) AddDevice(path string, major, minor uint32, d sandbox.Device) error {
	n := uint64(len(r.devices))
	r.devices = append(r.devices, d)
	return r.change(message{kind: kindDevice, num: [numbers]uint64{uint64(major), uint64(minor), n}, body: []byte(path)})
}

// change never waits for the guest, which may be stopped: the device, which all runs share, tells of its port's changes.
func (r *Run) change(m message) error {
	if len(m.body) > maxBody {
		return fmt.Errorf("join: file of %d bytes", len(m.body))
	}
	r.treeMu.Lock()
	defer r.treeMu.Unlock()
	if r.ready {
		r.updates.post(m)
	} else {
		r.tree = append(r.tree, m)
	}
	return nil
}
