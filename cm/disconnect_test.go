package cm_test

import (
	"testing"

	"rnic/cm"
	"rnic/verbs"
)

// A connection's end flushes all that was posted, on both sides, each once and in order; and who waits for a completion event on either side
// gets one.
func TestDisconnectFlushesBothSides(t *testing.T) {
	const posted = 20
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	ca, cb := a.config(""), b.config("")
	for _, c := range []struct {
		s *side
		q *verbs.QPConfig
		p *func(*verbs.QP) error
	}{{a, &ca.QP, &ca.Prepare}, {b, &cb.QP, &cb.Prepare}} {
		c.q.MaxRecv = posted
		*c.p = func(qp *verbs.QP) error {
			for id := range uint64(posted) {
				if _, err := qp.PostRecv(&verbs.RecvWR{ID: id, SGE: c.s.mr.Slice(0, 64)}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	client, server := connect(t, a, b.listen(t, cm.ListenConfig{}), b, ca, cb)
	woken := make(chan error, 2)
	for _, s := range []*side{a, b} {
		go func() { woken <- s.cq.Wait(longEnough(t)) }()
	}
	if err := client.Disconnect(); err != nil {
		t.Error(err)
	}
	ended(t, server)
	for range 2 {
		if err := <-woken; err != nil {
			t.Fatalf("who waits is not woken: %v", err)
		}
	}
	for _, s := range []*side{a, b} {
		for id := range uint64(posted) {
			if w := s.next(t); w.ID != id || w.Status != verbs.ErrFlushed {
				t.Errorf("completion %d with %v, want %d flushed", w.ID, w.Status, id)
			}
		}
		var wc [1]verbs.WC
		if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
			t.Errorf("%d more completions: %+v, %v", n, wc, err)
		}
	}
}
