package nic

import (
	"testing"

	"rnic/internal/roce"
)

// Each received packet says what became of it; the usual course has no note.
func TestNotesOfReceivedPackets(t *testing.T) {
	const other = 0x1234500
	write := func(va uint64, key, length uint32) func(*roce.OpInfo, []byte) { return reth(va, key, length) }
	for _, c := range []struct {
		name    string
		op      roce.Opcode
		psn     roce.PSN
		payload int
		set     func(e *end) func(*roce.OpInfo, []byte)
		attr    func(a *Attr)
		want    Note
	}{
		{"in order", roce.RCWriteOnly, 100, 8, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 8) }, nil, NoteNone},
		{"ahead", roce.RCWriteOnly, 102, 8, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 8) }, nil, NoteGap},
		{"again", roce.RCWriteOnly, 99, 8, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 8) }, nil, NoteDuplicate},
		{"unknown key", roce.RCWriteOnly, 100, 8, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey()+other, 8) }, nil, NoteKeyUnknown},
		{"outside", roce.RCReadRequest, 100, 0, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase-1, e.h.mr.RKey(), 8) }, nil, NoteKeyRange},
		{"no right", roce.RCWriteOnly, 100, 8, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 8) }, func(a *Attr) { a.AccessFlags = 0 }, NoteNoRight},
		{"too short for the MTU", roce.RCSendFirst, 100, 1020, nil, nil, NoteMTU},
		{"middle first", roce.RCSendMiddle, 100, 1024, nil, nil, NoteOrder},
		{"no receive", roce.RCSendOnly, 100, 8, nil, nil, NoteNoReceive},
		{"length", roce.RCWriteOnly, 100, 8, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 9) }, nil, NoteLength},
		{"unaligned", roce.RCFetchAdd, 100, 0, func(e *end) func(*roce.OpInfo, []byte) {
			return func(i *roce.OpInfo, p []byte) {
				i.AtomicETH(p).Encode(&roce.AtomicETHFields{VA: memBase + 1, RKey: e.h.mr.RKey()})
			}
		}, nil, NoteUnaligned},
		{"other transport", roce.UCSendOnly, 100, 8, nil, nil, NoteTransport},
		{"other queue pair", roce.RCSendOnly, 100, 8, func(*end) func(*roce.OpInfo, []byte) {
			return func(_ *roce.OpInfo, p []byte) { roce.BTH(p).SetDestQP(roce.BTH(p).DestQP() ^ 0x30) }
		}, nil, NoteNoQP},
		{"other partition", roce.RCSendOnly, 100, 8, func(*end) func(*roce.OpInfo, []byte) {
			return func(_ *roce.OpInfo, p []byte) { roce.BTH(p).SetPKey(0x8123) }
		}, nil, NotePKey},
		{"ghost", roce.RCAck, 5000, 0, nil, nil, NoteGhost},
		{"READ that is too large", roce.RCReadRequest, 100, 0, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 0xffffffff) }, nil, NoteTooLarge},
		{"WRITE that is too large", roce.RCWriteFirst, 100, 1024, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 0xffffffff) }, nil, NoteTooLarge},
		{"ATOMIC WRITE of 16 bytes", roce.RCAtomicWrite, 100, 8, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 16) }, nil, NoteLength},
		{"READ of long ago", roce.RCReadRequest, 99, 0, func(e *end) func(*roce.OpInfo, []byte) { return write(memBase, e.h.mr.RKey(), 8) }, nil, NoteForgotten},
		{"atomic of long ago", roce.RCFetchAdd, 99, 0, nil, nil, NoteForgotten},
		{"FLUSH to nowhere", roce.RCFlush, 100, 0, nil, nil, NotePlacement},
		{"CNP of another partition", roce.CNP, 0, 0, func(*end) func(*roce.OpInfo, []byte) {
			return func(_ *roce.OpInfo, p []byte) { roce.BTH(p).SetPKey(0x8123) }
		}, nil, NotePKey},
		{"undefined opcode", roce.RCSendOnly, 100, 8, func(*end) func(*roce.OpInfo, []byte) { return func(_ *roce.OpInfo, p []byte) { p[0] = 0x1f } }, nil, NoteMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, a, b := connected(t, Config{}, c.attr)
			var set func(*roce.OpInfo, []byte)
			if c.set != nil {
				set = c.set(b)
			}
			rx := []RxPacket{{Path: b.pathFrom(a), Data: b.fromPeer(c.op, c.psn, c.payload, set), Note: NoteOld}}
			b.h.n.Receive(1, rx)
			if rx[0].Note != c.want {
				t.Errorf("note %d %q, want %d %q", rx[0].Note, rx[0].Note, c.want, c.want)
			}
		})
	}
	for n := NoteTimeout; n < notes; n++ {
		if n != notesOfReceive && n != NoteNAK && n.String() == "" {
			t.Errorf("note %d has no words", n)
		}
	}
	if notes.String() != "" || (notes+9).String() != "" {
		t.Error("what is no note has words")
	}
}

// With selective repeat, what is wrong with a packet that was kept is not noted of the packet that fills the gap before it.
func TestNoteOfAPacketThatFillsAGap(t *testing.T) {
	_, a, b := connectedSelectively(t, Config{}, nil)
	write := func(psn roce.PSN, key uint32) RxPacket {
		return RxPacket{Path: b.pathFrom(a), Data: b.fromPeer(roce.RCWriteOnly, psn, 8, reth(memBase, key, 8))}
	}
	rx := []RxPacket{write(101, b.h.mr.RKey()+0x1234500), write(100, b.h.mr.RKey())}
	b.h.n.Receive(1, rx)
	if rx[0].Note != NoteKept || rx[1].Note != NoteNone {
		t.Errorf("notes %q and %q", rx[0].Note, rx[1].Note)
	}
	if !b.q.resp.refusing {
		t.Error("the kept packet is not refused: the test tests nothing")
	}
}
