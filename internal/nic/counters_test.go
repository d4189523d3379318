package nic

import (
	"testing"

	"rnic/internal/ring"
)

// counted has the queue pairs of a connection count.
func counted(t *testing.T) (w *wire, a, b *end) {
	t.Helper()
	w, a, b = connected(t, Config{}, func(at *Attr) { at.PathMTU = 3 })
	a.q.count, b.q.count = new(QPCounters), new(QPCounters)
	return w, a, b
}

// What a queue pair counts of every kind of request, with a packet that is lost and a receive that is late.
func TestQueuePairCounters(t *testing.T) {
	w, a, b := counted(t)
	lost := false
	w.drop = func(f frame) bool {
		drop := !lost && f.op.Info().Middle
		lost = lost || drop
		return drop
	}
	a.post(wr(1, ring.OpSend, a.sge(0, 3000)))
	w.run(1e6)
	b.recv(9, b.sge(0, 3000))
	w.run(second)
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 5000)), b, 0), remote(wr(3, ring.OpRead, a.sge(0, 2000)), b, 0),
		remote(wr(4, ring.OpFetchAdd, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:success", "3:success", "4:success")
	c, d := a.q.Counters(), b.q.Counters()
	for name, v := range map[string][2]uint64{
		"sent messages":     {c.SentMessages, 4},
		"sent bytes":        {c.SentBytes, 3000 + 5000 + 2000 + 8},
		"received messages": {d.ReceivedMessages, 2},
		"received bytes":    {d.ReceivedBytes, 3000 + 5000},
		"READs":             {d.ReadsServed, 1},
		"bytes of READs":    {d.ReadServedBytes, 2000},
		"atomics":           {d.AtomicsServed, 1},
		"RNR NAKs":          {d.RNRSent, c.RNRReceived},
		"late receives":     {d.LateReceives, d.RNRSent},
		"sequence NAKs":     {d.SeqNAKsSent, c.SeqNAKsReceived},
		"packets a":         {c.TxPackets, a.h.n.Stats().TxPackets},
		"packets b":         {d.TxPackets, b.h.n.Stats().TxPackets},
		"received packets":  {d.RxPackets, b.h.n.Stats().RxPackets},
		"retransmitted":     {c.Retransmitted, a.h.n.Stats().RetransmittedPackets},
		"failed":            {c.Failed + d.Failed + c.NAKsReceived, 0},
	} {
		if v[0] != v[1] {
			t.Errorf("%s: %d, want %d", name, v[0], v[1])
		}
	}
	if d.RNRSent == 0 || c.Retransmitted == 0 || d.SeqNAKsSent == 0 {
		t.Errorf("nothing went wrong: %+v, %+v", c, d)
	}
}

// A request that fails, and one that is refused, count at both ends.
func TestCountersOfAFailure(t *testing.T) {
	w, a, b := counted(t)
	s := remote(wr(1, ring.OpWrite, a.sge(0, 10)), b, 0)
	s.RKey ^= 1
	a.post(s, wr(2, ring.OpSend))
	w.run(second)
	a.want(t, "1:remote access error", "2:work request flushed error")
	c, d := a.q.Counters(), b.q.Counters()
	if c.Failed != 1 || c.NAKsReceived != 1 || d.NAKsSent != 1 || d.UnknownKeys != 1 || d.UnknownKey != s.RKey || c.SentMessages != 0 {
		t.Errorf("%+v\n%+v", c, d)
	}
}

// Counting allocates nothing.
func TestCountersAllocateNothing(t *testing.T) {
	w, a, b := counted(t)
	w.quiet = true
	s := remote(wr(1, ring.OpWrite, a.sge(0, 4096)), b, 0)
	for range 100 {
		cycle(w, a, s)
	}
	if n := testing.AllocsPerRun(100, func() { cycle(w, a, s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := a.q.Counters().SentMessages; n < 200 {
		t.Errorf("%d messages were counted", n)
	}
}
