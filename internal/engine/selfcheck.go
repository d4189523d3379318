package engine

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"rnic/internal/nic"
)

// Health counts what the engine has found wrong with itself.
type Health struct {
	Replaced uint64 // units that died and were replaced
	Stuck    uint64 // times that a unit did not move for stuckLooks
	Stalled  uint64 // queue pairs that had work and that nothing would have looked at: they were given a turn
	Repeats  uint64 // storms of repeats
	NotReady uint64 // storms of RNR NAKs
}

// health is Health, counted.
type health struct{ stuck, stalled, repeats, notReady atomic.Uint64 }

// Health reads the counters.
func (e *Engine) Health() Health {
	h := &e.health
	return Health{e.deaths.replaced.Load(), h.stuck.Load(), h.stalled.Load(), h.repeats.Load(), h.notReady.Load()}
}

// stuckLooks is how many looks in a row find a unit that has not looked at itself since it was asked: about so many seconds. A command
// that takes so long is one too. They are counted, not timed: when the process was stopped, or the machine asleep, one look has passed.
const stuckLooks = 5

// stalledEvery is how often a unit speaks of queue pairs that wait for nothing, in nanoseconds; all are counted.
const stalledEvery = 10_000_000_000

// checkup is a unit's look at itself. Check asks for it, with the doorbells (rings.check), and whoever drives the unit next carries it out:
// a unit that is never free is looked at too, and one that hangs does not take with it who looks.
type checkup struct {
	open  atomic.Bool // asked for and not done yet
	mu    sync.Mutex
	found []finding
	// What follows is Check's own.
	late      int   // looks since it was asked for
	stalledAt int64 // when it last spoke of a queue pair that waited for nothing
}

// finding is a nic.Trouble in words, as it was when the unit was held.
type finding struct {
	kind  nic.TroubleKind
	owner any // of the queue pair
	line  string
}

// Check tells what the units have found wrong with themselves since the last call, reports it, and asks them to look again. The device
// calls it about once a second, one call at a time. It waits for no unit.
func (e *Engine) Check() {
	for _, u := range e.units {
		if !u.closed.Load() {
			e.tell(strings.Join(u.check(), "\n"))
		}
	}
}

func (u *Unit) check() []string {
	c := &u.checkup
	if c.open.Load() {
		if c.late++; c.late != stuckLooks {
			return nil
		}
		u.engine.health.stuck.Add(1)
		return []string{fmt.Sprintf("processing unit %d has not moved for %d seconds: all transfers of its queue pairs wait. If the machine is not overloaded, this is a fault of rnic's: please report it with the following.\n%s",
			u.index, stuckLooks, driversStacks())}
	}
	c.late = 0
	c.mu.Lock()
	found := c.found
	c.found = nil
	c.mu.Unlock()
	u.askCheckup()
	return u.count(found)
}

// askCheckup leaves the request with the unit. One that sleeps is looked at here, and not woken.
func (u *Unit) askCheckup() {
	u.checkup.open.Store(true)
	if u.sleeping.Load() && u.mu.TryLock() {
		wake := u.checkAsleep()
		u.mu.Unlock()
		if wake {
			u.kick()
		}
		return
	}
	u.rings.mu.Lock()
	u.rings.check = true
	u.rings.n.Add(1)
	u.rings.mu.Unlock()
	u.kick()
}

// checkAsleep is doCheckup for who drives nothing. It tells whether there is something to do for the unit's thread. The unit is held.
func (u *Unit) checkAsleep() (wake bool) {
	defer faultsPanic()() // it looks at queues that programs share
	defer u.rescue()
	wake = true // of a death too
	if u.dead {
		return wake
	}
	u.doCheckup(Now())
	return len(u.found) > 0
}

// doCheckup has the core look at itself. The unit is held.
func (u *Unit) doCheckup(now int64) {
	u.found = u.core.Check(now, u.found[:0])
	if len(u.found) > 0 {
		c := &u.checkup
		c.mu.Lock()
		for _, f := range u.found {
			c.found = append(c.found, finding{f.Kind, f.QP.Owner, words(f)})
		}
		c.mu.Unlock()
		clear(u.found)
	}
	u.checkup.open.Store(false)
}

// driversStacks are the stacks of the goroutines that are in a unit or in a command.
func driversStacks() string {
	buf := make([]byte, 1<<20)
	var own []string
	for _, s := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(s, "rnic/internal/engine.(*") && !strings.Contains(s, "driversStacks") {
			own = append(own, s)
		}
	}
	return strings.Join(own[:min(len(own), 8)], "\n\n")
}

// count counts findings, and returns what is to be said of them.
func (u *Unit) count(found []finding) (lines []string) {
	h := &u.engine.health
	spoken := false
	for _, f := range found {
		switch f.kind {
		case nic.TroubleStalled:
			if u.engine.stopped != nil && u.engine.stopped(f.owner) {
				continue // between filling the queue and ringing the doorbell
			}
			h.stalled.Add(1)
			if spoken || Now()-u.checkup.stalledAt < stalledEvery && u.checkup.stalledAt != 0 {
				continue // a program may do that with all its queue pairs, again and again
			}
			u.checkup.stalledAt, spoken = Now(), true
		case nic.TroubleRepeats:
			h.repeats.Add(1)
		case nic.TroubleNotReady:
			h.notReady.Add(1)
		}
		lines = append(lines, f.line)
	}
	return lines
}

// words says a finding in words. The unit is held.
func words(f nic.Trouble) string {
	switch f.Kind {
	case nic.TroubleRepeats:
		return fmt.Sprintf("retry storm: most packets of the last 3 seconds were sent before; most of them by %v to %v (%d since the last look). Packets or their acknowledgements are lost: is the peer overloaded or gone, the path MTU too large, or the link lossy?",
			f.QP, peerOf(f.QP), f.Count)
	case nic.TroubleNotReady:
		return fmt.Sprintf("RNR storm: the peer of %v, %v, has no receive posted (%d RNR NAKs since the last look): its program must post receives sooner, or more of them",
			f.QP, peerOf(f.QP), f.Count)
	}
	return fmt.Sprintf("%v had work and waited for nothing; it was given a turn. This is a fault of rnic's, unless its program was kept from running between filling the queue and ringing the doorbell", f.QP)
}

func peerOf(q *nic.QP) string {
	a, _ := q.Query()
	return fmt.Sprintf("QP %#06x at %v", a.DestQPN, a.AH.DGID.Addr().Unmap())
}
