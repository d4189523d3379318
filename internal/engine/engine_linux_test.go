//go:build !plain

package engine

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/link/udp"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
	"rnic/internal/testnet"
)

// bell is a doorbell source as the log of a program is one: a file that is written to.
type bell struct {
	file  *os.File
	queue atomic.Int64
	watch atomic.Int64
}

func newBell(t *testing.T) *bell {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "bell"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &bell{file: f}
}

// push rings: first what the NIC finds, then the write that wakes it.
func (b *bell) push(t *testing.T) {
	b.queue.Add(1)
	if _, err := b.file.WriteAt([]byte{1}, 0); err != nil {
		t.Error(err)
	}
}

func (b *bell) Drain(ring func(uint32)) int {
	n := b.queue.Swap(0)
	for range n {
		ring(7)
	}
	return int(n)
}

func (b *bell) Arm(inotify int) error {
	wd, err := unix.InotifyAddWatch(inotify, b.file.Name(), unix.IN_MODIFY)
	b.watch.Store(int64(wd))
	return err
}

func (b *bell) Disarm(inotify int) { _, _ = unix.InotifyRmWatch(inotify, uint32(b.watch.Load())) }

// idle lets the unit fall asleep, or catches it on the way: for a random moment.
func idle(r *rand.Rand) {
	switch r.IntN(4) {
	case 0:
	case 1:
		runtime.Gosched()
	default:
		time.Sleep(time.Duration(r.IntN(150)) * time.Microsecond)
	}
}

// Doorbells of another program, at random moments around the unit's falling asleep.
func TestDoorbellSourceWakesTheUnit(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	b := newBell(t)
	rung := make(chan uint32, 64)
	r.u.AddDoorbells(0, b, func(handle uint32) *nic.QP { rung <- handle; return nil })
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 4000 {
		idle(random)
		b.push(t)
		select {
		case h := <-rung:
			if h != 7 {
				t.Fatalf("handle %d, want 7", h)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("round %d: the doorbell is not heard", i)
		}
	}
	if _, sleeps, _ := r.u.Counters(); sleeps < 100 {
		t.Errorf("the unit slept %d times only: the test shows nothing", sleeps)
	}
	r.u.RemoveDoorbells(b)
	b.push(t)
	r.u.Drain()
	if len(rung) != 0 {
		t.Error("a source that was removed was drained")
	}
}

// A source that is added while the unit sleeps, with a doorbell that was rung before.
func TestDoorbellBeforeTheSourceIsAdded(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	for range 50 {
		b := newBell(t)
		b.push(t)
		rung := make(chan uint32, 1)
		r.u.AddDoorbells(0, b, func(handle uint32) *nic.QP { rung <- handle; return nil })
		select {
		case <-rung:
		case <-time.After(20 * time.Second):
			t.Fatal("the doorbell is not heard")
		}
		r.u.RemoveDoorbells(b)
	}
}

// inotify(7): a watch that is taken away leaves the event IN_IGNORED. With the last source gone the
// unit must still be able to sleep.
func TestNothingKeepsTheUnitAwakeAfterTheLastSource(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	b := newBell(t)
	r.u.AddDoorbells(0, b, func(uint32) *nic.QP { return nil })
	r.u.RemoveDoorbells(b)
	r.u.Lock()
	defer r.u.Unlock()
	r.u.units[0].waiter.arm(r.u.units[0].sources) // as before every sleep
	p := []unix.PollFd{{Fd: int32(r.u.units[0].waiter.inotify), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); n != 0 || err != nil {
		t.Errorf("the descriptor that the unit sleeps on is ready for ever: %d, %v", n, err)
	}
}

// unwatchable is a source beyond the system's limit of watches (fs.inotify.max_user_watches).
type unwatchable struct{ *bell }

func (unwatchable) Arm(int) error { return unix.ENOSPC }
func (unwatchable) Disarm(int)    {}

func TestDoorbellOfASourceThatCannotBeWatched(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	b := unwatchable{newBell(t)}
	rung := make(chan uint32, 1)
	r.u.AddDoorbells(0, b, func(handle uint32) *nic.QP { rung <- handle; return nil })
	for range 20 {
		b.push(t)
		select {
		case <-rung:
		case <-time.After(20 * time.Second):
			t.Fatal("the doorbell is not heard")
		}
	}
	r.u.RemoveDoorbells(b)
}

// A command that panics, in a front end that recovers, leaves the NIC to the others.
func TestPanicInACommandLetsTheUnitGo(t *testing.T) {
	r := newRig(t, nil, Waking{}, localGID)
	func() {
		defer func() { _ = recover() }()
		r.u.Do(func(*nic.NIC, int64) { panic("a bug") })
	}()
	done := make(chan struct{})
	go func() {
		r.u.Do(func(*nic.NIC, int64) {})
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		r.u.Unlock() // so that the clean-up can end
		t.Fatal("the unit is held for ever")
	}
}

// A goroutine of this process rings and does not poll: it waits for the completion event.
func TestRingAndWait(t *testing.T) {
	for name, waking := range map[string]Waking{"sleeping": {SpinNanos: -1, SleepNanos: anHour}, "default": {SleepNanos: anHour}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, waking, localGID)
			random := rand.New(rand.NewPCG(2, 2))
			for i := range 1500 {
				idle(random)
				r.arm()
				// Sometimes more than one step can send: the rest is the thread's.
				n, size := 1+random.IntN(8), 1<<12
				if i%16 == 0 {
					size = 1 << 18
				}
				for k := range n {
					r.post(uint64(i*10+k), 1+random.IntN(size))
				}
				r.u.Ring(r.qp)
				for got := 0; got < n; {
					e, ok := r.poll()
					if !ok {
						r.event("completion")
						r.arm()
						continue
					}
					if e.Status != ring.StatusSuccess || e.WRID != uint64(i*10+got) {
						t.Fatalf("round %d: completion of %d: %v", i, e.WRID, e.Status)
					}
					got++
				}
			}
		})
	}
}

// A command starts something and its caller goes away: a queue pair in error flushes.
func TestCommandWakesTheUnit(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	time.Sleep(5 * time.Millisecond)
	r.arm()
	r.post(1, 8)
	r.u.Do(func(core *nic.NIC, now int64) {
		if err := core.Modify(now, r.qp, &nic.Attr{State: nic.Err}, nic.AttrState); err != nil {
			t.Error(err)
		}
	})
	r.event("flush")
	if e, ok := r.poll(); !ok || e.Status != ring.StatusWRFlushErr {
		t.Errorf("completion %v, %v; want a flushed one", e.Status, ok)
	}
}

// The caller that has posted never comes back, and the peer does not answer: the unit's thread has
// to notice the timer which that caller started.
func TestTimerWakesTheUnit(t *testing.T) {
	a, _ := networkLinks(t)
	r := newRig(t, a, Waking{SpinNanos: -1, SleepNanos: anHour}, roce.GIDFromAddr(netip.MustParseAddr("2001:db8::1")))
	for range 20 { // the thread is asleep for an hour
		if _, sleeps, _ := r.u.Counters(); sleeps > 0 && r.u.units[0].sleeping.Load() {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.arm()
	time.Sleep(5 * time.Millisecond)
	r.post(1, 8)
	r.u.Ring(r.qp)
	r.event("local ACK timeout")
	if e, ok := r.poll(); !ok || e.Status != ring.StatusRetryExcErr {
		t.Errorf("completion %v, %v; want transport retry counter exceeded", e.Status, ok)
	}
}

// networkLinks are two links over UDP on loopback addresses of this process.
func networkLinks(t *testing.T) (a, b *udp.Link) {
	t.Helper()
	open := func(n byte) *udp.Link {
		l, err := udp.Open(udp.Config{Addrs: []netip.Addr{loopback(n)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	return open(1), open(2)
}

func loopback(n byte) netip.Addr { return testnet.Loopback(140, n) }

// Many goroutines ring at once while others poll: no doorbell is lost between whoever drives.
func TestDoorbellsOfManyGoroutines(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	var post sync.Mutex
	const each, workers = 400, 4
	var done sync.WaitGroup
	left := make(chan struct{}, 64) // room of the send queue
	for w := range workers {
		done.Go(func() {
			for i := range each {
				left <- struct{}{}
				post.Lock()
				r.post(uint64(w*each+i), 64)
				post.Unlock()
				r.u.Ring(r.qp)
			}
		})
	}
	seen := make([]bool, workers*each)
	r.arm()
	for got := 0; got < len(seen); {
		e, ok := r.poll()
		if !ok {
			r.event("completion")
			r.arm()
			continue
		}
		if e.Status != ring.StatusSuccess || seen[e.WRID] {
			t.Fatalf("completion of %d: %v, seen before: %v", e.WRID, e.Status, seen[e.WRID])
		}
		seen[e.WRID] = true
		got++
		<-left
	}
	done.Wait()
}

// A caller that polls drives the unit itself; what it asks for happens on its own thread.
func TestCallerDrivesTheUnit(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	_, _, before := r.u.Counters()
	for i := range 200 {
		r.post(uint64(i), 4096)
		r.u.Ring(r.qp)
		for {
			if e, ok := r.poll(); ok {
				if e.Status != ring.StatusSuccess {
					t.Fatal(e.Status)
				}
				break
			}
			r.u.Progress(1)
		}
	}
	if _, _, after := r.u.Counters(); after-before < 150 { // its own thread may come first now and then
		t.Errorf("callers drove the unit %d times in 200 posts", after-before)
	}
}

// Drain: what was rung before is started, so that a command does not overtake it.
func TestDrainRunsWhatWasRung(t *testing.T) {
	r := newRig(t, nil, Waking{SpinNanos: -1, SleepNanos: anHour}, localGID)
	b := newBell(t)
	r.u.AddDoorbells(0, b, func(uint32) *nic.QP { return r.qp })
	for i := range 300 {
		r.post(uint64(i), 8)
		b.push(t)
		r.u.Drain()
		if e, ok := r.poll(); !ok || e.WRID != uint64(i) || e.Status != ring.StatusSuccess {
			t.Fatalf("round %d: completion %v of %d, %v", i, e.Status, e.WRID, ok)
		}
	}
}

func TestCloseWithWorkInFlight(t *testing.T) {
	for range 30 {
		r := newRig(t, nil, Waking{}, localGID)
		for i := range 500 {
			r.post(uint64(i), 1<<19)
		}
		var callers sync.WaitGroup
		for range 2 {
			callers.Go(func() {
				for range 200 {
					r.u.Ring(r.qp)
					r.u.Progress(1)
					r.u.StopPolling()
				}
			})
		}
		r.u.Close()
		r.u.Close()
		callers.Wait()
		// All of these are harmless on a closed unit.
		r.u.Ring(r.qp)
		if r.u.Progress(1) {
			t.Fatal("a closed unit makes progress")
		}
		r.u.StopPolling()
		r.u.Drain()
		r.u.Do(func(*nic.NIC, int64) {})
	}
}
