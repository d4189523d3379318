package nic

import (
	"fmt"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// QueueShapes says what queues a queue pair of the asked capabilities is made with: what is granted
// (at least what was asked, and what the program will see), and the shapes of the send and receive
// queue. EINVAL: beyond the limits. It is idempotent: what was granted is granted again.
func (n *NIC) QueueShapes(asked Cap) (granted Cap, sq, rq ring.Geometry, err error) {
	const op = "create queue pair"
	l := &n.limits
	switch {
	case asked.MaxSendWR > capacityFor(l.MaxQPWR) || asked.MaxRecvWR > capacityFor(l.MaxQPWR):
		err = refuse(EINVAL, op, "", fmt.Sprintf("more than %d work requests of a queue", l.MaxQPWR))
	case asked.MaxSendSGE > l.MaxSGE || asked.MaxRecvSGE > l.MaxSGE:
		err = refuse(EINVAL, op, "", fmt.Sprintf("more than %d scatter/gather entries", l.MaxSGE))
	case asked.MaxInline > l.MaxInline:
		err = refuse(EINVAL, op, "", fmt.Sprintf("more than %d bytes of inline data", l.MaxInline))
	}
	if err != nil {
		return Cap{}, ring.Geometry{}, ring.Geometry{}, err
	}
	// Inline data and scatter/gather entries share the room behind a send work request.
	room := max(asked.MaxSendSGE*ring.SGESize, asked.MaxInline)
	if sq, err = ring.GeometryFor(asked.MaxSendWR, ring.SendWQESize+room); err == nil {
		rq, err = ring.GeometryFor(asked.MaxRecvWR, ring.RecvWQESize+asked.MaxRecvSGE*ring.SGESize)
	}
	if err != nil {
		return Cap{}, ring.Geometry{}, ring.Geometry{}, refuse(EINVAL, op, "", err.Error())
	}
	granted = Cap{MaxSendWR: sq.Capacity(), MaxRecvWR: rq.Capacity(), MaxRecvSGE: asked.MaxRecvSGE,
		MaxSendSGE: min(room/ring.SGESize, l.MaxSGE), MaxInline: min(room, l.MaxInline)}
	return granted, sq, rq, nil
}

// CreateQP makes a queue pair in the Reset state (vol. 1, 11.2.5.1). i.Cap is what was asked or what
// QueueShapes granted; the queues must be at least of the shapes that it says. EOPNOTSUPP: a type
// that the device does not have. EINVAL: anything else that does not fit. ENOMEM: the limit.
func (n *NIC) CreateQP(i QPInit) (*QP, error) {
	const op = "create queue pair"
	switch i.Type {
	case RC, UC, UD, XRCINI, XRCTGT:
	default:
		return nil, refuse(EOPNOTSUPP, op, "", fmt.Sprintf("queue pair type %d is not supported; RC, UC, UD and XRC are", i.Type))
	}
	if err := n.prepareXRC(&i); err != nil {
		return nil, err
	}
	if !i.PD.usable(n) || !i.SendCQ.usable(n) || !i.RecvCQ.usable(n) {
		return nil, refuse(EINVAL, op, "", "no such protection domain or completion queue")
	}
	if i.SendCQ.overrun.Load() || i.RecvCQ.overrun.Load() {
		return nil, refuse(EINVAL, op, "", overrunReason)
	}
	if i.SRQ != nil {
		if !i.SRQ.usable(n) || i.SRQ.xrcd != nil {
			return nil, refuse(EINVAL, op, "", "no such shared receive queue")
		}
		i.Cap.MaxRecvWR, i.Cap.MaxRecvSGE, i.RQ = 0, 0, nil // 10.2.9: of no meaning
	}
	granted, sq, rq, err := n.QueueShapes(i.Cap)
	if err != nil {
		return nil, err
	}
	if i.Type != XRCTGT && (!holds(i.SQ, sq) || i.SRQ == nil && i.Type != XRCINI && !holds(i.RQ, rq)) {
		return nil, refuse(EINVAL, op, "", "the queues are smaller than the capabilities")
	}
	if len(n.qps) >= n.limits.MaxQP {
		return nil, refuse(ENOMEM, op, "", "the limit of queue pairs is reached: destroy some")
	}
	num, err := n.numberFor(&i)
	if err != nil {
		return nil, err
	}
	q := &QP{nic: n, num: num, typ: i.Type, pd: i.PD, sendCQ: i.SendCQ, recvCQ: i.RecvCQ,
		sq: i.SQ, rq: i.RQ, srq: i.SRQ, xrcd: i.XRCD, cap: granted, sigAll: i.SigAll,
		refuseSends: i.RefuseSends, count: i.Counters}
	if q.srq != nil {
		q.srq.refs++
		q.cap.MaxRecvWR = 0
	}
	if q.xrcd != nil {
		q.xrcd.refs++
		q.cap = Cap{}
	}
	if q.typ == UD {
		q.vector = &vector{}
	}
	q.setDefaults()
	q.unit.Store(int32(n.index))
	n.qps[q.num] = q
	q.pd.refs++
	q.sendCQ.attach(q, 0)
	q.recvCQ.attach(q, 1)
	q.transportReset()
	q.showReadiness()
	return q, nil
}

// ManagementQPN is the number of the queue pair that takes management datagrams, and ManagementQKey its Q_Key (vol. 1,
// 3.5.3, 9.2, 12.2.1): the connection manager's.
const (
	ManagementQPN  = 1
	ManagementQKey = 0x80010000
)

// numberFor is the number of a new queue pair: drawn, but for the management queue pair (Get Special QP of vol. 1, 11.2).
func (n *NIC) numberFor(i *QPInit) (uint32, error) {
	const op = "create management queue pair"
	switch {
	case !i.Special:
		return n.newQPNumber(), nil
	case i.Type != UD:
		return 0, refuse(EINVAL, op, "", "it is of type UD")
	case n.HomeUnit(ManagementQPN) != n.index:
		return 0, refuse(EINVAL, op, "", fmt.Sprintf("it is of unit %d", n.HomeUnit(ManagementQPN)))
	case n.qps[ManagementQPN] != nil:
		return 0, refuse(EBUSY, op, "", "the device has one already")
	}
	return ManagementQPN, nil
}

// showReadiness makes the send queue look full in the states in which posting is an error (10.3.1.1 to 10.3.1.3),
// and as it is in the others. Faults are the program's, which has truncated its queues.
func (q *QP) showReadiness() {
	shut := q.state < RTS
	switch {
	case !q.refuseSends:
	case shut:
		_ = q.sq.Shut()
	case q.shut:
		_ = q.sq.Reopen()
	}
	q.shut = shut
}

func holds(q *ring.Queue, g ring.Geometry) bool {
	return q != nil && q.Capacity() >= g.Capacity() && q.ElemSize() >= 1<<g.ElemLog2
}

// setDefaults gives the queue pair the attributes of the Reset state.
func (q *QP) setDefaults() {
	q.state = Reset
	q.mig = nil
	q.attr = Attr{PathMTU: 1} // as Linux reports a queue pair without a path
	q.mtu = uint32(roce.MTUBytes(1))
	q.path = roce.Path{SrcPort: sourcePort(0, q.num, 0)}
	q.local = false
}

// Destroy frees the queue pair (11.2.5.4). Work requests that have not completed never will; events
// that were not taken yet are gone; its number is not used again for long.
func (q *QP) Destroy() error {
	if q.dead {
		return refuse(ENOENT, "destroy queue pair", q.String(), "it is destroyed already")
	}
	if len(q.groups) > 0 {
		return refuse(EBUSY, "destroy queue pair", q.String(), "it is attached to multicast groups: detach it first")
	}
	q.transportDestroy()
	q.countMove(-1)
	unbindAll(q.windows)
	q.dead = true
	delete(q.nic.qps, q.num)
	if q.typ == XRCTGT {
		q.aimAt(nil)
		q.xrcd.refs--
	}
	q.sendCQ.showAll(q.nic)
	q.recvCQ.showAll(q.nic)
	q.sendCQ.detach(q, 0)
	q.recvCQ.detach(q, 1)
	q.pd.refs--
	if q.srq != nil {
		q.srq.refs--
		q.taken = nil
	}
	return nil
}

// String names the queue pair in messages.
func (q *QP) String() string { return fmt.Sprintf("QP %#06x", q.num) }

// reset empties both queues and puts everything back to what it was after creation (10.3.1.1).
func (q *QP) reset() {
	q.transportReset()
	// An error means that the program has truncated its queues: then nothing is in them.
	_ = q.sq.ConsumeAll()
	if q.srq == nil {
		_ = q.rq.ConsumeAll()
	}
	if q.typ == XRCTGT {
		q.aimAt(nil)
	}
	q.taken = q.taken[:0] // 10.2.9: what was taken from a shared queue is gone with the rest
	q.setDefaults()
}

// enterError puts the queue pair into the error state, from whatever state it can leave for it, and
// starts flushing.
func (q *QP) enterError(now int64) {
	if q.state == Reset || q.state == Err {
		return
	}
	q.state = Err
	q.attr.SQDraining = false
	q.transportToError(now)
	q.showReadiness()
}

// sqDrained says that everything which had begun when the queue pair entered SQD has completed.
func (q *QP) sqDrained() {
	if q.state != SQD || !q.attr.SQDraining {
		return
	}
	q.attr.SQDraining = false
	if q.attr.EnSQDAsyncNotify != 0 {
		q.nic.event(Event{Type: EventSQDrained, QP: q}) // 10.3.1.5, 11.6.3
	}
}
