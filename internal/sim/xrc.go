package sim

import (
	"bytes"
	"encoding/binary"

	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// XRC (annex A14): several senders, each with one connection, reach the shared receive queues of a domain. Every message
// must arrive once, in the queue that it names, in the order of its sender, with that queue's protection
// domain and completion queue.

// xrcGroup is a domain with two shared receive queues, in different protection domains.
type xrcGroup struct {
	h       *host
	queues  [2]*xrcQueue
	senders []*xrcSender
}

type xrcQueue struct {
	srq   *nic.SRQ
	rq    *ring.Queue
	cv    *ring.Queue
	r     *region // for its buffers and as target: addressed by the queue's own key
	lkey  uint32
	recvs []*xrcRecv
	plan  []seg // of receives that are still to be posted: one for each message
}

type xrcRecv struct {
	at   seg
	done bool
	hole bool // its first byte is not in memory
}

// xrcSender is a connection: an initiator, and the target at the group's host.
type xrcSender struct {
	g       *xrcGroup
	h       *host
	qp, tgt *nic.QP
	flow    *flow
	sq, cv  *ring.Queue
	attr    nic.Attr
	mtu     int
	sends   []*xrcSend
	done    int // sends[:done] have completed
	psns    int
	left    int
	failed  bool
	reset   bool          // the program has reset the initiator: nothing completes any more
	bombAt  int           // index of the send at which an error is intended, -1 for none
	tgtDown bool          // the target takes nothing any more
	late    bool          // an end was in INIT for long, because its address did not exist
	coming  [2][]*xrcSend // by queue: those whose receives have not completed, in order
	last    [2]int        // by queue: the receive that was used last
}

type xrcSend struct {
	op        ring.SendOpcode
	to        *xrcQueue
	index     int // of to
	n         int
	data      []byte // of an atomic: what it finds
	after     []byte // and what it leaves
	local     seg
	remote    seg
	imm       uint32
	psn, psns int
	received  bool
	over      bool // complete, in whatever way

	held     bool // posted in SQD
	seen     bool // its first packet was
	key, srq uint32
	mustFail bool
	allowed  statusSet
}

func (m *xrcSend) atomic() bool { return m.op == ring.OpFetchAdd || m.op == ring.OpCompareSwap }
func (m *xrcSend) consumes() bool {
	return m.op != ring.OpWrite && m.op != ring.OpRead && !m.atomic() && m.srq == m.to.srq.Num()
}
func (m *xrcSend) writes() bool { return m.op == ring.OpWrite || m.op == ring.OpWriteImm }

// xrcRecvBytes is the size of every receive.
const xrcRecvBytes = 5000

func (w *world) addXRC(h *host) {
	g := &xrcGroup{h: h}
	d, err := h.nic.AllocXRCD()
	w.must(err, "allocating an XRC domain")
	moved := h.mem.regions[regionMoved]
	for i := range g.queues {
		x := &xrcQueue{r: h.mem.regions[regionPlain], lkey: h.mem.regions[regionPlain].mr.LKey()}
		pd := h.pd
		if i == 1 {
			x.r, x.lkey, pd = moved, h.alien.LKey(), h.other
		}
		_, g0, err := h.nic.SRQShape(nic.SRQAttr{MaxWR: 63, MaxSGE: 1})
		w.must(err, "shaping a shared receive queue")
		nics, programs := newQueue(w, g0)
		x.rq = programs
		var cq *nic.CQ
		cq, x.cv = w.xrcCQ(h)
		x.srq, err = h.nic.CreateXRCSRQ(pd, d, cq, nics, nic.SRQAttr{MaxWR: 63, MaxSGE: 1})
		w.must(err, "creating an XRC shared receive queue")
		g.queues[i] = x
	}
	w.xrcs = append(w.xrcs, g)
	for range w.between(1, 3) {
		w.addXRCSender(g, d, w.hosts[w.rng.IntN(len(w.hosts))])
	}
	w.after(w.nanos(0, 200_000), func() { w.receiveXRC(g) })
}

func (w *world) xrcCQ(h *host) (*nic.CQ, *ring.Queue) {
	g, err := ring.GeometryFor(4096, ring.CQESize)
	w.must(err, "shaping a completion queue")
	nics, programs := newQueue(w, g)
	cq, err := h.nic.CreateCQ(nics)
	w.must(err, "creating a completion queue")
	return cq, programs
}

func (w *world) addXRCSender(g *xrcGroup, d *nic.XRCD, h *host) {
	s := &xrcSender{g: g, h: h, left: w.between(1, 20), last: [2]int{-1, -1}, bombAt: -1}
	if w.chance(20) {
		s.bombAt = w.rng.IntN(s.left)
	}
	asked := nic.Cap{MaxSendWR: uint32(w.between(1, 32)), MaxSendSGE: 1}
	_, sqg, _, err := h.nic.QueueShapes(asked)
	w.must(err, "shaping a queue pair")
	nics, programs := newQueue(w, sqg)
	s.sq = programs
	var cq *nic.CQ
	cq, s.cv = w.xrcCQ(h)
	s.qp, err = h.anyUnit().CreateQP(nic.QPInit{Type: nic.XRCINI, PD: h.pd, SendCQ: cq, SQ: nics, Cap: asked})
	w.must(err, "creating an XRC initiator")
	s.tgt, err = g.h.anyUnit().CreateQP(nic.QPInit{Type: nic.XRCTGT, XRCD: d})
	w.must(err, "creating an XRC target")
	g.senders = append(g.senders, s)
	s.flow = w.newFlow(&pathEnd{h: h, qp: s.qp}, &pathEnd{h: g.h, qp: s.tgt})
	s.flow.alive = func() bool { return !s.failed }
	h.xrcs[s.qp.Num()], g.h.xrcs[s.tgt.Num()] = s, s
	w.after(w.nanos(0, 50_000), func() { w.connectXRC(s) })
}

func (w *world) connectXRC(s *xrcSender) {
	r := w.randomRoute()
	if s.h.removed[r.src] || s.g.h.removed[r.dst] {
		w.after(w.nanos(100_000, 10_000_000), func() { w.connectXRC(s) })
		return
	}
	code := uint8(w.between(1, int(roce.MTUCode(min(s.h.mtu, s.g.h.mtu)))))
	s.mtu = roce.MTUBytes(code)
	psn, back := w.randomPSN(), w.randomPSN()
	var attrs [2]nic.Attr
	var masks [2][3]nic.AttrMask
	for i, e := range []struct {
		at, to     *host
		qp, peer   *nic.QP
		own, other uint32
		by         route
		rtr, rts   nic.AttrMask
	}{
		{s.g.h, s.h, s.tgt, s.qp, back, psn, r.back(), nic.AttrMaxDestRDAtomic | nic.AttrMinRNRTimer, nic.AttrTimeout},
		{s.h, s.g.h, s.qp, s.tgt, psn, back, r, 0, nic.AttrTimeout | nic.AttrRetryCnt | nic.AttrRNRRetry | nic.AttrMaxRDAtomic},
	} {
		a := nic.Attr{Port: 1, AccessFlags: allAccess, PathMTU: code, DestQPN: e.peer.Num(), SQPSN: e.own, RQPSN: e.other,
			MinRNRTimer: uint8(w.between(1, 14)), Timeout: uint8(w.between(10, 14)), RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 4, MaxDestRDAtomic: 4,
			PKeyIndex: e.at.partition(0),
			AH:        e.by.address(e.to)}
		s.attr, attrs[1-i], masks[1-i] = a, a, [3]nic.AttrMask{nic.AttrPKeyIndex | nic.AttrPort | nic.AttrAccessFlags,
			nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN | e.rtr, nic.AttrSQPSN | e.rts}
	}
	s.flow.begin(w, r, [2]*nic.Attr{&attrs[0], &attrs[1]})
	for i, e := range s.flow.ends { // what comes too early is lost, and costs a retry
		w.stepXRCState(s, e, attrs[i], masks[i], nic.Init)
	}
}

// stepXRCState takes an end to a state, and soon to the next. The initiator's program starts in RTS.
func (w *world) stepXRCState(s *xrcSender, e *pathEnd, a nic.Attr, masks [3]nic.AttrMask, to nic.State) {
	if s.failed || s.tgtDown {
		return
	}
	delay := int64(0)
	if to == nic.RTR && e.h.removed[e.primary.src] { // it has gone since
		delay, s.late = w.nanos(100_000, 10_000_000), true
	} else {
		a.State = to
		w.must(e.h.nic.Modify(w.now, e.qp, &a, nic.AttrState|masks[to-nic.Init]), "connecting XRC")
		e.h.look("connecting XRC")
		if to++; e.qp == s.tgt && w.chance(30) {
			delay = w.nanos(0, 200_000)
		}
	}
	if to <= nic.RTS {
		w.after(delay, func() { w.stepXRCState(s, e, a, masks, to) })
	} else if e.qp == s.qp {
		w.startXRC(s)
	}
}

// startXRC starts the program of a connection.
func (w *world) startXRC(s *xrcSender) {
	w.troubleXRC(s)
	w.stepXRC(s)
}

// receiveXRC posts a few receives to each queue, and comes back as long as messages are to come.
func (w *world) receiveXRC(g *xrcGroup) {
	for _, x := range g.queues {
		for n := w.between(0, 4); n > 0 && x.rq.Free() > 0 && len(x.plan) > 0; n-- {
			at := x.plan[0]
			x.plan = x.plan[1:]
			e := ring.RecvWQE{WRID: uint64(len(x.recvs)), NumSGE: 1}
			e.SGE[0] = ring.SGE{Addr: at.addr(), Length: xrcRecvBytes, LKey: x.lkey}
			x.rq.StoreRecv(x.rq.Position(), &e)
			w.must(x.rq.Publish(), "posting a receive")
			x.recvs = append(x.recvs, &xrcRecv{at: at})
			if w.chance(1) {
				x.recvs[len(x.recvs)-1].hole = true
				w.hole(seg{at.r, at.off, 1})
			}
		}
	}
	w.after(w.nanos(1000, 500_000), func() {
		if g.waiting() {
			w.receiveXRC(g)
		}
	})
}

// waiting tells whether a message of the group has not arrived yet.
func (g *xrcGroup) waiting() bool {
	for _, s := range g.senders {
		if !s.failed && (s.left > 0 || s.done < len(s.sends)) {
			return true
		}
	}
	return false
}

func (w *world) stepXRC(s *xrcSender) {
	for n := w.between(1, 6); n > 0 && s.left > 0 && s.sq.Free() > 0 && !s.failed; n-- {
		if s.left--; !w.postXRC(s) {
			s.left = 0
		}
	}
	s.qp.Unit().Doorbell(w.now, s.qp)
	s.h.look("doorbell")
	s.h.driveSoon()
	if s.left > 0 && !s.failed {
		w.after(w.nanos(0, 100_000), func() { w.stepXRC(s) })
	}
}

func (w *world) postXRC(s *xrcSender) bool {
	i := w.rng.IntN(2)
	m := &xrcSend{to: s.g.queues[i], index: i, imm: w.rng.Uint32(), psn: s.psns, held: s.qp.State() == nic.SQD,
		op: pick(w, ring.OpSend, ring.OpSend, ring.OpSendImm, ring.OpWrite, ring.OpWriteImm, ring.OpRead, ring.OpFetchAdd, ring.OpCompareSwap)}
	m.n = min(w.size(s.mtu), xrcRecvBytes)
	align := 1
	if m.atomic() { // the addresses of the other queue's region need not be aligned
		i, align = 0, 8
		m.to, m.index, m.n = s.g.queues[0], 0, 8
	}
	m.key, m.srq = m.to.lkey, m.to.srq.Num()
	bomb := s.bombAt == len(s.sends)
	if bomb {
		w.chooseXRCBomb(m)
	}
	m.psns = max(1, (m.n+s.mtu-1)/s.mtu)
	var ok1, ok2 bool
	m.local, ok1 = w.take(s.h.mem.regions[regionPlain], m.n, 1)
	if r := w.windowForXRC(s, m); r != nil && !bomb {
		m.remote, ok2 = w.take(r, m.n, align)
		m.key = m.remote.key()
		r.win.remote = append(r.win.remote, m)
	} else {
		m.remote, ok2 = w.take(m.to.r, m.n, align)
	}
	if !ok1 || !ok2 {
		return false
	}
	if m.consumes() {
		at, ok := w.take(m.to.r, xrcRecvBytes, 1)
		if !ok {
			return false
		}
		m.to.plan = append(m.to.plan, at)
	}
	m.data = collect(s.h.mem.space.Mem, []seg{m.local})
	e := ring.SendWQE{WRID: uint64(len(s.sends)), Opcode: m.op, Flags: ring.SendSignaled, Imm: m.imm, NumSGE: 1,
		RemoteAddr: m.remote.addr(), RKey: m.key, RemoteSRQ: m.srq}
	if m.op == ring.OpRead || m.atomic() {
		m.data = collect(s.g.h.mem.space.Mem, []seg{m.remote})
	}
	if m.atomic() {
		w.fillXRCAtomic(m, &e)
	}
	e.SGE[0] = ring.SGE{Addr: m.local.addr(), Length: uint32(m.n), LKey: m.local.key()}
	s.sq.StoreSend(s.sq.Position(), &e, false)
	w.must(s.sq.Publish(), "posting a send")
	s.psns += m.psns
	s.sends = append(s.sends, m)
	if m.consumes() {
		s.coming[i] = append(s.coming[i], m)
	}
	w.count.PostedXRC++
	return true
}

// fillXRCAtomic chooses the operands: every atomic has a word of its own.
func (w *world) fillXRCAtomic(m *xrcSend, e *ring.SendWQE) {
	old := binary.LittleEndian.Uint64(m.data)
	x := work{op: m.op, add: w.rng.Uint64(), compare: old, swap: w.rng.Uint64()}
	if w.chance(30) {
		x.compare = w.rng.Uint64()
	}
	e.CompareAdd, e.Swap = x.compare, x.swap
	if m.op == ring.OpFetchAdd {
		e.CompareAdd = x.add
	}
	m.after = binary.LittleEndian.AppendUint64(nil, x.apply(old))
}

// observeXRC checks a packet of an initiator or a target.
func (w *world) observeXRC(s *xrcSender, p *nic.TxPacket, pkt *roce.Packet) {
	initiator := p.QPN == s.qp.Num()
	if initiator {
		w.checkSent(s.flow.ends[0], p, pkt)
	} else {
		w.checkSent(s.flow.ends[1], p, pkt)
	}
	if pkt.Info.Transport != roce.TransportXRC || pkt.Info.Request != initiator {
		w.fail("XRC QP %06x sends %s", p.QPN, pkt.Info.Name)
	}
	if !initiator {
		return
	}
	off := int(roce.Diff(pkt.BTH.PSN(), roce.PSN(s.attr.SQPSN)))
	for _, m := range s.sends {
		if off >= m.psn && off < m.psn+m.psns {
			if pkt.XRCETH().SRQ() != m.srq {
				w.fail("XRC QP %06x sends %s for queue %06x instead of %06x", p.QPN, pkt.Info.Name, pkt.XRCETH().SRQ(), m.srq)
			}
			if m.seen = true; m.held && s.qp.State() == nic.SQD {
				w.fail("XRC QP %06x begins %s in SQD", p.QPN, OpNames[m.op]) // 10.3.1.5
			}
			return
		}
	}
	w.fail("XRC QP %06x sends %s with PSN %06x, which no work request has", p.QPN, pkt.Info.Name, uint32(pkt.BTH.PSN()))
}

// lookXRC judges what has completed at a host.
func (w *world) lookXRC(h *host) {
	var e ring.CQE
	for _, g := range w.xrcs {
		for i, x := range g.queues {
			for g.h == h && x.cv.Pending() > 0 {
				x.cv.LoadCQE(x.cv.Position(), &e)
				w.must(x.cv.Consume(), "polling a completion queue")
				w.receivedXRC(g, x, i, &e)
			}
		}
		for _, s := range g.senders {
			for s.h == h && s.cv.Pending() > 0 {
				s.cv.LoadCQE(s.cv.Position(), &e)
				w.must(s.cv.Consume(), "polling a completion queue")
				w.sentXRC(s, &e)
			}
		}
	}
}

func (w *world) receivedXRC(g *xrcGroup, x *xrcQueue, i int, e *ring.CQE) {
	s := g.h.xrcs[e.QPN]
	if s == nil || e.WRID >= uint64(len(x.recvs)) || x.recvs[e.WRID].done {
		w.fail("a receive of an XRC queue completes as %x of QP %06x", e.WRID, e.QPN)
	}
	r := x.recvs[e.WRID]
	r.done = true
	if w.receiveFailedXRC(s, r, i, e) {
		return
	}
	if int(e.WRID) <= s.last[i] || len(s.coming[i]) == 0 {
		w.fail("receive %x of an XRC queue completes behind %x, %d are to come", e.WRID, s.last[i], len(s.coming[i]))
	}
	s.last[i] = int(e.WRID)
	m := s.coming[i][0]
	s.coming[i] = s.coming[i][1:]
	m.received = true
	imm := m.op != ring.OpSend
	if e.ByteLen != uint32(m.n) || imm != (e.Flags&ring.WCWithImm != 0) || imm && e.Imm != m.imm {
		w.fail("receive %x of an XRC queue completes with %d bytes, flags %#x, immediate %x for a message of %d bytes, %x",
			e.WRID, e.ByteLen, e.Flags, e.Imm, m.n, m.imm)
	}
	at := seg{r.at.r, r.at.off, m.n}
	if m.writes() {
		at = m.remote
	}
	w.landedXRC(g.h.mem, at, m)
	w.count.DeliveredXRC++
}

// landedXRC holds for a message that has completed somewhere: all of it is there.
func (w *world) landedXRC(mem *arena, at seg, m *xrcSend) {
	if !bytes.Equal(mem.space.Mem[at.off:at.off+m.n], m.data) {
		w.fail("a %s of %d bytes over XRC is complete, but its bytes are not there", OpNames[m.op], m.n)
	}
	mem.accept([]seg{at})
}

func (w *world) sentXRC(s *xrcSender, e *ring.CQE) {
	if e.WRID != uint64(s.done) || s.done >= len(s.sends) {
		w.fail("send %d of an XRC initiator completes, %d is next", e.WRID, s.done)
	}
	m := s.sends[s.done]
	m.over = true
	s.done++
	there := s.h.wires[s.g.h.index]
	back := s.g.h.wires[s.h.index]
	switch {
	case s.failed && e.Status == ring.StatusWRFlushErr:
	case !s.failed && w.mayFailXRC(s, m, e.Status):
		w.breakXRC(s)
	case e.Status == ring.StatusRetryExcErr && (w.cutOff(s.flow.ends[0]) || len(there.outages) > 0 || len(back.outages) > 0):
		w.checkGivesUp(s.flow.ends[0], OpNames[m.op])
		w.breakXRC(s)
	case e.Status != ring.StatusSuccess || s.failed || m.mustFail:
		w.fail("a %s over XRC completes with %q", OpNames[m.op], e.Status)
	case m.op == ring.OpRead:
		w.landedXRC(s.h.mem, m.local, m)
	case m.atomic():
		w.landedXRC(s.h.mem, m.local, m)
		m.data = m.after
		w.landedXRC(s.g.h.mem, m.remote, m)
	case m.op == ring.OpWrite:
		w.landedXRC(s.g.h.mem, m.remote, m)
	case !m.received:
		w.fail("a %s over XRC is complete, but its receive is not", OpNames[m.op])
	}
}

// finishXRC checks the end: everything has completed, and what a broken connection left is old or its own.
func (w *world) finishXRC(g *xrcGroup) {
	for _, s := range g.senders {
		if s.done < len(s.sends) && !s.reset {
			w.fail("liveness: send %d of an XRC initiator never completes, in %v", s.done, s.qp.State())
		}
		if !s.failed {
			continue
		}
		for _, m := range s.sends {
			s.h.mem.accept([]seg{m.local})
			g.h.mem.accept([]seg{m.remote})
		}
		for _, x := range g.queues {
			for _, r := range x.recvs {
				g.h.mem.accept([]seg{r.at})
			}
		}
	}
}
