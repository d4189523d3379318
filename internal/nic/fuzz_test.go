package nic

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// guarded is a connection whose second end has a small region in the middle of its memory: nothing
// else of it may ever change. The first end has requests of every kind outstanding.
func guarded(t fatalTB) (w *wire, a, b *end, check func()) {
	w = newWire(t, Config{}, Config{})
	a, b = w.hosts[0].newEnd(RC, testCap, 1023), w.hosts[1].newEnd(RC, testCap, 1023)
	a.to(RTS, defaultAttr(), b)
	b.to(RTS, defaultAttr(), a)
	var before [2][]byte
	for i, e := range []*end{a, b} {
		_ = e.h.mr.Dereg()
		var err error
		if e.h.mr, err = e.h.n.RegMR(e.h.pd, e.h.mem, memBase+4096, 4096, memBase+4096, allAccess|AccessMWBind|AccessFlushGlobal); err != nil {
			t.Fatalf("%v", err)
		}
		if e.mw, err = e.h.n.AllocMW(e.h.pd, MWType2); err != nil {
			t.Fatalf("%v", err)
		}
		if !e.q.bind(&ring.Bind{Addr: memBase + 4096, Length: 1000, LKey: e.h.mr.LKey(), MWKey: e.mw.RKey(), Access: uint32(bindRights)}) {
			t.Fatalf("the window cannot be bound")
		}
		for k := range 8 {
			e.recv(uint64(k), e.sge(4096+k*100, 100), e.sge(8000, 10))
		}
		before[i] = bytes.Clone(e.h.mem.Mem)
	}
	w.drop = func(f frame) bool { return true } // only the fuzzer's packets arrive
	a.post(wr(1, ring.OpSend, a.sge(4096, 100)), remote(wr(2, ring.OpWrite, a.sge(4096, 3000)), b, 4096),
		remote(wr(3, ring.OpRead, a.sge(4096, 3000)), b, 4096), remote(wr(4, ring.OpFetchAdd, a.sge(4096, 8)), b, 4096))
	w.settle()
	return w, a, b, func() {
		for i, e := range []*end{a, b} {
			m := e.h.mem.Mem
			if !bytes.Equal(m[:4096], before[i][:4096]) || !bytes.Equal(m[8192:], before[i][8192:]) {
				t.Fatalf("memory outside the region has changed")
			}
			seen := 0
			for _, c := range e.poll() {
				if c.QPN != e.q.Num() || c.Status > ring.StatusGeneralErr {
					t.Fatalf("completion %+v", c)
				}
				seen++
			}
			if seen > 4+8 {
				t.Fatalf("%d completions", seen)
			}
		}
	}
}

// inputs turns fuzzer bytes into packets that are half right: what is wrong is up to the bytes.
func inputs(data []byte, a, b *end) (out []struct {
	to  *end
	pkt []byte
}) {
	for len(data) >= 24 && len(out) < 16 {
		h := data[:24]
		data = data[24:]
		n := min(int(binary.LittleEndian.Uint16(h)%1100), len(data)+8)
		to := b
		if h[2]&1 != 0 {
			to = a
		}
		op := roce.Opcode(h[3])
		if h[2]&2 != 0 {
			op = roce.Opcode(h[3] % 0x1e)
		}
		headers := 40
		if i := op.Info(); i != nil {
			headers = i.HeaderLen
		}
		pkt := make([]byte, headers+n+int(roce.PadCount(n)))
		copy(pkt[12:], h[8:])
		copy(pkt[min(len(pkt), headers):], data[:min(n, len(data))])
		data = data[min(n, len(data)):]
		roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: op, Solicited: h[2]&4 != 0, AckReq: h[2]&8 != 0, PadCount: roce.PadCount(n),
			PKey: 0xffff, DestQP: to.q.Num(), PSN: roce.PSN(100).Add(int(int8(h[4])) % 16)})
		if i := op.Info(); i != nil {
			key := to.h.mr.RKey()
			if h[7]&8 != 0 {
				key = to.mw.RKey()
			}
			if e := i.IETH(pkt); e != nil && h[5]&1 == 0 {
				e.Encode(&roce.IETHFields{RKey: key})
			}
			if e := i.RETH(pkt); e != nil && h[5]&1 == 0 {
				e.Encode(&roce.RETHFields{VA: memBase + 4096 + uint64(int16(binary.LittleEndian.Uint16(h[6:]))), RKey: key,
					Length: uint32(n) + uint32(h[5]>>1)*16})
			}
			if e := i.AtomicETH(pkt); e != nil && h[5]&1 == 0 {
				e.Encode(&roce.AtomicETHFields{VA: memBase + 4096 + uint64(int16(binary.LittleEndian.Uint16(h[6:])))&^7, RKey: to.h.mr.RKey(), SwapAdd: 1})
			}
		}
		if h[2]&16 != 0 && len(pkt) > 3 {
			pkt = pkt[:len(pkt)-int(h[6])%len(pkt)]
		}
		out = append(out, struct {
			to  *end
			pkt []byte
		}{to, pkt})
	}
	return out
}

func packetsAreHarmless(t fatalTB, data []byte) {
	w, a, b, check := guarded(t)
	for _, in := range inputs(data, a, b) {
		from := a
		if in.to == a {
			from = b
		}
		in.to.h.inject(in.to.pathFrom(from), in.pkt)
		if len(in.pkt)&4 != 0 {
			w.settle()
		}
	}
	w.run(50e6)
	check()
}

// Whatever a peer sends: no panic, nothing outside the regions changes, no completion too many.
func FuzzPackets(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) { packetsAreHarmless(t, data) })
}

func TestRandomPacketsAreHarmless(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 3000)
	for range 60 {
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		packetsAreHarmless(t, data[:rng.IntN(len(data))])
	}
}

func requestsAreHarmless(t fatalTB, data []byte) {
	// The bytes may ask for a gigabyte, of packets of 256 bytes, which would take most of the fuzzer's time.
	small := Config{Limits: Limits{MaxMsgSize: 1 << 12}}
	w := newWire(t, small, small)
	w.quiet = true
	typ := RC
	if len(data) > 0 {
		typ = []QPType{RC, UD, UC}[data[0]%3]
	}
	a, b := w.hosts[0].newEnd(typ, testCap, 1023), w.hosts[1].newEnd(RC, testCap, 1023)
	a.to(RTS, defaultAttr(), b)
	b.to(RTS, defaultAttr(), a)
	posted := 0
	for len(data) > 8 && posted < 8 {
		s := remote(wr(uint64(posted), ring.SendOpcode(data[1]%16), a.sge(0, 64), a.sge(64, 64)), b, 0)
		at := a.sq.Position()
		a.sq.StoreSend(at, s, typ == UD)
		slot := a.sq.Bytes()[ring.HeaderSize+int(at)*a.sq.ElemSize():][:a.sq.ElemSize()]
		// Overwrite some places of the slot with the fuzzer's bytes.
		for k := 0; k < int(data[2]%8) && len(data) > 12; k++ {
			copy(slot[int(binary.LittleEndian.Uint16(data[3:]))%len(slot):], data[5:9])
			data = data[7:]
		}
		data = data[1:]
		_ = a.sq.Publish()
		posted++
	}
	if len(data) > 4 && data[0]&2 != 0 {
		copy(a.sq.Bytes()[128:132], data[:4]) // the producer index itself
		posted = 1 << 20
	}
	a.h.n.Doorbell(w.now, a.q)
	w.run(20 * second)
	got := a.poll()
	if len(got) > min(posted, int(a.sq.Capacity())) {
		t.Fatalf("%d completions for %d requests", len(got), posted)
	}
}

// Whatever is in a send queue element, no panic and no completion too many.
func FuzzRequests(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) { requestsAreHarmless(t, data) })
}

func TestRandomRequestsAreHarmless(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	data := make([]byte, 600)
	for range 60 {
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		requestsAreHarmless(t, data[:rng.IntN(len(data))])
	}
}
