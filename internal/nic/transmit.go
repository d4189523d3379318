package nic

import (
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// packet appends a packet with room for its headers, payload, pad and ICRC, and returns the bytes up
// to the pad; nil if the batch is full. Pad bytes are zero.
func (tx *Tx) packet(q *QP, path *roce.Path, local bool, header, payload int) []byte {
	n := header + payload + int(roce.PadCount(payload))
	arena := tx.Arena[:cap(tx.Arena)]
	if len(tx.Packets) == cap(tx.Packets) || n+roce.ICRCSize > len(arena)-tx.Used {
		return nil
	}
	end := tx.Used + n + roce.ICRCSize
	data := arena[tx.Used:end] // its capacity reaches on: so a link sees that packets lie back to back
	tx.Used = end
	tx.Packets = append(tx.Packets, TxPacket{Path: path, Data: data, QPN: q.num, Local: local})
	clear(data[header+payload : n])
	s := &q.nic.stats
	s.TxPackets++
	s.TxBytes += uint64(payload)
	if c := q.count; c != nil {
		c.TxPackets++
	}
	return data[:n]
}

// undo takes the last packet out of the batch again.
func (tx *Tx) undo() {
	last := len(tx.Packets) - 1
	tx.Used -= len(tx.Packets[last].Data)
	tx.Packets = tx.Packets[:last]
	segs := tx.Gather.Segs
	for len(segs) > 0 && segs[len(segs)-1].Tag == uint32(last) {
		segs = segs[:len(segs)-1]
	}
	tx.Gather.Segs = segs
}

// Transmit appends packets to tx, as many as the NIC has to send and tx has room for. True: it
// stopped because the batch is full.
func (n *NIC) Transmit(now int64, tx *Tx) bool {
	n.now = max(n.now, now)
	active := &n.transport.active
	for q := active.head; q != nil; q = active.head {
		active.remove(q)
		more, full := q.transmit(now, tx)
		if full {
			active.pushFront(q)
			return true
		}
		if more {
			active.pushBack(q)
		}
	}
	return false
}

func (q *QP) transmit(now int64, tx *Tx) (more, full bool) {
	switch q.state {
	case RTR, RTS, SQD, SQE:
	case Err:
		if !q.resp.nakDue {
			return false, false
		}
	default:
		return false, false
	}
	if !q.reliable() {
		switch {
		case q.state != RTS && q.state != SQD:
			return false, false
		case q.typ == UC:
			return q.sendUnacknowledged(now, tx)
		}
		return q.sendDatagrams(now, tx)
	}
	if q.resp.cnpDue && !q.sendCNP(tx) {
		return false, true
	}
	more, full = q.sendResponses(now, tx)
	if !full && q.req.started && (q.state == RTS || q.state == SQD) {
		var again bool
		again, full = q.sendRequests(now, tx)
		more = more || again
		q.rearm()
	}
	q.passTurn()
	return more, full
}

// GatherDone learns which pieces of the batch could not be read: their packets become Dead, and the
// requests or responses that they belong to fail.
func (n *NIC) GatherDone(now int64, tx *Tx) {
	n.now = max(n.now, now)
	t := &n.transport
	for i, q := range t.carried { // first: what stands behind completes in its turn
		q.completeRequests(now, q.req.passLocal())
		t.carried[i] = nil
	}
	t.carried = t.carried[:0]
	if len(tx.Gather.Failed) == 0 && t.unacknowledged == 0 {
		return
	}
	for i := range tx.Gather.Failed {
		f := &tx.Gather.Failed[i]
		first := tx.Gather.Segs[f.Index].Tag
		for k := int(first); k < len(tx.Packets); k++ {
			if tx.Packets[k].QPN == f.Lane {
				tx.Packets[k].Dead = true // nothing of this queue pair was read behind it
			}
		}
		if q := n.lookupQP(f.Lane); q != nil && q.reliable() {
			tx.askBefore(int(first))
			q.gatherFailed(now, roce.BTH(tx.Packets[first].Data), f.Err)
		}
	}
	if t.unacknowledged == 0 {
		return
	}
	t.unacknowledged = 0
	for i := range tx.Packets {
		p := &tx.Packets[i]
		b := roce.BTH(p.Data)
		switch roce.Transport(b.Opcode() >> 5) {
		case roce.TransportUD:
			if q := n.lookupQP(p.QPN); q != nil {
				q.datagramSent(now, p.Dead)
			}
		case roce.TransportUC:
			if q := n.lookupQP(p.QPN); q != nil {
				q.unacknowledgedSent(now, b, p.Dead)
			}
		}
	}
}

// askBefore has the last request that the queue pair of a dead packet sends before it ask for an acknowledgement: the one that ended the
// burst, and asked, does not leave.
func (tx *Tx) askBefore(dead int) {
	for k := dead - 1; k >= 0; k-- {
		if b := roce.BTH(tx.Packets[k].Data); tx.Packets[k].QPN == tx.Packets[dead].QPN && b.Opcode().Info().Request {
			b.SetAckReq(true)
			return
		}
	}
}

// gatherFailed fails what the first packet belongs to whose memory could not be read.
func (q *QP) gatherFailed(now int64, b roce.BTH, err error) {
	psn := b.PSN()
	if b.Opcode().Info().Kind == roce.KindReadResponse {
		q.readFailed(psn, err)
		return
	}
	r := &q.req
	for pos := r.acked; pos != r.tail; pos++ {
		w := r.at(pos)
		if w.end().After(psn) {
			w.status, r.stopped = ring.StatusLocProtErr, true
			if r.nxt.After(psn) && !psn.Before(r.una) {
				q.rewind(psn, pos)
			}
			break
		}
	}
	q.failIfOldest(now)
}

// rewind takes back what has been sent from psn on, which belongs to the request at pos.
func (q *QP) rewind(psn roce.PSN, pos uint32) {
	r := &q.req
	for from, at := psn, pos; from != r.nxt && at != r.tail; at++ {
		w := r.at(at)
		to := w.end()
		if to.After(r.nxt) {
			to = r.nxt
		}
		q.landed(q.cost(w, uint32(roce.Diff(from, w.first)), uint32(roce.Diff(to, w.first))))
		from = to
	}
	r.nxt, r.cur = psn, pos
	for r.readTail != r.readHead && r.readEnds[(r.readTail-1)&uint32(len(r.readEnds)-1)].After(psn) {
		r.readTail--
	}
}
