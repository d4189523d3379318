// Package engine runs the NIC's core over links, doorbells, memory and timers: one processing unit, or many, each
// of which one OS thread drives, or, while that is better, the threads of the programs that use it.
//
// A unit is held by whoever drives it (Unit.mu). The unit's own thread drives it by default. A Go
// program that posts or polls drives it too, if nobody else does at that moment: on machines with
// few cores that saves the two changes of thread which a message costs otherwise, and the unit's
// thread then stays out of the way until the program stops polling.
//
// A command holds all units (Engine.Do). Whoever holds one unit never waits for another: what it has for another, packets and
// doorbells, it leaves with it (handover.go), and what it can do alone only it does after it has let go (Engine.alone).
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

// Links are the links of one unit.
type Links struct {
	Net  link.Link // packets to other NICs; nil: none
	Loop link.Link // packets between queue pairs of this NIC: what is sent comes back by Recv
}

// Config is what an engine is made of.
type Config struct {
	Core  *nic.NIC // the first unit
	Links []Links  // of each unit
	// Event gets each of the NIC's events after each step, with the unit held: it must not block, nor call
	// back into the engine. It is called by one goroutine at a time. An event of which it panics it gets once more.
	Event func(nic.Event)
	// Steer tells the port which queue pairs are not of the unit that their number says (nic.NIC.HomeUnit). nil: the port
	// does not steer. It is called with the units held.
	Steer  func(moved map[uint32]int)
	Waking Waking
	// Report, if set, is told in words of what the engine finds wrong with itself. It is called with nothing held.
	Report func(string)
	// Stopped tells whether the program that has a queue pair with this nic.QP.Owner is stopped (SIGSTOP, a debugger): what it
	// has left half done is no fault then. It is called with nothing held. nil: none ever is.
	Stopped func(owner any) bool
}

// Waking is the policy of the units' threads while there is nothing to do. The zero value is the
// default: spin for a short while if a core is free, else sleep.
type Waking struct {
	SpinNanos  int64 // longest spin. Default 200 us; negative: never spin
	SleepNanos int64 // longest sleep. Default 1 s, after which everything is looked at in any case
	Always     bool  // spin for ever, whatever the load: for measurements on idle machines
}

// Engine is the processing units of one NIC.
type Engine struct {
	units []*Unit
	core  *nic.NIC
	event func(nic.Event)
	steer func(moved map[uint32]int)
	calls sync.Mutex // held while event is called, if there are many units

	atomics sync.Mutex // likewise, while atomics are performed

	report  func(string)
	stopped func(owner any) bool
	deaths  deaths
	health  health

	tap atomic.Pointer[Tap] // nil: nobody looks at the packets
}

// Tap sees the packets of all units, with what the NIC has noted of them. It is called with the unit held, by several
// threads if there are many units. What it is given is valid during the call only.
type Tap interface {
	// Sent is called before packets are sent, once their bytes are complete but for the ICRC. Dead ones are not sent.
	Sent(pkts []nic.TxPacket)
	// Received is called when the NIC has decided about packets, before it sends something on account of them.
	Received(pkts []nic.RxPacket)
}

// SetTap has t see the packets from now on; nil ends that. After SetTap returns, no earlier tap is called any more.
func (e *Engine) SetTap(t Tap) {
	e.Lock()
	defer e.Unlock()
	if t == nil {
		e.tap.Store(nil)
		return
	}
	e.tap.Store(&t)
}

var epoch = time.Now()

// Now is the engine's clock: monotonic nanoseconds, never 0.
func Now() int64 { return int64(time.Since(epoch)) + 1 }

// New makes the units and starts their threads.
func New(cfg Config) (*Engine, error) {
	e := &Engine{core: cfg.Core, event: cfg.Event, steer: cfg.Steer, report: cfg.Report, stopped: cfg.Stopped}
	if cfg.Waking.SpinNanos == 0 {
		cfg.Waking.SpinNanos = 200_000
	}
	if cfg.Waking.SleepNanos <= 0 {
		cfg.Waking.SleepNanos = longestSleep
	}
	for i, core := range cfg.Core.Units() {
		var links Links
		if i < len(cfg.Links) {
			links = cfg.Links[i]
		}
		u, err := newUnit(e, core, links, cfg.Waking)
		if err != nil {
			for _, u := range e.units {
				u.waiter.close()
			}
			return nil, err
		}
		e.units = append(e.units, u)
	}
	raiseProcs(len(e.units))
	for _, u := range e.units {
		go u.run()
	}
	return e, nil
}

// raiseProcs gives the Go scheduler room for the units' threads, which block in system calls and
// spin, beside the goroutines of the program.
func raiseProcs(units int) {
	if want := runtime.NumCPU() + 3 + units; runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
}

// many tells whether there is more than one unit.
func (e *Engine) many() bool { return len(e.units) > 1 }

// Close stops the units' threads. The links are the caller's to close.
func (e *Engine) Close() {
	for _, u := range e.units {
		u.close()
	}
}

// Lock takes all units. The holder may use Core, and the cores of all units.
func (e *Engine) Lock() {
	for _, u := range e.units {
		u.lock()
	}
}

// Unlock gives the units back.
func (e *Engine) Unlock() {
	for _, u := range e.units {
		u.mu.Unlock()
	}
}

// Core is the NIC's first unit. Precondition: the units are held.
func (e *Engine) Core() *nic.NIC { return e.core }

// Do runs f with the units held: a command. What f started is on its way when Do returns.
func (e *Engine) Do(f func(core *nic.NIC, now int64)) {
	e.command(func() {
		now := Now()
		f(e.core, now)
		e.settle(now)
	})
}

// command runs f with the units held, which the core knows, and none of them dead. One that dies of it is revived.
func (e *Engine) command(f func()) {
	defer e.revive()
	e.held(f)
}

// held is command without what follows: a unit that dies again while it is revived waits for the next who comes.
func (e *Engine) held(f func()) {
	defer faultsPanic()() // f may look at queues that a program shares
	defer e.kick()
	var said string
	defer func() { e.tell(said) }()
	e.Lock()
	defer e.Unlock() // of a panic too: whoever recovers from it must not find the NIC held for ever
	defer e.core.SetAlone(false)
	e.core.SetAlone(true)
	said = e.reviveHeld()
	f()
}

// settle has the units do what they had put off until they are alone, and sends what they have to send. The units are
// held, and the core knows it.
func (e *Engine) settle(now int64) {
	if e.many() {
		e.runAlone(now)
	}
	for range settleRounds {
		left := false
		for _, u := range e.units {
			if u.closed.Load() {
				continue
			}
			u.settle(now)
		}
		for _, u := range e.units {
			u.touched = 0
			left = left || u.leftHere()
		}
		if !left {
			break
		}
	}
}

// settleRounds bounds the rounds in which units that are held together answer each other: their threads go on.
const settleRounds = 4

func (u *Unit) settle(now int64) {
	defer u.rescue()
	if u.dead {
		return
	}
	u.blocked = false
	if u.many {
		u.doorbells(now)
		for u.receiveHanded(now) {
		}
	}
	u.transmit(now)
	u.dispatch()
}

// alone is a command of the units themselves.
func (e *Engine) alone() { e.Do(func(*nic.NIC, int64) {}) }

// Drain runs the units until they have nothing to do now: what was rung before the call has been
// fetched and started. It is how a command keeps the order of the program.
func (e *Engine) Drain() {
	e.command(func() {
		for range drainRounds {
			worked := false
			for _, u := range e.units {
				worked = !u.closed.Load() && u.step(lookSometimes) || worked
			}
			if e.many() {
				e.settle(Now())
			}
			if !worked {
				break
			}
		}
	})
}

// drainRounds bounds the rounds of a drain: peers and programs may always have more to do.
const drainRounds = 64

// Move makes q one of another unit, whose index must be that of one. moved is called, with the units held, if that is
// a change. What has arrived at other units goes to the new one before anything that arrives there, and what q has sent
// leaves before anything that it sends there.
func (e *Engine) Move(q *nic.QP, unit int, moved func(from int)) {
	for try := 0; ; try++ {
		waits := false
		e.Do(func(core *nic.NIC, now int64) {
			from := e.units[q.UnitIndex()]
			if from.index == unit {
				return
			}
			// After that the network takes nothing at all: what is late is lost like any packet.
			if waits = !from.flushPending() && try < moveTries; waits {
				return
			}
			e.move(core, q, unit, now)
			moved(from.index)
		})
		if !waits {
			return
		}
		time.Sleep(movePause)
	}
}

// A move waits for a full link so often, and so long.
const (
	moveTries = 100
	movePause = 500 * time.Microsecond
)

func (e *Engine) move(core *nic.NIC, q *nic.QP, unit int, now int64) {
	e.drainInboxes(now)
	q.Move(core.Units()[unit])
	if e.steer != nil {
		list := map[uint32]int{}
		core.Moved(func(num uint32, unit int) { list[num] = unit })
		e.steer(list)
	}
	for _, u := range e.units {
		if u.index != unit {
			e.drainNet(u, now)
		}
	}
	e.drainNet(e.units[unit], now)
}

// drainInboxes deals with everything that units have left with each other. They are held.
func (e *Engine) drainInboxes(now int64) {
	for worked := true; worked; {
		worked = false
		for _, u := range e.units {
			u.blocked = false // nobody else drives
			worked = u.receiveHanded(now) || worked
		}
	}
}

// drainNet deals with what has arrived at a unit, before the inboxes of others overflow.
func (e *Engine) drainNet(u *Unit, now int64) {
	for range moveBatches {
		if u.net == nil || !u.receive(u.net, now) {
			return
		}
		e.drainInboxes(now)
	}
}

// moveBatches bounds what is taken from a unit's socket when a queue pair moves: it hardly holds more.
const moveBatches = 64

// Ring rings the doorbell of a queue pair of this process, and drives its unit if nobody does.
func (e *Engine) Ring(q *nic.QP) { e.units[q.UnitIndex()].Ring(q) }

// Progress drives the units of a set (their indices) for one step, as far as nobody else holds them, and tells whether it
// drove one. Programs that poll call it while there is nothing to be had.
func (e *Engine) Progress(set uint64) bool {
	if !e.many() {
		return e.units[0].Progress()
	}
	drove := false
	for _, u := range e.units {
		if set>>u.index&1 != 0 {
			drove = u.Progress() || drove
		}
	}
	return drove
}

// StopPolling tells the units that the caller goes to sleep: their threads take over at once.
func (e *Engine) StopPolling() {
	for _, u := range e.units {
		u.StopPolling()
	}
}

// AddDoorbells adds a source of doorbells to a unit; queuePair tells which queue pair a handle stands for, nil if none. The
// source is watched when AddDoorbells returns.
func (e *Engine) AddDoorbells(unit int, d Doorbells, queuePair func(handle uint32) *nic.QP) {
	e.units[unit].addDoorbells(d, queuePair)
}

// RemoveDoorbells takes a source away, wherever it is.
func (e *Engine) RemoveDoorbells(d Doorbells) {
	for _, u := range e.units {
		u.removeDoorbells(d)
	}
}

// kick wakes those threads that sleep though there may be work.
func (e *Engine) kick() {
	for _, u := range e.units {
		u.kick()
	}
}

// Counters are the sums of the units': steps, sleeps and callers' steps since the start.
func (e *Engine) Counters() (steps, sleeps, callerSteps uint64) {
	for _, u := range e.units {
		steps += u.counters.Steps.Load()
		sleeps += u.counters.Sleeps.Load()
		callerSteps += u.counters.CallerSteps.Load()
	}
	return steps, sleeps, callerSteps
}

// HandoverDrops counts the packets that were lost because the unit that they were for had no room for what others left with it.
func (e *Engine) HandoverDrops() (n uint64) {
	for _, u := range e.units {
		n += u.inbox.lost.Load()
	}
	return n
}

// Record has the units keep the stages of their messages in s; nil ends that.
func (e *Engine) Record(s *Stages) {
	e.Lock()
	for _, u := range e.units {
		u.stages = s
	}
	e.Unlock()
}
