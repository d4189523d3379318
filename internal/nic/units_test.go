package nic

import (
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// A bind waits for its unit to be alone. What the unit sends then is bounded, and others have more than that to
// send, again and again: the bind has its turn all the same (10.6.7.2: it is carried out in its place in the queue).
func TestBindComesAheadOfBusyQueuePairs(t *testing.T) {
	w := newWire(t, Config{Units: 2})
	h := w.hosts[0]
	busy := make([]*end, 4)
	for i := range busy {
		busy[i], _ = localPair(t, w)
	}
	a, _ := localPair(t, w)
	for i, e := range busy {
		for range 3 {
			e.post(remote(wr(uint64(i), ring.OpWrite, e.sge(0, 200<<10)), e, 1<<19))
		}
	}
	mw := newWindow(t, a, MWType2)
	a.post(mw.bind(1, bindable(t, a, 0), 4096, 64, windowAccess))
	batch := func(packets int) {
		tx := NewTx(1<<20, packets)
		h.n.Transmit(w.now, tx)
		tx.Gather.Gather()
		h.n.GatherDone(w.now, tx)
	}
	batch((len(busy)+1)*quantumPackets + 1)
	if !h.n.WantsAlone() || h.n.Idle() {
		t.Fatal("the bind does not wait behind others: the test tests nothing")
	}
	a.want(t)
	h.n.SetAlone(true)
	h.n.RunAlone(w.now)
	batch(1)
	h.n.SetAlone(false)
	a.want(t, "1:success")
	if h.n.WantsAlone() || h.n.Idle() {
		t.Error("what the others have to send is forgotten, or the bind waits again")
	}
}

// localPair is a connection between two queue pairs of the first host.
func localPair(t *testing.T, w *wire) (a, b *end) {
	h := w.hosts[0]
	a, b = h.newEnd(RC, testCap, 1023), h.newEnd(RC, testCap, 1023)
	connectEnds(t, w, a, b, nil, false)
	return a, b
}

// A packet that invalidates makes its unit wait until it is alone, and all others with it. One that is dropped in any
// case, because it does not come from the peer, must not (9.6.1).
func TestStrangersDoNotStopAUnit(t *testing.T) {
	w, a, b := connected(t, Config{Units: 2}, nil)
	mw := newWindow(t, b, MWType2)
	b.h.n.SetAlone(true)
	b.post(mw.bind(1, bindable(t, b, 0), 4096, 64, windowAccess))
	w.settle()
	b.h.n.SetAlone(false)
	b.want(t, "1:success")
	b.recv(2, b.sge(0, 64))
	a.post(invalidate(2, ring.OpSendInv, mw.mw.RKey(), a.sge(0, 8)))
	w.quiet = true
	a.h.transmit()
	if len(b.h.rx) != 1 {
		t.Fatalf("%d packets", len(b.h.rx))
	}
	rx := b.h.rx[0]
	path := rx.Path
	path.Src = b.h.addr.Next().Next()
	forged := RxPacket{Path: path, Data: rx.Data}
	if taken := b.h.n.Receive(w.now, []RxPacket{forged, forged}); taken != 2 || b.h.n.WantsAlone() {
		t.Errorf("%d of 2 packets of a stranger are taken; wants to be alone: %v", taken, b.h.n.WantsAlone())
	}
	b.h.n.MemoryDone(w.now)
	if taken := b.h.n.Receive(w.now, []RxPacket{rx}); taken != 0 || !b.h.n.WantsAlone() {
		t.Errorf("%d packets of the peer are taken, though other units may be driven", taken)
	}
	b.h.n.SetAlone(true)
	b.h.n.RunAlone(w.now)
	w.settle()
	b.want(t, "2:success")
	if b.h.n.lookupMR(mw.mw.RKey()).parent != nil {
		t.Error("the window is still bound")
	}
}

// Units share the window to an address, and cut READs so that the parts fit into theirs: several units that ask at once
// do not get more than the receiver's socket holds.
func TestReadsFitTheUnitsShare(t *testing.T) {
	const units = 4
	w, a, b := connected(t, Config{Units: units}, func(a *Attr) { a.MaxRDAtomic = 1 })
	for i := 1; i < units; i++ {
		e := a.h.newEnd(RC, testCap, 1023)
		e.to(RTS, defaultAttr(), b)
		e.q.Move(a.h.n.Units()[i])
	}
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 200<<10)), b, 0))
	a.h.tx.Reset()
	a.h.n.Transmit(w.now, a.h.tx)
	asked := uint32(0)
	for _, p := range a.h.tx.Packets {
		var d roce.Packet
		if roce.Decode(p.Data[:len(p.Data)-roce.ICRCSize], &d) == nil && d.Info.Kind == roce.KindReadRequest {
			asked += d.RETH().Length()
		}
	}
	share := a.q.req.peer.window.high / units
	if asked == 0 || asked > share {
		t.Errorf("%d bytes are asked for at once, the unit's share is %d", asked, share)
	}
}
