package nic

import (
	"cmp"
	"fmt"
	"slices"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// Extended reliable connection (annex A14). An XRCINI queue pair sends like one of RC, and says with each request
// which shared receive queue of the peer it is for. An XRCTGT queue pair takes requests for every shared
// receive queue of its domain: one process receives through a queue pair that another may have made. The
// shared receive queue brings its completion queue and, for the keys of receives and of peers alike, its
// protection domain.

// XRCD is a domain of XRC: the shared receive queues that its target queue pairs reach.
type XRCD struct {
	nic  *shared
	mu   Lock // see QP.lockReceives
	srqs map[uint32]*SRQ
	refs int // shared receive queues and queue pairs
	dead bool
}

// AllocXRCD makes a domain of XRC (A14). ENOMEM: the limit, which is that of protection domains.
func (n *NIC) AllocXRCD() (*XRCD, error) {
	if n.xrcds >= n.limits.MaxPD {
		return nil, refuse(ENOMEM, "allocate XRC domain", "", "the limit of XRC domains is reached: free some")
	}
	n.xrcds++
	return &XRCD{nic: n.shared, mu: n.newLock(), srqs: map[uint32]*SRQ{}}, nil
}

// Dealloc frees the domain. EBUSY while shared receive queues or queue pairs are in it.
func (d *XRCD) Dealloc() error {
	const op = "free XRC domain"
	switch {
	case d.dead:
		return refuse(ENOENT, op, "", "it is freed already")
	case d.refs > 0:
		return refuse(EBUSY, op, "", "shared receive queues or queue pairs are in it: destroy them first")
	}
	d.dead = true
	d.nic.xrcds--
	return nil
}

func (d *XRCD) usable(n *NIC) bool { return d != nil && d.nic == n.shared && !d.dead }

// CreateXRCSRQ makes a shared receive queue of the domain: see CreateSRQ. What it receives completes in cq.
func (n *NIC) CreateXRCSRQ(pd *PD, d *XRCD, cq *CQ, r *ring.Queue, a SRQAttr) (*SRQ, error) {
	const op = "create XRC shared receive queue"
	if !d.usable(n) || !cq.usable(n) {
		return nil, refuse(EINVAL, op, "", "no such XRC domain or completion queue")
	}
	if cq.overrun.Load() {
		return nil, refuse(EINVAL, op, "", overrunReason)
	}
	s, err := n.CreateSRQ(pd, r, a)
	if err != nil {
		return nil, err
	}
	s.xrcd, s.cq = d, cq
	for s.num == 0 || d.srqs[s.num] != nil {
		s.num = n.newQPN() // of no queue pair: numbers of queue pairs are drawn without repetition
	}
	d.srqs[s.num] = s
	d.refs++
	cq.refs++
	return s, nil
}

// Num is the number by which XRC requests name the queue; 0 if it is in no domain.
func (s *SRQ) Num() uint32 { return s.num }

// leaveXRC takes a queue that is destroyed out of its domain. A message that is landing in its receives
// has nowhere to complete: its queue pair goes to the error state.
func (s *SRQ) leaveXRC() {
	d := s.xrcd
	if d == nil {
		return
	}
	delete(d.srqs, s.num)
	d.refs--
	s.cq.refs--
	var users []*QP
	for _, q := range s.nic.qps {
		if q.srq == s && q.typ == XRCTGT {
			users = append(users, q)
		}
	}
	slices.SortFunc(users, func(a, b *QP) int { return cmp.Compare(a.num, b.num) }) // the same seed, the same events
	for _, q := range users {
		q.taken = q.taken[:0]
		if q.resp.inMessage != noMessage {
			q.enterError(q.nic.now)
		}
		q.aimAt(nil)
	}
}

// reliable tells whether the queue pair has the reliable transport of 9.7.
func (q *QP) reliable() bool { return q.typ == RC || q.typ == XRCINI || q.typ == XRCTGT }

// opcode is an opcode of RC in the queue pair's own transport.
func (q *QP) opcode(rc roce.Opcode) roce.Opcode {
	switch q.typ {
	case UC:
		return rc + (roce.UCSendFirst - roce.RCSendFirst)
	case XRCINI, XRCTGT:
		return rc + (roce.XRCSendFirst - roce.RCSendFirst)
	}
	return rc
}

// prepareXRC fills in what an XRC queue pair has no need of: it is asked for nothing that it does not have.
func (n *NIC) prepareXRC(i *QPInit) error {
	const op = "create queue pair"
	switch {
	case i.Type == XRCINI:
		i.RecvCQ = i.SendCQ
		i.RQ, i.Cap.MaxRecvWR, i.Cap.MaxRecvSGE = emptyQueue(), 0, 0
		if i.SRQ != nil || i.XRCD != nil {
			return refuse(EINVAL, op, "", "an XRC initiator receives nothing: no XRC domain and no shared receive queue")
		}
	case i.Type == XRCTGT:
		if !i.XRCD.usable(n) {
			return refuse(EINVAL, op, "", "no such XRC domain")
		}
		if n.xrcCQ == nil {
			n.xrcCQ, n.xrcPD = &CQ{nic: n.shared, mu: n.newLock(), ring: emptyQueue()}, &PD{nic: n.shared}
		}
		i.PD, i.SendCQ, i.RecvCQ, i.SRQ = n.xrcPD, n.xrcCQ, n.xrcCQ, nil
		i.SQ, i.RQ, i.Cap = emptyQueue(), emptyQueue(), Cap{}
	case i.XRCD != nil:
		return refuse(EINVAL, op, "", "only XRC queue pairs have an XRC domain")
	}
	return nil
}

// emptyQueue is a queue to which nobody posts.
func emptyQueue() *ring.Queue {
	g, err := ring.GeometryFor(1, 1)
	if err != nil {
		panic(fmt.Sprintf("shaping an empty queue: %v", err))
	}
	q, err := ring.Format(make([]byte, g.Size()), g)
	if err != nil {
		panic(fmt.Sprintf("formatting an empty queue: %v", err))
	}
	return q
}

// aim finds the shared receive queue that a request is for. All packets of a message name the same. False: the
// request is refused, as an invalid one (A14; 9.7.4.1).
func (q *QP) aim(p *roce.Packet) bool {
	num := p.XRCETH().SRQ()
	if q.resp.inMessage != noMessage {
		if q.srq == nil || q.srq.num != num {
			q.note(NoteOrder)
			q.refuseFatal(roce.NAKInvalidRequest)
			return false
		}
		return true
	}
	if q.nic.planted == PlantedXRCQueueKept && q.srq != nil {
		return true
	}
	s := q.xrcd.srqs[num]
	if s == nil || s.cq.overrun.Load() {
		q.note(NoteNoSRQ)
		q.refuseFatal(roce.NAKInvalidRequest)
		return false
	}
	q.aimAt(s)
	return true
}

// receiveDuplicateXRC is receiveDuplicate with the protection domain of the queue that the duplicate is for, which
// need not be that of the message under way.
func (q *QP) receiveDuplicateXRC(p *roce.Packet, psn roce.PSN) {
	pd := q.pd
	if s := q.xrcd.srqs[p.XRCETH().SRQ()]; s != nil {
		q.pd = s.pd
	} else if p.Info.Kind == roce.KindReadRequest {
		q.nic.transport.note = NoteNoSRQ
		return // nobody's memory can be read for it; what needs no memory is acknowledged
	}
	q.receiveDuplicate(p, psn)
	q.pd = pd
}

// aimAt makes s the queue of what comes next; nil: none.
func (q *QP) aimAt(s *SRQ) {
	q.srq, q.recvCQ, q.pd = s, q.nic.xrcCQ, q.nic.xrcPD
	if s != nil {
		q.recvCQ, q.pd = s.cq, s.pd
	}
}
