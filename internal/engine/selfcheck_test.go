package engine

import (
	"strings"
	"testing"
	"time"

	"rnic/internal/link"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// checked is Check, and returns when the units have looked at themselves.
func (r *unitsRig) checked() {
	r.t.Helper()
	r.e.Check()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		open := false
		for _, u := range r.e.units {
			open = open || u.checkup.open.Load()
		}
		if !open {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("a unit does not look at itself")
		}
	}
}

// unrung posts a write whose doorbell is never rung: nothing makes the unit look at it, but its look at itself.
func unrung(r *unitsRig) {
	a := r.end(0, nic.UC)
	a.connect(localGID, 0x777777)
	a.post(ring.OpWrite, 1)
}

// A unit that is never free looks at itself all the same: a queue pair that waits for nothing is found, told and counted.
func TestCheckOfASaturatedUnit(t *testing.T) {
	t.Parallel() // it waits
	said := ""
	r := newUnitsRig(t, []link.Link{nil})
	r.e.report = func(s string) { said += s }
	unrung(r)
	u := r.e.units[0]
	u.lock() // for good: one step follows another
	defer u.mu.Unlock()
	for i := range 3 {
		time.Sleep(min(1, time.Duration(i)) * time.Second)
		r.e.Check()
		u.step(lookRarely)
	}
	r.e.Check()
	if got := r.e.Health(); !strings.Contains(said, "waited for nothing") || got.Stalled != 1 || got.Stuck != 0 {
		t.Errorf("%+v; said %q", got, said)
	}
}

// What a program that is stopped (SIGSTOP, a debugger) has left half done is no fault.
func TestCheckForgivesStoppedPrograms(t *testing.T) {
	t.Parallel() // it waits
	r := newUnitsRig(t, []link.Link{nil})
	asked := 0
	r.e.report = func(s string) { t.Error(s) }
	r.e.stopped = func(any) bool { asked++; return true }
	unrung(r)
	for i := range 4 {
		time.Sleep(min(1, time.Duration(i)) * time.Second)
		r.checked()
	}
	if got := r.e.Health(); got.Stalled != 0 || asked != 1 {
		t.Errorf("%+v; asked %d times whether it is stopped", got, asked)
	}
}

// A unit that does not come to look at itself is told of, once; not when only one look has passed, as when all processes were stopped
// for a while; and again when it hangs again.
func TestCheckOfAStuckUnit(t *testing.T) {
	var said []string
	r := newUnitsRig(t, []link.Link{nil})
	r.e.report = func(s string) { s, _, _ = strings.Cut(s, ":"); said = append(said, s) }
	for round := 1; round <= 2; round++ {
		r.checked()
		u := r.e.units[0]
		u.lock()
		r.e.Check() // asks
		for range stuckLooks - 1 {
			r.e.Check()
		}
		if len(said) != round-1 {
			t.Errorf("round %d: told too soon: %q", round, said)
		}
		for range 2 * stuckLooks {
			r.e.Check()
		}
		u.mu.Unlock()
		if len(said) != round || !strings.Contains(said[round-1], "unit 0 has not moved") {
			t.Errorf("round %d: %q", round, said)
		}
		r.checked()
	}
	if got := r.e.Health().Stuck; got != 2 {
		t.Errorf("counted %d times", got)
	}
}
