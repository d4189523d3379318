package nic

import (
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// datagramMTU is the largest payload of a UD packet: the port's MTU (9.8.3).
func (q *QP) datagramMTU() uint32 { return uint32(roce.MTUBytes(q.nic.mtuCode)) }

// sendDatagrams sends UD requests, each of one packet. They complete in GatherDone.
func (q *QP) sendDatagrams(now int64, tx *Tx) (more, full bool) {
	r := &q.req
	for range quantumPackets {
		if r.cur == r.tail && !q.fetch(now) {
			return false, false
		}
		w := r.at(r.cur)
		if w.status != ring.StatusSuccess {
			return false, false
		}
		ah, full := q.addressOf(tx, w)
		if full {
			return false, true
		}
		if ah == nil || ah.pd != q.pd {
			w.status, r.stopped = ring.StatusLocQPOpErr, true
			q.failIfOldest(now)
			return false, false
		}
		if !q.sendDatagram(tx, w, ah) {
			if w.status == ring.StatusSuccess {
				return false, true
			}
			q.failIfOldest(now)
			return false, false
		}
		r.cur++
		r.nxt = r.nxt.Add(1)
		r.una, r.max = r.nxt, r.nxt
		q.nic.transport.unacknowledged++
	}
	return true, false
}

// vector is the address vector of a request that has it in itself, instead of an address handle's number.
type vector struct {
	wanted ring.Vector // of the request fetched last: datagrams are fetched one by one, so it is the one to be sent
	ah     AH          // what packets of the batch refer to
}

// addressOf is the address handle of the request to be sent; nil if there is none. full: it goes to another address than
// packets of the batch that still need theirs.
func (q *QP) addressOf(tx *Tx, w *sendRequest) (ah *AH, full bool) {
	if w.ahNum != 0 {
		return q.nic.lookupAH(w.ahNum), false
	}
	v := &q.vector.wanted
	attr := AHAttr{DGID: v.DGID, FlowLabel: v.FlowLabel, SGIDIndex: v.SGIDIndex, HopLimit: v.HopLimit, TrafficClass: v.TrafficClass, IsGlobal: true, Port: v.Port}
	path, local, err := q.nic.resolve("send a datagram", "", &attr)
	if err != nil {
		return nil, false
	}
	path.SrcPort = sourcePort(attr.FlowLabel, q.num, w.qpn)
	ah = &q.vector.ah
	if ah.path != path {
		for i := range tx.Packets {
			if tx.Packets[i].Path == &ah.path {
				return nil, true
			}
		}
	}
	*ah = AH{nic: q.nic.shared, pd: q.pd, attr: attr, path: path, local: local, multicast: path.Dst.IsMulticast()}
	return ah, false
}

func (q *QP) sendDatagram(tx *Tx, w *sendRequest, ah *AH) bool {
	op := roce.UDSendOnly
	if w.op == ring.OpSendImm {
		op = roce.UDSendOnlyImm
	}
	info := op.Info()
	pkt := tx.packet(q, &ah.path, ah.local, info.HeaderLen, int(w.length))
	if pkt == nil {
		return false
	}
	if ah.multicast {
		q.nic.toGroup(tx, ah.attr.DGID)
	}
	roce.BTH(pkt[:roce.BTHSize]).Encode(&roce.BTHFields{Opcode: op, Solicited: w.flags&ring.SendSolicited != 0,
		PadCount: roce.PadCount(int(w.length)), PKey: q.nic.pkeys[q.attr.PKeyIndex], DestQP: w.qpn, PSN: w.first})
	key := w.qkey
	if key&0x80000000 != 0 {
		key = q.attr.QKey // 10.2.5: the controlled Q_Key is the queue pair's
	}
	info.DETH(pkt).Encode(&roce.DETHFields{QKey: key, SrcQP: q.num})
	if info.HasImm {
		putImmediate(info.ImmDt(pkt), w.imm)
	}
	if w.length > 0 && !q.gather(tx, w, 0, pkt[info.HeaderLen:info.HeaderLen+int(w.length)]) {
		tx.undo()
		w.status, q.req.stopped = ring.StatusLocProtErr, true
		return false
	}
	return true
}

// datagramSent completes the oldest datagram: it has left.
func (q *QP) datagramSent(now int64, dead bool) {
	r := &q.req
	if q.typ != UD || r.head == r.cur {
		return
	}
	r.acked = r.head
	if dead {
		q.failOldest(now, ring.StatusLocProtErr)
		return
	}
	r.acked++
	q.completeRequests(now, 1)
}

// receiveDatagram puts a datagram into the next receive, behind the area for its GRH. What does not
// fit is dropped, and the receive stays (9.8.3, 10.2.5).
func (q *QP) receiveDatagram(rx *RxPacket, p *roce.Packet) {
	t, s := &q.nic.transport, &q.nic.stats
	h := p.DETH()
	if h.QKey() != q.attr.QKey {
		s.BadQKey++
		q.note(NoteQKey)
		return
	}
	q.communicating()
	r := &q.resp
	w := &t.recvWQE
	if r.refusing || uint32(len(p.Payload)) > q.datagramMTU() || !q.receivePosted() {
		switch {
		case r.refusing:
			q.note(NoteRefusing)
		case uint32(len(p.Payload)) > q.datagramMTU():
			q.note(NoteMTU)
		}
		q.note(NoteNoReceive)
		s.UDDropped++
		q.countDropped()
		return
	}
	bad, err := q.peekReceive(w)
	if bad || err != nil {
		q.takeLoaded(w.WRID)
		q.receiveFailed(w.WRID, ring.StatusLocQPOpErr)
		return
	}
	room := uint64(0)
	for _, g := range w.SGE[:w.NumSGE] {
		room += uint64(g.Length)
	}
	length := roce.GRHSize + len(p.Payload)
	if room < uint64(length) {
		q.note(NoteTooLong)
		s.UDDropped++
		q.countDropped()
		return
	}
	grh := t.small(roce.GRHSize)
	roce.GRH(grh).EncodePath(&rx.Path, 0, len(rx.Data))
	mark := len(t.list.Segs)
	var c cursor
	sge := w.SGE[:w.NumSGE]
	if !q.walkIn(q.receivePD(), &t.list, sge, &c, 0, grh, AccessLocalWrite, 0) ||
		!q.walkIn(q.receivePD(), &t.list, sge, &c, roce.GRHSize, p.Payload, AccessLocalWrite, 0) {
		t.list.Segs = t.list.Segs[:mark]
		q.takeLoaded(w.WRID)
		q.receiveFailed(w.WRID, ring.StatusLocProtErr)
		return
	}
	q.takeLoaded(w.WRID)
	e := q.effect(effectDatagram)
	e.solicited = p.BTH.Solicited()
	e.cqe = ring.CQE{WRID: w.WRID, Opcode: ring.WCRecv, ByteLen: uint32(length), QPN: q.num, SrcQP: h.SrcQP(),
		Flags: ring.WCGRH, PKeyIndex: q.attr.PKeyIndex, SL: packetType(&rx.Path)}
	if p.Info.HasImm {
		e.cqe.Imm, e.cqe.Flags = immediate(p.ImmDt()), ring.WCGRH|ring.WCWithImm
	}
}

// packetType is what a completion says of the kind of packet that brought a datagram (A17.4.5.1), in the place of the
// service level, which RoCE has not: as in mlx5's completions, bit 3 for UDP, bits 0 to 2 for the header, 1 for IPv6 and 2
// for IPv4. UCX reads it there, and takes the area of the GRH for an IPv6 header if it finds 0.
func packetType(p *roce.Path) uint8 {
	if p.IsIPv4() {
		return 8 | 2
	}
	return 8 | 1
}

// receiveFailed fails the next receive, which is no good, and the queue pair (fault class A, 9.9.3).
func (q *QP) receiveFailed(wrid uint64, status ring.Status) {
	q.resp.refusing = true
	q.note(NoteLocal)
	e := q.effect(effectDatagramFailed)
	e.cqe.WRID, e.recvErr = wrid, status
}
