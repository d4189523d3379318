package verbs

import (
	"fmt"
	"sync"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// SRQConfig says how a shared receive queue is created. Zero fields mean the defaults in brackets.
type SRQConfig struct {
	MaxRecv    int   // receives [128]
	MaxRecvSGE int   // scatter/gather entries of one [1], 32 at most
	XRCD       *XRCD // with CQ: a shared receive queue of XRC
	CQ         *CQ   // XRC: where its receives complete
}

// SRQ is a shared receive queue: receives for all queue pairs that are created with it (InfiniBand vol. 1,
// 10.2.9). A message takes the oldest when it starts, and that completes in the receive completion queue
// of the message's queue pair.
type SRQ struct {
	lifetime
	srq    *device.SRQ
	maxSGE int

	mu    sync.Mutex
	rq    *ring.Queue
	recvW ring.RecvWQE
}

// SRQAttr are the attributes of a shared receive queue (struct ibv_srq_attr): receives that fit, entries of
// one, and the limit that is armed, 0 for none.
type SRQAttr = nic.SRQAttr

// CreateSRQ creates a shared receive queue. The keys of its receives must be of p.
func (p *PD) CreateSRQ(cfg SRQConfig) (*SRQ, error) {
	if cfg.MaxRecv == 0 {
		cfg.MaxRecv = 128
	}
	if cfg.MaxRecvSGE == 0 {
		cfg.MaxRecvSGE = 1
	}
	if err := p.use("create shared receive queue"); err != nil {
		return nil, err
	}
	l := p.ctx.dev.dev.Limits()
	if cfg.MaxRecv < 1 || cfg.MaxRecv > int(l.MaxSRQWR) || cfg.MaxRecvSGE < 0 || cfg.MaxRecvSGE > int(l.MaxSGE) {
		return nil, fmt.Errorf("create shared receive queue: 1 to %d receives of at most %d entries are possible: %w", l.MaxSRQWR, l.MaxSGE, ErrInvalid)
	}
	nicRQ, rq, err := newRing(uint32(cfg.MaxRecv), recvElement(cfg.MaxRecvSGE))
	if err != nil {
		return nil, fmt.Errorf("create shared receive queue: %v: %w", err, ErrInvalid)
	}
	s := &SRQ{lifetime: lifetime{ctx: p.ctx}, maxSGE: cfg.MaxRecvSGE, rq: rq}
	init := device.SRQInit{PD: p.pd, Ring: nicRQ, Cookie: s,
		Attr: nic.SRQAttr{MaxWR: uint32(cfg.MaxRecv), MaxSGE: uint32(cfg.MaxRecvSGE)}}
	if err := cfg.xrc(p, &init); err != nil {
		return nil, err
	}
	s.srq, err = p.ctx.ctx.CreateSRQ(init)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func recvElement(sge int) uint32 { return ring.RecvWQESize + uint32(sge)*ring.SGESize }

// Close destroys the queue, with the receives that nobody took; ErrBusy while a queue pair uses it.
func (s *SRQ) Close() error {
	_, err := s.close(s.srq.Destroy)
	return err
}

// PostRecv posts receives, in order. It returns how many were posted; the error is about the next one.
func (s *SRQ) PostRecv(wrs ...*RecvWR) (n int, err error) {
	if err := s.use("post to shared receive queue"); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, wr := range wrs {
		if len(wr.SGE) > s.maxSGE {
			return n, fmt.Errorf("post to shared receive queue: %d scatter/gather entries, it was created for %d: %w",
				len(wr.SGE), s.maxSGE, ErrInvalid)
		}
		if err := postRecv(s.rq, &s.recvW, wr); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// postRecv puts one receive into a queue.
func postRecv(rq *ring.Queue, w *ring.RecvWQE, wr *RecvWR) error {
	if rq.Free() == 0 {
		return ErrQueueFull
	}
	w.WRID, w.NumSGE = wr.ID, copySGE(&w.SGE, wr.SGE)
	rq.StoreRecv(rq.Position(), w)
	return rq.Publish()
}

// Arm asks for one EventSRQLimit, when a message has taken a receive and fewer than limit are left; 0
// asks for none (ibv_modify_srq with IBV_SRQ_LIMIT). ErrInvalid: the queue does not hold so many.
func (s *SRQ) Arm(limit int) error {
	if err := s.use("arm shared receive queue"); err != nil {
		return err
	}
	if limit < 0 || limit > ring.MaxEntries {
		return fmt.Errorf("arm shared receive queue: a limit of %d receives: %w", limit, ErrInvalid)
	}
	l := uint32(limit)
	return s.told("arm shared receive queue", s.srq.Modify(&l, nil))
}

// Resize makes room for at least entries receives (ibv_modify_srq with IBV_SRQ_MAX_WR). What is posted
// stays posted. ErrInvalid, and nothing changes, if that or the limit does not fit.
func (s *SRQ) Resize(entries int) error {
	if err := s.use("resize shared receive queue"); err != nil {
		return err
	}
	if limit := int(s.ctx.dev.dev.Limits().MaxSRQWR); entries < 1 || entries > limit {
		return fmt.Errorf("resize shared receive queue to %d: 1 to %d are possible: %w", entries, limit, ErrInvalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	nicRQ, rq, err := newRing(uint32(entries), recvElement(s.maxSGE))
	if err != nil {
		return fmt.Errorf("resize shared receive queue: %v: %w", err, ErrInvalid)
	}
	if err := s.srq.Modify(nil, nicRQ); err != nil {
		return s.told("resize shared receive queue", err)
	}
	rq.SetPosition(rq.Produced())
	s.rq = rq
	return nil
}

// Query returns the attributes.
func (s *SRQ) Query() (SRQAttr, error) {
	if err := s.use("query shared receive queue"); err != nil {
		return SRQAttr{}, err
	}
	return s.srq.Query()
}
