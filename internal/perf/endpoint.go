package perf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"rnic/verbs"
)

// slots is how many buffers each queue pair has, on each side: one per work request in flight.
func (o *Options) slots() int {
	if o.Kind.Latency {
		return 1
	}
	return o.Depth
}

// maxRecvSlots is below what a receive queue can hold.
const maxRecvSlots = 16000

// recvSlots is how many buffers each queue pair has for what comes in. Receives are posted for more
// messages than are in flight: a message that finds none costs the pause of an RNR NAK.
func (o *Options) recvSlots() int {
	switch {
	case o.Kind.Verb != "send": // a WRITE over UC tells of itself now and then
		return o.slots()
	case o.Kind.Latency:
		return lazySends
	case o.datagrams(): // nothing holds the sender back
		return max(o.slots(), min(2048, defaultBuffers/(o.QueuePairs*o.inStride()), mostSlots(o.QueuePairs)))
	}
	return max(o.slots(), min(4*o.slots(), maxRecvSlots, mostSlots(o.QueuePairs)))
}

// stride is the distance of buffers: whole cache lines.
func (o *Options) stride() int { return max(64, (o.Size+63)&^63) }

// inStride is the same where messages come in.
func (o *Options) inStride() int { return max(64, (o.Size+o.grh()+63)&^63) }

// endpoint is one side of a measurement: the objects of one NIC.
type endpoint struct {
	o    *Options
	dev  *verbs.Device
	ctx  *verbs.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	rcq  *verbs.CQ
	mr   *verbs.MR // what is sent, and where READs and atomics land
	in   *verbs.MR // what the peer writes, reads, and where receives land
	back *verbs.MR // where what was written is read back: in, unless the peer writes there
	srq  *verbs.SRQ
	qps  []*verbs.QP
	from map[uint32]int // with srq: the queue pairs by number
	dest []destination  // UD: of each queue pair
	psns []uint32
	gid  int
	mtu  int
	wc   []verbs.WC

	srqs       []*verbs.SRQ // XRC, the server's
	remoteSRQs []uint32     // XRC, at the client
}

// remote is what an endpoint must know of its peer.
type remote struct {
	Endpoints []verbs.Endpoint `json:"endpoints"`
	Addr      uint64           `json:"addr"` // of the peer's in buffer
	RKey      uint32           `json:"rkey"`
	MTU       int              `json:"mtu"`
	SRQs      []uint32         `json:"srqs,omitempty"`   // XRC: the numbers of the server's shared receive queues
	Listens   netip.AddrPort   `json:"listens,omitzero"` // with --cm: where the server's connection manager listens
}

func newEndpoint(o *Options, dev *verbs.Device, client bool) (e *endpoint, err error) {
	ctx := dev.Open()
	defer func() {
		if err != nil {
			_ = ctx.Close()
		}
	}()
	e = &endpoint{o: o, dev: dev, ctx: ctx, wc: make([]verbs.WC, 64)}
	if e.gid, err = o.pickGID(dev); err != nil {
		return nil, err
	}
	if e.pd, err = e.ctx.AllocPD(); err != nil {
		return nil, err
	}
	bytes := o.QueuePairs * o.slots() * o.stride()
	all := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if e.mr, err = e.pd.AllocMR(bytes, all); err != nil {
		return nil, err
	}
	if e.in, err = e.pd.AllocMR(o.QueuePairs*o.recvSlots()*o.inStride(), all); err != nil {
		return nil, err
	}
	e.back = e.in
	if o.Both && o.Kind.Verb == "write" && o.reliable() {
		if e.back, err = e.pd.AllocMR(bytes, all); err != nil {
			return nil, err
		}
	}
	if o.SRQ {
		if e.srq, err = e.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: o.sharedReceives(dev)}); err != nil {
			return nil, err
		}
		e.from = map[uint32]int{}
	}
	if e.cq, err = e.ctx.CreateCQ(min(o.QueuePairs*(o.slots()+1)+64, int(dev.Limits().MaxCQE))); err != nil {
		return nil, err
	}
	if e.rcq, err = e.ctx.CreateCQ(min(o.QueuePairs*(o.recvSlots()+1)+64, int(dev.Limits().MaxCQE))); err != nil {
		return nil, err
	}
	if o.Transport == "XRC" && !client {
		if err := e.addTargets(); err != nil {
			return nil, err
		}
	}
	for !o.CM && len(e.qps) < o.QueuePairs {
		qp, err := e.pd.CreateQP(e.qpConfig())
		if err != nil {
			return nil, err
		}
		e.addQP(qp)
		if o.SRQ {
			e.from[qp.Num()] = len(e.qps) - 1
		}
	}
	e.mtu = dev.MTU()
	if o.MTU != 0 {
		if o.MTU > e.mtu {
			return nil, usage("MTU %d: the interface carries at most %d", o.MTU, e.mtu)
		}
		e.mtu = o.MTU
	}
	return e, e.fitsMTU()
}

func (e *endpoint) qpConfig() verbs.QPConfig {
	o := e.o
	return verbs.QPConfig{Type: o.qpType(), SendCQ: e.cq, RecvCQ: e.rcq, MaxSend: o.slots() + lazySends,
		MaxRecv: o.recvSlots() + 1, MaxInline: o.Inline, SRQ: e.srq, SelectiveRepeat: o.offersSelective()}
}

func (e *endpoint) addQP(qp *verbs.QP) {
	e.qps = append(e.qps, qp)
	e.psns = append(e.psns, rand.Uint32()&0xffffff)
}

// pickGID chooses the own address: the index asked for, or of the family that of the connection to the peer, which
// is known to lead there, or the first.
func (o *Options) pickGID(dev *verbs.Device) (int, error) {
	first := -1
	for _, g := range dev.GIDs() {
		switch {
		case o.GIDIndex >= 0:
			if g.Index == o.GIDIndex {
				return g.Index, nil
			}
		case g.GID.Addr().Is4() == o.IPv6:
		case g.GID.Addr() == o.near:
			return g.Index, nil
		case first < 0:
			first = g.Index
		}
	}
	if first >= 0 {
		return first, nil
	}
	if o.GIDIndex >= 0 {
		return 0, usage("GID index %d: the NIC has nothing there", o.GIDIndex)
	}
	family := "IPv4"
	if o.IPv6 {
		family = "IPv6"
	}
	return 0, fmt.Errorf("the NIC has no %s address: choose one with --addr or --interface", family)
}

// ownAddress is the own address of the measurement.
func (e *endpoint) ownAddress() (netip.Addr, error) {
	for _, g := range e.dev.GIDs() {
		if g.Index == e.gid {
			return g.GID.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the own address at index %d is gone", e.gid)
}

// local is what the peer must know of e.
func (e *endpoint) local() (remote, error) {
	r := remote{Addr: e.in.Addr(0), RKey: e.in.RKey(), MTU: e.mtu, SRQs: e.srqNums()}
	for i, q := range e.qps {
		ep, err := q.Local(e.gid, e.psns[i])
		if err != nil {
			return r, err
		}
		r.Endpoints = append(r.Endpoints, ep)
	}
	return r, nil
}

// connect connects every queue pair; for SENDs receives are posted first.
func (e *endpoint) connect(peer remote) error {
	if len(peer.Endpoints) != len(e.qps) {
		return fmt.Errorf("the peer has %d queue pairs, not %d: give both sides the same options", len(peer.Endpoints), len(e.qps))
	}
	if err := e.learnSRQs(peer.SRQs); err != nil {
		return err
	}
	e.mtu = min(e.mtu, peer.MTU)
	if err := e.fitsMTU(); err != nil {
		return err
	}
	if err := e.postShared(); err != nil {
		return err
	}
	for i, q := range e.qps {
		if e.o.datagrams() {
			if err := e.activate(q, peer.Endpoints[i]); err != nil {
				return err
			}
		} else if err := q.Init(verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic); err != nil {
			return err
		}
		if e.o.receives() && e.srq == nil && (e.o.Transport != "XRC" || e.srqs != nil) {
			for s := range e.o.recvSlots() {
				if err := e.postRecv(i, s); err != nil {
					return err
				}
			}
		}
		if e.o.datagrams() {
			continue
		}
		err := q.Connect(peer.Endpoints[i], verbs.ConnectOptions{GIDIndex: e.gid, PSN: e.psns[i], MTU: e.mtu, Timeout: e.o.ackTimeout()})
		if err != nil {
			return err
		}
	}
	_, err := e.resend()
	return err
}

// ackTimeout is the local ACK timeout of connections. On a machine with many more busy threads than cores a peer can stand still for longer than
// eight times the usual 67 ms (14), and a measurement should not end with that: 17 is eight times as long. Losses are not repaired by
// this timer, unless early resends are off.
func (o *Options) ackTimeout() int {
	if o.NoEarly {
		return 14
	}
	return 17
}

// off is where the buffer of a slot begins, on both sides.
func (e *endpoint) off(qp, slot int) int { return (qp*e.o.slots() + slot) * e.o.stride() }

// inOff is the same in the buffer for what comes in, which has more slots where receives are posted.
func (e *endpoint) inOff(qp, slot int) int { return (qp*e.o.recvSlots() + slot) * e.o.inStride() }

func (e *endpoint) postRecv(qp, slot int) (err error) {
	wr := &verbs.RecvWR{ID: wrID(qp, slot), SGE: e.in.Slice(e.inOff(qp, slot), e.o.Size+e.o.grh())}
	switch {
	case e.srqs != nil:
		_, err = e.srqs[qp].PostRecv(wr)
	case e.srq != nil:
		_, err = e.srq.PostRecv(wr)
	default:
		_, err = e.qps[qp].PostRecv(wr)
	}
	return err
}

// readBack is where a slot reads back what it has written.
func (e *endpoint) readBack(q, s int) []byte {
	o := e.off(q, s)
	return e.back.Bytes()[o : o+e.o.Size]
}

func wrID(qp, slot int) uint64          { return uint64(qp)<<32 | uint64(slot) }
func fromWRID(id uint64) (qp, slot int) { return int(id >> 32), int(uint32(id)) }

func (e *endpoint) close() error { return e.ctx.Close() }

// fill writes message n of a queue pair: 8-byte words that say where they belong.
func fill(b []byte, qp, n int) {
	const step = 0x9e3779b97f4a7c15
	x := uint64(qp)<<48 ^ uint64(n)*step ^ 0x5bd1e995
	for ; len(b) >= 8; b = b[8:] {
		x += step
		binary.LittleEndian.PutUint64(b, x^x>>29)
	}
	x += step
	for k, v := 0, x^x>>29; k < len(b); k, v = k+1, v>>8 {
		b[k] = byte(v)
	}
}

// verify tells whether b holds message n of a queue pair, and the first wrong byte.
func verify(b []byte, qp, n int, scratch *[]byte) error {
	if len(*scratch) < len(b) {
		*scratch = make([]byte, len(b))
	}
	want := (*scratch)[:len(b)]
	fill(want, qp, n)
	if bytes.Equal(b, want) {
		return nil
	}
	for i := range b {
		if b[i] != want[i] {
			return fmt.Errorf("message %d of queue pair %d: byte %d is %#02x, not %#02x: data is wrong", n, qp, i, b[i], want[i])
		}
	}
	return nil
}
