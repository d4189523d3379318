package verbs_test

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/verbs"
)

// Both sides offer selective repeat, and have it. Programs on two machines send each other the endpoints, which carry the offer.
func ExampleQP_SelectiveRepeat() {
	client, server, done := newPair(verbs.QPConfig{SelectiveRepeat: true})
	defer done()
	fmt.Println(client.qp.SelectiveRepeat(), server.qp.SelectiveRepeat())
	client.post(write(client, server, 1, 8192))
	printWC("client", client.next())
	// Output:
	// true true
	// client: work request 1: success
}

// One who offers it to one who does not gets what the specification says.
func TestSelectiveRepeatNeedsBoth(t *testing.T) {
	dev := manyUnits(t, 1)
	a, b := newSide(dev, verbs.QPConfig{SelectiveRepeat: true}), newSide(dev, verbs.QPConfig{})
	connect(a, b)
	if a.qp.SelectiveRepeat() || b.qp.SelectiveRepeat() {
		t.Error("it is on")
	}
	if _, err := a.pd.CreateQP(verbs.QPConfig{Type: verbs.UC, SendCQ: a.cq, RecvCQ: a.cq, SelectiveRepeat: true}); err == nil {
		t.Error("UC takes the offer")
	}
}

// Every operation arrives, once and in order, over a link that loses, repeats and reorders packets, in both modes; with many units
// too.
func TestOperationsUnderLoss(t *testing.T) {
	for _, spec := range []string{"drop=1%,seed=3", "drop=5%,seed=4", "drop=2%,reorder=3%:8,dup=2%,seed=5"} {
		for _, selective := range []bool{false, true} {
			for _, units := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s,selective=%v,units=%d", spec, selective, units), func(t *testing.T) {
					f, err := fault.Parse(spec)
					check(err)
					dev := verbs.Wrap(get(device.New(device.Config{Local: true, Units: units, SendFault: &f})))
					defer dev.Close()
					client, server := newSide(dev, verbs.QPConfig{SelectiveRepeat: selective}), newSide(dev, verbs.QPConfig{SelectiveRepeat: selective})
					connect(client, server)
					lossyOperations(t, client, server)
				})
			}
		}
	}
}

func lossyOperations(t *testing.T, client, server *side) {
	t.Helper()
	mr := server.bindable(1 << 17)
	mw := get(server.pd.AllocMW(verbs.MWType2))
	word := server.mr.Addr(1<<20 - 64)
	const size = 60_000
	for round := range 6 {
		for i := range size {
			client.mr.Bytes()[i] = byte(i*7 + round)
		}
		server.receive(1, 1<<18, size)
		server.receive(2, 0, 0)
		target := func(wr verbs.SendWR, off int) *verbs.SendWR {
			wr.Flags, wr.RemoteAddr, wr.RKey = verbs.Signaled, server.mr.Addr(off), server.mr.RKey()
			return &wr
		}
		add := target(verbs.SendWR{ID: 5, Opcode: verbs.OpFetchAdd, SGE: client.mr.Slice(1<<19, 8), CompareAdd: 1}, 0)
		swap := target(verbs.SendWR{ID: 6, Opcode: verbs.OpCompareSwap, SGE: client.mr.Slice(1<<19+8, 8), CompareAdd: uint64(2*round + 1), Swap: uint64(2*round + 2)}, 0)
		add.RemoteAddr, swap.RemoteAddr = word, word
		for _, wr := range []*verbs.SendWR{
			target(verbs.SendWR{ID: 0, Opcode: verbs.OpWrite, SGE: client.mr.Slice(0, size)}, 0),
			{ID: 1, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, size)},
			target(verbs.SendWR{ID: 2, Opcode: verbs.OpWriteImm, SGE: client.mr.Slice(0, size), Imm: 77}, 1<<17),
			target(verbs.SendWR{ID: 3, Opcode: verbs.OpRead, SGE: client.mr.Slice(1<<18, size)}, 0),
			target(verbs.SendWR{ID: 4, Opcode: verbs.OpRead, SGE: client.mr.Slice(1<<18+1<<17, size)}, 1<<17),
			add, swap,
			target(verbs.SendWR{ID: 7, Opcode: verbs.OpAtomicWrite, SGE: client.mr.Slice(0, 8)}, 1<<20-128),
		} {
			client.post(wr)
		}
		for id := range uint64(8) {
			if wc := client.next(); wc.Status != verbs.StatusSuccess || wc.ID != id {
				t.Fatalf("round %d: work request %d: %v, %d was to come", round, wc.ID, wc.Err(), id)
			}
		}
		for id := uint64(1); id <= 2; id++ {
			if wc := server.next(); wc.Status != verbs.StatusSuccess || wc.ID != id || wc.HasImm != (id == 2) {
				t.Fatalf("round %d: receive %+v, %d was to come", round, wc, id)
			}
		}
		for _, at := range [][]byte{server.mr.Bytes()[:size], server.mr.Bytes()[1<<18:][:size], server.mr.Bytes()[1<<17:][:size],
			client.mr.Bytes()[1<<18:][:size], client.mr.Bytes()[1<<18+1<<17:][:size]} {
			if !bytes.Equal(at, client.mr.Bytes()[:size]) {
				t.Fatalf("round %d: wrong bytes", round)
			}
		}
		windowUnderLoss(t, client, server, mr, mw)
	}
	if got := server.mr.Bytes()[1<<20-64]; got != 12 {
		t.Errorf("the word is %d after 6 additions and 6 swaps", got)
	}
}

// windowUnderLoss binds a window, writes through it, and has the peer invalidate it.
func windowUnderLoss(t *testing.T, client, server *side, mr *verbs.MR, mw *verbs.MW) {
	t.Helper()
	server.post(&verbs.SendWR{Opcode: verbs.OpBindMW, Flags: verbs.Signaled,
		Bind: &verbs.Bind{MW: mw, MR: mr, Addr: mr.Addr(0), Length: 1 << 17, Access: verbs.AccessRemoteWrite}})
	check(server.next().Err())
	key := mw.RKey()
	client.post(&verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 50_000), RemoteAddr: mr.Addr(9), RKey: key})
	server.receive(3, 0, 64)
	client.post(&verbs.SendWR{Opcode: verbs.OpSendInv, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 4), InvRKey: key})
	check(client.next().Err())
	check(client.next().Err())
	if wc := server.next(); wc.Status != verbs.StatusSuccess || !wc.HasInv || wc.InvRKey != key || !bytes.Equal(mr.Bytes()[9:50_009], client.mr.Bytes()[:50_000]) {
		t.Fatalf("%+v", wc)
	}
}
