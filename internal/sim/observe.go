package sim

import (
	"bytes"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// observeSend checks the rules of the wire on a packet that a NIC sends.
func (w *world) observeSend(h, to *host, p *nic.TxPacket) {
	var pkt roce.Packet
	if err := roce.Decode(p.Data[:len(p.Data)-roce.ICRCSize], &pkt); err != nil {
		w.fail("host %d sends a malformed packet: %v", h.index, err)
	}
	if s := h.xrcs[p.QPN]; s != nil {
		w.observeXRC(s, p, &pkt)
		return
	}
	q := h.byQPN[p.QPN]
	if q == nil {
		w.fail("host %d sends from QP %06x, which it does not have", h.index, p.QPN)
	}
	if pkt.Info.Transport == roce.TransportCNP {
		w.observeCNP(q, &pkt)
		return
	}
	if want := map[nic.QPType]roce.Transport{nic.RC: roce.TransportRC, nic.UC: roce.TransportUC, nic.UD: roce.TransportUD}; pkt.Info.Transport != want[q.typ] && !(pkt.Info.Kind == roce.KindSelectiveAck && q.qp.Selective()) {
		w.fail("%v sends %s", q, pkt.Info.Name)
	}
	if q.ud {
		q.sent++
		return
	}
	if q.qp.State() == nic.Reset || q.reset || !q.ready && pkt.Info.Request {
		w.fail("%v sends %s in %v", q, pkt.Info.Name, q.qp.State())
	}
	w.checkSent(q.end, p, &pkt)
	if pkt.BTH.DestQP() != q.peer.qp.Num() || to != q.peer.h {
		w.fail("%v sends to QP %06x of host %d, not to its peer", q, pkt.BTH.DestQP(), to.index)
	}
	n := len(pkt.Payload)
	if n > q.mtu || (pkt.Info.First || pkt.Info.Middle) && n != q.mtu {
		w.fail("%v sends %s with %d bytes at a path MTU of %d", q, pkt.Info.Name, n, q.mtu)
	}
	if q.typ == nic.UC {
		w.sendUnreliable(q, &pkt)
		return
	}
	w.observeRate(q, &pkt)
	if pkt.Info.Request {
		w.observeRequest(q, &pkt)
	} else {
		w.observeResponse(q, &pkt)
	}
}

func (w *world) observeRequest(q *qpair, pkt *roce.Packet) {
	x, off, ok := q.at(pkt.BTH.PSN())
	if !ok {
		w.fail("%v sends %s with PSN %06x, which no work request of it has", q, pkt.Info.Name, uint32(pkt.BTH.PSN()))
	}
	if off == q.rnrOff && w.now < q.rnrUntil {
		w.fail("%v sends %s, PSN %06x, %s before the RNR timer has run out", q, pkt.Info.Name, uint32(pkt.BTH.PSN()),
			clock(q.rnrUntil-w.now))
	}
	if off == q.rnrOff && q.rnrCount > q.rnrBound() {
		w.fail("%v sends %s again after %d RNR NAKs; it may retry %d times", q, x, q.rnrCount, q.attr.RNRRetry)
	}
	if x.held && q.qp.State() == nic.SQD {
		w.fail("%v begins %s in SQD", q, x) // 10.3.1.5
	}
	if x.seen {
		return
	}
	x.seen, x.sentAt = true, w.now
	if !x.fenced {
		return
	}
	for _, y := range q.sends[:x.index] { // 10.8.3.3
		if y.fetches() && !y.landed && !y.arrived() {
			w.fail("%s has a fence and is sent before %s has completed", x, y)
		}
	}
}

// rnrBound is how many RNR NAKs for one packet the queue pair puts up with. One that comes with the
// loss of something before it may not count.
func (q *qpair) rnrBound() int {
	bound := int(q.attr.RNRRetry)
	if bound == 7 {
		return 1 << 30 // for ever
	}
	if q.troubled() {
		bound += 4
	}
	return bound
}

// arrived tells whether the result of a read or an atomic is in memory.
func (x *work) arrived() bool {
	mem := x.q.h.mem
	if x.shut.r != nil {
		return true // nobody can tell any more
	}
	now := collect(mem.space.Mem, x.local)
	if x.isAtomic() {
		return !bytes.Equal(now, collect(mem.want, x.local))
	}
	return bytes.Equal(now, x.data)
}

func (w *world) observeResponse(q *qpair, pkt *roce.Packet) {
	h := pkt.AETH()
	if h == nil || h.Syndrome().Kind() != roce.SyndromeRNRNAK {
		return
	}
	if c := h.Syndrome().Value(); c != q.attr.MinRNRTimer {
		w.fail("%v sends an RNR NAK with timer %d; its own is %d", q, c, q.attr.MinRNRTimer)
	}
}

// observeArrival takes note of packets that oblige the NIC to something.
func (w *world) observeArrival(h *host, p *packet) {
	if p.forged && !p.ghost {
		return
	}
	var pkt roce.Packet
	if roce.Decode(p.data, &pkt) != nil {
		w.fail("simulator: a malformed packet arrives")
	}
	if p.path.Dst.IsMulticast() {
		w.arriveGroup(h, p, &pkt)
		return
	}
	q := h.byQPN[pkt.BTH.DestQP()]
	if pkt.Info.Kind == roce.KindCNP {
		return
	}
	if !w.mayTake(h, p, &pkt) || p.forged {
		return
	}
	if q != nil && p.path.TOS&3 == 3 && q.congested.markedAt == 0 {
		q.congested.markedAt = w.now
	}
	switch {
	case q == nil:
	case q.typ == nic.RC && !pkt.Info.Request:
		q.lastHeard = w.now
		q.end.heard++
		if pkt.Info.Kind != roce.KindAck {
			q.rnrCount = 0 // a response may be progress, from which retries count anew
		}
	}
	switch {
	case q == nil:
	case q.ud:
		w.expectDatagram(q, &pkt)
	case q.typ == nic.UC:
		w.arriveUnreliable(q, &pkt)
	case pkt.Info.Kind == roce.KindAck && pkt.AETH().Syndrome().Kind() == roce.SyndromeRNRNAK:
		x, off, ok := q.at(pkt.BTH.PSN())
		if !ok || !x.consumes() || x.done || q.rnrOff == off && w.now <= q.rnrUntil ||
			q.rnrOff != noOffset && off < q.rnrOff {
			return // of the past, as a NAK of a later packet has told, or a copy of the one that is being waited for
		}
		if q.rnrOff != off {
			q.rnrCount = 0
		}
		q.rnrCount++
		q.rnrOff, q.rnrUntil = off, w.now+roce.RNRTimerNanos(pkt.AETH().Syndrome().Value())
	}
}

// mayTake tells whether the packet comes by a path of its queue pair.
func (w *world) mayTake(h *host, p *packet, pkt *roce.Packet) bool {
	num := pkt.BTH.DestQP()
	if s := h.xrcs[num]; s != nil {
		e := s.flow.ends[0]
		if num == s.tgt.Num() {
			e = s.flow.ends[1]
		}
		taken := w.pathArrive(e, p, pkt)
		if taken && !pkt.Info.Request {
			e.heard++
		}
		return taken
	}
	q := h.byQPN[num]
	return q == nil || q.gone || q.end == nil || w.pathArrive(q.end, p, pkt)
}

// expectDatagram decides what a datagram that arrives must lead to: a completion, unless the Q_Key
// is wrong, or there is no receive, or it is too small. Of a shared queue nobody knows what there is.
func (w *world) expectDatagram(q *qpair, pkt *roce.Packet) {
	if q.pool != nil || q.errState || q.qp.State() < nic.RTR || pkt.Info.Transport != roce.TransportUD || pkt.DETH().QKey() != q.attr.QKey ||
		q.expect >= len(q.recvs) || q.recvs[q.expect].capacity() < roce.GRHSize+len(pkt.Payload) {
		return
	}
	q.expect++
}

// checkDatagrams holds when a batch has been received.
func (w *world) checkDatagrams(h *host) {
	for _, q := range h.qps {
		if q.typ == nic.UC && q.pool != nil {
			w.checkSharedUnreliable(q)
		}
		if q.unreliable() && q.pool == nil && !q.errState && !q.deaf && q.nextRecv != q.expect {
			w.fail("%v has completed %d messages where %d should have been", q, q.nextRecv, q.expect)
		}
	}
}
