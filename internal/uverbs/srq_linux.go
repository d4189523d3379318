package uverbs

import (
	"syscall"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// srqObject is a shared receive queue.
type srqObject struct {
	ctx         *verbsContext
	dev         *device.SRQ
	queue       queue
	maxSGE      uint32
	userHandle  uint64
	async       *channel // may be nil
	asyncEvents eventOrigin
	handle      uint32
}

func (o *srqObject) destroy() error {
	if err := o.dev.Destroy(); err != nil {
		return err
	}
	o.async.remove(&o.asyncEvents)
	o.ctx.free(o.queue)
	return nil
}

// srqInit is what the two ways to create a shared receive queue have in common. The limit that comes with
// them means nothing (ibv_create_srq(3)): MODIFY_SRQ arms it.
type srqInit struct {
	userHandle    uint64
	pd            uint64
	maxWR, maxSGE uint32
	async         *channel
}

// sizeSRQResp is the size of struct rxe_create_srq_resp: mminfo, srq_num, reserved.
const sizeSRQResp = sizeMMInfo + 8

func (c *call) createSRQ(i srqInit) (o *srqObject, h uint32, errno syscall.Errno) {
	pd, errno := get[*pdObject](c.ctx, i.pd)
	if errno != 0 {
		return nil, 0, errno
	}
	l := &c.drv.attr.Limits
	i.maxSGE = max(1, i.maxSGE) // as Linux's Soft-RoCE grants it
	if i.maxWR == 0 || i.maxWR > l.MaxSRQWR || i.maxSGE > l.MaxSGE {
		return nil, 0, c.refused("create shared receive queue", "1 to %d work requests of up to %d entries are possible", l.MaxSRQWR, l.MaxSGE)
	}
	if c.uhwResp.len < sizeSRQResp {
		return nil, 0, syscall.EINVAL
	}
	o = &srqObject{ctx: c.ctx, maxSGE: i.maxSGE, userHandle: i.userHandle, async: i.async}
	var err error
	if o.queue, err = c.ctx.newQueue(i.maxWR, srqElement(i.maxSGE)); err != nil {
		return nil, 0, c.failed(err)
	}
	o.dev, err = c.ctx.dev.CreateSRQ(device.SRQInit{PD: pd.dev, Ring: o.queue.ring, Cookie: o,
		Attr: nic.SRQAttr{MaxWR: i.maxWR, MaxSGE: i.maxSGE}})
	if err != nil {
		c.ctx.free(o.queue)
		return nil, 0, c.failed(err)
	}
	h = c.add(o)
	info := make([]byte, sizeSRQResp)
	o.queue.info(info)
	le.PutUint32(info[sizeMMInfo:], h) // a number that other processes could ask for by, if it were of type XRC
	c.respondUHW(info)
	return o, h, 0
}

func srqElement(sge uint32) uint32 { return ring.RecvWQESize + sge*ring.SGESize }

// createSRQMethod is SRQ, CREATE.
func (c *call) createSRQMethod() (errno syscall.Errno) {
	if c.uint(srqType) != 0 || c.has(srqXRCD) || c.has(srqCQ) || c.has(srqMaxTags) {
		return syscall.EOPNOTSUPP // IB_SRQT_BASIC only
	}
	i := srqInit{userHandle: c.uint(srqUserHandle), pd: c.uint(srqPD), maxWR: uint32(c.uint(srqMaxWR)), maxSGE: uint32(c.uint(srqMaxSGE))}
	if i.async, errno = c.asyncFor(srqEventFD); errno != 0 {
		return errno
	}
	c.uhwFromAttrs()
	o, h, errno := c.createSRQ(i)
	if errno != 0 {
		return errno
	}
	c.putNumber(srqHandle, uint64(h))
	c.put(srqRespMaxWR, words(o.queue.ring.Capacity()))
	c.put(srqRespMaxSGE, words(o.maxSGE))
	c.put(srqRespNum, words(h))
	return 0
}

// createSRQCommand is CREATE_SRQ: response, user_handle, pd_handle, max_wr, max_sge, srq_limit.
func (c *call) createSRQCommand() syscall.Errno {
	o, h, errno := c.createSRQ(srqInit{userHandle: le.Uint64(c.req[8:]), pd: uint64(le.Uint32(c.req[16:])),
		maxWR: le.Uint32(c.req[20:]), maxSGE: le.Uint32(c.req[24:]), async: c.ctx.async})
	switch errno {
	case 0:
		c.respond(words(h, o.queue.ring.Capacity(), o.maxSGE, h))
	case syscall.ENOENT:
		return syscall.EINVAL
	}
	return errno
}

// Attributes of MODIFY_SRQ (enum ib_srq_attr_mask).
const (
	srqAttrMaxWR = 1 << 0
	srqAttrLimit = 1 << 1
)

// modifySRQ is MODIFY_SRQ: srq_handle, attr_mask, max_wr, srq_limit; the provider's part says where it
// wants to read where the new queue is.
func (c *call) modifySRQ() syscall.Errno {
	o, errno := get[*srqObject](c.ctx, uint64(le.Uint32(c.req)))
	if errno != 0 {
		return syscall.EINVAL
	}
	mask, maxWR, armed := le.Uint32(c.req[4:]), le.Uint32(c.req[8:]), le.Uint32(c.req[12:])
	if mask&^(srqAttrMaxWR|srqAttrLimit) != 0 {
		return syscall.EINVAL
	}
	var limit *uint32
	if mask&srqAttrLimit != 0 {
		limit = &armed
	}
	if mask&srqAttrMaxWR == 0 {
		return c.failed(o.dev.Modify(limit, nil))
	}
	if maxWR == 0 || maxWR > c.drv.attr.Limits.MaxSRQWR || len(c.uhw) < 8 {
		return syscall.EINVAL
	}
	return c.resizeSRQ(o, maxWR, limit, le.Uint64(c.uhw))
}

// resizeSRQ makes a new queue, and says at infoAddr where it is before anything is changed.
func (c *call) resizeSRQ(o *srqObject, maxWR uint32, limit *uint32, infoAddr uint64) syscall.Errno {
	q, err := c.ctx.newQueue(maxWR, srqElement(o.maxSGE))
	if err != nil {
		return c.failed(err)
	}
	info := make([]byte, sizeMMInfo)
	q.info(info)
	if c.sys.WriteMem(infoAddr, info) != nil {
		c.ctx.free(q)
		return syscall.EFAULT
	}
	if err := o.dev.Modify(limit, q.ring); err != nil {
		c.ctx.free(q)
		return c.failed(err)
	}
	c.ctx.free(o.queue)
	o.queue = q
	return 0
}

// querySRQ is QUERY_SRQ: response, srq_handle, reserved.
func (c *call) querySRQ() syscall.Errno {
	o, errno := get[*srqObject](c.ctx, uint64(le.Uint32(c.req[8:])))
	if errno != 0 {
		return syscall.EINVAL
	}
	a, err := o.dev.Query()
	if err != nil {
		return c.failed(err)
	}
	c.respond(words(a.MaxWR, a.MaxSGE, a.Limit, 0))
	return 0
}

// destroySRQCommand is DESTROY_SRQ: response, srq_handle, reserved.
func (c *call) destroySRQCommand() syscall.Errno {
	o, errno := destroy[*srqObject](c, uint64(le.Uint32(c.req[8:])))
	if errno == 0 {
		c.respond(c.reported(librarySRQ, o.userHandle, o.handle, o.asyncEvents.given))
	}
	return errno
}

// destroySRQMethod is SRQ, DESTROY.
func (c *call) destroySRQMethod() syscall.Errno {
	o, errno := destroy[*srqObject](c, c.uint(destroyHandle))
	if errno == 0 {
		c.put(destroyResp, c.reported(librarySRQ, o.userHandle, o.handle, o.asyncEvents.given))
	}
	return errno
}
