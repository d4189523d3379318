package uverbs

import (
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/nic"
	"rnic/internal/sandbox"
)

// removals is a tree that remembers what was taken out of it.
type removals struct {
	mu    sync.Mutex
	paths []string
}

func (*removals) AddDir(string) error                                    { return nil }
func (*removals) AddFile(string, string) error                           { return nil }
func (*removals) AddLive(string, func() (string, error)) error           { return nil }
func (*removals) AddSymlink(string, string) error                        { return nil }
func (*removals) AddDevice(string, uint32, uint32, sandbox.Device) error { return nil }
func (r *removals) Remove(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths = append(r.paths, path)
	return nil
}

// When the device is taken away its programs read IB_EVENT_DEVICE_FATAL, and then the end; unread events of objects are gone with them; commands are EIO; what is rung does
// not stay in the shared memory; and with the last close nothing is left.
func TestDeviceIsRemoved(t *testing.T) {
	p := newProgram(t, nil)
	before := openFDs(t)
	var tree removals
	if err := p.drv.AddTo(&tree); err != nil {
		t.Fatal(err)
	}
	fd, async := p.context()
	pd, ch := p.pd(fd), p.compChannel(fd)
	cq, _ := p.cq(fd, ch, 1)
	a, b := p.connected(fd, pd, cq, cq)
	p.notify(fd, cq)
	b.receive0()
	a.send0()
	if !readable(t, ch, 10*time.Second) {
		t.Fatal("no event")
	}
	p.drv.dev.Remove()
	if want := []string{"/sys/class/infiniband_verbs/uverbs0", "/sys/class/infiniband/rxe0", "/dev/infiniband/uverbs0"}; !slices.Equal(tree.paths, want) {
		t.Errorf("out of the tree went %q", tree.paths)
	}
	var e [sizeAsyncEvent]byte
	if n, err := unix.Read(async, e[:]); n != sizeAsyncEvent || nic.EventType(le.Uint32(e[8:])) != nic.EventDeviceFatal {
		t.Errorf("asynchronous event: %d bytes, %v: %x", n, err, e)
	}
	for what, fd := range map[string]int{"asynchronous events": async, "completion events": ch} {
		if n, err := unix.Read(fd, e[:]); n != 0 || err != nil {
			t.Errorf("%s: %d more bytes, %v", what, n, err)
		}
	}
	if errno := p.command(fd, cmdAllocPD, make([]byte, 8), make([]byte, 4), nil); errno != syscall.EIO {
		t.Errorf("ALLOC_PD: %v", errno)
	}
	if _, errno := p.ioctl(fd, objQP, 1, p.output(destroyResp, make([]byte, 4)), number(destroyHandle, uint64(a.handle))); errno != syscall.EIO {
		t.Errorf("destroying a queue pair: %v", errno)
	}
	late := &fakeCall{p: p}
	if p.drv.Open(late, unix.O_RDWR); late.errno != syscall.ENXIO {
		t.Errorf("opening it: %v", late.errno)
	}
	size := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	const rung = 200_000 // 32 bytes each
	for range rung {
		a.doorbell()
	}
	for begin := time.Now(); size() > rung*32/2; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%d bytes stay", size())
		}
	}
	p.close(fd)
	for _, f := range []int{async, ch} {
		delete(p.files, f)
		unix.Close(f)
	}
	if n, o := p.drv.Contexts(); n != 0 || o != 0 {
		t.Errorf("%d contexts with %d objects are left", n, o)
	}
	for begin := time.Now(); openFDs(t) != before || p.forgotten() != 2; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d descriptors are open, %d before; the sandbox was told of %d channels", openFDs(t), before, p.forgotten())
		}
	}
}

// A program may close a channel in the very moment in which its device is taken away: the sandbox is told of that channel once, and by its file.
func TestChannelIsClosedAsDeviceIsRemoved(t *testing.T) {
	p := newProgram(t, nil)
	if err := p.drv.AddTo(new(removals)); err != nil {
		t.Fatal(err)
	}
	fd, _ := p.context()
	n := p.compChannel(fd)
	ch := p.files[n].Data.(*channel)
	ch.mu.Lock() // holds up first the one that sees the close, then the other
	delete(p.files, n)
	unix.Close(n)
	const soon = 50 * time.Millisecond // for each to come so far: sooner, the test sees less
	time.Sleep(soon)
	done := make(chan struct{})
	var fault any
	go func() {
		defer close(done)
		defer func() { fault = recover() }()
		p.drv.dev.Remove()
	}()
	time.Sleep(soon)
	ch.mu.Unlock()
	<-done
	if fault != nil {
		t.Fatal(fault)
	}
	for begin := time.Now(); p.forgotten() < 2; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatal("the sandbox was not told of both channels")
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.gone, nil) || len(p.gone) != 2 {
		t.Errorf("the sandbox was told of %d files: %v", len(p.gone), p.gone)
	}
}
