package verbs

import (
	"fmt"

	"rnic/internal/device"
	"rnic/internal/nic"
)

// XRC, the extended reliable connection (InfiniBand vol. 1, annex A14): a sender needs one connection to each peer,
// not one to each of its receivers. An XRCINI queue pair says with each request which of the peer's
// shared receive queues it is for (SendWR.RemoteSRQ); the peer's XRCTGT queue pair takes it there.

// XRCD is a domain of XRC: the shared receive queues that its target queue pairs reach.
type XRCD struct {
	lifetime
	d *device.XRCD
}

// AllocXRCD makes a domain of XRC.
func (c *Context) AllocXRCD() (*XRCD, error) {
	d, err := c.ctx.AllocXRCD()
	if err != nil {
		return nil, err
	}
	return &XRCD{lifetime: lifetime{ctx: c}, d: d}, nil
}

// Close frees the domain; ErrBusy while shared receive queues or target queue pairs are in it.
func (d *XRCD) Close() error {
	_, err := d.close(d.d.Dealloc)
	return err
}

// CreateTarget creates an XRCTGT queue pair in state RESET. It has no queues of its own: receives,
// completions and keys are those of the shared receive queue that a request is for.
func (d *XRCD) CreateTarget() (*QP, error) {
	if err := d.use("create XRC target"); err != nil {
		return nil, err
	}
	q := &QP{lifetime: lifetime{ctx: d.ctx}, typ: XRCTGT}
	var err error
	if q.qp, err = d.ctx.ctx.CreateQP(device.QPInit{Type: XRCTGT, XRCD: d.d, Cookie: q}); err != nil {
		return nil, err
	}
	return q, nil
}

// Num is the number by which a peer's XRC requests name the queue; 0 if it was created without an XRCD.
func (s *SRQ) Num() uint32 { return s.srq.Num() }

// xrc fills in what makes a shared receive queue one of XRC.
func (cfg *SRQConfig) xrc(p *PD, init *device.SRQInit) error {
	switch {
	case cfg.XRCD == nil && cfg.CQ == nil:
		return nil
	case cfg.XRCD == nil || cfg.CQ == nil:
		return fmt.Errorf("create shared receive queue: one of XRC needs both an XRCD and a CQ: %w", ErrInvalid)
	case cfg.XRCD.ctx != p.ctx || cfg.CQ.ctx != p.ctx:
		return fmt.Errorf("create shared receive queue: the XRC domain or the completion queue is of another context: %w", ErrInvalid)
	}
	init.XRCD, init.CQ = cfg.XRCD.d, cfg.CQ.cq
	return nil
}

// connectMasks are the attributes beyond those of every connection that a type sets on its way to RTR and RTS.
func connectMasks(t QPType) (rtr, rts AttrMask) {
	requester := nic.AttrTimeout | nic.AttrRetryCnt | nic.AttrRNRRetry | nic.AttrMaxRDAtomic
	responder := nic.AttrMaxDestRDAtomic | nic.AttrMinRNRTimer
	switch t {
	case RC:
		return responder, requester
	case XRCINI:
		return 0, requester
	case XRCTGT:
		return responder, nic.AttrTimeout
	}
	return 0, 0
}
