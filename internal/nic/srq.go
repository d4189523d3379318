package nic

import (
	"fmt"

	"rnic/internal/ring"
)

// SRQ is a shared receive queue: the receives of all queue pairs that are created with it (vol. 1,
// 10.2.9). A receive leaves the queue when a message of one of them takes it, and belongs to that
// queue pair from then on: it completes there, or is flushed there.
type SRQ struct {
	nic    *shared
	mu     Lock // see QP.lockReceives
	pd     *PD
	ring   *ring.Queue
	maxSGE uint32
	limit  uint32 // 0: no event is asked for
	refs   int    // queue pairs
	dead   bool
	Owner  any // the device service's: where its events go

	xrcd *XRCD // nil: not of XRC
	num  uint32
	cq   *CQ
}

// SRQAttr is struct ib_srq_attr.
type SRQAttr struct{ MaxWR, MaxSGE, Limit uint32 }

// SRQShape says what queue a shared receive queue of the asked attributes is made with, and what is
// granted. EINVAL: none, or beyond the limits.
func (n *NIC) SRQShape(asked SRQAttr) (granted SRQAttr, g ring.Geometry, err error) {
	const op = "create shared receive queue"
	l := &n.limits
	switch {
	case asked.MaxWR == 0 || asked.MaxWR > capacityFor(l.MaxSRQWR):
		err = refuse(EINVAL, op, "", fmt.Sprintf("1 to %d work requests are possible", l.MaxSRQWR))
	case asked.MaxSGE > l.MaxSGE:
		err = refuse(EINVAL, op, "", fmt.Sprintf("more than %d scatter/gather entries", l.MaxSGE))
	default:
		if g, err = ring.GeometryFor(asked.MaxWR, ring.RecvWQESize+asked.MaxSGE*ring.SGESize); err != nil {
			err = refuse(EINVAL, op, "", err.Error())
		}
	}
	if err != nil {
		return SRQAttr{}, ring.Geometry{}, err
	}
	return SRQAttr{MaxWR: g.Capacity(), MaxSGE: asked.MaxSGE}, g, nil
}

// CreateSRQ makes a shared receive queue over r, which the program fills and the NIC empties (11.2, Create Shared Receive Queue).
// The limit of a is of no meaning: it is armed by Modify. EINVAL: a is beyond the limits, or r
// too small. ENOMEM: the limit of shared receive queues.
func (n *NIC) CreateSRQ(pd *PD, r *ring.Queue, a SRQAttr) (*SRQ, error) {
	const op = "create shared receive queue"
	granted, g, err := n.SRQShape(a)
	switch {
	case err != nil:
		return nil, err
	case !pd.usable(n):
		return nil, refuse(EINVAL, op, "", "no such protection domain")
	case !holds(r, g):
		return nil, refuse(EINVAL, op, "", "the queue is smaller than the attributes")
	case n.srqs >= n.limits.MaxSRQ:
		return nil, refuse(ENOMEM, op, "", "the limit of shared receive queues is reached: destroy some")
	}
	n.srqs++
	pd.refs++
	return &SRQ{nic: n.shared, mu: n.newLock(), pd: pd, ring: r, maxSGE: granted.MaxSGE}, nil
}

// Destroy frees the queue, with the receives that nobody took. EBUSY while queue pairs use it (11.2, Destroy Shared Receive Queue).
func (s *SRQ) Destroy() error {
	const op = "destroy shared receive queue"
	if s.dead {
		return refuse(ENOENT, op, "", "it is destroyed already")
	}
	if s.refs > 0 {
		return refuse(EBUSY, op, "", "queue pairs use it: destroy them first")
	}
	s.dead = true
	s.leaveXRC()
	s.pd.refs--
	s.nic.srqs--
	return nil
}

// Query returns the attributes. The limit is 0 once its event was raised (11.2, Query Shared Receive Queue).
func (s *SRQ) Query() SRQAttr {
	return SRQAttr{MaxWR: s.ring.Capacity(), MaxSGE: s.maxSGE, Limit: s.limit}
}

// Modify arms the limit, or disarms it with 0, if limit is not nil, and goes over to the queue to, with
// the receives that are posted, if that is not nil: both or, with an error, nothing (11.2, Modify Shared Receive Queue). The
// event comes, once, when a message takes a receive and fewer than limit are left.
//
// EINVAL: the limit is more than the queue holds, or the receives that are posted, or the limit that
// is armed, do not fit into the new queue.
func (s *SRQ) Modify(limit *uint32, to *ring.Queue) error {
	const op = "modify shared receive queue"
	capacity, armed := s.ring.Capacity(), s.limit
	if s.dead {
		return refuse(ENOENT, op, "", "it is destroyed")
	}
	if to != nil {
		capacity = to.Capacity()
		if to.ElemSize() != s.ring.ElemSize() || capacity > capacityFor(s.nic.limits.MaxSRQWR) {
			return refuse(EINVAL, op, "", "the new queue is not of the right shape")
		}
	}
	if limit != nil {
		armed = *limit
	}
	if armed > capacity {
		return refuse(EINVAL, op, "", fmt.Sprintf("a limit of %d receives, the queue holds %d", armed, capacity))
	}
	if to != nil {
		if err := s.ring.MoveReceives(to); err != nil {
			return refuse(EINVAL, op, "", fmt.Sprintf("more receives are posted than the %d that the new queue holds", capacity))
		}
		if s.nic.planted == PlantedResizeLoses && to.Pending() > 0 {
			to.SetPosition(to.Next(to.Position()))
		}
		s.ring = to
	}
	s.limit = armed
	return nil
}

// usable tells whether queue pairs of n may use s.
func (s *SRQ) usable(n *NIC) bool { return s != nil && s.nic == n.shared && !s.dead }

// take consumes the next receive for a queue pair of unit n, whose slot may be posted to again at once.
// Precondition: there is one.
func (s *SRQ) take(n *NIC) error {
	if s.nic.planted == PlantedSharedTwice && n.stats.RxPackets%8 == 0 {
		return nil
	}
	if err := s.ring.Consume(); err != nil {
		return err
	}
	if s.limit > 0 && s.ring.Pending() < s.limit {
		if s.nic.planted != PlantedLimitAgain {
			s.limit = 0 // 11.6.3: one event for one arming
		}
		n.event(Event{Type: EventSRQLimit, SRQ: s})
	}
	return nil
}
