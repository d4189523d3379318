package sim

import (
	"errors"
	"slices"

	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// conn is a reliable connection, made anew when it has broken.
type conn struct {
	a, b     *qpair
	flow     *flow
	again    int  // connections still to be made
	breaking bool // recovery has begun
	cm       bool // the communication managers make it
	attempt  *cmAttempt
}

const allAccess = nic.AccessLocalWrite | nic.AccessRemoteWrite | nic.AccessRemoteRead | nic.AccessRemoteAtomic |
	nic.AccessMWBind | nic.AccessFlushGlobal

// Regions of every arena.
const (
	regionPlain  = iota // all rights, addressed by its own address
	regionMoved         // all rights, at an arbitrary iova
	regionLocal         // local rights only
	regionShared        // remote read and write, no atomics, at an arbitrary iova
	regionSource        // local read only
)

// build makes the hosts, links, objects and programs of the run.
func (w *world) build() {
	w.paths = w.chance(40)
	for i := range pick(w, w.between(2, 4), w.between(2, 4), w.between(2, 8)) { // many take their time
		w.addHost(i)
	}
	w.addWires()
	pairs := w.between(2, 5)
	for range pairs {
		a := w.hosts[w.rng.IntN(len(w.hosts))]
		b := w.hosts[w.rng.IntN(len(w.hosts))]
		w.addConn(a, b)
	}
	if n := len(w.hosts); n > 2 && w.chance(40) {
		w.addStar(w.rng.IntN(n))
	}
	if w.chance(40) {
		w.addShared(w.hosts[w.rng.IntN(len(w.hosts))])
	}
	if w.chance(60) {
		w.qkey = w.rng.Uint32() &^ (1 << 31)
		for range w.between(2, 4) {
			w.addDatagrams(w.hosts[w.rng.IntN(len(w.hosts))], nil)
		}
		w.addGroups()
	}
	if w.chance(50) {
		for range w.between(1, 2) {
			w.addUnreliable(w.hosts[w.rng.IntN(len(w.hosts))], w.hosts[w.rng.IntN(len(w.hosts))], nil)
		}
	}
	if w.chance(30) {
		w.addXRC(w.hosts[w.rng.IntN(len(w.hosts))])
	}
	if w.chance(25) {
		w.addCM()
	}
	w.start()
	if w.paths && w.chance(60) {
		w.addPortChanges()
	}
	if w.chance(30) {
		for range w.between(1, 40) {
			w.after(w.nanos(10_000, 800_000), w.forge)
		}
	}
}

// start arms completion queues and starts the programs of what has been made.
func (w *world) start() {
	for _, h := range w.hosts {
		for _, c := range h.cqs {
			if w.chance(80) {
				c.arm()
			}
		}
	}
	for _, c := range w.conns {
		w.after(w.nanos(0, 20_000), func() { w.connect(c) })
	}
	for _, q := range w.uds {
		w.startDatagrams(q)
	}
}

func (w *world) addHost(i int) {
	h := &host{w: w, index: i, byQPN: make(map[uint32]*qpair), ahs: make(map[ahKey]*nic.AH), xrcs: make(map[uint32]*xrcSender),
		mtu: pick(w, 4096, 4096, 1024, 2048)}
	h.addrs = addressesOf(i)
	cfg := nic.Config{Seed: w.rng.Uint64(), MTU: uint32(h.mtu), Planted: w.cfg.Planted}
	h.pkeys = pick(w, []uint16{0xffff, 0x8001}, []uint16{0x8001, 0xffff}, []uint16{0x8123, 0x8001, 0xffff})
	cfg.PKeys = h.pkeys
	cfg.Policy.NoEarlyResend = w.chance(30)
	if w.chance(30) {
		cfg.Policy.MinResendNanos = w.nanos(50_000, 5_000_000)
	}
	if w.chance(30) {
		cfg.Policy.Window = w.randomWindows()
	}
	if w.chance(30) {
		cfg.Policy.Pace = nic.PacePolicy{BytesPerSecond: uint64(w.between(1e6, 1e9)), Burst: uint32(w.between(1, 200_000))}
	}
	w.randomCongestion(&cfg.Policy)
	h.policy = cfg.Policy
	if w.chance(30) {
		cfg.Units = w.between(2, 4)
	}
	h.nic = nic.New(cfg)
	h.addUnits()
	for f := range h.addrs {
		h.nic.SetGID(f, gidOf(h, f))
	}
	var err error
	h.pd, err = h.nic.AllocPD()
	w.must(err, "allocating a protection domain")
	h.other, err = h.nic.AllocPD()
	w.must(err, "allocating a protection domain")
	h.mem = w.newArena()
	for r, access := range []nic.Access{allAccess, allAccess, nic.AccessLocalWrite,
		nic.AccessLocalWrite | nic.AccessRemoteRead | nic.AccessRemoteWrite, 0} {
		w.register(h, h.mem.addRegion(access), r)
	}
	moved := h.mem.regions[regionMoved]
	h.alien, err = h.nic.RegMR(h.other, &h.mem.space, h.mem.va(moved.off), uint64(moved.size), moved.iova, allAccess)
	w.must(err, "registering memory")
	for range 4 {
		w.addWord(h)
	}
	for range w.between(1, 3) {
		w.addCQ(h)
	}
	w.hosts = append(w.hosts, h)
}

// randomWindows are bounds of the bytes in flight, some of them less than a packet.
func (w *world) randomWindows() (p nic.WindowPolicy) {
	p.QPMin, p.PeerMin = uint32(w.between(1, 20_000)), uint32(w.between(1, 40_000))
	p.QPMax, p.PeerMax = p.QPMin+uint32(w.between(0, 100_000)), p.PeerMin+uint32(w.between(0, 100_000))
	p.PacketOverhead = uint32(w.between(0, 1000))
	return p
}

// partition is the host's index of the first or second of two partitions that all hosts are in.
func (h *host) partition(n int) uint16 {
	return uint16(slices.Index(h.pkeys, []uint16{0xffff, 0x8001}[n]))
}

// register registers region r, number n, of a host.
func (w *world) register(h *host, r *region, n int) {
	r.iova = h.mem.va(r.off)
	if n == regionMoved || n == regionShared {
		switch w.rng.IntN(3) {
		case 0:
			r.iova = w.rng.Uint64N(1 << 62)
		case 1:
			r.iova = -uint64(r.size) - 1 - w.rng.Uint64N(64) // up to the end of the address space
		default:
			r.iova = w.rng.Uint64N(pageBytes)
		}
	}
	mr, err := h.nic.RegMR(h.pd, &h.mem.space, h.mem.va(r.off), uint64(r.size), r.iova, r.access)
	w.must(err, "registering memory")
	r.mr = mr
}

func (w *world) addCQ(h *host) {
	entries := uint32(4096)
	small := w.chance(4)
	if small { // a burst overflows it, however often the program polls
		entries = uint32(w.between(1, 14))
	}
	g, err := ring.GeometryFor(entries, ring.CQESize)
	w.must(err, "shaping a completion queue")
	nics, programs := newQueue(w, g)
	cq, err := h.nic.CreateCQ(nics)
	w.must(err, "creating a completion queue")
	c := &cqueue{h: h, cq: cq, ring: programs, small: small}
	h.cqs = append(h.cqs, c)
	if w.chance(30) {
		w.moderate(c)
	}
}

// addWires makes the links, and now and then a time without one of them, or without all of a host's.
func (w *world) addWires() {
	for _, from := range w.hosts {
		for _, to := range w.hosts {
			x := &wire{w: w, from: from, to: to, latency: w.nanos(500, 20_000), jitter: w.nanos(0, 3000)}
			x.spec = w.randomSpec()
			x.marks = w.randomMarks()
			x.inj = fault.New(x.spec)
			if w.paths {
				x.detour = w.nanos(0, 30_000)
			}
			from.wires = append(from.wires, x)
		}
	}
	if !w.chance(10) {
		return
	}
	a, b := w.hosts[w.rng.IntN(len(w.hosts))], w.hosts[w.rng.IntN(len(w.hosts))]
	o := outage{from: w.now + w.nanos(0, 400_000)}
	o.to = o.from + w.nanos(100_000, 200_000_000)
	if w.chance(40) {
		o.to = maxVirtualNanos // for good
	}
	peers := []*host{b}
	if w.chance(40) {
		peers = w.hosts // the host is cut off
	}
	both := w.chance(70)
	for _, b := range peers {
		a.wires[b.index].outages = append(a.wires[b.index].outages, o)
		if a != b && both {
			b.wires[a.index].outages = append(b.wires[a.index].outages, o)
		}
	}
}

// addQP creates a queue pair of random capabilities.
func (w *world) addQP(h *host, typ nic.QPType, p *pool) *qpair {
	q := &qpair{h: h, ud: typ == nic.UD, typ: typ, sigAll: w.chance(25)}
	q.sendCQ, q.recvCQ = h.cqs[w.rng.IntN(len(h.cqs))], h.cqs[w.rng.IntN(len(h.cqs))]
	if p != nil {
		q.sendCQ, q.recvCQ, q.pool = h.roomyCQ(), h.roomyCQ(), p
	}
	asked := nic.Cap{MaxSendWR: uint32(w.between(1, 64)), MaxRecvWR: uint32(w.between(1, 64)),
		MaxSendSGE: uint32(pick(w, 1, 2, 4, 32)), MaxRecvSGE: uint32(pick(w, 1, 2, 4, 32)),
		MaxInline: uint32(pick(w, 0, 0, 32, 220, 512))}
	granted, sqg, rqg, err := h.nic.QueueShapes(asked)
	w.must(err, "shaping a queue pair")
	q.cap = granted
	nicSQ, sq := newQueue(w, sqg)
	nicRQ, rq := newQueue(w, rqg)
	q.sq, q.rq = sq, rq
	var srq *nic.SRQ
	if p != nil {
		q.rq, srq = nil, p.srq
	}
	q.qp, err = h.anyUnit().CreateQP(nic.QPInit{Type: typ, PD: h.pd, SendCQ: q.sendCQ.cq, RecvCQ: q.recvCQ.cq,
		SQ: nicSQ, RQ: nicRQ, SRQ: srq, Cap: asked, SigAll: q.sigAll})
	w.must(err, "creating a queue pair")
	h.qps = append(h.qps, q)
	h.byQPN[q.qp.Num()] = q
	return q
}

// addStar connects a host to all the others: its NIC has many peers at a time, and their atomics and receives
// meet there.
func (w *world) addStar(hub int) {
	for i, h := range w.hosts {
		if i != hub {
			w.addConn(h, w.hosts[hub])
		}
	}
}

func (w *world) addConn(a, b *host) {
	w.addConnOf(w.addQP(a, nic.RC, nil), w.addQP(b, nic.RC, nil))
}

func (w *world) addConnOf(a, b *qpair) {
	c := &conn{a: a, b: b, again: w.rng.IntN(3)}
	for _, q := range []*qpair{c.a, c.b} {
		q.conn = c
		q.end = &pathEnd{h: q.h, qp: q.qp, q: q}
	}
	c.a.peer, c.b.peer = c.b, c.a
	c.flow = w.newFlow(a.end, b.end)
	c.flow.alive = func() bool {
		return !c.breaking && a.ready && b.ready && !a.down && !b.down && !a.reset && !b.reset && !a.gone && !b.gone
	}
	w.conns = append(w.conns, c)
}

// randomPSN is often so near the end of the 24 bits that it wraps within the run.
func (w *world) randomPSN() uint32 {
	if w.chance(60) {
		return uint32(roce.PSNMask - w.rng.IntN(200))
	}
	return w.rng.Uint32() & roce.PSNMask
}

// connect takes both queue pairs of a connection from RESET to RTS.
func (w *world) connect(c *conn) {
	a, b := c.a, c.b
	if a.deaf || b.deaf {
		return
	}
	w.count.Connections++
	w.negotiate(c)
	selective := a.typ == nic.RC && w.chance(40)
	for _, q := range []*qpair{a, b} {
		q.number++
		attr := q.attr
		attr.State = nic.Init
		w.modify(q, &attr, nic.AttrState|
			nic.AttrPKeyIndex|nic.AttrPort|nic.AttrAccessFlags)
		if selective {
			w.must(q.qp.SetSelective(true), "having "+q.String()+" repeat selectively")
			w.count.Selective++
		}
		w.plan(q)
	}
	if c.cm {
		w.spareReceives(a)
		w.spareReceives(b)
		w.askCM(c)
		return
	}
	patient := a.attr.RetryCnt == 7 && b.attr.RetryCnt == 7 // what comes in INIT is lost, and costs a retry
	for _, q := range []*qpair{a, b} {
		w.spareReceives(q)
		number := q.number
		toRTR := func() {
			if q.number == number && q.qp.State() == nic.Init && !q.down {
				w.toRTR(q)
			}
		}
		if patient && w.chance(20) {
			w.after(w.nanos(0, 300_000), toRTR)
		} else {
			toRTR()
		}
	}
}

// toRTR lets a queue pair hear its peer, and soon, or in a while, talk to it.
func (w *world) toRTR(q *qpair) {
	attr := q.attr
	attr.State = nic.RTR
	mask := nic.AttrState | nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN | nic.AttrMaxDestRDAtomic | nic.AttrMinRNRTimer
	if w.withoutAddress(q, &attr, mask) {
		q.late = true
		number := q.number
		w.after(w.nanos(100_000, 10_000_000), func() {
			if q.number == number && q.qp.State() == nic.Init && !q.down {
				w.toRTR(q)
			}
		})
		return
	}
	mask |= q.end.early(w, &attr, nic.AttrAltPath)
	w.modify(q, &attr, mask)
	if q.held {
		return
	}
	number := q.number
	start := func() {
		if q.number == number && !q.down && !q.progErr && !q.errState && !q.reset {
			w.toRTS(q)
		}
	}
	if w.chance(70) {
		start()
	} else {
		w.after(w.nanos(0, 100_000), start)
	}
}

func (w *world) toRTS(q *qpair) {
	attr := q.attr
	attr.State = nic.RTS
	mask := nic.AttrState | nic.AttrSQPSN | nic.AttrTimeout | nic.AttrRetryCnt | nic.AttrRNRRetry | nic.AttrMaxRDAtomic
	mask |= q.end.early(w, &attr, nic.AttrAltPath|nic.AttrPathMigState)
	w.modify(q, &attr, mask)
	q.ready = true
	number := q.number
	w.after(w.nanos(0, 30_000), func() { w.step(q, number) })
}

// negotiate chooses the attributes of a new connection.
func (w *world) negotiate(c *conn) {
	a, b := c.a, c.b
	code := w.between(1, int(roce.MTUCode(min(a.h.mtu, b.h.mtu))))
	for _, q := range []*qpair{a, b} {
		q.epoch = epoch{mtu: roce.MTUBytes(uint8(code)), rnrOff: noOffset}
		q.attr = nic.Attr{Port: 1, AccessFlags: allAccess, PathMTU: uint8(code), DestQPN: q.peer.qp.Num(), SQPSN: w.randomPSN(),
			MinRNRTimer: uint8(pick(w, w.between(1, 14), w.between(1, 14), w.between(0, 31))),
			Timeout:     uint8(w.between(10, 14)), RetryCnt: 7, RNRRetry: 7,
			AH: nic.AHAttr{TrafficClass: uint8(w.rng.Uint32()) &^ 3}}
		if w.chance(15) {
			q.attr.AccessFlags &^= pick(w, nic.AccessRemoteWrite, nic.AccessRemoteRead, nic.AccessRemoteAtomic, nic.AccessFlushGlobal)
		}
		if w.chance(15) {
			q.attr.RetryCnt = uint8(w.rng.IntN(7))
		}
		if w.chance(20) {
			q.attr.RNRRetry = uint8(w.rng.IntN(7))
		}
	}
	partition := w.rng.IntN(2)
	for _, q := range []*qpair{a, b} {
		q.attr.PKeyIndex = q.h.partition(partition)
		q.attr.RQPSN = q.peer.attr.SQPSN
		q.attr.MaxRDAtomic = uint8(pick(w, 1, 2, 4, 16))
		q.peer.attr.MaxDestRDAtomic = q.attr.MaxRDAtomic + uint8(pick(w, 0, 0, 1, 8))
	}
	c.flow.begin(w, w.randomRoute(), [2]*nic.Attr{&a.attr, &b.attr})
	for _, q := range []*qpair{a, b} {
		class := q.attr.AH.TrafficClass
		q.attr.AH = q.end.primary.address(q.peer.h)
		q.attr.AH.TrafficClass = class
	}
}

const noOffset = ^uint32(0)

// withoutAddress tells whether the connection's own address does not exist at the moment: then it cannot be made.
func (w *world) withoutAddress(q *qpair, a *nic.Attr, mask nic.AttrMask) bool {
	r := q.end.primary
	if q.h.removed[r.src] {
		if err := q.h.nic.Modify(w.now, q.qp, a, mask); !errors.Is(err, nic.EINVAL) {
			w.fail("%v is connected from an address that is gone: %v", q, err)
		}
	}
	return q.h.removed[r.src] || q.peer.h == q.h && q.h.removed[r.dst]
}

// modify issues a command that may not be refused.
func (w *world) modify(q *qpair, a *nic.Attr, mask nic.AttrMask) {
	w.note(q.h, "%v goes to %v", q, a.State)
	w.must(q.h.nic.Modify(w.now, q.qp, a, mask), "modify of "+q.String()+" to "+a.State.String())
	q.h.look("modify")
	q.h.driveSoon()
}

// lossy tells whether packets between the two ends of q may be lost.
func (q *qpair) lossy() bool {
	return q.h.wires[q.peer.h.index].lossy() || q.peer.h.wires[q.h.index].lossy()
}

func (q *qpair) outages() bool {
	return len(q.h.wires[q.peer.h.index].outages) > 0 || len(q.peer.h.wires[q.h.index].outages) > 0
}

// key of the region that a segment lies in.
func (s seg) key() uint32 {
	if s.r.win != nil {
		return s.r.key
	}
	return s.r.mr.LKey()
}

// troubled tells whether packets between the two ends of q meet faults of any kind.
func (q *qpair) troubled() bool {
	there, back := q.h.wires[q.peer.h.index], q.peer.h.wires[q.h.index]
	return there.spec.Active() || back.spec.Active() || len(there.silences)+len(back.silences) > 0
}
