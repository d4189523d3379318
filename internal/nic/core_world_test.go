package nic

import (
	"bytes"
	"net/netip"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// A coreWorld is two NICs between which there is a connection of every kind, in several states, with a program behind each end that knows
// what it has posted. Fuzzers do to it what they like; it checks that nothing else happens than may happen:
//
//   - memory outside the one region with remote rights keeps its pattern, though the keys of other regions are known;
//   - what is posted completes once and in order, and at last, when all queue pairs are in error, everything has completed;
//   - no packet is dropped without a trace in the counters;
//   - when everything is destroyed nothing is left.
type coreWorld struct {
	*wire
	ends  []*coreEnd // those of a connection one after the other: even numbers are of the first host
	pools []*corePool
	hosts [2]*coreHost

	frames [16]coreFrame // the latest that were sent
	sent   int
	cut    bool // nothing that is sent arrives
	reset  bool // a queue pair was reset: receives that it had taken from a pool are gone
	id     uint64
	focus  int    // the end that most happens to
	looked uint64 // id at the last check
	wild   bool   // programs write into their queues what they like: what completes says nothing
}

type coreFrame struct {
	to   *host
	path roce.Path
	data []byte
}

// coreHost is a host's memory: guard, the region with rights, guard; within the second guard a region without remote rights,
// and one of another protection domain.
type coreHost struct {
	*host
	mw      *MW
	locked  *MR
	foreign *MR
	high    *MR // the region with rights again, at the highest addresses that there are: sums wrap
	other   *PD
	before  []byte
}

const (
	coreOpen    = 16 << 10 // where the region with rights begins
	coreOpenEnd = 32 << 10
	coreLocked  = 36 << 10
	coreForeign = 40 << 10
	coreMemory  = 48 << 10

	coreHigh = 1<<64 - 1 - (coreOpenEnd - coreOpen) // where it begins in work requests
)

type coreEnd struct {
	*end
	ch       *coreHost
	peer     *coreEnd
	pool     *corePool // nil: receives of its own
	scq, rcq *CQ
	scv, rcv *ring.Queue

	sends, recvs []uint64 // posted, not completed
	failed       [2]bool  // a completion of sends, of receives was an error
	rings        []*ring.Queue
}

// corePool is a shared receive queue.
type corePool struct {
	h      *coreHost
	srq    *SRQ
	pd     *PD
	mr     *MR
	rq     *ring.Queue
	cq     *CQ // of XRC
	cv     *ring.Queue
	posted map[uint64]bool
}

// coreRing makes a queue, as the NIC and as the program see it.
func (w *coreWorld) coreRing(g ring.Geometry, err error) (nic, program *ring.Queue) {
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	buf := make([]byte, g.Size())
	if nic, err = ring.Format(buf, g); err != nil {
		w.t.Fatalf("%v", err)
	}
	return nic, ring.View(buf, g)
}

func coreMust[T any](w *coreWorld, v T, err error) T {
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	return v
}

var coreCap = Cap{MaxSendWR: 7, MaxRecvWR: 7, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 32}

func newCoreWorld(t fatalTB, cfg Config) *coreWorld {
	w := &coreWorld{wire: &wire{t: t, now: 1000, quiet: true}}
	for i := range w.hosts {
		w.hosts[i] = w.newHost(i, cfg)
		w.wire.hosts = append(w.wire.hosts, w.hosts[i].host)
	}
	w.drop = w.note
	attr := Attr{PathMTU: 1, RQPSN: 100, SQPSN: 100, AccessFlags: allAccess | AccessFlushGlobal, MaxRDAtomic: 2, MaxDestRDAtomic: 2,
		MinRNRTimer: 12, Timeout: 10, RetryCnt: 1, RNRRetry: 2, Port: 1, QKey: 0x11111111}
	pools := [2]*corePool{w.newPool(0, nil), w.newPool(1, nil)}
	for _, typ := range []QPType{RC, UC, UD} {
		w.pair(typ, [2]*corePool{}, attr, RTS)
		w.pair(typ, pools, attr, RTS)
	}
	w.pair(RC, [2]*corePool{}, attr, RTS).selective()
	w.xrc(attr)
	w.pair(RC, [2]*corePool{}, attr, RTS).arm()
	for _, s := range []State{Reset, Init, RTR, SQD, Err} {
		w.pair(RC, [2]*corePool{}, attr, s)
	}
	group := roce.GIDFromAddr(coreGroup)
	for _, e := range w.ends {
		if e.q.typ == UD && e.ch == w.hosts[1] {
			coreMust(w, true, func() error { _, err := e.h.n.AttachMulticast(e.q, group); return err }())
		}
	}
	for i, h := range w.hosts {
		e := w.ends[i]
		if !e.q.bind(&ring.Bind{Addr: memBase + coreOpen, Length: 1000, LKey: h.mr.LKey(), MWKey: h.mw.RKey(), Access: uint32(bindRights)}) {
			t.Fatalf("the window cannot be bound")
		}
		h.before = bytes.Clone(h.mem.Mem)
	}
	return w
}

var coreGroup = netip.MustParseAddr("224.0.0.77")

func (w *coreWorld) newHost(i int, cfg Config) *coreHost {
	cfg.Seed += uint64(i)
	h := &host{w: w.wire, n: New(cfg), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), alt: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}),
		tx: NewTx(16<<10, 64), mem: memory(memBase, coreMemory)}
	h.n.SetGID(0, roce.GIDFromAddr(h.addr))
	h.n.SetGID(1, roce.GIDFromAddr(h.alt))
	copy(h.mem.Mem, pattern[i:])
	c := &coreHost{host: h}
	h.pd, c.other = mustPD(w.t, h.n), mustPD(w.t, h.n)
	reg := func(pd *PD, from, to uint64, a Access) *MR {
		m, err := h.n.RegMR(pd, h.mem, memBase+from, to-from, memBase+from, a)
		return coreMust(w, m, err)
	}
	h.mr = reg(h.pd, coreOpen, coreOpenEnd, allAccess|AccessMWBind|AccessFlushGlobal)
	high, err := h.n.RegMR(h.pd, h.mem, memBase+coreOpen, coreOpenEnd-coreOpen, coreHigh, allAccess)
	c.high = coreMust(w, high, err)
	c.locked = reg(h.pd, coreLocked, coreForeign, AccessLocalWrite)
	c.foreign = reg(c.other, coreForeign, coreMemory, allAccess)
	mw, err := h.n.AllocMW(h.pd, MWType2)
	c.mw = coreMust(w, mw, err)
	return c
}

func (w *coreWorld) newPool(i int, d *XRCD) *corePool {
	h := w.hosts[i]
	p := &corePool{h: h, pd: h.pd, mr: h.mr, posted: map[uint64]bool{}}
	a := SRQAttr{MaxWR: 15, MaxSGE: 2}
	_, g, err := h.n.SRQShape(a)
	nics, program := w.coreRing(g, err)
	p.rq = program
	if d == nil {
		p.srq, err = h.n.CreateSRQ(p.pd, nics, a)
	} else {
		var cq *ring.Queue
		cq, p.cv = w.coreRing(ring.GeometryFor(127, ring.CQESize))
		p.cq, err = h.n.CreateCQ(cq)
		p.srq, err = h.n.CreateXRCSRQ(p.pd, d, coreMust(w, p.cq, err), nics, a)
	}
	p.srq = coreMust(w, p.srq, err)
	w.pools = append(w.pools, p)
	return p
}

func (w *coreWorld) newEnd(i int, init QPInit, pool *corePool) *coreEnd {
	h := w.hosts[i]
	e := &coreEnd{end: &end{h: h.host}, ch: h, pool: pool}
	var s, r *ring.Queue
	s, e.scv = w.coreRing(ring.GeometryFor(127, ring.CQESize))
	r, e.rcv = w.coreRing(ring.GeometryFor(127, ring.CQESize))
	var err error
	e.scq, err = h.n.CreateCQ(s)
	e.scq = coreMust(w, e.scq, err)
	e.rcq, err = h.n.CreateCQ(r)
	e.rcq = coreMust(w, e.rcq, err)
	_, sg, rg, err := h.n.QueueShapes(coreCap)
	init.SQ, e.sq = w.coreRing(sg, err)
	init.RQ, e.rq = w.coreRing(rg, err)
	e.rings = []*ring.Queue{init.SQ, init.RQ, s, r}
	init.PD, init.SendCQ, init.RecvCQ, init.Cap, init.SigAll = h.pd, e.scq, e.rcq, coreCap, true
	if pool != nil && init.Type != XRCTGT {
		init.SRQ, e.rq = pool.srq, pool.rq
		e.rings[1] = nil
	}
	e.q, err = h.n.CreateQP(init)
	e.q = coreMust(w, e.q, err)
	w.ends = append(w.ends, e)
	return e
}

func (w *coreWorld) pair(typ QPType, pools [2]*corePool, a Attr, state State) *coreEnd {
	x, y := w.newEnd(0, QPInit{Type: typ}, pools[0]), w.newEnd(1, QPInit{Type: typ}, pools[1])
	x.peer, y.peer = y, x
	x.connect(a, min(state, SQD))
	y.connect(a, min(state, SQD))
	if state == Err {
		x.modify(Err)
		y.modify(Err)
	}
	return x
}

// connect moves the end to a state; SQD is behind RTS.
func (e *coreEnd) connect(a Attr, state State) {
	if state != Reset {
		e.to(min(state, RTS), a, e.peer.end)
	}
	if state == SQD {
		e.modify(SQD)
	}
}

func (e *coreEnd) modify(s State) { _ = e.h.n.Modify(e.h.w.now, e.q, &Attr{State: s}, AttrState) }

// selective makes the connection one that repeats selectively.
func (e *coreEnd) selective() {
	for _, x := range []*coreEnd{e, e.peer} {
		x.q.sel.on = true
		x.q.sel.forgetPeer(x.q.req.una)
	}
}

// arm gives both ends a second path.
func (e *coreEnd) arm() {
	arm(e.h.w.t, e.end, e.peer.h.alt, 1)
	arm(e.h.w.t, e.peer.end, e.h.alt, 1)
}

// xrc is an initiator at the first host, and a target with two queues at the second.
func (w *coreWorld) xrc(a Attr) {
	d, err := w.hosts[1].n.AllocXRCD()
	d = coreMust(w, d, err)
	p := w.newPool(1, d)
	w.newPool(1, d)
	x, y := w.newEnd(0, QPInit{Type: XRCINI}, nil), w.newEnd(1, QPInit{Type: XRCTGT, XRCD: d}, p)
	x.peer, y.peer = y, x
	x.connect(a, RTS)
	y.connect(a, RTS)
}

// note remembers what is sent, and says whether it is lost.
func (w *coreWorld) note(f frame) bool {
	r := &w.frames[w.sent%len(w.frames)]
	w.sent++
	r.path, r.data, r.to = f.path, append(r.data[:0], f.data...), w.hosts[0].host
	if f.from == r.to {
		r.to = w.hosts[1].host
	}
	return w.cut
}

// open is a piece of the region with rights.
func (e *coreEnd) open(off, n int) ring.SGE {
	off %= coreOpenEnd - coreOpen
	return ring.SGE{Addr: memBase + coreOpen + uint64(off), Length: uint32(min(n, coreOpenEnd-coreOpen-off)), LKey: e.h.mr.LKey()}
}

// postSend posts a request of an opcode that the type has.
func (w *coreWorld) postSend(e *coreEnd, op ring.SendOpcode, off, n int) {
	if e.sq.Free() == 0 || e.q.typ == XRCTGT {
		return
	}
	w.id++
	s := wr(w.id, op, e.open(off, n))
	if op == ring.OpCompareSwap || op == ring.OpFetchAdd || op == ring.OpAtomicWrite {
		s.SGE[0].Length = 8
	}
	s.RemoteAddr, s.RKey = memBase+coreOpen+uint64(off&^7), e.peer.h.mr.RKey()
	if p := e.peer.pool; p != nil {
		s.RemoteSRQ = p.srq.num
	}
	switch {
	case op == ring.OpBindMW:
		s.Bind = ring.Bind{Addr: memBase + coreOpen + uint64(off), Length: uint64(n), LKey: e.h.mr.LKey(), MWKey: e.ch.mw.RKey(), RKey: uint32(w.id), Access: uint32(bindRights)}
	case op == ring.OpLocalInv:
		s.Imm = e.ch.mw.RKey()
	case op == ring.OpSendInv:
		s.Imm = e.peer.ch.mw.RKey()
	case op == ring.OpFlush:
		s.Flush = ring.Flush{Length: uint32(n), Type: 1}
	}
	if e.q.typ == UD {
		s.RemoteQPN, s.RemoteQKey = e.peer.q.Num(), 0x11111111
		s.AHNum = w.handle(e)
	}
	e.sq.StoreSend(e.sq.Position(), s, e.q.typ == UD)
	_ = e.sq.Publish()
	e.sends = append(e.sends, w.id)
	e.h.n.Doorbell(w.now, e.q)
}

// handle is an address handle to the peer, or to the group that it is a member of.
func (w *coreWorld) handle(e *coreEnd) uint32 {
	dst := e.peer.h.addr
	if w.id%3 == 0 {
		dst = coreGroup
	}
	ah, err := e.h.n.CreateAH(e.h.pd, AHAttr{DGID: roce.GIDFromAddr(dst), IsGlobal: true, Port: 1, HopLimit: 64})
	return coreMust(w, ah, err).Num()
}

func (w *coreWorld) postRecv(e *coreEnd, off, n int) {
	if e.q.typ == XRCINI {
		return
	}
	if e.pool != nil {
		w.postPool(e.pool, off, n)
		return
	}
	if e.rq.Free() == 0 || e.q.state == Reset {
		return
	}
	w.id++
	storeRecv(e.rq, w.id, e.open(off, n), e.open(off+n, 64))
	e.recvs = append(e.recvs, w.id)
}

func (w *coreWorld) postPool(p *corePool, off, n int) {
	if p.rq.Free() == 0 {
		return
	}
	w.id++
	off %= coreOpenEnd - coreOpen
	storeRecv(p.rq, w.id, ring.SGE{Addr: memBase + coreOpen + uint64(off), Length: uint32(min(n, coreOpenEnd-coreOpen-off)), LKey: p.h.mr.LKey()})
	p.posted[w.id] = true
}

func storeRecv(q *ring.Queue, id uint64, sge ...ring.SGE) {
	r := &ring.RecvWQE{WRID: id, NumSGE: len(sge)}
	copy(r.SGE[:], sge)
	q.StoreRecv(q.Position(), r)
	_ = q.Publish()
}

// to Reset, which forgets what was posted. What has completed before has been taken.
func (w *coreWorld) toReset(e *coreEnd) {
	w.check()
	e.modify(Reset)
	if e.q.state == Reset {
		e.sends, e.recvs, e.failed = nil, nil, [2]bool{}
		w.reset = true
	}
}

// check takes completions, and looks at them and at memory.
func (w *coreWorld) check() {
	w.looked = w.id
	for _, h := range w.hosts {
		m := h.mem.Mem
		if !bytes.Equal(m[:coreOpen], h.before[:coreOpen]) || !bytes.Equal(m[coreOpenEnd:], h.before[coreOpenEnd:]) {
			w.t.Fatalf("memory outside the region has changed")
		}
	}
	for _, h := range w.hosts {
		w.consistent(h)
	}
	for _, e := range w.ends {
		e.take(w, e.scv, &e.sends, 0)
		switch {
		case e.pool == nil:
			e.take(w, e.rcv, &e.recvs, 1)
		default:
			e.pool.take(w, e.rcv, e)
		}
	}
	for _, p := range w.pools {
		if p.cv != nil {
			p.take(w, p.cv, nil)
		}
	}
}

// consistent holds what is true of a NIC between calls: what is in flight to each peer is what its queue pairs have in flight, which is what they have
// sent and nobody has acknowledged, and their timers come up in time.
func (w *coreWorld) consistent(h *coreHost) {
	for _, n := range h.n.Units() {
		sum := map[*peer]uint32{}
		for _, q := range h.n.qps {
			if q.nic != n {
				continue
			}
			r := &q.req
			if d := q.deadline(); d != 0 && (q.timer.index == 0 || q.timer.at > d) {
				w.t.Fatalf("type %d in state %v: it waits until %d, and its timer comes at %d", q.typ, q.state, d, q.timer.at)
			}
			if a, b, c := r.acked-r.head, r.cur-r.head, r.tail-r.head; a > b || b > c {
				w.t.Fatalf("type %d in state %v: acknowledged %d, sending %d, fetched %d", q.typ, q.state, a, b, c)
			}
			if r.peer == nil {
				continue
			}
			sum[r.peer] += r.window.inFlight
			if want := q.unacknowledged(); r.window.inFlight != want && !r.failing && q.reliable() {
				w.t.Fatalf("type %d in state %v: %d bytes are in flight, %d should be", q.typ, q.state, r.window.inFlight, want)
			}
		}
		for _, p := range n.transport.peers {
			if p.window.inFlight != sum[p] {
				w.t.Fatalf("%d bytes are in flight to a peer, %d of its queue pairs", p.window.inFlight, sum[p])
			}
		}
	}
}

// unacknowledged is what the queue pair's packets that are not acknowledged count, but for what the peer is known to have.
func (q *QP) unacknowledged() (bytes uint32) {
	r := &q.req
	for pos := r.acked; pos != r.tail; pos++ {
		w := r.at(pos)
		for psn := later(w.first, r.una, w.first); psn.Before(w.end()) && psn.Before(r.nxt); psn = psn.Add(1) {
			if i := uint32(roce.Diff(psn, w.first)); q.sel.landed[psn%span/64]>>(psn%64)&1 == 0 {
				bytes += q.cost(w, i, i+1)
			}
		}
	}
	return bytes
}

// take takes completions that come in the order in which their requests were posted.
func (e *coreEnd) take(w *coreWorld, cv *ring.Queue, posted *[]uint64, side int) {
	for c := (ring.CQE{}); cv.Pending() > 0; {
		cv.LoadCQE(cv.Position(), &c)
		_ = cv.Consume()
		if w.wild {
			continue
		}
		switch {
		case c.QPN != e.q.num || c.Status > ring.StatusGeneralErr:
			w.t.Fatalf("completion %+v", c)
		case len(*posted) == 0 || (*posted)[0] != c.WRID:
			w.t.Fatalf("type %d: %d completes (%v), posted are %v", e.q.typ, c.WRID, c.Status, *posted)
		case e.failed[side] && c.Status == ring.StatusSuccess && e.q.typ != UC && e.q.typ != UD:
			w.t.Fatalf("a success behind an error")
		}
		e.failed[side] = e.failed[side] || c.Status != ring.StatusSuccess
		*posted = (*posted)[1:]
	}
}

func (p *corePool) take(w *coreWorld, cv *ring.Queue, e *coreEnd) {
	for c := (ring.CQE{}); cv.Pending() > 0; {
		cv.LoadCQE(cv.Position(), &c)
		_ = cv.Consume()
		if w.wild {
			continue
		}
		if !p.posted[c.WRID] || e != nil && c.QPN != e.q.num {
			w.t.Fatalf("a shared receive that is not posted, or has completed, completes: %+v", c)
		}
		delete(p.posted, c.WRID)
	}
}

// finish puts everything into error, where everything completes, and destroys it.
func (w *coreWorld) finish() { w.finishWith() }

// finishWith is finish of a world that has more regions.
func (w *coreWorld) finishWith(more ...*MR) {
	w.settle()
	w.check()
	w.stalled()
	for _, e := range w.ends {
		e.modify(Err)
		w.check()
	}
	w.run(400e6)
	w.check()
	for _, e := range w.ends {
		if n := len(e.sends) + len(e.recvs); n > 0 && e.q.state == Err && !w.wild {
			w.t.Fatalf("type %d: %v and %v never complete", e.q.typ, e.sends, e.recvs)
		}
	}
	for _, p := range w.pools {
		if left := int(p.srq.ring.Pending()); left != len(p.posted) && !w.reset && !w.wild {
			w.t.Fatalf("%d shared receives are left, %d have not completed", left, len(p.posted))
		}
	}
	for _, m := range more {
		_ = m.Dereg()
	}
	w.destroy()
}

// stalled lets everything come to rest: no queue pair has work that nothing would make its NIC look at.
func (w *coreWorld) stalled() {
	w.cut = false
	for range 3 {
		w.run(1e9)
		w.check()
		for _, h := range w.hosts {
			for _, x := range h.n.Check(w.now, nil) {
				if x.Kind == TroubleStalled && !w.wild {
					w.t.Fatalf("type %d in state %v is stalled", x.QP.typ, x.QP.state)
				}
			}
		}
	}
}

func (w *coreWorld) destroy() {
	gone := func(what string, err error) {
		if err != nil {
			w.t.Fatalf("%s: %v", what, err)
		}
	}
	for _, e := range w.ends {
		for len(e.q.groups) > 0 {
			_, err := e.h.n.DetachMulticast(e.q, e.q.groups[0])
			gone("leaving a group", err)
		}
		gone("destroying a queue pair", e.q.Destroy())
		gone("destroying a completion queue", e.scq.Destroy())
		gone("destroying a completion queue", e.rcq.Destroy())
	}
	for _, p := range w.pools {
		d := p.srq.xrcd
		gone("destroying a shared receive queue", p.srq.Destroy())
		if p.cq != nil {
			gone("destroying a completion queue", p.cq.Destroy())
		}
		if d != nil && len(d.srqs) == 0 {
			gone("freeing a domain of XRC", d.Dealloc())
		}
	}
	for _, h := range w.hosts {
		for _, ah := range h.n.ahs {
			gone("destroying an address handle", ah.Destroy())
		}
		gone("deallocating a window", h.mw.Dealloc())
		for _, m := range []*MR{h.mr, h.high, h.locked, h.foreign} {
			if !m.dead {
				gone("deregistering", m.Dereg())
			}
		}
		gone("freeing a domain", h.pd.Dealloc())
		gone("freeing a domain", h.other.Dealloc())
		t := &h.n.transport
		if len(h.n.qps)+len(h.n.mrs)+len(h.n.peers)+len(t.peers)+len(t.timers.q)+t.keptInUse-len(t.usedKept)+h.n.cqs > 0 || t.active.head != nil {
			w.t.Fatalf("left: %d queue pairs, %d keys, %d and %d peers, %d timers, %d kept packets, %d completion queues",
				len(h.n.qps), len(h.n.mrs), len(h.n.peers), len(t.peers), len(t.timers.q), t.keptInUse-len(t.usedKept), h.n.cqs)
		}
	}
}

// refused is the sum of the counters of what was refused or passed over.
func refused(s *Stats) uint64 {
	return s.BadPackets + s.BadPKey + s.BadQKey + s.UDDropped + s.UCDropped + s.OutOfSequence + s.BehindErrors + s.GhostAcks + s.StaleAcks +
		s.MulticastEchoes + s.Duplicates + s.NAKsRecvd + s.CNPsReceived
}

// progress is what a packet can change about a queue pair.
type progress struct {
	state                              State
	expected, committed, una, max, nxt roce.PSN
	refusing, failing, nakDue, ackDue  bool
	established, cnpDue                bool
	in                                 messageKind
	recvPos, acked, limit, owed        uint32
	ackAt, rnr                         int64
	out, kept, answers                 int
	mig                                uint8
	have                               [2]uint64
	heard, known                       roce.PSN
}

func (q *QP) progress() progress {
	r, a, s := &q.resp, &q.req, &q.sel
	p := progress{state: q.state, expected: r.expected, committed: r.committed, una: a.una, max: a.max, nxt: a.nxt, refusing: r.refusing, failing: a.failing,
		nakDue: r.nakDue, ackDue: r.ackDue, established: r.established, cnpDue: r.cnpDue, in: r.inMessage, recvPos: r.recvPos, acked: a.acked, limit: a.limit,
		owed: r.ackOwed, ackAt: r.ackAt, rnr: a.rnrUntil, out: len(r.pending()), mig: q.attr.PathMigState, have: s.have, heard: s.heard, known: s.acked}
	if s.requests != nil {
		p.kept = s.requests.count
	}
	if s.responses != nil {
		p.answers = s.responses.count
	}
	return p
}

// arrive lets packets arrive at a host. Of a single one the world looks whether it has left a trace.
func (w *coreWorld) arrive(h *host, pkts ...RxPacket) {
	var before []progress
	for _, e := range w.ends {
		if e.h == h {
			before = append(before, e.q.progress())
		}
	}
	was := refused(h.n.Stats())
	h.n.Receive(w.now, pkts)
	t := &h.n.transport
	traced := len(t.effects)+len(t.list.Segs)+len(t.list.Atomics) > 0 || len(pkts) > 1
	h.n.Memory().Scatter()
	h.n.MemoryDone(w.now)
	ev := h.n.Events()
	traced = traced || len(ev) > 0 || refused(h.n.Stats()) != was
	for _, e := range w.ends {
		if e.h == h {
			traced = traced || e.q.progress() != before[0]
			before = before[1:]
		}
	}
	if !traced {
		w.t.Fatalf("a packet has left no trace: % x by %+v", pkts[0].Data[:min(len(pkts[0].Data), 60)], pkts[0].Path)
	}
	w.check()
}

// holeAt is a piece of memory that the program has unmapped.
func holeAt(addr uint64) hostmem.Range { return hostmem.Range{Addr: addr, Len: 256} }
