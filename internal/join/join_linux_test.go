package join

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"rnic/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box stands for the guest's sandbox: it remembers its tree, and its programs' memory and descriptors are this process's.
type box struct {
	mu    sync.Mutex
	tree  map[string]string
	live  map[string]func() (string, error)
	dev   sandbox.Device
	gone  []*sandbox.File
	files map[int]*sandbox.File // by descriptor of "the program"
}

func newBox() *box {
	return &box{tree: map[string]string{}, live: map[string]func() (string, error){}, files: map[int]*sandbox.File{}}
}

func (b *box) set(path, what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tree[path] = what
	return nil
}

func (b *box) get(path string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tree[path]
}

func (b *box) AddDir(path string) error           { return b.set(path, "dir") }
func (b *box) AddFile(path, content string) error { return b.set(path, content) }
func (b *box) AddLive(path string, read func() (string, error)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.live[path] = read
	return nil
}

func (b *box) AddSymlink(path, target string) error { return b.set(path, "-> "+target) }
func (b *box) AddDevice(path string, major, minor uint32, d sandbox.Device) error {
	b.dev = d
	return b.set(path, fmt.Sprint(major, ":", minor))
}

func (b *box) Remove(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.tree, func(p, _ string) bool { return p == path || strings.HasPrefix(p, path+"/") })
	return nil
}

func (b *box) Forget(f *sandbox.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = append(b.gone, f)
}

// boxCall is a call of the program in the box.
type boxCall struct {
	b        *box
	invalid  bool
	value    int64
	errno    syscall.Errno
	ended    int
	calm     atomic.Bool // no signal waits
	stranded bool
	done     chan struct{} // closed with the answer, if there
}

func (c *boxCall) end() {
	c.ended++
	if c.done != nil {
		close(c.done)
	}
}

func (c *boxCall) TID() int                      { return unix.Gettid() }
func (c *boxCall) FD() int                       { return 7 }
func (c *boxCall) PID() int                      { return os.Getpid() }
func (c *boxCall) ReadMem(uint64, []byte) error  { return unix.EFAULT } // the host has its own way
func (c *boxCall) WriteMem(uint64, []byte) error { return unix.EFAULT }
func (c *boxCall) Valid() bool                   { return !c.invalid }
func (c *boxCall) Nonblocking(fd int) bool       { return fd == 7 }
func (c *boxCall) SignalPending() bool           { return !c.calm.Load() }
func (c *boxCall) Stranded() bool                { return c.stranded }
func (c *boxCall) Reply(v int64)                 { c.value = v; c.end() }
func (c *boxCall) Fail(e syscall.Errno)          { c.value, c.errno = -1, e; c.end() }
func (c *boxCall) Continue()                     { c.value = -2; c.end() }
func (c *boxCall) File(fd int) *sandbox.File     { return c.b.files[fd] }
func (c *boxCall) Inject(fd int, r sandbox.Range, closeOnExec bool, data any) (int, *sandbox.File, error) {
	if r == sandbox.RangeCM {
		return -1, nil, unix.EMFILE
	}
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	f := &sandbox.File{Data: data}
	c.b.files[n] = f
	return n, f, nil
}

// front is what the host gives a run: its calls are scripts.
type front struct {
	run    *Run
	script func(sandbox.Call)

	counters [2]atomic.Int64 // of live files

	mu     sync.Mutex
	closed []any // data of files
	gone   []int
	ended  bool
}

// play runs the script. The lock tells the race detector what comes before what: it does not know the sockets.
func (f *front) play(c sandbox.Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script(c)
}

func (f *front) Open(c sandbox.Call, flags int)                           { f.play(c) }
func (f *front) Ioctl(c sandbox.Call, file *sandbox.File, arg uint64)     { f.play(c) }
func (f *front) Write(c sandbox.Call, file *sandbox.File, addr, n uint64) { c.Reply(int64(n)) }
func (f *front) Closed(file *sandbox.File) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = append(f.closed, file.Data)
}
func (f *front) MemoryGone(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = append(f.gone, pid)
}
func (f *front) Describe(question []byte) ([]byte, error) {
	return bytes.Repeat(question, 100_000), nil
}
func (f *front) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	return nil
}

// testKey is a name of this test's alone.
func testKey() string { return fmt.Sprintf("test-%d-%d", os.Getpid(), rand.Uint32()) }

// joined is a host and one guest.
type joined struct {
	*box
	host  *Host
	guest *Guest
	front *front
}

func start(t *testing.T, q Request) *joined {
	t.Helper()
	key := testKey()
	j := &joined{box: newBox(), front: &front{}}
	var err error
	if j.host, err = Listen(key, "1"); err != nil {
		t.Fatal(err)
	}
	j.host.Serve(func(r *Run) (Front, error) {
		j.front.mu.Lock()
		defer j.front.mu.Unlock()
		j.front.run = r
		_ = r.AddDir("/sys/class/infiniband/rxe0")
		_ = r.AddFile("/sys/class/infiniband/rxe0/node_type", "1: CA\n")
		_ = r.AddSymlink("/sys/class/infiniband/link", "rxe0")
		for i := range j.front.counters {
			_ = r.AddLive(fmt.Sprint("/sys/class/infiniband/rxe0/ports/1/hw_counters/", i), func() (string, error) {
				return fmt.Sprintln(j.front.counters[i].Add(1)), nil
			})
		}
		return j.front, r.AddDevice("/dev/infiniband/uverbs0", 231, 192, j.front)
	})
	q.Version = "1"
	if j.guest, err = Dial(key, q, j.box); err != nil {
		t.Fatal(err)
	}
	j.sync()
	t.Cleanup(func() {
		j.guest.Close()
		j.host.Finish()
		j.host.Close()
		for fd := range j.files {
			unix.Close(fd)
		}
		j.sync()
		if !j.front.ended {
			t.Error("the run has ended, and its front was not closed")
		}
	})
	return j
}

// A live file tells what the host's front has when it is read; after the host's end there is nothing to read.
func TestLiveFiles(t *testing.T) {
	j := start(t, Request{})
	read := j.live["/sys/class/infiniband/rxe0/ports/1/hw_counters/1"]
	j.front.counters[1].Store(41)
	for _, want := range []string{"42\n", "43\n"} {
		if got, err := read(); got != want || err != nil {
			t.Errorf("read %q, %v, want %q", got, err, want)
		}
	}
	if n := j.front.counters[0].Load(); n != 0 {
		t.Errorf("a file that nobody has read was read %d times", n)
	}
	if m := j.front.run.readLive(2); m.num[0] != 0 || len(m.body) != 0 {
		t.Errorf("read of a file that there is not: %v %q", m.num[0], m.body)
	}
	j.guest.Close()
	if got, err := read(); err == nil {
		t.Errorf("after the end: %q", got)
	}
}

// sync waits until the host has done what it answered.
func (j *joined) sync() {
	j.front.mu.Lock()
	defer j.front.mu.Unlock()
}

// do is a call of the program, which the host answers by a script.
func (j *joined) do(call func(sandbox.Call), script func(sandbox.Call)) *boxCall {
	j.front.mu.Lock()
	j.front.script = script
	j.front.mu.Unlock()
	c := &boxCall{b: j.box}
	call(c)
	j.sync()
	return c
}

func TestCallsOfAGuest(t *testing.T) {
	for _, only := range []bool{false, true} {
		t.Run(fmt.Sprint("files only ", only), func(t *testing.T) { testCalls(t, Request{FilesOnly: only, Config: []byte("hello")}) })
	}
}

func testCalls(t *testing.T, q Request) {
	j := start(t, q)
	if got := fmt.Sprint(j.tree); got != "map[/dev/infiniband/uverbs0:231:192 /sys/class/infiniband/link:-> rxe0 /sys/class/infiniband/rxe0:dir /sys/class/infiniband/rxe0/node_type:1: CA\n]" {
		t.Errorf("tree: %s", got)
	}
	if string(j.front.run.Config()) != "hello" {
		t.Errorf("configuration %q", j.front.run.Config())
	}
	// Memory, both ways; the program is this process.
	in, out := [16]byte{3, 4, 5}, [16]byte{}
	do := func(script func(sandbox.Call)) *boxCall {
		t.Helper()
		c := j.do(func(c sandbox.Call) { j.dev.Open(c, 0) }, script)
		if c.ended != 1 {
			t.Fatalf("answered %d times", c.ended)
		}
		return c
	}
	c := do(func(c sandbox.Call) {
		var b [16]byte
		if err := c.ReadMem(uint64(uintptr(unsafe.Pointer(&in))), b[:]); err != nil {
			t.Error(err)
		}
		if err := c.WriteMem(uint64(uintptr(unsafe.Pointer(&out))), b[:]); err != nil {
			t.Error(err)
		}
		if err := c.ReadMem(8, b[:]); err != unix.EFAULT {
			t.Errorf("reading page 0: %v", err)
		}
		if err := c.WriteMem(8, b[:]); err != unix.EFAULT {
			t.Errorf("writing page 0: %v", err)
		}
		if s, err := j.front.run.Space(c); err != nil || s.PID() != os.Getpid() {
			t.Errorf("space: %v, %v", s, err)
		}
		if !c.Valid() || c.Nonblocking(3) || !c.Nonblocking(7) || !c.SignalPending() || c.PID() != os.Getpid() {
			t.Error("what the sandbox knows does not arrive")
		}
		c.Reply(42)
		c.Fail(unix.EIO) // the first counts
	})
	if c.value != 42 || c.errno != 0 || in != out {
		t.Errorf("answer %d, %v; %v", c.value, c.errno, out)
	}
	for _, stranded := range []bool{false, true} {
		ask := func(c sandbox.Call) { c.(*boxCall).stranded = stranded; j.dev.Open(c, 0) }
		j.do(ask, func(c sandbox.Call) {
			if c.Stranded() != stranded {
				t.Error("whether a program is stranded does not arrive")
			}
			c.Reply(0)
		})
	}
	if c = do(func(c sandbox.Call) { c.Fail(unix.EBUSY) }); c.errno != unix.EBUSY {
		t.Errorf("answer %v", c.errno)
	}
	if c = do(func(c sandbox.Call) { c.Continue() }); c.value != -2 {
		t.Errorf("answer %d", c.value)
	}
	// A panic costs that call alone.
	if c = do(func(sandbox.Call) { panic("test") }); c.errno != unix.EIO {
		t.Errorf("answer %v", c.errno)
	}
}

// A call may be answered later: others go on meanwhile, a signal ends it, and so does the end of the host.
func TestLateAnswers(t *testing.T) {
	j := start(t, Request{})
	open := func(c *boxCall, script func(sandbox.Call)) {
		j.front.mu.Lock()
		j.front.script = script
		j.front.mu.Unlock()
		j.dev.Open(c, 0)
		j.sync()
	}
	wait := func(c *boxCall) {
		t.Helper()
		select {
		case <-c.done:
		case <-time.After(10 * time.Second):
			t.Fatal("no answer")
		}
	}
	newCall := func(calm bool) *boxCall {
		c := &boxCall{b: j.box, done: make(chan struct{})}
		c.calm.Store(calm)
		return c
	}
	var waits sandbox.Call
	first := newCall(true)
	open(first, func(c sandbox.Call) { waits = c })
	second := newCall(true)
	open(second, func(c sandbox.Call) { c.Reply(2) })
	wait(second)
	select {
	case <-first.done:
		t.Error("answered before its time")
	default:
	}
	if !waits.Valid() {
		t.Error("a call that waits is not valid")
	}
	waits.Reply(7)
	waits.Fail(unix.EIO)
	if wait(first); first.value != 7 || second.value != 2 {
		t.Errorf("answers %d and %d", first.value, second.value)
	}
	// Answers that race with the word that they come later.
	for i := range 200 {
		c := newCall(true)
		open(c, func(c sandbox.Call) { go c.Reply(int64(i)) })
		if wait(c); c.value != int64(i) {
			t.Fatalf("answer %d to call %d", c.value, i)
		}
	}
	// Questions that race with it: they are asked before, or not at all, and never on the next call's connection.
	for i := range 50 {
		c := newCall(true)
		open(c, func(c sandbox.Call) {
			asked := make(chan bool)
			go func() {
				asked <- c.Nonblocking(7)
				for c.Nonblocking(7) {
				}
				c.Reply(int64(i))
			}()
			<-asked
		})
		if wait(c); c.value != int64(i) {
			t.Fatalf("answer %d to call %d", c.value, i)
		}
	}
	third := newCall(false)
	open(third, func(c sandbox.Call) { waits = c })
	if wait(third); third.errno != unix.EINTR {
		t.Errorf("a signal: %d, %v", third.value, third.errno)
	}
	if waits.Valid() {
		t.Error("a call that was given up is valid")
	}
	waits.Reply(1)
	last := newCall(true)
	open(last, func(c sandbox.Call) {})
	j.guest.calls.hangUp()
	if wait(last); last.errno != unix.EIO {
		t.Errorf("the host is gone: %d, %v", last.value, last.errno)
	}
	// A call of which the word that its answer comes later was the host's last.
	<-j.guest.Died()
	after := newCall(true)
	j.guest.later(after, 1<<40)
	if wait(after); after.errno != unix.EIO {
		t.Errorf("the host was gone: %d, %v", after.value, after.errno)
	}
}

func TestFilesOfAGuest(t *testing.T) {
	j := start(t, Request{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var number int
	var file *sandbox.File
	j.do(func(c sandbox.Call) { j.dev.Open(c, 0) }, func(c sandbox.Call) {
		number, file, err = c.Inject(int(w.Fd()), sandbox.RangeLow, true, "mine")
		if _, _, e := c.Inject(int(w.Fd()), sandbox.RangeCM, true, "none"); e != unix.EMFILE {
			t.Errorf("injecting where there is no room: %v", e)
		}
		if c.File(number) != file || c.File(number+1) != nil {
			t.Error("the file at a descriptor is not known")
		}
		c.Reply(0)
	})
	w.Close()
	if err != nil || file.Data != "mine" {
		t.Fatalf("inject: %d, %v, %v", number, file, err)
	}
	// The program's descriptor is the pipe's only writing end now.
	unix.Write(number, []byte("x"))
	unix.Close(number)
	if b, err := io.ReadAll(r); string(b) != "x" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	f := j.files[number]
	delete(j.files, number)
	c := j.do(func(c sandbox.Call) { j.dev.Ioctl(c, f, 0) }, func(c sandbox.Call) { c.Reply(9) })
	if c.value != 9 {
		t.Errorf("ioctl on the file: %d, %v", c.value, c.errno)
	}
	if j.dev.Write(c, f, 0, 77); c.value != 77 {
		t.Errorf("write on the file: %d, %v", c.value, c.errno)
	}
	if b, err := j.guest.Ask([]byte("what")); string(b) != strings.Repeat("what", 100_000) || err != nil {
		t.Errorf("asked: %d bytes, %v", len(b), err)
	}
	j.dev.Closed(f)
	j.dev.MemoryGone(4711)
	j.sync()
	if fmt.Sprint(j.front.closed, j.front.gone) != "[mine] [4711]" {
		t.Errorf("notices: %v %v", j.front.closed, j.front.gone)
	}
	c = &boxCall{b: j.box}
	if j.dev.Ioctl(c, f, 0); c.errno != unix.EBADF {
		t.Errorf("ioctl on a closed file: %d, %v", c.value, c.errno)
	}
}

// A guest that is stopped holds nobody up, and hears the newest when it goes on.
func TestChangesDoNotWait(t *testing.T) {
	a, b, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue(a)
	r := &Run{ready: true, updates: q, files: map[uint64]hostFile{}}
	const last = 5000
	for i := range last + 1 {
		if err := r.AddFile("/a", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		if err := r.AddFile(fmt.Sprint("/", i%7), "x"); err != nil {
			t.Fatal(err)
		}
	}
	q.mu.Lock()
	n := len(q.list)
	q.mu.Unlock()
	if n > 8 {
		t.Errorf("%d messages wait for a guest that is stopped", n)
	}
	for got := ""; got != fmt.Sprint("/a", last); {
		m, err := b.receive()
		if err != nil {
			t.Fatalf("after %s: %v", got, err)
		}
		if m.num[0] == 2 && m.body[1] == 'a' {
			got = string(m.body)
		}
	}
	// And one that never goes on does not hold up the end.
	for i := range last {
		r.Forget(&sandbox.File{Data: i})
		q.post(message{kind: kindForget, num: [numbers]uint64{uint64(i)}})
	}
	q.close()
	b.close()
}

func socketPair() (a, b *conn, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return newConn(p[0]), newConn(p[1]), err
}

// A host without descriptors says so to those that join, and lets them in when it has some again.
func TestHostWithoutDescriptors(t *testing.T) {
	key := testKey()
	h, err := Listen(key, "1")
	if err != nil {
		t.Fatal(err)
	}
	h.Serve(func(r *Run) (Front, error) { return &front{}, nil })
	limit := func(n uint64) (old unix.Rlimit) {
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: old.Max}); err != nil {
			t.Fatal(err)
		}
		return old
	}
	knock, err := socket()
	if err != nil {
		t.Fatal(err)
	}
	name, err := address(key)
	if err != nil {
		t.Fatal(err)
	}
	old := limit(3)
	err = unix.Connect(knock, name)
	time.Sleep(2 * acceptPause)
	limit(old.Cur)
	unix.Close(knock)
	if err != nil {
		t.Fatal(err)
	}
	a, b, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.send(message{kind: kindHello, fds: []int{0, 1, 2}}); err != nil {
		t.Fatal(err)
	}
	old = limit(uint64(b.fd) + 2)
	_, err = b.receive()
	limit(old.Cur)
	if !errors.Is(err, errNoDescriptors) {
		t.Errorf("passed descriptors without room: %v", err)
	}
	a.close()
	b.close()
	late := time.AfterFunc(10*time.Second, func() { panic("the host lets nobody in any more") })
	g, err := Dial(key, Request{Version: "1"}, newBox())
	if err != nil {
		t.Fatal(err)
	}
	late.Stop()
	g.Close()
	h.Finish()
	h.Close()
}

// Who connects and says nothing does not keep the NIC alive.
func TestSilentGuest(t *testing.T) {
	key := testKey()
	h, err := Listen(key, "1")
	if err != nil {
		t.Fatal(err)
	}
	h.patience = 50 * time.Millisecond
	h.Serve(func(r *Run) (Front, error) { return &front{}, nil })
	fd, _, err := connect(key)
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(10*time.Second, func() { panic("the host waits for one who says nothing") })
	for silent := newConn(fd); ; { // until it is hung up on
		if _, err := silent.receive(); err != nil {
			silent.close()
			break
		}
	}
	h.Finish()
	late.Stop()
	h.Close()
}

func TestChangesArrive(t *testing.T) {
	j := start(t, Request{})
	if err := j.front.run.AddFile("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n"); err != nil {
		t.Fatal(err)
	}
	arrives := func(path, content string) {
		t.Helper()
		for begin := time.Now(); j.get(path) != content; time.Sleep(time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatalf("a change of %s by the host has not arrived", path)
			}
		}
	}
	arrives("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n")
	if err := j.front.run.Remove("/sys/class/infiniband/rxe0"); err != nil {
		t.Fatal(err)
	}
	arrives("/sys/class/infiniband/rxe0/ports/1/state", "")
	arrives("/sys/class/infiniband/rxe0/node_type", "")
	arrives("/dev/infiniband/uverbs0", "231:192")
}

// A message to a run that does not read its standard error holds nobody up.
func TestLogDoesNotWait(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := newLog(w)
	line := bytes.Repeat([]byte("x"), 1000)
	dropped := 0
	for range 2 * logLines {
		if _, err := l.Write(line); err != nil {
			dropped++
		}
	}
	if dropped == 0 {
		t.Error("every message found room: the test shows nothing")
	}
	r.Close() // EPIPE
	l.close()
	w.Close()
}

func TestWhoMayJoin(t *testing.T) {
	key := testKey()
	if _, err := Dial(key, Request{}, newBox()); !errors.Is(err, ErrNone) {
		t.Errorf("nobody there: %v", err)
	}
	h, err := Listen(key, "1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(key, "1"); !errors.Is(err, ErrTaken) {
		t.Errorf("taken: %v", err)
	}
	keys, err := Keys()
	if err != nil || !strings.Contains(fmt.Sprint(keys), key) {
		t.Errorf("keys %v, %v", keys, err)
	}
	over := make(chan struct{})
	time.AfterFunc(20*time.Millisecond, func() { close(over) })
	if _, err := Dial(key, Request{Version: "1", Over: over}, newBox()); !errors.Is(err, ErrNone) {
		t.Errorf("a host that is not ready, and nobody waits any more: %v", err)
	}
	h.Serve(func(*Run) (Front, error) { return (*front)(nil), errors.New("for a reason") })
	if _, err := Dial(key, Request{Version: "1"}, newBox()); !errors.Is(err, ErrRefused) || !strings.HasSuffix(err.Error(), ": for a reason") {
		t.Errorf("not admitted: %v", err)
	}
	if _, err := Dial(key, Request{Version: "2"}, newBox()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "it is of rnic 1, and this is 2") {
		t.Errorf("another version: %v", err)
	}
	if _, err := Dial(key, Request{Version: "1", Config: make([]byte, maxConfig+1)}, newBox()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "fewer options") {
		t.Errorf("too much to say: %v", err)
	}
	h.Finish()
	if _, err := Dial(key, Request{Version: "1"}, newBox()); !errors.Is(err, ErrNone) {
		t.Errorf("a host that ends: %v", err)
	}
	h.Close()
	for _, bad := range []string{"", "a b", strings.Repeat("x", MaxKey+1)} {
		if _, err := Listen(bad, "1"); err == nil {
			t.Errorf("name %q was taken", bad)
		}
	}
}

// Whatever a guest sends, the host goes on: it serves the next.
func FuzzHost(f *testing.F) {
	f.Add([]byte{kindOpen, kindIoctl, kindClosed, kindGone, 0, 255}, true)
	f.Add([]byte{kindValid, kindReply}, false)
	f.Fuzz(func(t *testing.T, kinds []byte, introduce bool) {
		key := testKey()
		h, err := Listen(key, "1")
		if err != nil {
			t.Fatal(err)
		}
		h.Serve(func(r *Run) (Front, error) {
			fr := &front{script: func(c sandbox.Call) {
				var b [8]byte
				_ = c.ReadMem(0, b[:])
				c.Inject(0, sandbox.RangeLow, false, 1)
				c.File(3)
				c.Reply(0)
			}}
			return fr, r.AddDevice("/dev/infiniband/uverbs0", 231, 192, fr)
		})
		fd, _, err := connect(key)
		if err != nil {
			t.Fatal(err)
		}
		c := newConn(fd)
		if introduce {
			g := &Guest{calls: c, sb: newBox(), files: map[uint64]*sandbox.File{}}
			if err := g.introduce(key, Request{Version: "1"}); err != nil {
				t.Fatal(err)
			}
			defer g.notices.close()
			defer g.updates.close()
			for i, k := range kinds {
				m := message{kind: k, num: [numbers]uint64{uint64(i), ^uint64(0), uint64(k) << 32}, body: kinds}
				_ = g.notices.send(m)
				_ = c.send(m)
			}
		} else {
			_ = unix.Sendto(fd, kinds, unix.MSG_NOSIGNAL, nil)
		}
		c.hangUp()
		c.close()
		for h.Runs() > 0 {
			time.Sleep(100 * time.Microsecond)
		}
		g, err := Dial(key, Request{Version: "1"}, newBox())
		if err != nil {
			t.Fatalf("the next guest: %v", err)
		}
		g.Close()
		h.Finish()
		h.Close()
	})
}

// A command on a file that another thread has closed in this moment is held if it is one that waits for an event, and answered at once if it is another of its length:
// as in a run of its own (sandbox.Waits).
func TestCommandOnAClosedFile(t *testing.T) {
	j := start(t, Request{})
	closed := &sandbox.File{Data: &guestFile{1 << 40}}
	var head [16]byte // struct rdma_ucm_cmd_hdr and an address
	addr := uint64(uintptr(unsafe.Pointer(&head)))
	write := func(command byte, n uint64) (c *boxCall, held bool) {
		head[0] = command
		c = &boxCall{b: j.box, done: make(chan struct{})}
		c.calm.Store(true)
		j.dev.Write(c, closed, addr, n) // returns with the answer, or with the word that it comes later
		select {
		case <-c.done:
		default:
			held = true
		}
		return c, held
	}
	const getEvent, destroyID = 12, 1
	for what, x := range map[string]struct {
		command byte
		n       uint64
		held    bool
	}{"another command": {destroyID, 16, false}, "a command of another length": {getEvent, 24, false}, "a command that waits": {getEvent, 16, true}} {
		c, held := write(x.command, x.n)
		if <-c.done; c.errno != unix.EBADF || held != x.held {
			t.Errorf("%s: %v, held %v", what, c.errno, held)
		}
	}
}
