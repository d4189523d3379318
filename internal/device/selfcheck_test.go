package device_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/verbs"
)

// fatalOf waits for the event that a queue pair has ended by a fault of the NIC.
func fatalOf(t *testing.T, e *end) {
	t.Helper()
	for deadline := time.After(30 * time.Second); ; {
		select {
		case ev := <-e.ctx.Events():
			if ev.Type == nic.EventQPFatal && ev.QP == e.qp {
				return
			}
		case <-deadline:
			t.Fatal("no event that the queue pair has ended")
		}
	}
}

// on puts an end on a unit.
func on(t *testing.T, unit int, e *end) *end {
	t.Helper()
	if err := e.qp.MoveTo(unit); err != nil {
		t.Fatal(err)
	}
	return e
}

// A processing unit dies in the middle of its work: it is said in words, its queue pairs' programs get the fatal event (vol. 1,
// 11.6.3) and their posted receives flushed, the peer its error, queue pairs of other units go on, and new ones on the unit work.
func TestUnitThatDiesIsReplaced(t *testing.T) {
	for _, units := range []int{1, 2} {
		said := make(chan string, 8)
		a, b := twoDevices(t, func(c *device.Config) {
			if c.Name == "nic1" {
				c.Units, c.Planted, c.Report = units, nic.PlantedDeath, func(s string) { said <- s }
			}
		})
		ax, bx := newEnd(t, a), on(t, units-1, newEnd(t, b))
		connect(t, ax, bx, 0, 0)
		for range 3 {
			if _, err := bx.qp.PostRecv(&verbs.RecvWR{SGE: bx.mr.Slice(0, 8)}); err != nil {
				t.Fatal(err)
			}
		}
		ay, by := newEnd(t, a), on(t, 0, newEnd(t, b))
		connect(t, ay, by, 0, 0)
		exchange(t, ax, bx, 3)
		exchange(t, ay, by, 3)

		kill := &verbs.SendWR{Opcode: verbs.OpCompareSwap, Flags: verbs.Signaled, SGE: ax.mr.Slice(0, 8), RemoteAddr: bx.mr.Addr(0), RKey: bx.mr.RKey()}
		if _, err := ax.qp.PostSend(kill); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-said:
			if !strings.Contains(s, "processing unit") || !strings.Contains(s, "planted") {
				t.Errorf("report: %s", s)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("nothing was reported")
		}
		fatalOf(t, bx)
		for range 3 {
			if wc := bx.next(t); wc.Status != verbs.ErrFlushed {
				t.Errorf("a receive of the dead unit completes with %v", wc.Status)
			}
		}
		if a, err := bx.qp.Query(); err != nil || a.State != nic.Err {
			t.Errorf("state %v, %v", a.State, err)
		}
		if units > 1 {
			exchange(t, ay, by, 3)
		} else {
			fatalOf(t, by)
		}
		if got := b.Health().Replaced; got == 0 {
			t.Error("no unit counts as replaced")
		}
		az, bz := newEnd(t, a), on(t, units-1, newEnd(t, b))
		connect(t, az, bz, 0, 0)
		exchange(t, az, bz, 3)
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Nothing is wrong with a device in use, and what a program leaves behind is not a leak while the program lives, nor when it has ended.
func TestNothingLeaks(t *testing.T) {
	a, b := twoDevices(t, func(c *device.Config) {
		c.Report = func(s string) { t.Error(s) }
	})
	for range 3 {
		ax, bx := newEnd(t, a), newEnd(t, b)
		connect(t, ax, bx, 0, 0)
		exchange(t, ax, bx, 2)
		a.FindLeaks()
		ax.ctx.Close()
		a.FindLeaks()
		b.FindLeaks()
	}
}

// next waits for a completion of any status.
func (e *end) next(t *testing.T) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	if _, err := e.cq.Next(t.Context(), wc[:]); err != nil {
		t.Fatal(err)
	}
	return wc[0]
}
