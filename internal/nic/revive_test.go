package nic

import (
	"testing"

	"rnic/internal/ring"
)

// The unit dies between making a completion visible and the event for it: who waits for the event gets it, though nothing is left to be flushed.
func TestReviveNotifiesOfWhatIsVisible(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 100)), b, 0))
	w.run(second)
	n := a.h.n
	n.Events()
	a.q.sendCQ.Arm(false) // as if before the completion, which then was not told of
	n.SetAlone(true)
	if ended := n.Revive(w.now); ended != 1 {
		t.Errorf("%d queue pairs ended", ended)
	}
	wantEvents(t, n, EventQPFatal, EventCompletion)
	a.want(t, "1:success")
	a.q.sendCQ.Arm(false)
	if n.Revive(w.now); len(n.Events()) != 0 {
		t.Error("an event though there is nothing to be polled")
	}
}
