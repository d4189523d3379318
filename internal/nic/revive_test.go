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

// What the unit knew of a queue pair makes no sense any more: what is posted, and what will be, is flushed as what it is.
func TestReviveOfAQueuePairInPieces(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 100)), b, 0), remote(wr(2, ring.OpWrite, a.sge(0, 100)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:success")
	w.drop = func(frame) bool { return true }
	a.post(remote(wr(3, ring.OpWrite, a.sge(0, 100)), b, 0))
	a.recv(4, a.sge(0, 100))
	w.settle()
	a.q.req.reqs = nil
	a.h.n.SetAlone(true)
	a.h.n.Revive(w.now)
	a.h.n.SetAlone(false)
	flushed := ring.StatusWRFlushErr.String()
	a.want(t, "3:"+flushed, "4:"+flushed)
	a.post(remote(wr(5, ring.OpWrite, a.sge(0, 100)), b, 0))
	a.recv(6, a.sge(0, 100))
	w.run(second)
	a.want(t, "5:"+flushed, "6:"+flushed)
}
