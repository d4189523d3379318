package uverbs

import (
	"syscall"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// resizeCQ is RESIZE_CQ: response, cq_handle, cqe. The provider maps the new queue, with what was not
// polled in it, in place of the old one.
func (c *call) resizeCQ() syscall.Errno {
	o, errno := get[*cqObject](c.ctx, uint64(le.Uint32(c.req[8:])))
	if errno != 0 {
		return syscall.EINVAL
	}
	cqe := le.Uint32(c.req[12:])
	if cqe == 0 || cqe > c.drv.attr.Limits.MaxCQE || c.uhwResp.len < sizeMMInfo {
		return syscall.EINVAL
	}
	if errno := c.answerable(); errno != 0 {
		return errno
	}
	q, err := c.ctx.newQueue(cqe, ring.CQESize)
	if err != nil {
		return c.failed(err)
	}
	if err := o.dev.Resize(q.ring); err != nil {
		c.ctx.free(q)
		return c.failed(err)
	}
	c.ctx.free(o.queue)
	o.queue = q
	c.respond(words(q.ring.Capacity(), 0))
	info := make([]byte, sizeMMInfo)
	q.info(info)
	c.respondUHW(info)
	return 0
}

// cqAttrModerate is IB_CQ_MODERATE, the only attribute of EX_MODIFY_CQ.
const cqAttrModerate = 1

// modifyCQ is EX_MODIFY_CQ: cq_handle, attr_mask, {cq_count, cq_period (us)}, reserved.
func (c *call) modifyCQ() syscall.Errno {
	mask := le.Uint32(c.req[4:])
	if mask == 0 || len(c.req) >= 16 && le.Uint32(c.req[12:]) != 0 {
		return syscall.EINVAL
	}
	if mask > cqAttrModerate {
		return syscall.EOPNOTSUPP
	}
	o, errno := get[*cqObject](c.ctx, uint64(le.Uint32(c.req)))
	if errno != 0 {
		return syscall.EINVAL
	}
	return c.failed(o.dev.Moderate(le.Uint16(c.req[8:]), le.Uint16(c.req[10:])))
}

// reregMR is REREG_MR: response, mr_handle, flags, start, length, hca_va, pd_handle, access_flags. The
// region belongs to the process whose memory it is of.
func (c *call) reregMR() syscall.Errno {
	flags := nic.ReregFlags(le.Uint32(c.req[12:]))
	switch {
	case flags == 0:
		return syscall.EINVAL
	case flags&^(nic.ReregTranslation|nic.ReregPD|nic.ReregAccess) != 0:
		return syscall.EOPNOTSUPP
	}
	o, errno := get[*mrObject](c.ctx, uint64(le.Uint32(c.req[8:])))
	if errno != 0 {
		return errno
	}
	if o.dev == nil {
		return syscall.EINVAL
	}
	r := nic.Region{Start: le.Uint64(c.req[16:]), Length: le.Uint64(c.req[24:]), IOVA: le.Uint64(c.req[32:]),
		Access: nic.Access(le.Uint32(c.req[44:]))}
	pid, space := o.pid, o.space
	var err error
	if flags&nic.ReregTranslation != 0 {
		if pid = c.sys.PID(); pid == 0 {
			return syscall.EINTR // it is gone
		}
		if space, err = c.drv.cfg.Programs.Space(c.sys); err != nil {
			return c.failed(err)
		}
		r.Space = space
	}
	var pd *pdObject
	if flags&nic.ReregPD != 0 {
		if pd, errno = get[*pdObject](c.ctx, uint64(le.Uint32(c.req[40:]))); errno != 0 {
			return syscall.EINVAL
		}
	}
	if errno := c.answerable(); errno != 0 {
		return errno
	}
	if pd != nil {
		err = o.dev.Rereg(flags, pd.dev, r)
	} else {
		err = o.dev.Rereg(flags, nil, r)
	}
	if err != nil {
		return c.failed(err)
	}
	o.pid, o.space, o.lkey, o.rkey = pid, space, o.dev.LKey(), o.dev.RKey()
	if flags&nic.ReregTranslation != 0 {
		o.start, o.length, o.iova = r.Start, r.Length, r.IOVA
	}
	if flags&nic.ReregAccess != 0 {
		o.access = r.Access
	}
	if o.access&nic.AccessZeroBased != 0 {
		o.iova = 0
	}
	if pd != nil {
		o.pd = pd
	}
	c.respond(words(o.lkey, o.rkey))
	return 0
}
