package nic

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// A wire joins NICs in memory. Each test drives it by time and may take packets out of it.
type wire struct {
	t     fatalTB
	now   int64
	hosts []*host
	log   []frame
	quiet bool // no log

	// drop takes a packet out; nil lets all pass.
	drop func(f frame) bool

	// mangle may repeat and reorder what is about to arrive at once; nil leaves it alone.
	mangle func(pkts []RxPacket) []RxPacket
}

// A frame is a packet that was sent.
type frame struct {
	at   int64
	from *host
	op   roce.Opcode
	psn  roce.PSN
	data []byte
	path roce.Path
}

func (f frame) packet() roce.Packet {
	var p roce.Packet
	if err := roce.Decode(f.data, &p); err != nil {
		panic(err)
	}
	return p
}

// A host is a NIC, and a program with memory in which everything lies.
type host struct {
	w    *wire
	n    *NIC
	pd   *PD
	mem  *hostmem.Bytes
	mr   *MR
	addr netip.Addr
	alt  netip.Addr // a second address, of tests that need one
	tx   *Tx
	rx   []RxPacket
	bufs [][]byte
	free [][]byte
	ev   []Event
}

const memBase = 0x10000

// pattern is what the memories hold at first.
var pattern = func() []byte {
	p := make([]byte, 1<<20+64)
	for k := range p {
		p[k] = byte(k*7 + k>>8)
	}
	return p
}()

const allAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic

func newWire(t fatalTB, cfgs ...Config) *wire {
	t.Helper()
	w := &wire{t: t, now: 1000}
	for i, cfg := range cfgs {
		cfg.Seed += uint64(i)
		h := &host{w: w, n: New(cfg), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), tx: NewTx(256<<10, 64)}
		h.n.SetGID(0, roce.GIDFromAddr(h.addr))
		h.pd = mustPD(t, h.n)
		h.mem = memory(memBase, 1<<20)
		copy(h.mem.Mem, pattern[i:])
		var err error
		if h.mr, err = h.n.RegMR(h.pd, h.mem, memBase, 1<<20, memBase, allAccess); err != nil {
			t.Fatalf("%v", err)
		}
		w.hosts = append(w.hosts, h)
	}
	return w
}

// An end is a queue pair with the program's views of its queues.
type end struct {
	h          *host
	q          *QP
	cq         *CQ
	sq, rq, cv *ring.Queue
	mw         *MW // of tests that need one
}

var testCap = Cap{MaxSendWR: 63, MaxRecvWR: 63, MaxSendSGE: 32, MaxRecvSGE: 32, MaxInline: 512}

func (h *host) newEnd(typ QPType, c Cap, cqe uint32) *end {
	h.w.t.Helper()
	return h.newEndOf(QPInit{Type: typ}, c, cqe)
}

// newEndOf is newEnd of a queue pair of a special kind.
func (h *host) newEndOf(init QPInit, c Cap, cqe uint32) *end {
	t := h.w.t
	t.Helper()
	view := func(g ring.Geometry) (nic, program *ring.Queue) {
		buf := make([]byte, g.Size())
		q, err := ring.Format(buf, g)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return q, ring.View(buf, g)
	}
	e := &end{h: h}
	g, err := ring.GeometryFor(cqe, ring.CQESize)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var nicCQ, nicSQ, nicRQ *ring.Queue
	nicCQ, e.cv = view(g)
	if e.cq, err = h.n.CreateCQ(nicCQ); err != nil {
		t.Fatalf("%v", err)
	}
	_, sq, rq, err := h.n.QueueShapes(c)
	if err != nil {
		t.Fatalf("%v", err)
	}
	nicSQ, e.sq = view(sq)
	nicRQ, e.rq = view(rq)
	init.PD, init.SendCQ, init.RecvCQ, init.SQ, init.RQ, init.Cap = h.pd, e.cq, e.cq, nicSQ, nicRQ, c
	if e.q, err = h.n.CreateQP(init); err != nil {
		t.Fatalf("%v", err)
	}
	return e
}

// defaultAttr are the attributes of test connections; a test changes what it is about.
func defaultAttr() Attr {
	return Attr{PathMTU: 3, RQPSN: 100, SQPSN: 100, AccessFlags: allAccess, MaxRDAtomic: 4, MaxDestRDAtomic: 4,
		MinRNRTimer: 12, Timeout: 14, RetryCnt: 3, RNRRetry: 7, Port: 1, QKey: 0x11111111}
}

// to moves the end along the states up to RTS; peer is where an RC queue pair connects to.
func (e *end) to(state State, a Attr, peer *end) {
	e.h.w.t.Helper()
	if peer != nil {
		a.DestQPN = peer.q.Num()
		a.AH = AHAttr{DGID: roce.GIDFromAddr(peer.h.addr), IsGlobal: true, Port: 1, HopLimit: 64}
	}
	a.Port = 1
	for s := Init; s <= state; s++ {
		a.State = s
		if err := e.h.n.Modify(e.h.w.now, e.q, &a, AttrState|transitionOf(e.q.typ, e.q.state, s).required); err != nil {
			e.h.w.t.Fatalf("%v", err)
		}
	}
}

// connected are two hosts with one RC connection.
func connected(t fatalTB, cfg Config, change func(a *Attr)) (*wire, *end, *end) {
	t.Helper()
	w := newWire(t, cfg, cfg)
	a, b := w.hosts[0].newEnd(RC, testCap, 1023), w.hosts[1].newEnd(RC, testCap, 1023)
	return connectEnds(t, w, a, b, change, false)
}

// connectedSelectively is connected, with both sides repeating selectively.
func connectedSelectively(t fatalTB, cfg Config, change func(a *Attr)) (*wire, *end, *end) {
	t.Helper()
	w := newWire(t, cfg, cfg)
	return connectEnds(t, w, w.hosts[0].newEnd(RC, testCap, 1023), w.hosts[1].newEnd(RC, testCap, 1023), change, true)
}

func connectEnds(t fatalTB, w *wire, a, b *end, change func(a *Attr), selective bool) (*wire, *end, *end) {
	t.Helper()
	attr := defaultAttr()
	if change != nil {
		change(&attr)
	}
	for _, e := range []*end{a, b} {
		if err := e.q.SetSelective(selective); err != nil {
			t.Fatalf("%v", err)
		}
	}
	a.to(RTS, attr, b)
	b.to(RTS, attr, a)
	return w, a, b
}

// sge is a piece of the end's memory at offset off.
func (e *end) sge(off, n int) ring.SGE {
	return ring.SGE{Addr: memBase + uint64(off), Length: uint32(n), LKey: e.h.mr.LKey()}
}

func (e *end) bytes(off, n int) []byte { return e.h.mem.Mem[off : off+n] }

// wr makes a signalled send request.
func wr(id uint64, op ring.SendOpcode, sge ...ring.SGE) *ring.SendWQE {
	s := &ring.SendWQE{WRID: id, Opcode: op, Flags: ring.SendSignaled, NumSGE: len(sge)}
	copy(s.SGE[:], sge)
	return s
}

// remote aims a request at offset off of the peer's memory.
func remote(s *ring.SendWQE, peer *end, off int) *ring.SendWQE {
	s.RemoteAddr, s.RKey = memBase+uint64(off), peer.h.mr.RKey()
	return s
}

func (e *end) post(reqs ...*ring.SendWQE) {
	e.h.w.t.Helper()
	for _, s := range reqs {
		if e.sq.Free() == 0 {
			e.h.w.t.Fatalf("the send queue is full")
		}
		e.sq.StoreSend(e.sq.Position(), s, e.q.typ == UD)
		if err := e.sq.Publish(); err != nil {
			e.h.w.t.Fatalf("%v", err)
		}
	}
	e.h.n.Doorbell(e.h.w.now, e.q)
}

func (e *end) recv(id uint64, sge ...ring.SGE) {
	e.h.w.t.Helper()
	r := &ring.RecvWQE{WRID: id, NumSGE: len(sge)}
	copy(r.SGE[:], sge)
	if e.rq.Free() == 0 {
		e.h.w.t.Fatalf("the receive queue is full")
	}
	e.rq.StoreRecv(e.rq.Position(), r)
	if err := e.rq.Publish(); err != nil {
		e.h.w.t.Fatalf("%v", err)
	}
}

// poll takes all completions.
func (e *end) poll() (all []ring.CQE) {
	for e.cv.Pending() > 0 {
		var c ring.CQE
		e.cv.LoadCQE(e.cv.Position(), &c)
		_ = e.cv.Consume()
		all = append(all, c)
	}
	return all
}

// deliver hands what has arrived to the NIC.
func (h *host) deliver() bool {
	if len(h.rx) == 0 {
		return false
	}
	rx := h.rx
	if h.w.mangle != nil {
		rx = h.w.mangle(rx)
	}
	h.n.Receive(h.w.now, rx)
	h.n.Memory().Scatter()
	h.n.MemoryDone(h.w.now)
	h.rx = h.rx[:0]
	h.free = append(h.free, h.bufs...)
	h.bufs = h.bufs[:0]
	return true
}

// transmit sends one batch.
func (h *host) transmit() bool {
	if h.n.Idle() {
		return false
	}
	h.tx.Reset()
	h.n.Transmit(h.w.now, h.tx)
	h.tx.Gather.Gather()
	h.n.GatherDone(h.w.now, h.tx)
	for i := range h.tx.Packets {
		if p := &h.tx.Packets[i]; !p.Dead {
			h.w.carry(h, p)
		}
	}
	return len(h.tx.Packets) > 0
}

func (w *wire) carry(from *host, p *TxPacket) {
	data := p.Data[:len(p.Data)-roce.ICRCSize]
	h := roce.BTH(data)
	f := frame{at: w.now, from: from, op: h.Opcode(), psn: h.PSN(), data: data, path: *p.Path}
	if !w.quiet {
		f.data = bytes.Clone(data)
		w.log = append(w.log, f)
	}
	if w.drop != nil && w.drop(f) {
		return
	}
	for _, h := range w.hosts {
		if h.addr == p.Path.Dst || h.alt == p.Path.Dst || p.Multicast { // what a NIC sends to a group comes back to it, as from a socket
			h.inject(*p.Path, data)
		}
	}
	if p.Multicast && p.Local {
		from.inject(*p.Path, data)
		from.rx[len(from.rx)-1].Local = true
	}
}

// inject has a packet arrive.
func (h *host) inject(path roce.Path, data []byte) {
	var buf []byte
	if last := len(h.free) - 1; last >= 0 {
		buf = h.free[last][:0]
		h.free = h.free[:last]
	}
	buf = append(buf, data...)
	h.bufs = append(h.bufs, buf)
	h.rx = append(h.rx, RxPacket{Path: path, Data: buf})
}

// settle runs until nothing moves without time passing.
func (w *wire) settle() {
	for range 100000 {
		moved := false
		for _, h := range w.hosts {
			moved = h.deliver() || moved
		}
		for _, h := range w.hosts {
			moved = h.transmit() || moved
			h.ev = append(h.ev, h.n.Events()...)
		}
		if !moved {
			return
		}
		w.now += 1000
	}
	w.t.Fatalf("the wire does not come to rest")
}

// run settles, and lets time pass from timer to timer for at most nanos.
func (w *wire) run(nanos int64) {
	until := w.now + nanos
	for {
		w.settle()
		next := int64(0)
		for _, h := range w.hosts {
			if t := h.n.NextTimer(); t != 0 && (next == 0 || t < next) {
				next = t
			}
		}
		if next == 0 || next > until {
			w.now = max(w.now, until)
			return
		}
		w.now = max(w.now, next)
		for _, h := range w.hosts {
			h.n.Expire(w.now)
		}
	}
}

const second = 1e9

// completion is what tests compare of a CQE.
func completion(c ring.CQE) string { return fmt.Sprintf("%d:%v", c.WRID, c.Status) }

// want checks the completions that an end has got, in order: "1:success".
func (e *end) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, c := range e.poll() {
		got = append(got, completion(c))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("completions %v, want %v", got, want)
	}
}

// count counts logged frames.
func (w *wire) count(match func(f frame) bool) (n int) {
	for _, f := range w.log {
		if match(f) {
			n++
		}
	}
	return n
}

func (w *wire) countOp(op roce.Opcode) int { return w.count(func(f frame) bool { return f.op == op }) }

// syndromes are the syndromes of the acknowledge packets that h sent, in order.
func (w *wire) syndromes(h *host) (all []roce.Syndrome) {
	for _, f := range w.log {
		if f.op == roce.RCAck && f.from == h {
			p := f.packet()
			all = append(all, p.AETH().Syndrome())
		}
	}
	return all
}

func (h *host) events(typ EventType) (n int) {
	for _, e := range h.ev {
		if e.Type == typ {
			n++
		}
	}
	return n
}
