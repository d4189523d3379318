package engine

import (
	"sync"
	"sync/atomic"

	"rnic/internal/link"
	"rnic/internal/nic"
)

const (
	batchBytes   = 128 << 10 // bytes of one batch to send: fits a core's second-level cache
	batchPackets = 256
	recvPackets  = 256
)

// Unit is a processing unit.
type Unit struct {
	engine *Engine
	index  int
	many   bool // there are others

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
	rung    []*nic.QP    // scratch of doorbells
	handed  parcel       // packets that other units have left here, being worked through
	events  []nic.Event  // that the core has handed out and which have not been delivered
	blocked bool         // the next of them waits until the unit is alone
	touched uint64       // units that something was left with, and which have not been told
	dead    bool         // a fault has stopped it in the middle of something: see revive.go
	fault   string       // what did
	deaths  int          // of these within a moment of each other, the last at diedAt
	diedAt  int64

	sinceNet int   // steps since the last look at the network
	netAt    int64 // when something last came from there

	stages *Stages // nil: not recorded

	rings struct {
		mu    sync.Mutex
		q     []*nic.QP
		check bool // a look at itself is asked for: see selfcheck.go
		n     atomic.Int32
	}
	inbox inbox

	waking   Waking
	sleeping atomic.Bool
	wakeAt   int64        // until when the thread sleeps, if it does; guarded by mu
	lastCall atomic.Int64 // when a caller last drove the unit
	waiter   *waiter
	cores    coreWatch
	closed   atomic.Bool
	done     chan struct{}
	counters Counters
	checkup  checkup
	found    []nic.Trouble // scratch of it
}

// Counters tell what the unit did. They are read without holding it.
type Counters struct {
	Steps, Sleeps, CallerSteps atomic.Uint64
}

type source struct {
	d    Doorbells
	ring func(uint32)
}

func newUnit(e *Engine, core *nic.NIC, links Links, waking Waking) (*Unit, error) {
	u := &Unit{engine: e, index: core.Index(), many: len(core.Units()) > 1, core: core, net: links.Net, loop: links.Loop, waking: waking,
		tx: nic.NewTx(batchBytes, batchPackets), rx: make([]nic.RxPacket, 0, recvPackets),
		in: make([]link.Packet, recvPackets), out: make([]link.Packet, 0, batchPackets),
		back: make([]link.Packet, 0, batchPackets), done: make(chan struct{})}
	w, err := newWaiter(links.Net)
	if err != nil {
		return nil, err
	}
	u.waiter = w
	return u, nil
}

func (u *Unit) close() {
	if u.closed.Swap(true) {
		return
	}
	u.waiter.wake()
	<-u.done
	u.lock() // a caller that drives the unit now finishes first; later ones see that it is closed
	u.waiter.close()
	u.mu.Unlock()
}

func (u *Unit) lock() {
	u.want.Add(1)
	u.mu.Lock()
	u.want.Add(-1)
}

// Ring rings the doorbell of a queue pair of this process, and drives the unit if nobody does.
func (u *Unit) Ring(q *nic.QP) {
	if u.closed.Load() {
		return
	}
	u.leaveDoorbell(q)
	if !u.drive((*Unit).send) {
		u.kick()
	}
}

// leaveDoorbell leaves a doorbell with the unit. However often a program rings, it waits once: Rung is cleared before the
// queue is looked at.
func (u *Unit) leaveDoorbell(q *nic.QP) {
	if q.Rung.Swap(true) {
		return
	}
	u.rings.mu.Lock()
	u.rings.q = append(u.rings.q, q)
	u.rings.n.Add(1)
	u.rings.mu.Unlock()
}

// Progress drives the unit for one step if nobody else holds it, and tells whether it did.
func (u *Unit) Progress() bool { return u.drive((*Unit).whole) }

func (u *Unit) whole() { u.step(lookSometimes) }

// answer is whole for a caller who has left something with the unit. The answer may be an acknowledgement, which waits for a
// step with nothing else to do.
func (u *Unit) answer() {
	for range 2 {
		if !u.step(lookRarely) {
			break
		}
	}
}

// drive runs f for a caller, if nobody else holds the unit.
func (u *Unit) drive(f func(*Unit)) bool {
	after, drove := u.visit(f)
	if !drove {
		// Whoever holds the unit may have lost its core: to spin for it would keep it away for a
		// whole slice of the scheduler.
		yieldThread()
		return false
	}
	u.lastCall.Store(Now())
	u.counters.CallerSteps.Add(1)
	u.finish(after, true)
	return true
}

// driveOn lets a caller drive a unit with which he has left something, if nobody else holds it. What that leads to elsewhere
// is for the threads of those units: this must end.
func (u *Unit) driveOn() bool {
	after, drove := u.visit((*Unit).answer)
	if drove {
		u.finish(after, false)
	}
	return drove
}

// visit runs f if nobody else holds the unit. Whoever holds it looks once more, after it has let go, for what was left
// here meanwhile by those who could not drive.
func (u *Unit) visit(f func(*Unit)) (after aftermath, drove bool) {
	for range mostVisits {
		if !u.mu.TryLock() || !u.hold(f, &after) {
			return after, drove
		}
		drove = true
		if after.alone || !u.leftHere() {
			return after, true
		}
		f = (*Unit).send
	}
	after.wake = true // a caller has work of his own
	return after, true
}

// mostVisits is how often a caller looks again.
const mostVisits = 16

// hold runs f with the unit, which the caller has taken, and gives it back; of a panic too: whoever recovers from it must
// not find it held for ever. False: it is closed.
func (u *Unit) hold(f func(*Unit), after *aftermath) bool {
	defer u.mu.Unlock()
	if u.closed.Load() {
		return false
	}
	defer faultsPanic()()
	f(u)
	after.wake = after.wake || u.oversleeps()
	u.noteLeft(after)
	return true
}

// finish does what is left to do for a caller who has driven the unit.
func (u *Unit) finish(after aftermath, caller bool) {
	if after.wake {
		u.waiter.wake()
	}
	if u.many {
		after.do(u.engine, caller)
	}
	u.engine.revive()
}

// leftHere tells whether doorbells or packets wait that were left here.
func (u *Unit) leftHere() bool { return u.rings.n.Load() != 0 || u.many && u.inbox.n.Load() != 0 }

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

func (u *Unit) addDoorbells(d Doorbells, queuePair func(handle uint32) *nic.QP) {
	ring := func(handle uint32) {
		if q := queuePair(handle); q != nil {
			u.doorbell(Now(), q)
		}
	}
	u.lock()
	u.sources = append(u.sources, &source{d: d, ring: ring})
	u.polled.Store(int32(len(u.sources)))
	u.waiter.watch(d)
	u.mu.Unlock()
	u.kick()
}

func (u *Unit) removeDoorbells(d Doorbells) {
	u.lock()
	for i, s := range u.sources {
		if s.d == d {
			u.sources = append(u.sources[:i:i], u.sources[i+1:]...)
			u.polled.Store(int32(len(u.sources)))
			u.waiter.unwatch(d)
			break
		}
	}
	u.mu.Unlock()
}

// kick wakes the unit's thread if it sleeps.
func (u *Unit) kick() {
	if u.sleeping.Load() {
		u.waiter.wake()
	}
}
