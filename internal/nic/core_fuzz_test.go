package nic

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"rnic/internal/fuzzscript"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// script reads a fuzzer's bytes.
type script struct{ b fuzzscript.Script }

func (s *script) done() bool { return s.b.Done() }

func (s *script) byte() int { return s.b.Next() }

func (s *script) word() int { return s.byte() | s.byte()<<8 }

func (s *script) long() uint32 { return uint32(s.word()) | uint32(s.word())<<16 }

// anyPSN is a number near where the queue pair is, or any.
func (s *script) anyPSN(q *QP, request bool) roce.PSN {
	at, how := q.req.una, s.byte()
	if request {
		at = q.resp.expected
	}
	switch how & 7 {
	case 0, 1, 2, 3:
		return at
	case 4:
		return at.Add(how>>3 + 1)
	case 5:
		return at.Add(-(how>>3 + 1))
	case 6:
		return q.req.nxt.Add(how >> 3)
	}
	return roce.PSN(s.long()) & roce.PSNMask
}

// anyKey is a key that the attacker knows, of the region with rights most often.
func (s *script) anyKey(h *coreHost) uint32 {
	switch s.byte() & 15 {
	case 10:
		return h.mw.RKey()
	case 11:
		return h.locked.RKey()
	case 12:
		return h.foreign.RKey()
	case 13:
		return h.mr.RKey() ^ 1
	case 14:
		return s.long()
	case 15:
		return h.mw.RKey() ^ 0x80
	case 8, 9:
		return h.high.RKey()
	}
	return h.mr.RKey()
}

// anyAddr is an address in the region, at its edges, or anywhere.
func (s *script) anyAddr(n uint32) uint64 {
	switch how := s.byte(); how & 7 {
	case 4:
		return memBase + coreOpenEnd - uint64(n) + uint64(how>>3&3) - 1
	case 5:
		return memBase + uint64(s.word())
	case 6:
		return -uint64(n) + uint64(how>>3&3) - 1 // the sum wraps, or nearly
	case 7:
		return uint64(s.long())<<32 | uint64(s.long())
	}
	return memBase + coreOpen + uint64(s.byte())*8
}

// anyOpcode is one of the queue pair's transport, or any.
func (s *script) anyOpcode(q *QP) roce.Opcode {
	base := map[QPType]roce.Opcode{RC: roce.RCSendFirst, UC: roce.UCSendFirst, UD: roce.UDSendOnly - 4, XRCINI: roce.XRCSendFirst, XRCTGT: roce.XRCSendFirst}[q.typ]
	switch v := s.byte(); {
	case v < 0x20:
		return roce.Opcode(v * 8) // any transport's first, and reserved ones
	case v < 0x28:
		return roce.SelectiveAck
	case v < 0x2c:
		return roce.CNP
	default:
		return base + roce.Opcode(v%0x1e)
	}
}

// forge is a packet to the end that is well formed but for what the script says.
func (w *coreWorld) forge(s *script, e *coreEnd) RxPacket {
	op, flags := s.anyOpcode(e.q), s.byte()
	info := op.Info()
	request, header := true, roce.BTHSize
	if info != nil {
		request, header = info.Request, info.HeaderLen
	}
	n := 0
	if info == nil || info.Payload {
		n = [...]int{0, 1, 8, 256, 256, 256, 255, s.word() % 1200}[flags&7]
		if info != nil && (info.First || info.Middle) && flags&7 != 7 {
			n = 256
		}
	}
	pkt := make([]byte, header+n+int(roce.PadCount(n)))
	for i := range n {
		pkt[header+i] = byte(i) ^ 0xa5
	}
	b := &roce.BTHFields{Opcode: op, PadCount: roce.PadCount(n), PKey: 0xffff, DestQP: e.q.num, PSN: s.anyPSN(e.q, request),
		AckReq: flags&8 != 0, Solicited: flags&16 != 0, MigReq: flags&32 == 0}
	roce.BTH(pkt).Encode(b)
	w.headers(s, e, info, pkt, n)
	path := e.pathFrom(e.peer.end)
	if flags&64 != 0 {
		path = s.wrongPath(e, path, roce.BTH(pkt))
	}
	if flags&128 != 0 {
		pkt = s.mangle(pkt)
	}
	return RxPacket{Path: path, Data: pkt, Local: flags&0xe0 == 0xe0}
}

// headers fills in the extended headers.
func (w *coreWorld) headers(s *script, e *coreEnd, info *roce.OpInfo, pkt []byte, n int) {
	if info == nil {
		return
	}
	if h := info.XRCETH(pkt); h != nil {
		p := w.pools[len(w.pools)-1-s.byte()%len(w.pools)]
		h.Encode(&roce.XRCETHFields{SRQ: p.srq.num})
	}
	if h := info.DETH(pkt); h != nil {
		h.Encode(&roce.DETHFields{QKey: 0x11111111, SrcQP: e.peer.q.num})
	}
	if h := info.FETH(pkt); h != nil {
		v := s.byte()
		h.Encode(&roce.FETHFields{Placement: roce.Placement(v & 15), Selectivity: roce.Selectivity(v >> 4 & 3)})
	}
	if h := info.RETH(pkt); h != nil {
		length := uint32(n)
		switch how := s.byte(); how & 7 {
		case 4, 5:
			length = uint32(how>>3+1) * 100
		case 6:
			length = s.long()
		case 7:
			length = 1<<32 - 1 - uint32(how>>3)
		}
		h.Encode(&roce.RETHFields{VA: s.anyAddr(length), RKey: s.anyKey(e.ch), Length: length})
	}
	if h := info.AtomicETH(pkt); h != nil {
		h.Encode(&roce.AtomicETHFields{VA: s.anyAddr(8), RKey: s.anyKey(e.ch), SwapAdd: 1})
	}
	if h := info.IETH(pkt); h != nil {
		h.Encode(&roce.IETHFields{RKey: s.anyKey(e.ch)})
	}
	if h := info.AETH(pkt); h != nil {
		v := s.byte()
		h.Encode(&roce.AETHFields{Syndrome: roce.Syndrome([...]byte{0x1f, 0x1f, 0, 0x60, 0x20, 0x61, 0x62, byte(s.byte())}[v&7]), MSN: uint32(v >> 3)})
	}
	if h := info.SACK(pkt); h != nil {
		h.Encode([2]uint64{uint64(s.long()), uint64(s.byte()) << 50})
	}
	if h := info.AtomicAckETH(pkt); h != nil {
		h.Encode(&roce.AtomicAckETHFields{Orig: 5})
	}
}

// wrongPath is another way for a packet to come.
func (s *script) wrongPath(e *coreEnd, path roce.Path, b roce.BTH) roce.Path {
	switch s.byte() & 7 {
	case 0, 1:
		path.TOS |= 3 // congestion experienced
	case 2:
		path.Src = netip.AddrFrom4([4]byte{192, 0, 2, 99})
	case 3:
		path.Src, path.Dst = e.peer.h.alt, e.h.alt
	case 4:
		path.Dst = coreGroup
		b.SetDestQP(multicastQPN)
	case 5:
		path.Src, path.Dst = e.h.addr, coreGroup
		b.SetDestQP(multicastQPN)
	case 6:
		b.SetPKey(uint16(s.word()))
	case 7:
		b.SetDestQP(uint32(s.word()))
	}
	return path
}

// mangle changes a byte, or the length.
func (s *script) mangle(pkt []byte) []byte {
	at, v := s.word(), s.byte()
	switch {
	case v == 0:
		return pkt[:at%(len(pkt)+1)]
	case v == 1:
		return append(pkt, make([]byte, at%8)...)
	}
	pkt[at%len(pkt)] ^= byte(v)
	return pkt
}

// act does the next thing that the script says.
func (w *coreWorld) act(s *script) {
	op := s.byte()
	e := w.ends[w.focus%len(w.ends)]
	if v := s.byte(); v < 0x80 {
		e = w.ends[v%len(w.ends)]
	} else if v >= 0xf0 {
		e = e.peer
	}
	switch op & 15 {
	case 0, 1, 2, 3, 4:
		w.arrive(e.h, w.forge(s, e))
	case 5:
		var pkts []RxPacket
		for range 2 + op>>6 {
			pkts = append(pkts, w.forge(s, e))
		}
		w.arrive(e.h, pkts...)
	case 6:
		f := &w.frames[s.byte()%len(w.frames)]
		if f.to == nil {
			return
		}
		data := append([]byte(nil), f.data...)
		if op&16 != 0 {
			data = s.mangle(data)
		}
		w.arrive(f.to, RxPacket{Path: f.path, Data: data})
	case 7, 8:
		for range 1 + op>>4&3 {
			w.postSend(e, ring.SendOpcode(s.byte()&15), s.word(), s.word()%4000)
		}
	case 9, 10:
		for range 1 + op>>4&3 {
			w.postRecv(e, s.word(), s.byte()*8)
		}
	case 11:
		w.run(int64(s.byte()) * 100_000)
	case 12:
		w.change(s, e)
	case 13:
		w.rights(s, e)
	case 14:
		w.cut = !w.cut
	case 15:
		e.scq.Arm(op&16 != 0)
		e.rcq.Arm(op&32 != 0)
	}
	if op&0x80 == 0 {
		w.settle()
		w.check()
	} else if w.id-w.looked > 30 {
		w.check() // completion queues do not overflow
	}
}

// change is a command for the queue pair.
func (w *coreWorld) change(s *script, e *coreEnd) {
	switch s.byte() & 7 {
	case 0:
		e.modify(Err)
	case 1:
		e.modify(SQD)
	case 2:
		e.modify(RTS)
	case 3, 4:
		w.toReset(e)
		a := defaultAttr()
		a.RQPSN, a.SQPSN = s.long()&0xffffff, 0xfffff0
		if e.peer.q.state == Reset || e.q.typ == XRCINI {
			a.SQPSN = 100
		}
		a.PathMTU, a.RetryCnt, a.RNRRetry, a.Timeout = 1, 1, 1, 10
		if e.q.state == Reset && !e.scq.overrun.Load() && !e.rcq.overrun.Load() {
			e.connect(a, RTS)
		}
	case 5:
		_ = e.h.n.Modify(w.now, e.q, &Attr{AccessFlags: AccessRemoteRead}, AttrAccessFlags)
	case 6:
		_ = e.h.n.Modify(w.now, e.q, &Attr{PathMigState: MigMigrated}, AttrPathMigState)
	case 7:
		limit := uint32(s.byte() % 20)
		if e.pool != nil {
			_ = e.pool.srq.Modify(&limit, nil)
		}
	}
}

// rights takes rights away that are in use, and gives others.
func (w *coreWorld) rights(s *script, e *coreEnd) {
	h := e.ch
	switch s.byte() & 3 {
	case 0:
		if h.mr.dead {
			return
		}
		_ = h.mr.Revoke()
	case 1:
		if m, err := h.n.RegMR(h.pd, h.mem, memBase+coreOpen, coreOpenEnd-coreOpen, memBase+coreOpen, allAccess|AccessMWBind); err == nil {
			_ = h.mr.Revoke()
			h.mr = m
		}
	case 2:
		h.mem.Holes = nil
		if v := s.byte(); v&1 != 0 {
			h.mem.Holes = append(h.mem.Holes, holeAt(memBase+coreOpen+uint64(v)*64))
		}
	case 3:
		e.q.bind(&ring.Bind{Addr: memBase + coreOpen + uint64(s.byte()), Length: 512, LKey: h.mr.LKey(), MWKey: h.mw.RKey(), Access: uint32(bindRights)})
	}
}

func coreIsHarmless(t fatalTB, data []byte) {
	var cfg Config
	if len(data) > 0 && data[0]&1 != 0 {
		cfg.Policy.Congestion = CongestionDCQCN
	}
	coreRun(t, cfg, data)
}

func coreRun(t fatalTB, cfg Config, data []byte) {
	w := newCoreWorld(t, cfg)
	s := &script{data}
	s.byte()
	for w.focus = s.byte(); !s.done(); {
		w.act(s)
	}
	w.finish()
}

// coreSeed is a script that begins as a plan says, and goes on at random.
func coreSeed(rng *rand.Rand, n int, plan ...byte) []byte {
	for len(plan) < n {
		plan = append(plan, byte(rng.Uint32()))
	}
	return plan
}

// Whatever packets come, in whatever state queue pairs of any type are: see coreWorld.
func FuzzCore(f *testing.F) {
	rng := rand.New(rand.NewPCG(21, 22))
	for i := range 24 {
		f.Add(coreSeed(rng, 300, byte(i), byte(i), 0x39, 0xf0, 0, 0, 64, 0, 1, 64, 0, 2, 64, 0, 3, 64, 7, 0x80, 2, 0, 0, 100, 0))
	}
	f.Fuzz(func(t *testing.T, data []byte) { coreIsHarmless(t, data[:min(len(data), 1500)]) })
}
