package nic

import (
	"errors"

	"rnic/internal/hostmem"
	"rnic/internal/roce"
)

// pending are the responses to send.
func (r *responder) pending() []response { return r.out[r.outHead:] }

func (r *responder) dropResponses() {
	clear(r.out)
	r.out, r.outHead, r.reads = r.out[:0], 0, 0
	r.ackDue = false
}

// respond queues the response of a new request, behind all others.
func (q *QP) respond(p response) {
	r := &q.resp
	r.makeRoom()
	r.out = append(r.out, p)
	q.activate()
}

// makeRoom moves the queue to the front of its memory rather than let it grow.
func (r *responder) makeRoom() {
	if len(r.out) == cap(r.out) && r.outHead > 0 {
		n := copy(r.out, r.pending())
		clear(r.out[n:])
		r.out, r.outHead = r.out[:n], 0
	}
}

// respondAgain queues the response of a duplicate request. The queue stays in PSN order: what is
// going to be sent anyway is not queued twice, and what stands behind stays.
func (q *QP) respondAgain(p response) {
	r := &q.resp
	at := r.outHead
	for at < len(r.out) && !r.out[at].end.After(p.psn) {
		at++
	}
	p.duplicate = true
	if at < len(r.out) {
		next := r.out[at].psn
		if !next.After(p.psn) {
			return // still to come
		}
		if p.end.After(next) {
			p.end = next
		}
	}
	// Duplicates are of the requests that max_dest_rd_atomic allows, each at most once in the
	// queue before the one it repeats.
	if len(r.pending()) >= 2*int(q.attr.MaxDestRDAtomic)+2 {
		return
	}
	at -= r.outHead
	r.makeRoom()
	at += r.outHead
	r.out = append(r.out, response{})
	copy(r.out[at+1:], r.out[at:])
	r.out[at] = p
	q.activate()
}

// sendResponses sends what the responder owes. more: the quantum is used up; full: the batch is.
func (q *QP) sendResponses(now int64, tx *Tx) (more, full bool) {
	r := &q.resp
	packets, bytes := 0, 0
	for r.outHead < len(r.out) {
		p := &r.out[r.outHead]
		if packets >= quantumPackets || bytes >= quantumBytes {
			return true, false
		}
		if !p.atomic && !q.mayLeave(now) {
			return false, false
		}
		var n uint32
		var ok bool
		if p.atomic {
			ok = q.sendAtomicAck(tx, p)
		} else if p.mr != nil && p.mr.dead {
			if p.duplicate {
				// Answered once already, and maybe in time: then the program was right to deregister, and
				// a needless repetition must not end the connection. Who still needs it asks again.
				r.popResponse()
				continue
			}
			if c := q.count; c != nil {
				c.unknownKey(p.mr.key)
			}
			q.readFailed(p.psn, nil)
			return true, false
		} else {
			if n, ok = q.sendReadResponse(tx, p); ok {
				q.left(now, len(tx.Packets[len(tx.Packets)-1].Data))
			}
		}
		if !ok {
			return false, true
		}
		if p.duplicate {
			tx.noteSent(NoteAnswered)
		}
		packets++
		bytes += int(n)
		if !p.duplicate {
			r.acked = p.psn
		}
		if p.psn = p.psn.Add(1); p.psn == p.end {
			r.popResponse()
		}
	}
	switch {
	case r.nakDue:
		// The NAK acknowledges what is before it (9.7.5.2). But Linux's rxe, once it has begun to send again, takes no other
		// NAK until an acknowledgement has come, and waits for its timer: two seconds with rdma_cm.
		if r.nak == roce.NAKSequence && r.nakPSN == r.committed.Add(1) && r.acked != r.committed {
			if !q.sendAck(tx, r.committed, roce.ACKSyndrome(q.creditCode())) {
				return false, true
			}
			r.acked = r.committed
		}
		if !q.sendAck(tx, r.nakPSN, r.nak) {
			return false, true
		}
		tx.noteSent(NoteNAK)
		r.nakDue = false
		if !r.nakPSN.After(r.committed) {
			return true, false // of a duplicate: an acknowledgement may be owed all the same
		}
		q.ackPaid() // it acknowledges everything before nakPSN too
	case q.sel.due && q.sel.requests != nil && q.sel.requests.count > 0 && q.state != Err:
		if !q.sendSelectiveAck(tx) {
			return false, true
		}
		q.sel.due = false
		q.ackPaid()
	case r.ackDue && r.ackAt == 0:
		if !q.sendAck(tx, r.committed, roce.ACKSyndrome(q.creditCode())) {
			return false, true
		}
		r.acked = r.committed
		q.ackPaid()
	}
	return false, false
}

func (r *responder) popResponse() {
	p := &r.out[r.outHead]
	if !p.duplicate {
		r.reads--
	}
	*p = response{}
	if r.outHead++; r.outHead == len(r.out) {
		r.out, r.outHead = r.out[:0], 0
	}
}

// creditCode encodes the receives that are posted and not used (9.7.7.2.2).
func (q *QP) creditCode() uint8 {
	if q.srq != nil || q.typ == XRCTGT {
		return roce.CreditsUnlimited // 9.7.7.2: receives that others may take are no credits
	}
	return roce.CreditCode(int(q.rq.Pending()))
}

func (q *QP) sendReadResponse(tx *Tx, p *response) (n uint32, ok bool) {
	n = min(p.left, q.mtu)
	op := roce.RCReadResponseMiddle
	first, last := p.psn == p.first, p.psn.Add(1) == p.final
	switch {
	case first && last:
		op = roce.RCReadResponseOnly
	case first:
		op = roce.RCReadResponseFirst
	case last:
		op = roce.RCReadResponseLast
	}
	op = q.opcode(op)
	info := op.Info()
	pkt := tx.packet(q, &q.path, q.local, info.HeaderLen, int(n))
	if pkt == nil {
		return 0, false
	}
	q.putBTH(pkt, op, p.psn, n)
	if info.HasAETH {
		info.AETH(pkt).Encode(&roce.AETHFields{Syndrome: roce.ACKSyndrome(q.creditCode()), MSN: p.msn})
	}
	if n > 0 {
		tx.Gather.Add(hostmem.Segment{Space: p.mr.space, Addr: p.mr.hostAddr(p.va),
			Buf: pkt[info.HeaderLen : info.HeaderLen+int(n)], Lane: q.num, Tag: uint32(len(tx.Packets) - 1)})
	}
	p.va += uint64(n)
	p.left -= n
	return n, true
}

func (q *QP) sendAtomicAck(tx *Tx, p *response) bool {
	op := q.opcode(roce.RCAtomicAck)
	info := op.Info()
	pkt := tx.packet(q, &q.path, q.local, info.HeaderLen, 0)
	if pkt == nil {
		return false
	}
	q.putBTH(pkt, op, p.psn, 0)
	info.AETH(pkt).Encode(&roce.AETHFields{Syndrome: roce.ACKSyndrome(q.creditCode()), MSN: p.msn})
	info.AtomicAckETH(pkt).Encode(&roce.AtomicAckETHFields{Orig: p.value})
	return true
}

func (q *QP) sendAck(tx *Tx, psn roce.PSN, s roce.Syndrome) bool {
	op := q.opcode(roce.RCAck)
	info := op.Info()
	pkt := tx.packet(q, &q.path, q.local, info.HeaderLen, 0)
	if pkt == nil {
		return false
	}
	q.putBTH(pkt, op, psn, 0)
	info.AETH(pkt).Encode(&roce.AETHFields{Syndrome: s, MSN: q.resp.msn})
	return true
}

// readFailed ends a READ whose memory is not there (any more): 9.7.5.2, remote access error.
func (q *QP) readFailed(psn roce.PSN, err error) {
	q.resp.dropResponses()
	if errors.Is(err, hostmem.ErrGone) {
		q.fallSilent(q.nic.now)
		return
	}
	if q.state == Err { // another NAK was to follow: this one comes first
		q.resp.nak, q.resp.nakPSN = roce.NAKRemoteAccess, psn
		q.activate()
		return
	}
	q.performNAK(q.nic.now, &effect{syndrome: roce.NAKRemoteAccess, psn: psn})
}
