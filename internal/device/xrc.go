package device

import "rnic/internal/nic"

// XRCD is a domain of XRC: the shared receive queues that its target queue pairs reach.
type XRCD struct {
	ctx    *Context
	core   *nic.XRCD
	Cookie any
}

// AllocXRCD makes a domain of XRC.
func (c *Context) AllocXRCD() (*XRCD, error) {
	d := &XRCD{ctx: c}
	err := c.do(func(core *nic.NIC, _ int64) (err error) {
		if d.core, err = core.AllocXRCD(); err == nil {
			c.xrcds[d] = struct{}{}
		}
		return err
	})
	return orNil(d, err)
}

// Dealloc frees it; EBUSY while shared receive queues or queue pairs are in it.
func (d *XRCD) Dealloc() error {
	return d.ctx.do(func(*nic.NIC, int64) error {
		err := d.core.Dealloc()
		if err == nil {
			delete(d.ctx.xrcds, d)
		}
		return err
	})
}

// Num is the number by which XRC requests name the queue; 0 if it is in no domain.
func (s *SRQ) Num() uint32 { return s.core.Num() }

// coreInit is i for the core. What may be nil is what the queue pair's type has no need of: the core says what
// is missing.
func (i *QPInit) coreInit() nic.QPInit {
	c := nic.QPInit{Type: i.Type, SQ: i.SQ, RQ: i.RQ, SRQ: i.SRQ.coreOf(), Cap: i.Cap, SigAll: i.SigAll, RefuseSends: i.RefuseSends, Special: i.Special}
	if i.Counters {
		c.Counters = new(nic.QPCounters)
	}
	if i.PD != nil {
		c.PD = i.PD.core
	}
	if i.SendCQ != nil {
		c.SendCQ = i.SendCQ.core
	}
	if i.RecvCQ != nil {
		c.RecvCQ = i.RecvCQ.core
	}
	if i.XRCD != nil {
		c.XRCD = i.XRCD.core
	}
	return c
}
