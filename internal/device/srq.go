package device

import (
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// SRQInit is what a shared receive queue is created with.
type SRQInit struct {
	PD     *PD
	Ring   *ring.Queue // the NIC's view; the NIC is the consumer
	Attr   nic.SRQAttr // without the limit: that is armed by Modify
	XRCD   *XRCD       // with CQ: one of XRC; nil: none
	CQ     *CQ         // XRC: where receives complete
	Cookie any
}

// SRQ is a shared receive queue.
type SRQ struct {
	ctx    *Context
	core   *nic.SRQ
	number uint32
	Cookie any
}

// CreateSRQ creates a shared receive queue.
func (c *Context) CreateSRQ(i SRQInit) (*SRQ, error) {
	s := &SRQ{ctx: c, number: c.dev.numbers.srqs.Add(1), Cookie: i.Cookie}
	err := c.do(func(core *nic.NIC, _ int64) (err error) {
		if i.XRCD != nil && i.CQ != nil {
			s.core, err = core.CreateXRCSRQ(i.PD.core, i.XRCD.core, i.CQ.core, i.Ring, i.Attr)
		} else {
			s.core, err = core.CreateSRQ(i.PD.core, i.Ring, i.Attr)
		}
		if err == nil {
			if i.XRCD != nil {
				i.CQ.usedBy(allUnits) // of whichever targets of the domain messages come through
			}
			s.core.Owner = s
			c.srqs[s] = struct{}{}
		}
		return err
	})
	return orNil(s, err)
}

// Modify arms the limit, unless that is nil, and goes over to the queue to, unless that is nil; all or
// nothing. The program keeps its hands off its side meanwhile.
func (s *SRQ) Modify(limit *uint32, to *ring.Queue) error {
	return s.ctx.do(func(*nic.NIC, int64) error { return s.core.Modify(limit, to) })
}

// Query returns the attributes.
func (s *SRQ) Query() (a nic.SRQAttr, err error) {
	err = s.ctx.do(func(*nic.NIC, int64) error {
		a = s.core.Query()
		return nil
	})
	return a, err
}

// Destroy destroys it; EBUSY while a queue pair uses it. No event of it comes afterwards.
func (s *SRQ) Destroy() error {
	return s.ctx.do(func(*nic.NIC, int64) error {
		err := s.core.Destroy()
		if err == nil {
			s.core.Owner = nil
			delete(s.ctx.srqs, s)
		}
		return err
	})
}

// coreOf is the core's queue of one that may be nil.
func (s *SRQ) coreOf() *nic.SRQ {
	if s == nil {
		return nil
	}
	return s.core
}

// Resize goes over to the queue r, with what was not polled. The program keeps its hands off its side
// meanwhile.
func (q *CQ) Resize(r *ring.Queue) error {
	return q.ctx.do(func(*nic.NIC, int64) error { return q.core.Resize(r) })
}

// Moderate lets completion events wait for count completions, period microseconds at most.
func (q *CQ) Moderate(count, period uint16) error {
	return q.ctx.do(func(*nic.NIC, int64) error { return q.core.Moderate(count, period) })
}

// Moderation is what Moderate has set.
func (q *CQ) Moderation() (count, period uint16, err error) {
	err = q.ctx.do(func(*nic.NIC, int64) error {
		count, period = q.core.Moderation()
		return nil
	})
	return count, period, err
}

// Rereg changes what flags name of the region, and its keys: the old ones are refused. With an error
// nothing is changed. pd may be nil unless flags names it.
func (m *MR) Rereg(flags nic.ReregFlags, pd *PD, r nic.Region) error {
	if pd != nil {
		r.PD = pd.core
	}
	var now nic.Region
	err := m.ctx.do(func(core *nic.NIC, _ int64) (err error) {
		now, err = core.AdmitRereg(m.core, flags, r)
		return err
	})
	if err == nil && flags&(nic.ReregTranslation|nic.ReregAccess) != 0 {
		err = nic.CheckMemory(now.Space, now.Start, now.Length, now.Access)
	}
	if err != nil {
		return err
	}
	return m.ctx.do(func(core *nic.NIC, _ int64) error {
		again, err := core.ReregMR(m.core, flags, r)
		if err == nil {
			m.core.Owner = nil
			m.core = again
			m.key.Store(again.RKey())
		}
		return err
	})
}
