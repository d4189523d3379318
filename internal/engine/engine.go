// Package engine runs the NIC's core over links, doorbells, memory and timers: one processing unit,
// which one OS thread drives, or, while that is better, the threads of the programs that use it.
//
// A unit is held by whoever drives it (Unit.mu). The unit's own thread drives it by default. A Go
// program that posts or polls drives it too, if nobody else does at that moment: on machines with
// few cores that saves the two changes of thread which a message costs otherwise, and the unit's
// thread then stays out of the way until the program stops polling.
package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"rnic/internal/link"
	"rnic/internal/nic"
)

// Doorbells is a source of doorbells which a unit polls: the log of one program.
type Doorbells interface {
	// Drain calls ring with the handle of every doorbell since the last call. It never blocks. It is
	// called with the unit held.
	Drain(ring func(handle uint32)) (n int)
	// Arm adds a watch of the source to the inotify descriptor, so that the next doorbell makes it
	// readable; Disarm takes it away again.
	Arm(inotify int) error
	Disarm(inotify int)
}

// Config is what a unit is made of.
type Config struct {
	Core *nic.NIC
	Net  link.Link // packets to other NICs; nil: none
	Loop link.Link // packets between queue pairs of this NIC: what is sent comes back by Recv
	// Events gets the NIC's events after each step, with the unit held: it must not block, nor call
	// back into the unit.
	Events func([]nic.Event)
	Waking Waking
}

// Waking is the policy of the unit's thread while there is nothing to do. The zero value is the
// default: spin for a short while if a core is free, else sleep.
type Waking struct {
	SpinNanos  int64 // longest spin. Default 200 us; negative: never spin
	SleepNanos int64 // longest sleep. Default 1 s, after which everything is looked at in any case
	Always     bool  // spin for ever, whatever the load: for measurements on idle machines
}

const (
	batchBytes   = 128 << 10 // bytes of one batch to send: fits a core's second-level cache
	batchPackets = 256
	recvPackets  = 256
)

// Unit is a processing unit.
type Unit struct {
	mu   sync.Mutex   // held by whoever drives the unit; guards everything down to the blank line
	want atomic.Int32 // goroutines waiting for mu: the unit's thread gives way
	core *nic.NIC
	net  link.Link
	loop link.Link

	tx      *nic.Tx
	rx      []nic.RxPacket
	in      []link.Packet // received
	out     []link.Packet // to Net
	back    []link.Packet // to Loop
	pending []link.Packet // the tail of out that Net did not take yet
	sources []*source
	polled  atomic.Int32 // len(sources), for the thread, which reads it without holding the unit
	events  func([]nic.Event)
	rung    []*nic.QP // scratch of doorbells

	sinceNet int   // steps since the last look at the network
	netAt    int64 // when something last came from there

	stages *Stages // nil: not recorded

	rings struct {
		mu sync.Mutex
		q  []*nic.QP
		n  atomic.Int32
	}

	waking   Waking
	sleeping atomic.Bool
	wakeAt   int64        // until when the thread sleeps, if it does; guarded by mu
	lastCall atomic.Int64 // when a caller last drove the unit
	waiter   *waiter
	cores    coreWatch
	closed   atomic.Bool
	done     chan struct{}
	counters Counters
}

// Counters tell what the unit did. They are read without holding it.
type Counters struct {
	Steps, Sleeps, CallerSteps atomic.Uint64
}

type source struct {
	d    Doorbells
	ring func(uint32)
}

var epoch = time.Now()

// Now is the engine's clock: monotonic nanoseconds, never 0.
func Now() int64 { return int64(time.Since(epoch)) + 1 }

// New makes a unit and starts its thread.
func New(cfg Config) (*Unit, error) {
	u := &Unit{core: cfg.Core, net: cfg.Net, loop: cfg.Loop, events: cfg.Events, waking: cfg.Waking,
		tx: nic.NewTx(batchBytes, batchPackets), rx: make([]nic.RxPacket, 0, recvPackets),
		in: make([]link.Packet, recvPackets), out: make([]link.Packet, 0, batchPackets),
		back: make([]link.Packet, 0, batchPackets), done: make(chan struct{})}
	if u.waking.SpinNanos == 0 {
		u.waking.SpinNanos = 200_000
	}
	if u.waking.SleepNanos <= 0 {
		u.waking.SleepNanos = longestSleep
	}
	w, err := newWaiter(cfg.Net)
	if err != nil {
		return nil, err
	}
	u.waiter = w
	raiseProcs()
	go u.run()
	return u, nil
}

// raiseProcs gives the Go scheduler room for the units' threads, which block in system calls and
// spin, beside the goroutines of the program.
func raiseProcs() {
	if want := runtime.NumCPU() + 4; runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
}

// Close stops the unit's thread. The links are the caller's to close.
func (u *Unit) Close() {
	if u.closed.Swap(true) {
		return
	}
	u.waiter.wake()
	<-u.done
	u.Lock() // a caller that drives the unit now finishes first; later ones see that it is closed
	u.waiter.close()
	u.Unlock()
}

// Do runs f with the unit held: a command. What f started is on its way when Do returns.
func (u *Unit) Do(f func(core *nic.NIC, now int64)) {
	defer faultsPanic()() // f may look at queues that a program shares
	defer u.kick()
	u.Lock()
	defer u.Unlock() // of a panic too: whoever recovers from it must not find the NIC held for ever
	now := Now()
	f(u.core, now)
	if !u.closed.Load() {
		u.transmit(now)
	}
	u.dispatch()
}

// Lock takes the unit. The holder may use Core.
func (u *Unit) Lock() {
	u.want.Add(1)
	u.mu.Lock()
	u.want.Add(-1)
}

// Unlock gives the unit back; kick it if there may be work.
func (u *Unit) Unlock() { u.mu.Unlock() }

// Core is the NIC. Precondition: the unit is held.
func (u *Unit) Core() *nic.NIC { return u.core }

// Drain runs the unit until it has nothing to do now: what was rung before the call has been
// fetched and started. It is how a command keeps the order of the program.
func (u *Unit) Drain() {
	defer faultsPanic()()
	defer u.kick()
	u.Lock()
	defer u.Unlock()
	for range 64 {
		if u.closed.Load() || !u.step(lookSometimes) {
			break
		}
	}
}

// Ring rings the doorbell of a queue pair of this process, and drives the unit if nobody does.
func (u *Unit) Ring(q *nic.QP) {
	if u.closed.Load() {
		return
	}
	u.rings.mu.Lock()
	u.rings.q = append(u.rings.q, q)
	u.rings.n.Store(int32(len(u.rings.q)))
	u.rings.mu.Unlock()
	if !u.drive((*Unit).send) {
		u.kick()
	}
}

// Progress drives the unit for one step if nobody else holds it, and tells whether it did. Programs that
// poll call it while there is nothing to be had.
func (u *Unit) Progress() bool { return u.drive((*Unit).whole) }

func (u *Unit) whole() { u.step(lookSometimes) }

// drive runs f if nobody else holds the unit. Whoever holds it looks for doorbells once more after it has
// let go: one who rang meanwhile could not drive.
func (u *Unit) drive(f func(*Unit)) bool {
	if !u.mu.TryLock() {
		// Whoever holds the unit may have lost its core: to spin for it would keep it away for a
		// whole slice of the scheduler.
		yieldThread()
		return false
	}
	if u.closed.Load() {
		u.mu.Unlock()
		return false
	}
	restore := faultsPanic()
	f(u)
	wake := u.oversleeps()
	u.mu.Unlock()
	for u.rings.n.Load() != 0 && !u.closed.Load() && u.mu.TryLock() {
		if !u.closed.Load() {
			u.send()
		}
		wake = u.oversleeps() || wake
		u.mu.Unlock()
	}
	restore()
	u.lastCall.Store(Now())
	if wake {
		u.waiter.wake()
	}
	u.counters.CallerSteps.Add(1)
	return true
}

// oversleeps tells whether the unit's thread sleeps beyond the time at which something that a caller
// started is due: the caller may never come back. The unit is held.
func (u *Unit) oversleeps() bool {
	return u.sleeping.Load() && (!u.core.Idle() || Now()+u.timeout() < u.wakeAt)
}

// StopPolling tells the unit that the caller goes to sleep: its thread takes over at once.
func (u *Unit) StopPolling() {
	u.lastCall.Store(0)
	u.waiter.wake()
}

// AddDoorbells adds a source of doorbells; ring gets the handles. It is watched when AddDoorbells returns.
func (u *Unit) AddDoorbells(d Doorbells, ring func(handle uint32)) {
	u.Lock()
	u.sources = append(u.sources, &source{d: d, ring: ring})
	u.polled.Store(int32(len(u.sources)))
	u.waiter.watch(d)
	u.Unlock()
	u.kick()
}

// RemoveDoorbells takes a source away.
func (u *Unit) RemoveDoorbells(d Doorbells) {
	u.Lock()
	for i, s := range u.sources {
		if s.d == d {
			u.sources = append(u.sources[:i:i], u.sources[i+1:]...)
			u.polled.Store(int32(len(u.sources)))
			u.waiter.unwatch(d)
			break
		}
	}
	u.Unlock()
}

// kick wakes the unit's thread if it sleeps.
func (u *Unit) kick() {
	if u.sleeping.Load() {
		u.waiter.wake()
	}
}

// Steps, Sleeps and CallerSteps since the start.
func (u *Unit) Counters() (steps, sleeps, callerSteps uint64) {
	return u.counters.Steps.Load(), u.counters.Sleeps.Load(), u.counters.CallerSteps.Load()
}
