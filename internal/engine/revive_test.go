package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rnic/internal/link"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// A unit dies while it holds a completion queue for which another waits, held itself: that one goes on, and the dead one is revived.
func TestDeathWithALockLetsOtherUnitsGoOn(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	a := r.end(0, nic.UC)
	b := r.beside(a, 1, nic.UC)
	a.connect(localGID, 0x777777)
	b.connect(localGID, 0x777777)
	holds, died := make(chan struct{}), false
	r.e.Do(func(core *nic.NIC, _ int64) {
		core.SetCompletionDelay(func(_ int64, qp uint32) int64 {
			if qp == b.q.Num() && !died {
				died = true
				close(holds)
				time.Sleep(100 * time.Millisecond) // the other comes to wait
				panic("a bug")
			}
			return 0
		})
	})
	b.post(ring.OpWrite, 1)
	go r.e.Ring(b.q)
	<-holds
	a.post(ring.OpWrite, 1)
	go r.e.Ring(a.q)
	done := make(chan struct{})
	go func() {
		for r.e.Health().Replaced == 0 {
			time.Sleep(time.Millisecond)
		}
		r.e.Do(func(*nic.NIC, int64) {})
		close(done)
	}()
	select {
	case <-done:
		a.completions(1)
	case <-time.After(20 * time.Second):
		panic("the units are held for ever")
	}
}

// asleep waits until the units' threads are: they would revive what a test has marked dead.
func (r *unitsRig) asleep() {
	for _, u := range r.e.units {
		for !u.sleeping.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(20 * time.Millisecond) // the last look before they sleep
}

// A unit dies with doorbells in its hands: the queue pairs are not deaf afterwards.
func TestDoorbellsOutliveADeath(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	a, b := r.end(0, nic.UC), r.end(1, nic.UC)
	r.asleep()
	r.e.Lock()
	u := r.e.units[0]
	for _, q := range []*nic.QP{a.q, b.q} { // the second has moved meanwhile
		q.Rung.Store(true)
		u.rung = append(u.rung, q)
	}
	u.dead = true
	r.e.deaths.waiting.Store(true)
	r.e.Unlock()
	r.e.revive()
	if a.q.Rung.Load() || b.q.Rung.Load() {
		t.Error("a doorbell of before the death hides all later ones")
	}
}

// A unit is revived by who drives it, while the threads sleep: what that gives another unit to do goes on, though it is more than is sent at once.
func TestRevivalWakesOtherUnits(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	b := r.end(1, nic.UC)
	b.connect(localGID, 0x777777)
	r.asleep()
	const sends = 2 * sendBatches * batchPackets
	r.e.Lock()
	b.post(ring.OpWrite, sends)
	b.q.Rung.Store(true)
	r.e.units[0].rung = append(r.e.units[0].rung, b.q) // the doorbell is in the hands of the unit that dies
	r.e.units[0].dead = true
	r.e.deaths.waiting.Store(true)
	r.e.Unlock()
	r.e.revive()
	b.completions(sends)
}

// The unit dies of an event that cannot be delivered: those behind it in the same step are delivered all the same, those before it
// once, and it itself when that goes the second time; else it is said that it is lost.
func TestEventsOutliveADeath(t *testing.T) {
	for _, c := range []struct {
		fails int
		want  string
	}{{1, "[0 1 1 2 3 fatal]"}, {2, "[0 1 1 2 3 fatal]"}} {
		r := newUnitsRig(t, []link.Link{nil})
		said, got, numbers, fails := "", []any{}, map[*nic.CQ]int{}, c.fails
		r.e.report = func(s string) { said += s }
		var ends []*unitsEnd
		for i := range 4 {
			ends = append(ends, r.end(0, nic.UC))
			ends[i].connect(localGID, 0x777777)
			numbers[ends[i].core] = i
		}
		r.asleep()
		r.e.event = func(e nic.Event) {
			if e.Type == nic.EventQPFatal {
				if len(got) < 6 {
					got = append(got, "fatal")
				}
				return
			}
			n := numbers[e.CQ]
			if got = append(got, n); n == 1 && fails > 0 {
				fails--
				panic("a bug")
			}
		}
		r.do(func(*nic.NIC, int64) error {
			for _, e := range ends {
				e.core.Arm(false)
				e.post(ring.OpWrite, 1)
			}
			return nil
		})
		r.e.Lock()
		for _, e := range ends {
			e.q.Unit().Doorbell(Now(), e.q)
		}
		r.e.Unlock()
		r.e.Drain() // takes all of them in one step, and dies
		r.e.Drain()
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("failing %d times: events of %v, want %v", c.fails, s, c.want)
		}
		if lost := strings.Contains(said, "is lost"); lost != (c.fails > 1) || !strings.Contains(said, "a bug") {
			t.Errorf("failing %d times: said %q", c.fails, said)
		}
	}
}

// A command never finds a dead unit.
func TestCommandsRevive(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	said := ""
	r.asleep()
	r.e.report = func(s string) { said = s }
	r.e.Lock()
	r.e.units[1].dead = true
	r.e.deaths.waiting.Store(true)
	r.e.Unlock()
	r.e.Do(func(*nic.NIC, int64) {
		if r.e.units[1].dead {
			t.Error("it is dead")
		}
	})
	if said == "" {
		t.Error("nothing is reported")
	}
}
