package nic

import (
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// sendRequests sends what the window, the fence, the credits and the limits of outstanding READs
// allow. more: the quantum is used up; full: the batch is.
func (q *QP) sendRequests(now int64, tx *Tx) (more, full bool) {
	r := &q.req
	if r.rnrUntil != 0 || r.failing {
		return false, false
	}
	var last roce.BTH // the last packet, if it is one that can ask for an acknowledgement
	if r.resend.probe {
		if last, full = q.sendProbe(tx); full {
			return false, true
		}
	}
	if len(q.sel.repairs) > 0 {
		if last, full = q.sendRepairs(now, tx, last); full {
			return false, true
		}
	}
	started, fresh := tx.Used, false
	for count := 0; ; count++ {
		if count >= quantumPackets || tx.Used-started >= quantumBytes {
			more = true
			break
		}
		if r.cur == r.tail && !q.fetch(now) {
			break
		}
		w := r.at(r.cur)
		if w.status != ring.StatusSuccess || !q.mayStart(w) {
			break
		}
		if w.local() {
			if !q.carryOut(now, tx, w) {
				break
			}
			continue
		}
		n, cost := q.nextPiece(w, r.nxt)
		if q.sel.on && roce.Diff(r.nxt, r.una) >= span-1 {
			break // no more is kept
		}
		if !q.mayLeave(now) || !q.hasRoom(cost) {
			break
		}
		pkt := q.buildRequest(tx, w, r.nxt, n)
		if pkt == nil {
			full = w.status == ring.StatusSuccess
			break
		}
		last = roce.BTH(pkt)
		q.left(now, len(pkt))
		if fresh = q.sent(now, w, n, cost); !fresh {
			tx.noteSent(r.why)
		}
	}
	if last != nil {
		// Every burst ends with a request for an acknowledgement: windows move, and nothing stays
		// in flight that nobody would speak of.
		last.SetAckReq(true)
		if fresh {
			r.rtt.start(now, last.PSN())
		}
	}
	if r.stopped {
		q.failIfOldest(now)
	}
	return more, full
}

// carryOut performs a local operation when everything before it has been sent, or passes one that it has
// performed before. False: it has failed, or waits for the unit to be alone.
//
// It completes at once, unless the batch is still to read memory, maybe by the very key that it ends: then
// GatherDone completes it.
func (q *QP) carryOut(now int64, tx *Tx, w *sendRequest) bool {
	r := &q.req
	if !w.done {
		if !q.nic.mayBeAlone() {
			q.nic.transport.lonely.pushBack(q)
			return false
		}
		if w.status = q.runLocal(w); w.status != ring.StatusSuccess {
			r.stopped = true
			return false
		}
		w.done = true
	}
	r.cur++
	if len(tx.Gather.Segs) > 0 {
		q.nic.transport.carried = append(q.nic.transport.carried, q)
		return true
	}
	q.completeRequests(now, r.passLocal())
	return true
}

// passLocal acknowledges the local operations that nothing before them waits for, and counts them.
func (r *requester) passLocal() (done uint32) {
	for r.acked != r.tail && r.at(r.acked).done {
		r.acked++
		done++
	}
	if int32(r.cur-r.acked) < 0 {
		r.cur = r.acked
	}
	return done
}

// sent moves on behind a packet, or a READ request with a response of n packets. fresh: nothing of
// it was sent before.
func (q *QP) sent(now int64, w *sendRequest, n, cost uint32) (fresh bool) {
	r := &q.req
	fresh = r.nxt == r.max
	if r.nxt == r.una {
		r.progressAt = now
		r.resend.start(now)
	}
	if !fresh {
		q.countRetransmitted()
		r.rtt.stop()
	}
	r.nxt = r.nxt.Add(int(n))
	if r.nxt.After(r.max) {
		r.max = r.nxt
	}
	if w.answered() {
		r.readEnds[r.readTail&uint32(len(r.readEnds)-1)] = r.nxt
		r.readTail++
	}
	if r.nxt == w.end() {
		r.cur++
	}
	q.launched(cost)
	return fresh
}

// mayStart tells whether the next packet of w may be sent now.
func (q *QP) mayStart(w *sendRequest) bool {
	r := &q.req
	reads := r.readTail - r.readHead
	if w.flags&ring.SendFence != 0 && r.nxt == w.first && reads > 0 && q.nic.planted != PlantedWrongFence {
		return false // 10.8.3.3: all READs and atomics before it must have completed
	}
	if w.answered() {
		return reads < uint32(q.attr.MaxRDAtomic)
	}
	if r.limited && w.usesReceive() && roce.PSN(w.ssn).After(roce.PSN(r.limit)) {
		// 9.7.7.2: without a credit, one packet at a time, which asks for news. A WRITE uses its
		// receive with its last packet only.
		if w.op != ring.OpWriteImm || r.nxt.Add(1) == w.end() {
			return r.nxt == r.una
		}
	}
	return true
}

// hasRoom tells whether the windows have room, and waits for the peer's if that is what is missing;
// its own window opens with an acknowledgement, which activates the queue pair.
func (q *QP) hasRoom(cost uint32) bool {
	r := &q.req
	return r.window.room(cost) && r.peer.admit(q, cost)
}

// nextPiece is what the next packet at psn stands for: one packet, or as many packets of a READ
// response as one request asks for. cost counts for the windows.
func (q *QP) nextPiece(w *sendRequest, psn roce.PSN) (n, cost uint32) {
	n = 1
	i := uint32(roce.Diff(psn, w.first))
	if w.op == ring.OpRead {
		if w.piece == 0 {
			w.piece = q.readPiece()
			// Each piece is a message to the responder, whose MSN counts it (9.7.7.2). Nothing behind w
			// has been fetched yet.
			q.req.ssn = (q.req.ssn + (w.packets-1)/w.piece) & roce.PSNMask
		}
		// A READ that is sent again must ask for a part of one that the responder remembers
		// (9.7.5.1): the cuts stay where they were at first.
		n = min(w.piece-i%w.piece, w.packets-i)
	}
	return n, q.cost(w, i, i+n)
}

// readPiece is how many packets of response one READ request asks for: so many that the responses
// in flight fit the windows, and several requests overlap.
func (q *QP) readPiece() uint32 {
	r := &q.req
	space := min(r.window.limit, r.peer.limit())
	return max(1, space/uint32(min(4, max(1, int(q.attr.MaxRDAtomic))))/(q.mtu+q.nic.transport.windows.overhead()))
}

// cost is what packets [from, to) of w count in the windows.
func (q *QP) cost(w *sendRequest, from, to uint32) uint32 {
	at := func(i uint32) uint32 { return uint32(min(uint64(i)*uint64(q.mtu), uint64(w.length))) }
	return at(to) - at(from) + (to-from)*q.nic.transport.windows.overhead()
}

// opcodes of SEND and WRITE by place in the message.
type opcodeSet struct{ first, middle, last, only roce.Opcode }

func opcodesOf(op ring.SendOpcode) opcodeSet {
	switch op {
	case ring.OpSend:
		return opcodeSet{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendOnly}
	case ring.OpSendImm:
		return opcodeSet{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastImm, roce.RCSendOnlyImm}
	case ring.OpSendInv:
		return opcodeSet{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastInv, roce.RCSendOnlyInv}
	case ring.OpAtomicWrite:
		return opcodeSet{only: roce.RCAtomicWrite}
	case ring.OpFlush:
		return opcodeSet{only: roce.RCFlush}
	case ring.OpWriteImm:
		return opcodeSet{roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLastImm, roce.RCWriteOnlyImm}
	case ring.OpRead:
		return opcodeSet{only: roce.RCReadRequest}
	case ring.OpCompareSwap:
		return opcodeSet{only: roce.RCCmpSwap}
	case ring.OpFetchAdd:
		return opcodeSet{only: roce.RCFetchAdd}
	}
	return opcodeSet{roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteOnly}
}

// buildRequest appends the packet of w with this PSN; a READ request asks for n packets. nil: the
// batch is full, or w has a status now.
func (q *QP) buildRequest(tx *Tx, w *sendRequest, psn roce.PSN, n uint32) []byte {
	i := uint32(roce.Diff(psn, w.first))
	off := i * q.mtu
	set := opcodesOf(w.op)
	op := set.middle
	switch {
	case w.packets == 1 || w.op == ring.OpRead:
		op = set.only
	case i == 0:
		op = set.first
	case i == w.packets-1:
		op = set.last
	}
	op = q.opcode(op)
	payload := uint32(0)
	if !w.answered() || w.op == ring.OpAtomicWrite {
		payload = min(q.mtu, w.length-off)
	}
	info := op.Info()
	pkt := tx.packet(q, &q.path, q.local, info.HeaderLen, int(payload))
	if pkt == nil {
		return nil
	}
	b := q.putBTH(pkt, op, psn, payload)
	if info.Ends() && w.usesReceive() && w.flags&ring.SendSolicited != 0 {
		b.SetSolicited(true)
	}
	if q.reliable() && info.Ends() && (q.sigAll || w.flags&ring.SendSignaled != 0) {
		b.SetAckReq(true)
	}
	if info.HasXRCETH {
		info.XRCETH(pkt).Encode(&roce.XRCETHFields{SRQ: w.srq})
	}
	switch {
	case info.HasAtomicETH:
		h := roce.AtomicETHFields{VA: w.raddr, RKey: w.rkey, SwapAdd: w.compare}
		if w.op == ring.OpCompareSwap {
			h.SwapAdd, h.Compare = w.swap, w.compare
		}
		info.AtomicETH(pkt).Encode(&h)
	case info.HasRETH:
		h := roce.RETHFields{VA: w.raddr, RKey: w.rkey, Length: w.length}
		switch w.op {
		case ring.OpFlush:
			h.Length = w.flush.Length
			info.FETH(pkt).Encode(&roce.FETHFields{Placement: roce.Placement(w.flush.Type), Selectivity: roce.Selectivity(w.flush.Level)})
		case ring.OpRead:
			h.VA, h.Length = w.raddr+uint64(off), min(w.length-off, n*q.mtu)
		}
		info.RETH(pkt).Encode(&h)
	}
	if info.HasIETH {
		info.IETH(pkt).Encode(&roce.IETHFields{RKey: w.imm})
	}
	if info.HasImm {
		putImmediate(info.ImmDt(pkt), w.imm)
	}
	if payload > 0 && !q.gather(tx, w, off, pkt[info.HeaderLen:info.HeaderLen+int(payload)]) {
		tx.undo()
		w.status = ring.StatusLocProtErr // the region has gone since the request was fetched
		q.req.stopped = true
		return nil
	}
	return pkt
}

// gather has bytes [off, off+len(dst)) of w's message fetched into the last packet of the batch.
func (q *QP) gather(tx *Tx, w *sendRequest, off uint32, dst []byte) bool {
	if w.flags&ring.SendInline != 0 {
		copy(dst, w.inline[off:])
		return true
	}
	return q.walk(&tx.Gather, w.sge, &w.cursor, off, dst, 0, uint32(len(tx.Packets)-1))
}

// putBTH writes the base header, and the pad, of a packet to the connected peer.
func (q *QP) putBTH(pkt []byte, op roce.Opcode, psn roce.PSN, payload uint32) roce.BTH {
	b := roce.BTH(pkt[:roce.BTHSize])
	b.Encode(&roce.BTHFields{Opcode: op, PadCount: roce.PadCount(int(payload)), PKey: q.nic.pkeys[q.attr.PKeyIndex],
		DestQP: q.attr.DestQPN, PSN: psn, MigReq: q.attr.PathMigState == MigMigrated})
	return b
}

// sendProbe sends the oldest packet that is not acknowledged once more, out of turn.
func (q *QP) sendProbe(tx *Tx) (b roce.BTH, full bool) {
	r := &q.req
	if r.nxt == r.una || r.acked == r.tail || r.at(r.acked).status != ring.StatusSuccess {
		r.resend.probe = false
		return nil, false
	}
	w := r.at(r.acked)
	n, _ := q.nextPiece(w, r.una)
	pkt := q.buildRequest(tx, w, r.una, n)
	if pkt == nil {
		return nil, w.status == ring.StatusSuccess
	}
	r.resend.probe = false
	q.countRetransmitted()
	tx.noteSent(NoteProbe)
	r.rtt.stop()
	b = roce.BTH(pkt)
	b.SetAckReq(true)
	return b, false
}
