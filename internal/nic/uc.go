package nic

import (
	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// An unreliable connection (9.8.2, 9.8.3) has packets like a reliable one, but nothing is acknowledged
// and nothing is sent again. A request completes when its last packet has left. The responder drops a
// message of which a packet is missing or wrong, silently, and takes up with the next first or only packet.

// sendUnacknowledged sends what the pace allows. more: the quantum is used up; full: the batch is.
func (q *QP) sendUnacknowledged(now int64, tx *Tx) (more, full bool) {
	r := &q.req
	started := tx.Used
	for count := 0; ; count++ {
		if count >= quantumPackets || tx.Used-started >= quantumBytes {
			return true, false
		}
		if r.cur == r.tail && !q.fetch(now) {
			q.returnPace()
			break
		}
		w := r.at(r.cur)
		if w.status != ring.StatusSuccess {
			break
		}
		if w.local() {
			r.acked = r.head
			if !q.carryOut(now, tx, w) {
				break
			}
			continue
		}
		i := uint32(roce.Diff(r.nxt, w.first))
		if !q.mayPace(now, q.cost(w, i, i+1)) {
			break
		}
		if q.buildRequest(tx, w, r.nxt, 1) == nil {
			full = w.status == ring.StatusSuccess
			break
		}
		q.pace.allowance -= min(q.pace.allowance, q.cost(w, i, i+1))
		r.nxt = r.nxt.Add(1)
		r.una, r.max = r.nxt, r.nxt
		if r.nxt == w.end() {
			r.cur++
		}
		q.nic.transport.unacknowledged++
	}
	if r.stopped {
		q.failIfOldest(now)
	}
	return false, full
}

// unacknowledgedSent learns that a packet has left, or that its memory could not be read (dead). The
// last packet completes its request.
func (q *QP) unacknowledgedSent(now int64, b roce.BTH, dead bool) {
	r := &q.req
	if q.typ != UC || r.head == r.tail || q.state != RTS && q.state != SQD {
		return
	}
	r.acked = r.head
	switch {
	case dead:
		q.failOldest(now, ring.StatusLocProtErr)
	case b.Opcode().Info().Ends():
		r.acked++
		q.completeRequests(now, 1+r.passLocal())
	}
}

// receiveUnacknowledged takes a packet of an unreliable connection (9.8.2.2). The packet sequence number
// says whether one is missing; a packet that starts a message is taken whatever its number is.
func (q *QP) receiveUnacknowledged(p *roce.Packet) {
	r := &q.resp
	if r.refusing {
		q.note(NoteRefusing)
		q.nic.stats.BehindErrors++
		return
	}
	psn := p.BTH.PSN()
	inOrder := psn == r.expected || q.nic.planted == PlantedUnseenGap
	if gap := roce.Diff(psn, r.expected); gap > 0 {
		q.nic.stats.UCLost += uint64(gap)
	}
	r.expected = psn.Add(1)
	if p.Info.Starts() {
		if r.inMessage != noMessage {
			q.dropMessage() // its end is missing
		}
	} else if !inOrder || r.inMessage == noMessage {
		q.note(NoteLostMessage)
		q.dropMessage()
		return
	}
	if !q.opcodeFits(p) {
		q.dropMessage()
		return
	}
	switch p.Info.Kind {
	case roce.KindSend:
		q.receiveUnacknowledgedSend(p)
	case roce.KindWrite:
		q.receiveUnacknowledgedWrite(p)
	}
}

// dropMessage forgets the message in progress. The receive that it would have used is the next message's
// (fault class D, 9.9.3), unless it is a shared queue's, which does not take it back: then it completes
// with an error (class E). What the message has put into memory stays there.
func (q *QP) dropMessage() {
	r := &q.resp
	q.nic.stats.UCDropped++
	q.countDropped()
	r.inMessage, r.mr = noMessage, nil
	if r.recv == nil {
		return
	}
	if q.srq == nil {
		if q.nic.planted != PlantedDroppedUsed {
			r.recvPos = r.recv.pos
		}
	} else {
		e := q.effect(effectReceive)
		e.cqe = ring.CQE{WRID: r.recv.wqe.WRID, Status: ring.StatusRemInvReqErr, Opcode: ring.WCRecv, QPN: q.num}
	}
	q.nic.transport.putRecv(r.recv)
	r.recv = nil
}

func (q *QP) receiveUnacknowledgedSend(p *roce.Packet) {
	r, t := &q.resp, &q.nic.transport
	if p.Info.Starts() {
		if !q.receivePosted() {
			q.note(NoteNoReceive)
			q.dropMessage()
			return
		}
		if !q.beginReceive() {
			q.receiveFailed(r.recv.wqe.WRID, ring.StatusLocQPOpErr)
			return
		}
	}
	s := r.recv
	if uint64(len(p.Payload)) > s.room-uint64(s.used) {
		q.note(NoteTooLong)
		q.dropMessage()
		return
	}
	mark := len(t.list.Segs)
	if !q.walkIn(q.receivePD(), &t.list, s.wqe.SGE[:s.wqe.NumSGE], &s.cursor, s.used, p.Payload, AccessLocalWrite, uint32(p.BTH.PSN())) {
		t.list.Segs = t.list.Segs[:mark]
		q.receiveFailed(s.wqe.WRID, ring.StatusLocProtErr)
		return
	}
	s.used += uint32(len(p.Payload))
	q.placed(p, inSend)
	if !p.Info.Ends() {
		q.commit(p, true, s.wqe.WRID)
		return
	}
	q.completeReceive(p, s.wqe.WRID, s.used, ring.WCRecv, true)
	t.putRecv(s)
	r.recv = nil
}

func (q *QP) receiveUnacknowledgedWrite(p *roce.Packet) {
	r, t := &q.resp, &q.nic.transport
	n := uint32(len(p.Payload))
	if p.Info.Starts() {
		if !q.startUnacknowledgedWrite(p) {
			q.dropMessage()
			return
		}
	} else if n > r.left || p.Info.Last != (n == r.left) {
		q.note(NoteLength)
		q.dropMessage() // more or less than the RETH announced
		return
	}
	if p.Info.HasImm && !q.receivePosted() {
		q.note(NoteNoReceive)
		q.dropMessage()
		return
	}
	if n > 0 {
		if r.mr.dead {
			q.note(NoteKeyUnknown)
			q.dropMessage()
			return
		}
		t.list.Add(hostmem.Segment{Space: r.mr.space, Addr: r.mr.hostAddr(r.va), Buf: p.Payload, Lane: q.num, Tag: uint32(p.BTH.PSN())})
		r.va += uint64(n)
		r.left -= n
	}
	q.placed(p, inWrite)
	if !p.Info.HasImm {
		q.commit(p, false, 0)
		return
	}
	if bad, err := q.peekReceive(&t.recvWQE); bad || err != nil {
		q.takeLoaded(t.recvWQE.WRID)
		q.receiveFailed(t.recvWQE.WRID, ring.StatusLocQPOpErr)
		return
	}
	q.completeWriteImm(p)
}

// startUnacknowledgedWrite checks the RETH: rights and bounds of the whole message. A key that does not
// allow it is no error of the queue pair's: the message is dropped (9.9.3).
func (q *QP) startUnacknowledgedWrite(p *roce.Packet) bool {
	r, h := &q.resp, p.RETH()
	length, n := h.Length(), uint32(len(p.Payload))
	if length > q.nic.limits.MaxMsgSize || p.Info.Only && length != n || p.Info.First && length <= n {
		if length > q.nic.limits.MaxMsgSize {
			q.note(NoteTooLarge)
		}
		q.note(NoteLength)
		return false
	}
	if q.attr.AccessFlags&AccessRemoteWrite == 0 {
		q.note(NoteNoRight)
		return false
	}
	r.mr, r.va, r.left, r.total = nil, h.VA(), length, length
	if length == 0 {
		return true
	}
	if r.mr = q.remoteMR(h.RKey(), h.VA(), uint64(length), AccessRemoteWrite); r.mr == nil {
		q.noteAccess(h.RKey(), h.VA(), uint64(length), AccessRemoteWrite)
	}
	return r.mr != nil
}

// placed moves on behind a packet of a message.
func (q *QP) placed(p *roce.Packet, kind messageKind) {
	q.resp.inMessage = kind
	if p.Info.Ends() {
		q.resp.inMessage = noMessage
	}
}

// landingLost treats a transfer of e's message that the program's memory did not allow. A WRITE is dropped;
// so is what came behind it in the batch, of which nothing was transferred: its receives go back.
func (q *QP) landingLost(now int64, e *effect) {
	if e.send {
		q.completeReceiveWith(e.cqe.WRID, ring.StatusLocProtErr)
		q.enterError(now)
		return
	}
	q.req.epoch++ // voids the effects behind e, a receive that was to fail among them
	r := &q.resp
	q.nic.stats.UCDropped++
	q.countDropped()
	r.inMessage, r.mr, r.refusing = noMessage, nil, false
	q.nic.transport.putRecv(r.recv)
	r.recv = nil
	if q.srq == nil {
		r.recvPos = q.rq.Position()
	}
	for len(q.taken) > 0 { // class E, as in dropMessage
		q.completeReceiveWith(q.taken[0].wrid, ring.StatusRemInvReqErr)
	}
}
