package nic

// An acknowledgement may wait for a moment: a packet of its own costs as much as the message that it
// acknowledges. It is sent when its driver has nothing else to do (Quiet), or when it is due: after
// Policy.AckDelayNanos, which is far below any local ACK timeout that leaves room for the responder
// (9.7.6.1.3), or behind so much data that the requester's window must move. Several
// messages then share one acknowledgement (coalescing, 9.7.5.1.2). NAKs and responses never wait.

// ackBytes of data acknowledge themselves at once.
const ackBytes = 16 << 10

// oweAck notes that what is committed is to be acknowledged; bytes arrived with the packet.
func (q *QP) oweAck(now int64, bytes uint32) {
	r := &q.resp
	r.ackDue = true
	r.ackOwed += bytes + ackPacketCost
	if delay := q.nic.policy.AckDelayNanos; delay > 0 && r.ackOwed < ackBytes {
		if r.ackAt == 0 {
			r.ackAt = now + delay
			q.nic.transport.acks.pushBack(q)
			q.rearm()
		}
		return
	}
	q.ackNow()
}

// ackPacketCost makes small messages count.
const ackPacketCost = 512

// ackNow ends the wait.
func (q *QP) ackNow() {
	q.resp.ackAt = 0
	q.nic.transport.acks.remove(q)
	q.activate()
}

// ackPaid notes that everything committed has been acknowledged.
func (q *QP) ackPaid() {
	q.resp.ackDue, q.resp.ackOwed, q.resp.ackAt = false, 0, 0
	q.nic.transport.acks.remove(q)
}

// AcksWait tells whether acknowledgements wait for a quiet moment.
func (n *NIC) AcksWait() bool { return n.transport.acks.head != nil }

// Quiet tells the NIC that its driver has nothing else to do: acknowledgements that wait are to be
// sent by the next Transmit.
func (n *NIC) Quiet() {
	for q := n.transport.acks.head; q != nil; q = n.transport.acks.head {
		q.ackNow()
	}
}
