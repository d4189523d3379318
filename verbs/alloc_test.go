package verbs_test

import (
	"testing"

	"rnic/verbs"
)

// once posts one WRITE and polls until it has completed.
func once(tb testing.TB, client *side, wr *verbs.SendWR, wc []verbs.WC) {
	if _, err := client.qp.PostSend(wr); err != nil {
		tb.Fatal(err)
	}
	for {
		n, err := client.cq.Poll(wc)
		if err != nil {
			tb.Fatal(err)
		}
		if n > 0 {
			break
		}
	}
	if wc[0].Status != verbs.StatusSuccess {
		tb.Fatal(wc[0].Err())
	}
}

func TestPostingAndPollingDoNotAllocate(t *testing.T) {
	for _, units := range []int{1, 2} {
		dev := manyUnits(t, units)
		client, server := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
		connect(client, server)
		doesNotAllocate(t, client, server)
	}
}

func doesNotAllocate(t *testing.T, client, server *side) {
	t.Helper()
	wr, wc := write(client, server, 1, 8192), make([]verbs.WC, 4)
	once(t, client, wr, wc)
	if n := testing.AllocsPerRun(1000, func() { once(t, client, wr, wc) }); n >= 1 {
		t.Errorf("%v allocations a message", n)
	}
	recv := &verbs.RecvWR{SGE: server.mr.Slice(0, 64)}
	send := &verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8)}
	message := func() {
		get(server.qp.PostRecv(recv))
		once(t, client, send, wc)
		for get(server.cq.Poll(wc)) == 0 {
		}
	}
	message()
	if n := testing.AllocsPerRun(1000, message); n >= 1 {
		t.Errorf("%v allocations a SEND and its receive", n)
	}
}

func BenchmarkWriteWithinOneNIC(b *testing.B) {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	wr, wc := write(client, server, 1, 8), make([]verbs.WC, 4)
	b.ReportAllocs()
	for b.Loop() {
		once(b, client, wr, wc)
	}
}
