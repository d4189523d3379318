package nic

import (
	"encoding/binary"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// An effect is what a received packet leads to once the memory transfers before it are done:
// completions, acknowledgements, responses. Receive appends them in order, MemoryDone performs them
// in order. A transfer that failed turns the effect that it belongs to into the error which the
// specification names for that packet, and voids the queue pair's later ones.
type effect struct {
	q     *QP
	kind  effectKind
	epoch uint32 // of the queue pair: an effect of an earlier life is void

	cq            *CQ   // XRC: where receives completed when it was made
	segs, atomics int32 // the list's lengths behind this effect's transfers

	send      bool // responder: the packet is of a SEND: recvWQE wrid is in use
	last      bool // responder: the message is complete
	ackReq    bool
	bytes     uint32 // responder: of payload
	solicited bool
	recvErr   ring.Status // effectNAK: of the receive that completes with it
	syndrome  roce.Syndrome

	psn     roce.PSN // responder: the packet's
	packets uint32   // effectRead: of the response; effectRequests: requests that complete
	mr      *MR
	va      uint64
	cqe     ring.CQE
}

type effectKind uint8

const (
	effectCommit         effectKind = iota // responder: everything up to psn has been executed
	effectReceive                          // and a receive completes
	effectRead                             // a READ is to be answered
	effectReadAgain                        // a duplicate READ
	effectAtomic                           // an atomic has been executed
	effectPlaced                           // an ATOMIC WRITE or FLUSH has been executed
	effectAtomicAgain                      // a duplicate of these
	effectNAK                              // the responder refuses
	effectRefuseAgain                      // a duplicate READ that is not allowed any more
	effectAckAgain                         // a duplicate of something else
	effectDatagram                         // UD: a receive completes
	effectDatagramFailed                   // UD: a receive fails with recvErr
	effectRequests                         // requester: requests have been acknowledged, responses landed
	effectRequestFailed                    // the oldest request fails with recvErr
)

// effect appends an effect of q behind the transfers so far. The pointer is valid until the next.
func (q *QP) effect(kind effectKind) *effect {
	t := &q.nic.transport
	t.effects = append(t.effects, effect{q: q, kind: kind, epoch: q.req.epoch, cq: q.recvCQ,
		segs: int32(len(t.list.Segs)), atomics: int32(len(t.list.Atomics))})
	return &t.effects[len(t.effects)-1]
}

// lastEffect is the latest effect, if it is one of q and of this kind: packets in a row share one.
func (q *QP) lastEffect(kind effectKind) *effect {
	t := &q.nic.transport
	if len(t.effects) == 0 {
		return nil
	}
	e := &t.effects[len(t.effects)-1]
	if e.q != q || e.kind != kind || e.epoch != q.req.epoch {
		return nil
	}
	return e
}

// extend makes the transfers so far part of e.
func (t *transport) extend(e *effect) {
	e.segs, e.atomics = int32(len(t.list.Segs)), int32(len(t.list.Atomics))
}

// Receive takes packets in the order of their arrival, all but those behind the number that it returns: the next is for
// a unit that is alone (RunAlone), and comes first then. What the packets ask of memory is in Memory afterwards;
// their bytes must stay until MemoryDone.
func (n *NIC) Receive(now int64, pkts []RxPacket) (taken int) {
	n.now = max(n.now, now)
	var p roce.Packet
	for i := range pkts {
		if n.stopsAt(&pkts[i]) {
			return i
		}
		n.receive(now, &pkts[i], &p)
	}
	return len(pkts)
}

// Memory is the list of transfers that the received packets ask for. The caller performs it between
// Receive and MemoryDone.
func (n *NIC) Memory() *hostmem.List { return &n.transport.list }

func (n *NIC) receive(now int64, rx *RxPacket, p *roce.Packet) {
	n.stats.RxPackets++
	if roce.Decode(rx.Data, p) != nil {
		n.stats.BadPackets++
		return
	}
	if p.Info.Kind == roce.KindCNP {
		n.receiveCNP(now, rx, p)
		return
	}
	n.stats.RxBytes += uint64(len(p.Payload))
	if p.BTH.DestQP() == multicastQPN {
		n.receiveMulticast(rx, p)
		return
	}
	q := n.destination(p)
	if q == nil || q.nic != n || !q.accepts(rx, p) {
		n.stats.BadPackets++
		return
	}
	if n.planted == PlantedDeath && p.BTH.Opcode() == roce.RCCmpSwap {
		panic("planted")
	}
	if !partitionsMatch(p.BTH.PKey(), n.pkeys[q.pkeyIndex(&rx.Path)]) {
		n.stats.BadPKey++ // 9.6.1: dropped silently
		return
	}
	if q.attr.PathMigState != MigMigrated && !q.noteMigReq(now, &rx.Path, p.BTH) {
		n.stats.BadPackets++
		return
	}
	if mu := q.lockReceives(); mu != nil {
		defer mu.Unlock()
	}
	q.take(now, rx, p)
}

// take lets q deal with a packet that is for it.
func (q *QP) take(now int64, rx *RxPacket, p *roce.Packet) {
	if c := q.count; c != nil {
		c.RxPackets++
	}
	if q.typ == UD {
		q.receiveDatagram(rx, p)
		return
	}
	q.communicating()
	q.noteMark(now, &rx.Path)
	switch {
	case q.typ == UC:
		q.receiveUnacknowledged(p)
	case p.Info.Request:
		q.receiveRequest(now, p)
	default:
		q.receiveResponse(now, p)
	}
}

func (n *NIC) destination(p *roce.Packet) *QP {
	num := p.BTH.DestQP()
	if q := n.transport.lastQP; q != nil && q.num == num {
		return q
	}
	q := n.lookupQP(num)
	if q != nil {
		n.transport.lastQP = q
	}
	return q
}

// accepts checks the packet's transport, the queue pair's state, and that the packet comes from the
// address that a connected queue pair is connected to (9.6.1).
func (q *QP) accepts(rx *RxPacket, p *roce.Packet) bool {
	switch q.state {
	case RTS, SQD, SQE:
		if q.state == SQE && q.nic.planted == PlantedSQEDeaf {
			return false
		}
	case RTR:
		if !p.Info.Request {
			return false
		}
	default:
		return false
	}
	want := roce.TransportRC
	if q.sel.on && p.Info.Kind == roce.KindSelectiveAck {
		want = p.Info.Transport
	}
	switch q.typ {
	case UD:
		return p.Info.Transport == roce.TransportUD && !rx.Path.Dst.IsMulticast() // those go to multicastQPN
	case UC:
		want = roce.TransportUC
	case XRCINI, XRCTGT:
		want = roce.TransportXRC
		if p.Info.Request != (q.typ == XRCTGT) {
			return false
		}
	}
	return p.Info.Transport == want && (comesBy(&rx.Path, &q.path) || q.onOtherPath(&rx.Path, p.BTH))
}

// partitionsMatch is the rule of 10.9.3: the same partition, and not both limited members.
func partitionsMatch(a, b uint16) bool { return (a^b)&0x7fff == 0 && (a|b)&0x8000 != 0 }

// communicating raises the event for the first packet that arrives in RTR (11.6.3).
func (q *QP) communicating() {
	if q.state == RTR && !q.resp.established {
		q.resp.established = true
		q.nic.event(Event{Type: EventCommEst, QP: q})
	}
}

// Immediate data passes through as four bytes, in whatever order the program has put them.

func immediate(h roce.ImmDt) uint32       { return binary.LittleEndian.Uint32(h) }
func putImmediate(h roce.ImmDt, v uint32) { binary.LittleEndian.PutUint32(h, v) }
