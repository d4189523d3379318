package engine

import (
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"rnic/internal/nic"
)

// A fault of the NIC's own in driving a unit must not end the process: other units, other programs and other NICs live there. Whoever drives
// the unit at that moment marks it dead, and, when he has let go, revives it (nic.NIC.Revive): its queue pairs go to the error state with
// events, and new ones work. What a fault in a command leaves is for the front end: the command fails.

// deaths are what is known of units that died.
type deaths struct {
	waiting  atomic.Bool // one is dead
	replaced atomic.Uint64
}

// A unit that dies again within moment, so often, cannot be helped: the process ends with the fault.
const (
	mostDeaths = 8
	moment     = 1_000_000_000
)

// rescue is deferred by what drives a unit. The unit is held.
func (u *Unit) rescue() {
	if r := recover(); r != nil {
		u.die(r)
	}
}

// die marks the unit dead of a panic, which goes on if it is one too many.
func (u *Unit) die(r any) {
	u.dead, u.fault = true, fmt.Sprintf("%v\n%s", r, debug.Stack())
	u.engine.deaths.waiting.Store(true)
	now := Now()
	if u.deaths++; now-u.diedAt > moment {
		u.deaths = 1
	}
	if u.diedAt = now; u.deaths > mostDeaths {
		panic(r)
	}
}

// runAlone has the units do what they put off until they are alone, which all of them are in: a fault there is of all of them.
func (e *Engine) runAlone(now int64) {
	defer func() {
		if r := recover(); r != nil {
			for _, u := range e.units {
				u.die(r)
			}
		}
	}()
	e.core.RunAlone(now)
}

// revive puts the units that are dead back to work. The caller holds none.
func (e *Engine) revive() {
	if e.deaths.waiting.Load() {
		e.held(func() { e.settle(Now()) })
	}
}

// reviveHeld is revive for who holds all units, and is alone: a command must not come upon what a dead unit has left. It returns
// what is to be told when they are let go.
func (e *Engine) reviveHeld() string {
	if !e.deaths.waiting.Swap(false) {
		return ""
	}
	var said []string
	for _, u := range e.units {
		if u.dead {
			said = append(said, u.revive())
		}
	}
	return strings.Join(said, "\n")
}

// tell reports, if there is something to report. Nothing is held.
func (e *Engine) tell(said string) {
	if e.report != nil && said != "" {
		e.report(said)
	}
}

// revive makes the unit anew, but for its queue pairs. It is held, and alone.
func (u *Unit) revive() string {
	fault := u.fault + u.deliverLeft()
	u.dead, u.fault = false, ""
	u.tx = nic.NewTx(batchBytes, batchPackets)
	clear(u.rx[:cap(u.rx)])
	u.rx, u.out, u.back, u.pending = u.rx[:0], u.out[:0], u.back[:0], nil
	u.handed, u.blocked, u.touched = parcel{}, false, 0
	u.inbox.empty()
	u.forgetRings()
	ended := u.core.Revive(Now())
	u.engine.deaths.replaced.Add(1)
	return fmt.Sprintf("processing unit %d has died of an internal error and was replaced; %d queue pairs went to the error state. This is a fault of rnic's: please report it with the following.\n%s",
		u.index, ended, fault)
}

// deliverLeft delivers the events that the core had handed out before the unit died. The first may be the one that it died of: one whose
// second delivery fails too is lost, and what is to be said of that is returned.
func (u *Unit) deliverLeft() (lost string) {
	deliver := func(e nic.Event) {
		defer func() {
			if r := recover(); r != nil {
				lost += fmt.Sprintf("\nan event of type %d is lost: %v", e.Type, r)
			}
		}()
		u.engine.event(e)
	}
	for ; len(u.events) > 0 && u.engine.event != nil; u.events = u.events[1:] {
		deliver(u.events[0])
	}
	return lost
}

// forgetRings lets go of the doorbells that wait, of those too that were being worked through: all queue pairs are looked at.
func (u *Unit) forgetRings() {
	for _, q := range u.rung {
		if q != nil {
			q.Rung.Store(false)
		}
	}
	u.rung = nil
	u.rings.mu.Lock()
	defer u.rings.mu.Unlock()
	for _, q := range u.rings.q {
		q.Rung.Store(false)
	}
	u.rings.q, u.rings.check = nil, false
	u.rings.n.Store(0)
	u.checkup.open.Store(false)
}

// empty throws away what was left.
func (b *inbox) empty() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filling = parcel{}
	b.n.Store(0)
}
