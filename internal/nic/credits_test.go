package nic

import (
	"testing"

	"rnic/internal/ring"
)

// 9.7.7.2: the requester's SSN and the responder's MSN count the same messages. A READ that is asked
// for in pieces is as many messages to the responder; else the limit would move away from the SSNs
// with every such READ, until it says nothing, or nothing may be sent.
func TestReadPiecesCountAsMessages(t *testing.T) {
	for _, most := range []uint8{1, 4} {
		w, a, b := connected(t, Config{}, func(at *Attr) { at.MaxRDAtomic, at.MaxDestRDAtomic = most, most })
		drops := 0
		w.drop = func(frame) bool { drops++; return drops%97 == 50 } // resends count nothing twice
		for range 5 {
			a.post(remote(wr(1, ring.OpRead, a.sge(0, 500_000)), b, 0), remote(wr(2, ring.OpWrite, a.sge(0, 3000)), b, 0))
			w.run(second)
		}
		a.want(t, "1:success", "2:success", "1:success", "2:success", "1:success", "2:success", "1:success", "2:success", "1:success", "2:success")
		if b.q.resp.msn <= 10 {
			t.Fatalf("the READs went out whole: %d messages", b.q.resp.msn)
		}
		if a.q.req.ssn != b.q.resp.msn {
			t.Errorf("max_rd_atomic %d: SSN %d, MSN %d", most, a.q.req.ssn, b.q.resp.msn)
		}
		w.drop = nil
		for i := range 3 {
			b.recv(uint64(i), b.sge(i*100, 100))
		}
		for i := range 10 {
			a.post(wr(uint64(i), ring.OpSend, a.sge(i*100, 100)))
		}
		w.settle()
		if n := a.h.n.Stats().RNRNAKsReceived; n != 1 {
			t.Errorf("max_rd_atomic %d: %d RNR NAKs, want 1", most, n)
		}
		if n := len(a.poll()); n != 3 {
			t.Errorf("max_rd_atomic %d: %d SENDs completed", most, n)
		}
	}
}
