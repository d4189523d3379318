package nic

import (
	"bytes"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

func atomicWrite(id uint64, data string, to *end, off int) *ring.SendWQE {
	s := remote(wr(id, ring.OpAtomicWrite), to, off)
	s.Flags |= ring.SendInline
	s.InlineLen = copy(s.Inline[:], data)
	return s
}

func flushOf(id uint64, key uint32, va uint64, length uint32, place roce.Placement, sel roce.Selectivity) *ring.SendWQE {
	s := through(wr(id, ring.OpFlush), key, va)
	s.Flush = ring.Flush{Length: length, Type: uint8(place), Level: uint8(sel)}
	return s
}

// flushable is a region of all the end's memory that may be flushed.
func flushable(t *testing.T, e *end) *MR {
	t.Helper()
	m, err := e.h.n.RegMR(e.h.pd, e.h.mem, memBase, 1<<20, memBase, allAccess|AccessFlushGlobal)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mayFlush(a *Attr) { a.AccessFlags |= AccessFlushGlobal }

// A19.4.2: ATOMIC WRITE puts eight bytes into the peer's memory as they are, from inline data or from a
// scatter/gather list; an RDMA READ response without data answers it.
func TestAtomicWrite(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(atomicWrite(1, "abcdefgh", b, 4096), remote(wr(2, ring.OpAtomicWrite, a.sge(100, 3), a.sge(200, 5)), b, 4104))
	w.run(1e6)
	got := a.poll()
	if len(got) != 2 || got[0].Opcode != ring.WCAtomicWrite || got[0].Status != ring.StatusSuccess || got[1].Status != ring.StatusSuccess {
		t.Fatalf("completions %+v", got)
	}
	if want := "abcdefgh" + string(a.bytes(100, 3)) + string(a.bytes(200, 5)); string(b.bytes(4096, 16)) != want {
		t.Errorf("memory %q, want %q", b.bytes(4096, 16), want)
	}
	answers := 0
	for _, f := range w.log {
		p := f.packet()
		switch {
		case f.from == a.h && (f.op != roce.RCAtomicWrite || p.RETH().Length() != 8 || len(p.Payload) != 8):
			t.Errorf("request %v of %d bytes", f.op, len(p.Payload))
		case f.from == b.h && f.op == roce.RCReadResponseOnly && len(p.Payload) == 0 && p.AETH().Syndrome().Kind() == roce.SyndromeACK:
			answers++
		}
	}
	if answers != 2 {
		t.Errorf("%d answers", answers)
	}
}

// A19.4.2: an address that is not a multiple of eight is an invalid request, as is another length than eight bytes;
// a key without the right to write is a remote access error.
func TestAtomicWriteErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b *end, s *ring.SendWQE)
		want   string
	}{
		{"misaligned", func(b *end, s *ring.SendWQE) { s.RemoteAddr++ }, "1:remote invalid request error"},
		{"wrong key", func(b *end, s *ring.SendWQE) { s.RKey ^= 1 }, "1:remote access error"},
		{"beyond the region", func(b *end, s *ring.SendWQE) { s.RemoteAddr = memBase + 1<<20 }, "1:remote access error"},
		{"seven bytes", func(b *end, s *ring.SendWQE) { s.InlineLen = 7 }, "1:local length error"},
		{"sixteen bytes", func(b *end, s *ring.SendWQE) {
			s.Flags, s.NumSGE = ring.SendSignaled, 1
			s.SGE[0] = ring.SGE{Addr: memBase, Length: 16}
		}, "1:local length error"},
		{"no right at the queue pair", func(b *end, s *ring.SendWQE) { b.q.attr.AccessFlags = AccessRemoteRead }, "1:remote invalid request error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			s := atomicWrite(1, "abcdefgh", b, 4096)
			c.change(b, s)
			if s.NumSGE == 1 {
				s.SGE[0].LKey = a.h.mr.LKey()
			}
			before := bytes.Clone(b.h.mem.Mem)
			if s.InlineLen == 7 { // the ring's layout has no seven bytes: a list has
				s = remote(wr(1, ring.OpAtomicWrite, a.sge(0, 7)), b, 4096)
			}
			a.post(s)
			w.run(1e6)
			a.want(t, c.want)
			if !bytes.Equal(before, b.h.mem.Mem) {
				t.Error("memory has changed")
			}
		})
	}
}

// A packet of ATOMIC WRITE with another payload than eight bytes is an invalid request (A19.4.2).
func TestAtomicWritePayload(t *testing.T) {
	for _, n := range []int{0, 4, 9, 16} {
		w, a, b := connected(t, Config{}, nil)
		b.h.inject(b.pathFrom(a), b.fromPeer(roce.RCAtomicWrite, 100, n, reth(memBase+4096, b.h.mr.RKey(), 8)))
		w.run(1e6)
		if b.q.State() != Err || b.h.events(EventQPReqErr) != 1 {
			t.Errorf("%d bytes: state %v", n, b.q.State())
		}
	}
}

// A19.4.1, oA19-14: FLUSH is answered when all that was written before it is in memory; a range, or a region.
func TestFlushOperation(t *testing.T) {
	w, a, b := connected(t, Config{}, mayFlush)
	m := flushable(t, b)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 9000)), b, 4096), flushOf(2, m.RKey(), memBase+4096, 9000, roce.PlaceGlobal, roce.SelectRange),
		flushOf(3, m.RKey(), 0, 0, roce.PlaceGlobal, roce.SelectRegion))
	w.run(1e6)
	got := a.poll()
	if len(got) != 3 || got[1].Opcode != ring.WCFlush || got[2].Status != ring.StatusSuccess {
		t.Fatalf("completions %+v", got)
	}
	if !bytes.Equal(b.bytes(4096, 9000), a.bytes(0, 9000)) {
		t.Error("what was flushed is not there")
	}
	for _, f := range w.log {
		if p := f.packet(); f.op == roce.RCFlush && f.psn == 109 && (p.FETH().Placement() != roce.PlaceGlobal || p.RETH().Length() != 9000) {
			t.Errorf("request %+v %+v", p.FETH().Fields(), p.RETH().Fields())
		}
	}
}

// A19.4.1: FLUSH needs the rights that its placement names, at the queue pair and at the region, and the range
// must be the region's.
func TestFlushOperationErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b *end, s *ring.SendWQE)
		want   string
	}{
		{"no right at the region", func(b *end, s *ring.SendWQE) { s.RKey = b.h.mr.RKey() }, "1:remote access error"},
		{"no right at the queue pair", func(b *end, s *ring.SendWQE) { b.q.attr.AccessFlags = allAccess }, "1:remote invalid request error"},
		{"memory that outlives a loss of power", func(b *end, s *ring.SendWQE) { s.Flush.Type = uint8(roce.PlacePersistent) }, "1:remote invalid request error"},
		{"beyond the region", func(b *end, s *ring.SendWQE) { s.Flush.Length = 1<<20 + 1 }, "1:remote access error"},
		{"region, wrong key", func(b *end, s *ring.SendWQE) { s.RKey ^= 1; s.Flush.Level = 1 }, "1:remote access error"},
		{"no placement", func(b *end, s *ring.SendWQE) { s.Flush.Type = 0 }, "1:remote invalid request error"},
		{"unknown placement", func(b *end, s *ring.SendWQE) { s.Flush.Type = 5 }, "1:remote invalid request error"},
		{"unknown selectivity", func(b *end, s *ring.SendWQE) { s.Flush.Level = 2 }, "1:remote invalid request error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, mayFlush)
			s := flushOf(1, flushable(t, b).RKey(), memBase, 64, roce.PlaceGlobal, roce.SelectRange)
			c.change(b, s)
			a.post(s)
			w.run(1e6)
			a.want(t, c.want)
			if b.q.State() != Err {
				t.Errorf("state %v", b.q.State())
			}
		})
	}
}

// oA19-14, 9.7.5.1: whatever packet is lost, each ATOMIC WRITE and FLUSH completes once and is executed once: a
// duplicate is answered, and does not write again.
func TestPlacementLossOfEachPacket(t *testing.T) {
	for lose := range 12 {
		w, a, b := connected(t, Config{}, mayFlush)
		m := flushable(t, b)
		n := -1
		w.drop = func(f frame) bool {
			n++
			return n == lose
		}
		a.post(atomicWrite(1, "abcdefgh", b, 4096), flushOf(2, m.RKey(), memBase+4096, 8, roce.PlaceGlobal, roce.SelectRange),
			remote(wr(3, ring.OpFetchAdd, a.sge(0, 8)), b, 4096), atomicWrite(4, "ABCDEFGH", b, 4104), remote(wr(5, ring.OpRead, a.sge(64, 16)), b, 4096))
		w.run(10 * second)
		a.want(t, "1:success", "2:success", "3:success", "4:success", "5:success")
		if string(a.bytes(0, 8)) != "abcdefgh" || string(b.bytes(4104, 8)) != "ABCDEFGH" || !bytes.Equal(a.bytes(64, 16), b.bytes(4096, 16)) {
			t.Errorf("packet %d lost: %q found, memory %q", lose, a.bytes(0, 8), b.bytes(4096, 16))
		}
	}
}

// A duplicate of an ATOMIC WRITE does not undo what was written since (9.7.5.1).
func TestDuplicateAtomicWrite(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(atomicWrite(1, "abcdefgh", b, 4096))
	w.run(1e6)
	a.want(t, "1:success")
	var request []byte
	for _, f := range w.log {
		if f.op == roce.RCAtomicWrite {
			request = f.data
		}
	}
	copy(b.bytes(4096, 8), "changed!")
	w.log = nil
	b.h.inject(b.pathFrom(a), request)
	w.run(1e6)
	if string(b.bytes(4096, 8)) != "changed!" {
		t.Errorf("memory %q", b.bytes(4096, 8))
	}
	if len(w.log) == 0 || w.log[0].op != roce.RCReadResponseOnly || w.log[0].psn != 100 {
		t.Errorf("a duplicate is not answered: %+v", w.log)
	}
}
