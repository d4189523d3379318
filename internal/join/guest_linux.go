package join

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/dma"
	"rnic/internal/sandbox"
	"rnic/internal/shm"
)

// Request is what a run brings to the NIC that it joins.
type Request struct {
	Version string // of this program
	Config  []byte // for the host's admit; at most maxConfig bytes, else ErrRefused
	// Files go to the host: first of all standard error.
	Files []*os.File
	// FilesOnly makes the host reach the memory of this run's programs by passed files, whatever its rights are.
	FilesOnly bool
	// Over, if it is closed, ends the wait for a host that is not ready: ErrNone.
	Over <-chan struct{}
}

// Sandbox is what a guest needs of the run's own sandbox; *sandbox.Supervisor is one.
type Sandbox interface {
	AddDir(path string) error
	AddFile(path, content string) error
	AddLive(path string, read func() (string, error)) error
	AddSymlink(path, target string) error
	AddDevice(path string, major, minor uint32, d sandbox.Device) error
	Remove(path string) error
	Forget(*sandbox.File)
}

// Guest is a run's part of a NIC that another run has.
type Guest struct {
	calls, notices, updates *conn
	host                    int // pid
	sb                      Sandbox
	died                    chan struct{}

	callMu   sync.Mutex
	noticeMu sync.Mutex

	mu    sync.Mutex
	files map[uint64]*sandbox.File
	late  map[uint64]*lateCall // nil: the host is gone
}

// guestDevice is one node's device, by its number at the host.
type guestDevice struct {
	*Guest
	num uint64
}

// lateCall is a call that the host answers later; or such an answer that was faster than the word that it comes later.
type lateCall struct {
	call     sandbox.Call // nil: not heard of yet
	answered chan struct{}
	kind     byte
	value    uint64
}

// guestFile is what the sandbox keeps with a file: its number at the host.
type guestFile struct{ id uint64 }

// Dial joins the NIC named key and builds its files in the sandbox's tree. ErrNone if there is none,
// ErrRefused with the host's reason.
func Dial(key string, q Request, sb Sandbox) (*Guest, error) {
	fd, pid, err := connect(key)
	if err != nil {
		return nil, err
	}
	g := &Guest{calls: newConn(fd), host: pid, sb: sb, died: make(chan struct{}), files: map[uint64]*sandbox.File{}, late: map[uint64]*lateCall{}}
	heard, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-q.Over:
			g.calls.hangUp()
		case <-heard:
		}
	}()
	err = g.introduce(key, q)
	close(heard)
	<-watched
	if err != nil {
		g.calls.close()
		for _, c := range []*conn{g.notices, g.updates} {
			if c != nil {
				c.close()
			}
		}
		return nil, err
	}
	go g.follow()
	return g, nil
}

func (g *Guest) introduce(key string, q Request) error {
	body, err := json.Marshal(hello{q.Version, pidNamespace(), q.FilesOnly, q.Config})
	if err != nil {
		return err
	}
	if len(q.Config) > maxConfig {
		return fmt.Errorf("%w: what this run asks for is longer than %d bytes: give it fewer options", ErrRefused, maxConfig)
	}
	var theirs [2]int
	for i, c := range []**conn{&g.notices, &g.updates} {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("sockets to join a NIC: %w", err)
		}
		*c, theirs[i] = newConn(p[0]), p[1]
		defer unix.Close(p[1])
	}
	m := message{kind: kindHello, num: [numbers]uint64{protocol}, body: body, fds: theirs[:]}
	for _, f := range q.Files {
		fd, err := descriptor(f)
		if err != nil {
			return err
		}
		m.fds = append(m.fds, fd)
	}
	// Whoever ends meanwhile has not looked at us: the caller tries again.
	if err := g.calls.send(m); err != nil {
		return ErrNone
	}
	for first := true; ; first = false {
		m, err := g.calls.receive()
		if err != nil {
			if first {
				return ErrNone
			}
			return fmt.Errorf("joining NIC %s of process %d: %w", key, g.host, err)
		}
		closeAll(m.fds)
		switch m.kind {
		case kindReady:
			g.host = int(m.num[0])
			return nil
		case kindRefused:
			return fmt.Errorf("%w: %s", ErrRefused, m.body)
		}
		if err := g.build(&m); err != nil {
			return fmt.Errorf("joining NIC %s of process %d: %w", key, g.host, err)
		}
	}
}

// descriptor is a file's, which stays non-blocking if it is: File.Fd would change that, for the host too.
func descriptor(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int(n) })
	}
	return fd, err
}

// build makes one entry of the tree.
func (g *Guest) build(m *message) error {
	switch m.kind {
	case kindDir:
		return g.sb.AddDir(string(m.body))
	case kindRemove:
		return g.sb.Remove(string(m.body))
	case kindDevice:
		return g.sb.AddDevice(string(m.body), uint32(m.num[0]), uint32(m.num[1]), &guestDevice{g, m.num[2]})
	case kindLive:
		num := m.num[0]
		return g.sb.AddLive(string(m.body), func() (string, error) { return g.readLive(num) })
	case kindFile, kindSymlink:
		path, rest, ok := m.splitBody()
		if !ok {
			break
		}
		if m.kind == kindFile {
			return g.sb.AddFile(path, rest)
		}
		return g.sb.AddSymlink(path, rest)
	}
	return fmt.Errorf("join: unexpected message %q", m.kind)
}

// follow makes the changes that the host tells of, until it ends.
func (g *Guest) follow() {
	defer close(g.died)
	defer g.endLate()
	for {
		m, err := g.updates.receive()
		if err != nil {
			return
		}
		closeAll(m.fds)
		if m.kind == kindForget {
			if f := g.take(m.num[0]); f != nil {
				g.sb.Forget(f)
			}
			continue
		}
		if m.kind == kindReply || m.kind == kindFail || m.kind == kindContinue {
			g.answer(&m)
			continue
		}
		_ = g.build(&m) // a file that cannot be written stays as it was
	}
}

// Died is closed when the host, or the connection to it, has ended. Host is its process.
func (g *Guest) Died() <-chan struct{} { return g.died }
func (g *Guest) Host() int             { return g.host }

// Close leaves the NIC. The programs must be gone.
func (g *Guest) Close() {
	for _, c := range []*conn{g.calls, g.notices, g.updates} {
		c.hangUp()
	}
	<-g.died
	for _, c := range []*conn{g.calls, g.notices, g.updates} {
		c.close()
	}
}

func (g *Guest) take(id uint64) *sandbox.File {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.files[id]
	delete(g.files, id)
	return f
}

// Open, Ioctl and Write implement sandbox.Device.
func (g *guestDevice) Open(c sandbox.Call, flags int) {
	pid := c.PID()
	limit, _ := shm.SizeLimit(pid) // unknown is none
	g.call(c, kindOpen, uint64(flags), uint64(c.TID()), uint64(pid), limit, g.num)
}

func (g *Guest) Ioctl(c sandbox.Call, f *sandbox.File, arg uint64) {
	g.call(c, kindIoctl, idOf(f), arg, uint64(c.TID()), uint64(c.PID()), uint64(c.FD()))
}

func (g *Guest) Write(c sandbox.Call, f *sandbox.File, addr, n uint64) {
	g.call(c, kindWrite, idOf(f), addr, n, uint64(c.TID()), uint64(c.PID()), uint64(c.FD()))
}

func idOf(f *sandbox.File) uint64 {
	if d, ok := f.Data.(*guestFile); ok {
		return d.id
	}
	return 0
}

// Closed and MemoryGone implement sandbox.Device.
func (g *Guest) Closed(f *sandbox.File) {
	id := idOf(f)
	g.take(id)
	g.notify(kindClosed, id)
}

func (g *Guest) MemoryGone(pid int) { g.notify(kindGone, uint64(pid)) }

// notify returns when the host has dealt with the notice, or is gone.
func (g *Guest) notify(kind byte, n uint64) {
	g.noticeMu.Lock()
	defer g.noticeMu.Unlock()
	_, _ = g.notices.ask(message{kind: kind, num: [numbers]uint64{n}})
}

// readLive reads a live file of the host's.
func (g *Guest) readLive(num uint64) (string, error) {
	g.noticeMu.Lock()
	defer g.noticeMu.Unlock()
	m, err := g.notices.ask(message{kind: kindRead, num: [numbers]uint64{num}})
	if err == nil && m.num[0] != 1 {
		err = errNoContent
	}
	return string(m.body), err
}

// errNoContent: the host could not read a file.
var errNoContent = errors.New("join: the file has no content")

// Ask brings the answer of the host's front to a question.
func (g *Guest) Ask(question []byte) ([]byte, error) {
	g.noticeMu.Lock()
	defer g.noticeMu.Unlock()
	m, err := g.notices.ask(message{kind: kindAsk, body: question})
	var answer []byte
	for {
		if err != nil {
			return nil, err
		}
		answer = append(answer, m.body...)
		if m.num[0] == 0 {
			return answer, nil
		}
		m, err = g.notices.receive()
	}
}

// call passes a call on and does what the host asks for, until it is answered. A host that dies leaves EIO; the run then
// ends anyway.
func (g *Guest) call(c sandbox.Call, kind byte, num ...uint64) {
	g.callMu.Lock()
	defer g.callMu.Unlock()
	m := message{kind: kind}
	copy(m.num[:], num)
	err := g.calls.send(m)
	for err == nil {
		if m, err = g.calls.receive(); err != nil {
			break
		}
		a := message{kind: m.kind}
		switch m.kind {
		case kindReply, kindFail, kindContinue:
			finish(c, m.kind, m.num[0])
			return
		case kindLater:
			g.later(c, m.num[0])
			return
		case kindValid:
			a.num[0] = truth(c.Valid())
		case kindNonblock:
			a.num[0] = truth(c.Nonblocking(int(m.num[0])))
		case kindSignal:
			a.num[0] = truth(c.SignalPending())
		case kindStranded:
			a.num[0] = truth(c.Stranded())
		case kindFileAt:
			if f := c.File(int(m.num[0])); f != nil {
				a.num[0] = idOf(f)
			}
		case kindInject:
			g.inject(c, &m, &a)
		case kindMemory:
			err = g.memory(c)
			continue
		default:
			err = fmt.Errorf("join: unexpected message %q", m.kind)
			closeAll(m.fds)
			continue
		}
		err = g.calls.send(a)
	}
	c.Fail(unix.EIO)
}

// patience is how often a call that is answered later looks whether its thread has a signal to handle.
const patience = 20 * time.Millisecond

// later keeps a call until it is answered, or its thread has a signal to handle or is gone.
func (g *Guest) later(c sandbox.Call, num uint64) {
	l := &lateCall{call: c, answered: make(chan struct{})}
	g.mu.Lock()
	if g.late == nil {
		g.mu.Unlock()
		c.Fail(unix.EIO)
		return
	}
	early := g.late[num]
	if early != nil {
		delete(g.late, num)
	} else {
		g.late[num] = l
	}
	g.mu.Unlock()
	if early != nil {
		finish(c, early.kind, early.value)
		return
	}
	go func() {
		t := time.NewTicker(patience)
		defer t.Stop()
		for {
			select {
			case <-l.answered:
				return
			case <-t.C:
			}
			if !c.SignalPending() && c.Valid() {
				continue
			}
			if g.abandon(num) {
				c.Fail(unix.EINTR)
			} else {
				<-l.answered
			}
			return
		}
	}()
}

// abandon asks the host to give a call up. False: it has answered.
func (g *Guest) abandon(num uint64) bool {
	g.noticeMu.Lock()
	m, err := g.notices.ask(message{kind: kindAbandon, num: [numbers]uint64{num}})
	g.noticeMu.Unlock()
	if err != nil || m.num[0] != 1 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.late, num)
	return true
}

// answer takes the answer of a late call.
func (g *Guest) answer(m *message) {
	num := m.num[1]
	g.mu.Lock()
	l := g.late[num]
	if l == nil {
		g.late[num] = &lateCall{kind: m.kind, value: m.num[0]}
	} else {
		delete(g.late, num)
	}
	g.mu.Unlock()
	if l != nil {
		finish(l.call, m.kind, m.num[0])
		close(l.answered)
	}
}

// endLate fails the calls that wait, when the host is gone.
func (g *Guest) endLate() {
	g.mu.Lock()
	all := g.late
	g.late = nil
	g.mu.Unlock()
	for _, l := range all {
		if l.call != nil {
			l.call.Fail(unix.EIO)
			close(l.answered)
		}
	}
}

// finish ends a call as the host says.
func finish(c sandbox.Call, kind byte, value uint64) {
	switch kind {
	case kindReply:
		c.Reply(int64(value))
	case kindFail:
		c.Fail(unix.Errno(value))
	default:
		c.Continue()
	}
}

// inject installs the host's file in the caller.
func (g *Guest) inject(c sandbox.Call, m, a *message) {
	if len(m.fds) != 1 || m.num[0] > uint64(sandbox.RangeCM) {
		closeAll(m.fds)
		a.num[2] = uint64(unix.EINVAL)
		return
	}
	id := m.num[2]
	g.mu.Lock() // so that follow does not look for the file before it is there
	n, f, err := c.Inject(m.fds[0], sandbox.Range(m.num[0]), m.num[1] != 0, &guestFile{id})
	if err == nil {
		id = idOf(f)
		g.files[id] = f
	}
	g.mu.Unlock()
	closeAll(m.fds)
	a.num = [numbers]uint64{uint64(n), id, uint64(errno(err))}
}

// memory opens the memory of the caller's process for the host.
func (g *Guest) memory(c sandbox.Call) error {
	a := message{kind: kindMemory}
	f, err := dma.OpenFiles(c.PID())
	if err == nil && !c.Valid() { // its number may be another's by now
		err = unix.ESRCH
	}
	defer f.Close()
	if err != nil {
		a.num[0] = uint64(unix.EPERM)
		if errors.Is(err, unix.ESRCH) {
			a.num[0] = uint64(unix.ESRCH)
		}
	} else {
		a.fds = []int{int(f.Mem.Fd()), int(f.Maps.Fd())}
	}
	return g.calls.send(a)
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
