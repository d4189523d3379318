package nic

import (
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

func (h *host) troubles(t *testing.T, now int64) (kinds []TroubleKind) {
	t.Helper()
	for _, f := range h.n.Check(now, nil) {
		kinds = append(kinds, f.Kind)
		if f.QP == nil {
			t.Errorf("trouble %d of no queue pair", f.Kind)
		}
	}
	return kinds
}

// A queue pair that nothing would ever look at again is found by the third look, and goes on. Not sooner: its program, and all others, may have
// been stopped between two of them (SIGSTOP, a machine asleep), and after that a look may come before the program has run.
func TestCheckFindsAStalledQueuePair(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 100)), b, 0))
	a.q.nic.transport.active.remove(a.q) // the fault: its turn is lost
	for i, pause := range []int64{10 * second, second / 100, second / 2, second / 2, 0} {
		found := a.h.troubles(t, w.now)
		if want := i == 4; (len(found) == 1 && found[0] == TroubleStalled) != want {
			t.Fatalf("look %d: %v", i, found)
		}
		w.now += pause
	}
	w.run(second)
	a.want(t, "1:success")
	if found := a.h.troubles(t, w.now); len(found) != 0 {
		t.Errorf("afterwards: %v", found)
	}
}

// Nothing is wrong with queue pairs that wait for something: an answer, a receive, credits, a window, their peer for ever (timeout 0).
func TestCheckLeavesWaitingQueuePairsAlone(t *testing.T) {
	for name, timeout := range map[string]uint8{"with a timeout": 20, "without": 0} {
		w, a, b := connected(t, Config{}, func(at *Attr) { at.Timeout, at.RNRRetry, at.MinRNRTimer, at.RetryCnt = timeout, 7, 31, 7 })
		w.drop = func(f frame) bool { return f.op == roce.RCAck }
		for id := range uint64(8) {
			a.post(remote(wr(id, ring.OpWrite, a.sge(0, 60000)), b, 0), wr(8+id, ring.OpSend, a.sge(0, 100)))
		}
		for range 6 {
			w.run(second / 2)
			for _, h := range w.hosts {
				if found := h.troubles(t, w.now); len(found) != 0 {
					t.Errorf("%s: %v", name, found)
				}
			}
		}
	}
}

// Storms are told once: of repeats when nothing gets through, of peers that post no receive.
func TestCheckTellsStormsOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		op   ring.SendOpcode
		lose bool
		want TroubleKind
	}{{"repeats", ring.OpWrite, true, TroubleRepeats}, {"not ready", ring.OpSend, false, TroubleNotReady}} {
		w, a, b := connected(t, Config{}, func(at *Attr) { at.RNRRetry, at.RetryCnt, at.MinRNRTimer, at.Timeout = 7, 7, 1, 8 })
		if c.lose {
			n := 0
			w.drop = func(f frame) bool { n++; return f.from == a.h && n%4 != 0 }
		}
		w.quiet = true
		said := 0
		for range 8 {
			for range 25 {
				if a.q.sq.Pending() < 8 {
					a.post(remote(wr(1, c.op, a.sge(0, 60000)), b, 0))
				}
				w.run(second / 25)
				a.poll()
			}
			for _, k := range a.h.troubles(t, w.now) {
				if k != c.want {
					t.Errorf("%s: trouble %d", c.name, k)
				}
				said++
			}
		}
		if said != 1 {
			t.Errorf("%s: said %d times", c.name, said)
		}
	}
}
