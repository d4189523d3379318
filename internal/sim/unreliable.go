package sim

import (
	"bytes"

	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// Unreliable connections (9.8.2, 9.8.3). What arrives of them is decided by the links alone, so the model decides
// too: it takes every packet that arrives through the rules of the responder, and knows at any time which bytes
// must be in memory and which receives must have completed.

// unreliable is what the model knows of a UC queue pair.
type unreliable struct {
	// As the sender.
	packets  map[roce.PSN]ucPacket // every packet sent
	sending  *work                 // the message under way
	next     int                   // its next packet
	last     roce.PSN              // of the latest packet
	any      bool                  // there was one
	skipped  bool                  // the send queue was revived: PSNs may have been left out
	count    int                   // q.sends[:count] have begun, or never will
	reviving bool                  // it is going to be

	// As the responder.
	expected  roce.PSN
	receiving *work // the message under way, nil: what comes is dropped until the next first
	shared    sharedMessages
}

// ucPacket is one packet of a message.
type ucPacket struct {
	x *work
	i int
}

func (x *work) ucPackets() int { return max(1, (x.n+x.q.mtu-1)/x.q.mtu) }

// addUnreliable makes an unreliable connection between two hosts, and starts its programs.
func (w *world) addUnreliable(a, b *host, shared *pool) {
	p, q := w.addQP(a, nic.UC, nil), w.addQP(b, nic.UC, shared)
	if p.sendCQ.small || p.recvCQ.small || q.sendCQ.small || q.recvCQ.small {
		return // an overflow ends a queue pair in the middle of a batch: the model of RC is about that
	}
	p.peer, q.peer = q, p
	p.end, q.end = &pathEnd{h: a, qp: p.qp, q: p}, &pathEnd{h: b, qp: q.qp, q: q}
	w.newFlow(p.end, q.end).alive = func() bool { return p.ready && q.ready && !p.down && !q.down }
	w.negotiateUnreliable(p, q)
	for _, x := range []*qpair{p, q} {
		w.ucs = append(w.ucs, x)
		x.number = 1
		x.plan()
		w.after(w.nanos(0, 50_000), func() { w.connectUnreliable(x) })
	}
}

func (q *qpair) plan() {
	q.uc.packets = make(map[roce.PSN]ucPacket)
	q.bombAt = -1
}

func (w *world) negotiateUnreliable(p, q *qpair) {
	partition := w.rng.IntN(2)
	code := w.between(1, int(roce.MTUCode(min(p.h.mtu, q.h.mtu))))
	for _, x := range []*qpair{p, q} {
		x.mtu = roce.MTUBytes(uint8(code))
		x.attr = nic.Attr{Port: 1, AccessFlags: allAccess, PathMTU: uint8(code), DestQPN: x.peer.qp.Num(), SQPSN: w.randomPSN(),
			PKeyIndex: x.h.partition(partition)}
		if w.chance(10) {
			x.attr.AccessFlags &^= nic.AccessRemoteWrite
		}
	}
	p.end.flow.begin(w, w.randomRoute(), [2]*nic.Attr{&p.attr, &q.attr})
	p.attr.AH, q.attr.AH = p.end.primary.address(q.h), q.end.primary.address(p.h)
	p.attr.RQPSN, q.attr.RQPSN = q.attr.SQPSN, p.attr.SQPSN
	for _, x := range []*qpair{p, q} {
		if w.chance(10) {
			x.attr.RQPSN = w.randomPSN() // the first message tells: nothing has to be agreed upon
		}
		x.uc.expected = roce.PSN(x.attr.RQPSN)
	}
}

// connectUnreliable brings a queue pair to RTS. What arrives before RTR is lost.
func (w *world) connectUnreliable(q *qpair) {
	a := q.attr
	a.State = nic.Init
	w.modify(q, &a, nic.AttrState|nic.AttrPKeyIndex|nic.AttrPort|nic.AttrAccessFlags)
	q.left = w.between(0, 40)
	if w.addWindows(q); q.left > 0 && len(q.windows) == 0 && w.chance(40) { // what an error leaves of a bind is not known
		q.bombAt = w.rng.IntN(q.left)
	}
	w.receiveUnreliable(q, w.between(0, 60))
	ready := w.nanos(0, 50_000)
	w.after(ready, func() { w.hearUnreliable(q, a) })
}

// hearUnreliable takes a queue pair to RTR and, in a while, to RTS, once its address exists.
func (w *world) hearUnreliable(q *qpair, a nic.Attr) {
	a.State = nic.RTR
	mask := nic.AttrState | nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN
	if w.withoutAddress(q, &a, mask) {
		w.after(w.nanos(100_000, 10_000_000), func() { w.hearUnreliable(q, a) })
		return
	}
	mask |= q.end.early(w, &a, nic.AttrAltPath)
	w.modify(q, &a, mask)
	w.after(w.nanos(0, 50_000), func() {
		a.State = nic.RTS
		mask := nic.AttrState | nic.AttrSQPSN
		mask |= q.end.early(w, &a, nic.AttrAltPath|nic.AttrPathMigState)
		w.modify(q, &a, mask)
		q.ready = true
		w.maybe(15, q, func() {
			if q.qp.State() == nic.RTS {
				w.modify(q, &nic.Attr{State: nic.SQD, EnSQDAsyncNotify: 1}, nic.AttrState|nic.AttrEnSQDAsyncNotify)
			}
		})
		w.maybe(6, q, func() { w.resetUnreliable(q) })
		w.maybe(15, q, func() {
			q.progErr = true
			w.modify(q, &nic.Attr{State: nic.Err}, nic.AttrState)
			w.endUnreliable(q)
		})
		w.stepUnacknowledged(q, w.newUnreliable)
	})
}

// receiveUnreliable posts receives from time to time: enough or not, large enough or not.
func (w *world) receiveUnreliable(q *qpair, left int) {
	if q.down || q.pool != nil {
		return
	}
	for n := w.between(0, 12); n > 0 && left > 0 && q.rq.Free() > 0; n-- {
		r := w.newReceive(q, pick(w, w.size(q.mtu), w.size(q.mtu), 8*q.mtu))
		if r == nil {
			return
		}
		w.postReceive(q, r)
		left--
	}
	if left > 0 {
		w.after(w.nanos(1000, 150_000), func() { w.receiveUnreliable(q, left-1) })
	}
}

func (w *world) newUnreliable(q *qpair) *work {
	if x := w.windowWork(q); x != nil {
		return x
	}
	x := w.newWork(q, false)
	x.op = pick(w, ring.OpSend, ring.OpSend, ring.OpSendImm, ring.OpWrite, ring.OpWrite, ring.OpWriteImm)
	x.n = w.size(q.mtu)
	if p := q.peer.pool; p != nil && w.chance(80) {
		x.n = min(x.n, p.size)
	}
	x.imm = w.rng.Uint32()
	x.signalled = q.sigAll || w.chance(60)
	x.solicited = w.chance(40) && x.consumes()
	if !w.fillSource(q, x, noBomb) {
		return nil
	}
	if x.isWrite() {
		s, ok := w.take(w.remoteRegion(q, x.op, x.n, noBomb), x.n, 1)
		if !ok {
			return nil
		}
		w.target(x, s)
		if w.chance(6) && x.n > 0 {
			x.rkey ^= 1 << w.between(8, 31) // no error of anybody's: the message is dropped (9.9.3)
			x.refused = true
		}
		x.refused = x.refused || !permits(q.peer.attr.AccessFlags, x.op)
	}
	if len(q.sends) == q.bombAt {
		w.spoilUnreliable(x)
	}
	return x
}

// spoilUnreliable makes an error of the sender's own, which leads to SQE (10.3.1.6).
func (w *world) spoilUnreliable(x *work) {
	if i := x.someEntryIn(x.n); i >= 0 && !x.inline && w.chance(70) {
		x.why, x.allowed = ": "+bombNames[bombBadLKey], statuses(ring.StatusLocProtErr)
		x.sge[i].LKey ^= 1 << w.rng.IntN(32)
	} else {
		x.op = pick(w, ring.OpRead, ring.OpFetchAdd)
		x.why, x.allowed = ": not an operation of UC", statuses(ring.StatusLocQPOpErr)
	}
	x.mustFail = true
}

// sendUnreliable checks a packet that a UC queue pair sends: the next of its message, or the first of the next
// message, with the next PSN and the bytes that belong there.
func (w *world) sendUnreliable(q *qpair, pkt *roce.Packet) {
	u, psn := &q.uc, pkt.BTH.PSN()
	name := pkt.Info.Name
	switch {
	case pkt.BTH.AckReq():
		w.fail("%v asks with %s for an acknowledgement, of which there is none", q, name)
	case u.any && psn != u.last.Add(1) && !(u.skipped && pkt.Info.Starts() && psn.After(u.last)):
		w.fail("%v sends %s with PSN %06x behind %06x", q, name, uint32(psn), uint32(u.last))
	case !u.any && psn != roce.PSN(q.attr.SQPSN) && !u.skipped:
		w.fail("%v sends %s with PSN %06x first", q, name, uint32(psn))
	}
	u.any, u.last, u.skipped = true, psn, false
	if pkt.Info.Starts() {
		if u.sending != nil && u.next < u.sending.ucPackets() && !u.sending.done {
			w.fail("%v sends %s in the middle of %s", q, name, u.sending)
		}
		for u.count < len(q.sends) && (q.sends[u.count].done && !q.sends[u.count].success || q.sends[u.count].mustFail || q.sends[u.count].isHere()) {
			u.count++ // failed, or flushed, or not for the peer
		}
		if u.count == len(q.sends) {
			w.fail("%v sends %s, for which there is no work request", q, name)
		}
		u.sending, u.next = q.sends[u.count], 0
		u.count++
		if x := u.sending; x.held && q.qp.State() == nic.SQD {
			w.fail("%v begins %s in SQD", q, x) // 10.3.1.5
		}
		u.sending.seen = true
	}
	x := u.sending
	if x == nil || u.next >= x.ucPackets() {
		w.fail("%v sends %s behind the end of a message", q, name)
	}
	from := u.next * q.mtu
	ends := u.next == x.ucPackets()-1
	switch {
	case pkt.Info.Ends() != ends, (pkt.Info.Kind == roce.KindWrite) != x.isWrite(), pkt.Info.HasImm != (ends && x.withImm()):
		w.fail("%v sends %s as packet %d of %s", q, name, u.next, x)
	case !bytes.Equal(pkt.Payload, x.data[from:min(from+q.mtu, x.n)]):
		w.fail("%v sends the wrong bytes in packet %d of %s", q, u.next, x)
	}
	u.packets[psn] = ucPacket{x, u.next}
	u.next++
}

// arriveUnreliable takes a packet through the rules of 9.8.2.2 and 9.9.3.
func (w *world) arriveUnreliable(q *qpair, pkt *roce.Packet) {
	switch q.qp.State() {
	case nic.RTR, nic.RTS, nic.SQD, nic.SQE:
	default:
		return
	}
	psn := pkt.BTH.PSN()
	p, ok := q.peer.uc.packets[psn]
	if !ok || pkt.Info.Transport != roce.TransportUC {
		w.fail("simulator: %s with PSN %06x arrives at %v, which was never sent", pkt.Info.Name, uint32(psn), q)
	}
	u, x := &q.uc, p.x
	inOrder := psn == u.expected
	u.expected = psn.Add(1)
	if q.pool != nil {
		w.arriveShared(q, p, inOrder)
		return
	}
	if p.i == 0 {
		u.receiving = x
		if x.refused || x.consumes() && !x.isWrite() && q.expect >= len(q.recvs) {
			u.receiving = nil
		}
	} else if !inOrder {
		u.receiving = nil
	}
	if u.receiving == nil || x.windowGone() {
		u.receiving = nil
		return
	}
	from := p.i * q.mtu
	to := min(from+q.mtu, x.n)
	last := p.i == x.ucPackets()-1
	switch {
	case !x.isWrite() && to > q.recvs[q.expect].capacity(), last && x.consumes() && q.expect >= len(q.recvs):
		u.receiving = nil
		return
	case x.isWrite():
		copy(q.h.mem.want[x.remote.off+from:], x.data[from:to])
	default:
		q.h.mem.put(q.recvs[q.expect].local, from, x.data[from:to])
	}
	if !last {
		return
	}
	u.receiving = nil
	x.delivered++
	w.count.DeliveredUC++
	if x.consumes() {
		q.recvs[q.expect].match = x
		q.expect++
	}
}

// put makes bytes at an offset of a message in segs what the model wants.
func (a *arena) put(segs []seg, off int, data []byte) {
	for _, s := range segs {
		if off < s.n {
			n := copy(a.want[s.off+off:s.off+s.n], data)
			data = data[n:]
			off = 0
			continue
		}
		off -= s.n
	}
}

// receiveUnreliableMessage checks a successful receive.
func (w *world) receiveUnreliableMessage(r *work, e *ring.CQE) {
	if r.index >= r.q.expect {
		w.fail("%s completes, but no message for it has arrived whole", r)
	}
	w.checkReceiveFields(r, r.match, e)
	mem := r.q.h.mem
	if at, ok := mem.holds(r.local, nil); !ok {
		w.fail("%s is complete, but byte %d of %s is not in its buffer, or something else is behind it", r, at, r.match)
	}
	r.success = true
}

// reviveSends puts a send queue that has failed back into service, once all has been flushed.
func (w *world) reviveSends(q *qpair) {
	if q.qp.State() != nic.SQE || q.uc.reviving {
		return
	}
	q.uc.reviving = true
	w.after(w.nanos(0, 200_000), func() {
		q.uc.reviving = false
		if q.qp.State() != nic.SQE { // something else has ended it
			return
		}
		q.sendErr, q.sendFault, q.flushed = false, false, false
		q.uc.skipped = true
		w.modify(q, &nic.Attr{State: nic.RTS, CurState: nic.SQE}, nic.AttrState|nic.AttrCurState)
		q.h.ring(q)
	})
}

// finishUnreliable checks at the end of the run that what succeeded was sent, and that what was sent could arrive.
func (w *world) finishUnreliable(q *qpair) {
	for i, x := range q.sends {
		if x.success && !x.isHere() && (i >= q.uc.count || !x.seen) {
			w.fail("%s is complete and was never sent", x)
		}
		if x.delivered > 1+q.peer.h.duplicated {
			w.fail("%s was delivered %d times", x, x.delivered)
		}
	}
}
