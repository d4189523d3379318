package ring

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

func drawSGE(t *rapid.T, sge []SGE, room int) int {
	n := rapid.IntRange(0, min(MaxSGE, room/SGESize)).Draw(t, "entries")
	for i := range n {
		sge[i] = SGE{rapid.Uint64().Draw(t, "addr"), rapid.Uint32().Draw(t, "length"), rapid.Uint32().Draw(t, "lkey")}
	}
	return n
}

// What the user-mode driver stores, the NIC loads.
func TestWorkRequestsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]uint32{224, 256, 512, 720, 1024}).Draw(t, "element size")
		g, err := GeometryFor(3, size)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Format(make([]byte, g.Size()), g)
		if err != nil {
			t.Fatal(err)
		}
		room := q.ElemSize() - SendWQESize
		pos := rapid.Uint32().Draw(t, "position")
		u32 := func(label string) uint32 { return rapid.Uint32().Draw(t, label) }
		w := SendWQE{WRID: rapid.Uint64().Draw(t, "id"), Opcode: SendOpcode(u32("opcode")), Flags: SendFlags(u32("flags")), Imm: u32("imm")}
		w.Opcode = min(w.Opcode, OpAtomicWrite)
		ud := rapid.Bool().Draw(t, "UD")
		switch {
		case ud:
			w.RemoteQPN, w.RemoteQKey, w.PKeyIndex, w.AHNum = u32("qpn")&0xffffff, u32("qkey"), uint16(u32("pkey")), u32("ah")
		case w.Opcode == OpCompareSwap || w.Opcode == OpFetchAdd:
			w.RemoteAddr, w.RKey = rapid.Uint64().Draw(t, "addr"), u32("rkey")
			w.CompareAdd, w.Swap = rapid.Uint64().Draw(t, "compare"), rapid.Uint64().Draw(t, "swap")
		case w.Opcode == OpBindMW || w.Opcode == OpLocalInv:
			w.Bind = Bind{Addr: rapid.Uint64().Draw(t, "addr"), Length: rapid.Uint64().Draw(t, "length"), LKey: u32("lkey"),
				MWKey: u32("window"), RKey: u32("rkey"), Access: u32("access")}
		case w.Opcode == OpFlush:
			w.RemoteAddr, w.RKey = rapid.Uint64().Draw(t, "addr"), u32("rkey")
			w.Flush = Flush{u32("length"), uint8(u32("type")), uint8(u32("level"))}
		default:
			w.RemoteAddr, w.RKey = rapid.Uint64().Draw(t, "addr"), u32("rkey")
		}
		switch {
		case !ud && (w.Opcode == OpBindMW || w.Opcode == OpLocalInv || w.Opcode == OpFlush):
			w.Flags &^= SendInline // they have no message
		case !ud && w.Opcode == OpAtomicWrite:
			w.Flags |= SendInline
			w.InlineLen = 8
			copy(w.Inline[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "data"))
		case w.Flags&SendInline != 0:
			w.InlineLen = rapid.IntRange(0, min(room, MaxInline)).Draw(t, "inline")
			copy(w.Inline[:w.InlineLen], rapid.SliceOfN(rapid.Byte(), w.InlineLen, w.InlineLen).Draw(t, "data"))
		default:
			w.NumSGE = drawSGE(t, w.SGE[:], room)
		}
		q.StoreSend(pos, &w, ud)
		var got SendWQE
		if bad, err := q.LoadSend(pos, &got, ud); bad || err != nil || got != w {
			t.Fatalf("got %+v, %v, %v, want %+v", got, bad, err, w)
		}

		r := RecvWQE{WRID: w.WRID}
		r.NumSGE = drawSGE(t, r.SGE[:], q.ElemSize()-RecvWQESize)
		q.StoreRecv(pos, &r)
		var back RecvWQE
		if bad, err := q.LoadRecv(pos, &back); bad || err != nil || back != r {
			t.Fatalf("got %+v, %v, %v, want %+v", back, bad, err, r)
		}
	})
}

// A count beyond what the element holds cannot be meant, and nothing is read beyond the element.
func TestCountsBeyondTheElement(t *testing.T) {
	for _, c := range []struct {
		name   string
		size   int
		flags  SendFlags
		off    int
		value  uint32
		bad    bool
		inline int
	}{
		{"one entry fits", 224, 0, swNumSGE, 1, false, 0},
		{"the element of 256 has room for 3", 224, 0, swNumSGE, 3, false, 0},
		{"but not for 4", 224, 0, swNumSGE, 4, true, 0},
		{"32 entries", 720, 0, swNumSGE, 32, false, 0},
		{"33 entries", 1 << 12, 0, swNumSGE, 33, true, 0},
		{"2^32-1 entries", 720, 0, swNumSGE, 1<<32 - 1, true, 0},
		{"48 bytes inline", 224, SendInline, swDMALen, 48, false, 48},
		{"49 bytes inline", 224, SendInline, swDMALen, 49, true, 0},
		{"only resid is set", 224, SendInline, swDMALen + 4, 48, false, 48},
		{"only resid is set, too much", 224, SendInline, swDMALen + 4, 49, true, 0},
		{"512 bytes inline", 720, SendInline, swDMALen, 512, false, 512},
		{"513 bytes inline", 720, SendInline, swDMALen, 513, true, 0},
		{"2^32-1 bytes inline", 720, SendInline, swDMALen, 1<<32 - 1, true, 0},
		{"inline looks at no entries", 224, SendInline, swNumSGE, 100, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := queueOf(t, 1, c.size)
			e := q.elem(0)
			binary.LittleEndian.PutUint32(e[swFlags:], uint32(c.flags))
			binary.LittleEndian.PutUint32(e[c.off:], c.value)
			var w SendWQE
			bad, err := q.LoadSend(0, &w, false)
			if bad != c.bad || err != nil || w.InlineLen != c.inline {
				t.Errorf("got bad %v, %d bytes inline, %v", bad, w.InlineLen, err)
			}
		})
	}
	q := queueOf(t, 1, 100) // elements of 128: 5 entries of a receive
	for n, want := range map[uint32]bool{0: false, 5: false, 6: true, 33: true, 1<<32 - 1: true} {
		binary.LittleEndian.PutUint32(q.elem(0)[rwNumSGE:], n)
		var r RecvWQE
		if bad, err := q.LoadRecv(0, &r); bad != want || err != nil || bad && r.NumSGE != 0 {
			t.Errorf("receive of %d entries: got bad %v with %d entries, %v", n, bad, r.NumSGE, err)
		}
	}
	if bad, _ := queueOf(t, 1, 64).LoadSend(0, new(SendWQE), false); !bad {
		t.Error("a send from elements of 64 bytes")
	}
}

// Any bytes whatever: no panic, counts within bounds, contents those of the element.
func FuzzLoadSend(f *testing.F) {
	f.Add([]byte{}, uint8(0), false)
	q := queueOf(f, 1, 720)
	w := SendWQE{WRID: 1, Opcode: OpWriteImm, NumSGE: 32}
	q.StoreSend(0, &w, false)
	f.Add(append([]byte(nil), q.elem(0)...), uint8(2), false)
	w = SendWQE{WRID: 1, Opcode: OpSend, Flags: SendInline, InlineLen: 512}
	q.StoreSend(0, &w, true)
	f.Add(append([]byte(nil), q.elem(0)...), uint8(2), true)
	f.Fuzz(func(t *testing.T, raw []byte, log2 uint8, ud bool) {
		g := Geometry{Slots: 2, ElemLog2: 8 + log2%4}
		q, err := Format(make([]byte, g.Size()), g)
		if err != nil {
			t.Fatal(err)
		}
		e := q.elem(1)
		copy(e, raw)
		var w SendWQE
		bad, err := q.LoadSend(1, &w, ud)
		if err != nil {
			t.Fatal(err)
		}
		inline := w.Flags&SendInline != 0
		if bad {
			if w.NumSGE != 0 || w.InlineLen != 0 {
				t.Fatalf("%d entries and %d bytes of a bad request", w.NumSGE, w.InlineLen)
			}
			return
		}
		if inline && w.NumSGE != 0 || !inline && w.InlineLen != 0 || w.RemoteQPN > 0xffffff {
			t.Fatalf("%d entries and %d bytes inline, to queue pair %#x", w.NumSGE, w.InlineLen, w.RemoteQPN)
		}
		room := len(e) - SendWQESize
		if w.NumSGE > MaxSGE || w.NumSGE*SGESize > room || w.InlineLen > MaxInline || w.InlineLen > room {
			t.Fatalf("%d entries and %d bytes inline in %d bytes", w.NumSGE, w.InlineLen, room)
		}
		if string(w.Inline[:w.InlineLen]) != string(e[SendWQESize:SendWQESize+w.InlineLen]) {
			t.Fatal("inline data is not the element's")
		}
		for i, s := range w.SGE[:w.NumSGE] {
			b := e[SendWQESize+i*SGESize:]
			if s != (SGE{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}) {
				t.Fatalf("entry %d is not the element's", i)
			}
		}
	})
}

func FuzzLoadRecv(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, raw []byte, log2 uint8) {
		g := Geometry{Slots: 2, ElemLog2: 6 + log2%5}
		q, err := Format(make([]byte, g.Size()), g)
		if err != nil {
			t.Fatal(err)
		}
		copy(q.elem(1), raw)
		var r RecvWQE
		bad, err := q.LoadRecv(1, &r)
		if err != nil || r.NumSGE < 0 || r.NumSGE > MaxSGE || RecvWQESize+r.NumSGE*SGESize > q.ElemSize() || bad && r.NumSGE != 0 {
			t.Fatalf("%d entries in %d bytes, bad %v, %v", r.NumSGE, q.ElemSize(), bad, err)
		}
	})
}

func TestLoadsDoNotAllocate(t *testing.T) {
	q := queueOf(t, 3, 720)
	var w SendWQE
	var r RecvWQE
	if allocs := testing.AllocsPerRun(100, func() {
		_, err := q.LoadSend(q.Position(), &w, false)
		_, err2 := q.LoadRecv(q.Position(), &r)
		if err != nil || err2 != nil || q.Consume() != nil || q.Publish() != nil || q.Pending() > 3 || q.Free() > 3 {
			t.Error("an access failed")
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The stock provider's ibv_wr_atomic_write leaves the flags and the number of entries alone and puts eight
// bytes where the entries would be (dma.atomic_wr of rdma_user_rxe.h).
func TestAtomicWriteOfTheStockProvider(t *testing.T) {
	for _, room := range []uint32{0, 16} {
		g, err := GeometryFor(1, SendWQESize+room)
		if err != nil {
			t.Fatal(err)
		}
		g.ElemLog2 = 8
		q, err := Format(make([]byte, g.Size()), g)
		if err != nil {
			t.Fatal(err)
		}
		e := q.elem(0)
		clear(e)
		binary.LittleEndian.PutUint32(e[swOpcode:], uint32(OpAtomicWrite))
		copy(e[swSGE:], "12345678")
		var w SendWQE
		if bad, err := q.LoadSend(0, &w, false); bad || err != nil || string(w.Inline[:w.InlineLen]) != "12345678" || w.Flags&SendInline == 0 {
			t.Errorf("room of %d bytes: %v, %v, inline %q, flags %#x", room, bad, err, w.Inline[:w.InlineLen], w.Flags)
		}
	}
}
