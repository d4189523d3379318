package join

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"rnic/internal/dma"
	"rnic/internal/hostmem"
	"rnic/internal/sandbox"
)

// call is a call of a guest's program, in the host.
type call struct {
	r         *Run
	tid, pid  int
	fd        int
	sizeLimit uint64
	dev       sandbox.Device

	// askMu is held while the guest is asked, and when it is told that the answer comes later: from then on the connection is the next
	// call's, and another goroutine's question must neither be on it, nor wait for its answer there.
	askMu sync.Mutex

	mu   sync.Mutex
	done bool
	late uint64 // its number, if it is answered later
}

var _ sandbox.Call = (*call)(nil)

func (c *call) TID() int { return c.tid }
func (c *call) PID() int { return c.pid }
func (c *call) FD() int  { return c.fd }

// ask lets the guest do something; after the answer, or when the guest is gone, nothing may be asked.
func (c *call) ask(kind byte, fds []int, num ...uint64) (message, error) {
	c.askMu.Lock()
	defer c.askMu.Unlock()
	c.mu.Lock()
	over := c.done || c.late != 0
	c.mu.Unlock()
	if over {
		return message{}, errEnded
	}
	m := message{kind: kind, fds: fds}
	copy(m.num[:], num)
	return c.r.calls.ask(m)
}

func (c *call) truth(kind byte, num ...uint64) bool {
	m, err := c.ask(kind, nil, num...)
	return err == nil && m.num[0] == 1
}

// A call that is answered later stays valid until the guest gives it up, which also looks for signals.
func (c *call) Valid() bool {
	c.mu.Lock()
	done, late := c.done, c.late != 0
	c.mu.Unlock()
	if late {
		return !done
	}
	return c.truth(kindValid)
}

func (c *call) Nonblocking(fd int) bool  { return c.truth(kindNonblock, uint64(fd)) }
func (c *call) SignalPending() bool      { return c.truth(kindSignal) }
func (c *call) Stranded() bool           { return c.truth(kindStranded) }
func (c *call) Reply(v int64)            { c.end(kindReply, uint64(v)) }
func (c *call) Fail(errno syscall.Errno) { c.end(kindFail, uint64(errno)) }
func (c *call) Continue()                { c.end(kindContinue, 0) }

func (c *call) end(kind byte, v uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	c.done = true
	if c.late == 0 {
		_ = c.r.calls.send(message{kind: kind, num: [numbers]uint64{v}}) // if it fails, the guest is gone
		return
	}
	c.r.forgetLate(c.late)
	c.r.updates.post(message{kind: kind, num: [numbers]uint64{v, c.late}})
}

// postpone tells the guest that the call is answered later, unless it has been.
func (c *call) postpone() {
	c.r.mu.Lock()
	c.r.lastID++
	num := c.r.lastID
	c.r.mu.Unlock()
	c.askMu.Lock()
	defer c.askMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	c.late = num
	c.r.mu.Lock()
	c.r.late[num] = c
	c.r.mu.Unlock()
	_ = c.r.calls.send(message{kind: kindLater, num: [numbers]uint64{num}})
}

// abandon ends a call without an answer. False: it has one.
func (c *call) abandon() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return false
	}
	c.done = true
	c.r.forgetLate(c.late)
	return true
}

func (r *Run) forgetLate(num uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.late, num)
}

func (c *call) File(fd int) *sandbox.File {
	m, err := c.ask(kindFileAt, nil, uint64(fd))
	if err != nil || m.num[0] == 0 {
		return nil
	}
	f, _ := c.r.file(m.num[0])
	return f.File
}

func (c *call) Inject(fd int, r sandbox.Range, closeOnExec bool, data any) (int, *sandbox.File, error) {
	c.r.mu.Lock()
	c.r.lastID++
	id := c.r.lastID
	f := &sandbox.File{Data: data}
	c.r.files[id] = hostFile{f, c.dev} // before the program can use it
	c.r.mu.Unlock()
	on := uint64(0)
	if closeOnExec {
		on = 1
	}
	m, err := c.ask(kindInject, []int{fd}, uint64(r), on, id)
	if err == nil && m.num[2] != 0 {
		err = syscall.Errno(m.num[2])
	}
	if err != nil || m.num[1] != id {
		c.r.drop(id)
	}
	if err != nil {
		return -1, nil, err
	}
	known, ok := c.r.file(m.num[1])
	if !ok {
		return -1, nil, unix.EPROTO // no guest of ours says so
	}
	return int(m.num[0]), known.File, nil
}

func (c *call) ReadMem(addr uint64, p []byte) error {
	return c.r.touch(c, func(s *space) error { return move(s.memory.ReadV, s.memory, addr, p) })
}

func (c *call) WriteMem(addr uint64, p []byte) error {
	return c.r.touch(c, func(s *space) error {
		if s.files.Mem != nil {
			// Writing through the file does not obey the protections that the program itself has.
			if err := s.memory.Check(addr, uint64(len(p)), true); err != nil {
				return unix.EFAULT
			}
		}
		return move(s.memory.WriteV, s.memory, addr, p)
	})
}

func move(how func([]hostmem.Segment) (int, error), m *dma.Process, addr uint64, p []byte) error {
	_, err := how([]hostmem.Segment{{Space: m, Addr: addr, Buf: p}})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, dma.ErrRefused):
		return unix.EPERM
	case errors.Is(err, hostmem.ErrGone):
		return unix.ESRCH
	}
	return unix.EFAULT
}

// space is the memory of one process of the guest.
type space struct {
	memory *dma.Process
	files  dma.Files // if that is how it is reached
	watch  *os.File  // if by the process's number: its pidfd
}

func (s *space) close() {
	s.files.Close()
	if s.watch != nil {
		s.watch.Close()
	}
}

// watchEnd ends the use of a memory that is reached by its process's number with the process, also while the guest, which tells of
// that, is stopped: the number may be another process's then.
func (s *space) watchEnd(pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return err
	}
	s.watch = os.NewFile(uintptr(fd), "process")
	raw, err := s.watch.SyscallConn()
	if err != nil {
		return err
	}
	go func() {
		err := raw.Read(func(fd uintptr) bool {
			now := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, _ := unix.Poll(now, 0)
			return n == 1
		})
		if err == nil { // else it is watched no more
			s.memory.End()
		}
	}()
	return nil
}

// touch does something with the memory of a call's process, which does not go away meanwhile.
func (r *Run) touch(c *call, do func(*space) error) error {
	r.spaceMu.RLock()
	s := r.spaces[c.pid]
	if s != nil {
		defer r.spaceMu.RUnlock()
		return do(s)
	}
	r.spaceMu.RUnlock()
	s, err := r.reach(c)
	if err != nil {
		return err
	}
	r.spaceMu.RLock()
	defer r.spaceMu.RUnlock()
	if r.spaces[c.pid] != s { // it has gone since
		return unix.ESRCH
	}
	return do(s)
}

// reach finds the way to the memory of a call's process.
func (r *Run) reach(c *call) (*space, error) {
	c.mu.Lock()
	late := c.late != 0
	c.mu.Unlock()
	if c.pid == 0 || late { // the memory of a call that waited is known, unless it has gone
		return nil, unix.ESRCH
	}
	s := &space{}
	if r.local && dma.Reachable(c.pid) {
		s.memory = dma.NewProcess(c.pid)
		// The caller still waits after the watch began: so it is of the process that the number means.
		if err := s.watchEnd(c.pid); err == unix.ESRCH || !c.Valid() {
			s.close()
			return nil, unix.ESRCH
		}
	} else {
		m, err := c.ask(kindMemory, nil)
		if err != nil {
			return nil, unix.ESRCH
		}
		if e := syscall.Errno(m.num[0]); e != 0 || len(m.fds) != 2 {
			closeAll(m.fds)
			return nil, fmt.Errorf("process %d: %w: %v", c.pid, dma.ErrRefused, e)
		}
		if !ofProc(m.fds) {
			closeAll(m.fds)
			return nil, fmt.Errorf("process %d: %w: no files of /proc", c.pid, dma.ErrRefused)
		}
		s.files = filesOf(m.fds)
		s.memory = dma.NewProcessFiles(c.pid, s.files)
	}
	r.spaceMu.Lock()
	defer r.spaceMu.Unlock()
	if other := r.spaces[c.pid]; other != nil {
		s.close()
		return other, nil
	}
	r.spaces[c.pid] = s
	return s, nil
}

// Space is the memory of a call's process, until its MemoryGone.
func (r *Run) Space(sys sandbox.Call) (m *dma.Process, err error) {
	err = r.touch(sys.(*call), func(s *space) error { m = s.memory; return nil })
	return m, err
}

// SizeLimit is RLIMIT_FSIZE of a call's process in bytes, 0 for none; of an Open only.
func (r *Run) SizeLimit(sys sandbox.Call) (uint64, error) { return sys.(*call).sizeLimit, nil }

// endLate gives up the calls that wait, when the guest is gone.
func (r *Run) endLate() {
	r.mu.Lock()
	var all []*call
	for _, c := range r.late {
		all = append(all, c)
	}
	r.mu.Unlock()
	for _, c := range all {
		c.abandon()
	}
}

// memoryGone tells the front, which then does not use the memory any more, and lets go of it.
func (r *Run) memoryGone(pid int) {
	for _, d := range r.devices {
		d.MemoryGone(pid)
	}
	r.spaceMu.Lock()
	defer r.spaceMu.Unlock()
	if s := r.spaces[pid]; s != nil {
		s.close()
		delete(r.spaces, pid)
	}
}
