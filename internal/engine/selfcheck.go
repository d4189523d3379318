package engine

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"rnic/internal/nic"
)

// Health counts what the engine has found wrong with itself.
type Health struct {
	Replaced uint64 // units that died and were replaced
	Stuck    uint64 // times that a unit did not move for stuckAfter
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

// stuckAfter is how long a unit may be held without a step. A command that takes so long is one too.
const stuckAfter = 5 * time.Second

// stalledEvery is how often a unit speaks of queue pairs that wait for nothing, in nanoseconds; all are counted.
const stalledEvery = 10_000_000_000

// heartbeat is what Check has seen of a unit.
type heartbeat struct {
	steps uint64
	since time.Time // when it was first found held with so many steps; zero: it was not
	said  bool
}

// Check looks for what is wrong, and reports it. The device calls it about once a second, one call at a time.
func (e *Engine) Check() {
	for _, u := range e.units {
		if said := u.check(); said != "" && e.report != nil {
			e.report(said)
		}
	}
}

func (u *Unit) check() string {
	if u.closed.Load() {
		return ""
	}
	if !u.mu.TryLock() {
		return u.checkHeld()
	}
	u.beat = heartbeat{}
	lines := u.checkCore()
	after := u.letGo()
	if len(lines) > 0 {
		u.kick()
	}
	after.do(u.engine, false)
	return strings.Join(lines, "\n")
}

// checkCore has the core look at itself. The unit is held.
func (u *Unit) checkCore() (lines []string) {
	defer faultsPanic()() // it looks at queues that programs share
	defer u.rescue()
	if u.dead {
		return nil
	}
	u.found = u.core.Check(Now(), u.found[:0])
	lines = u.describe(u.found)
	clear(u.found)
	return lines
}

// checkHeld is of a unit that somebody drives.
func (u *Unit) checkHeld() string {
	b := &u.beat
	steps := u.counters.Steps.Load() + u.counters.CallerSteps.Load()
	if steps != b.steps || b.since.IsZero() {
		*b = heartbeat{steps: steps, since: time.Now()}
		return ""
	}
	if b.said || time.Since(b.since) < stuckAfter {
		return ""
	}
	b.said = true
	u.engine.health.stuck.Add(1)
	return fmt.Sprintf("processing unit %d has not moved for %v: all transfers of its queue pairs wait. If the machine is not overloaded, this is a fault of rnic's: please report it with the following.\n%s",
		u.index, stuckAfter, driversStacks())
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

// describe counts findings and says them in words. The unit is held.
func (u *Unit) describe(found []nic.Trouble) (lines []string) {
	h := &u.engine.health
	stalled := 0
	for _, f := range found {
		switch f.Kind {
		case nic.TroubleStalled:
			h.stalled.Add(1)
			if stalled++; stalled > 1 || Now()-u.stalledAt < stalledEvery {
				continue // a program may do that with all its queue pairs, again and again
			}
			u.stalledAt = Now()
			lines = append(lines, fmt.Sprintf("%v had work and waited for nothing; it was given a turn. This is a fault of rnic's, unless its program was stopped between filling the queue and ringing the doorbell", f.QP))
		case nic.TroubleRepeats:
			h.repeats.Add(1)
			lines = append(lines, fmt.Sprintf("retry storm: most packets of the last 3 seconds were sent before; most of them by %v to %v (%d since the last look). Packets or their acknowledgements are lost: is the peer overloaded or gone, the path MTU too large, or the link lossy?",
				f.QP, peerOf(f.QP), f.Count))
		case nic.TroubleNotReady:
			h.notReady.Add(1)
			lines = append(lines, fmt.Sprintf("RNR storm: the peer of %v, %v, has no receive posted (%d RNR NAKs since the last look): its program must post receives sooner, or more of them",
				f.QP, peerOf(f.QP), f.Count))
		}
	}
	return lines
}

func peerOf(q *nic.QP) string {
	a, _ := q.Query()
	return fmt.Sprintf("QP %#06x at %v", a.DestQPN, a.AH.DGID.Addr().Unmap())
}
