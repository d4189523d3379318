package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/dma"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

func closeFD(fd int) { _ = unix.Close(fd) }

// pdObject is a protection domain.
type pdObject struct{ dev *device.PD }

func (o *pdObject) destroy() error { return o.dev.Dealloc() }

// allocPD is ALLOC_PD.
func (c *call) allocPD() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	pd, err := c.ctx.dev.AllocPD()
	if err != nil {
		return c.failed(err)
	}
	c.respond(words(c.add(&pdObject{pd})))
	return 0
}

// add gives a new object a handle. If the answer cannot be written the object is destroyed again.
func (c *call) add(o verbsObject) uint32 {
	h := c.ctx.newHandle()
	c.addAt(h, o)
	return h
}

func (c *call) addAt(h uint32, o verbsObject) {
	switch o := o.(type) {
	case *cqObject:
		o.handle = h
	case *qpObject:
		o.handle = h
	case *srqObject:
		o.handle = h
	}
	c.ctx.objects[h] = o
	c.undo = func() {
		_ = o.destroy()
		delete(c.ctx.objects, h)
	}
}

// mrObject is a memory region. It belongs to the process that registered it.
type mrObject struct {
	dev    *device.MR // nil: that process's memory is gone
	pd     *pdObject
	pid    int
	space  *dma.Process
	lkey   uint32
	rkey   uint32
	start  uint64
	length uint64
	iova   uint64
	access nic.Access
}

func (o *mrObject) destroy() error { return o.end((*device.MR).Dereg) }

// drop ends the region, because what it refers to is gone.
func (o *mrObject) drop() { _ = o.end((*device.MR).Revoke) }

func (o *mrObject) end(how func(*device.MR) error) error {
	if o.dev == nil {
		return nil
	}
	err := how(o.dev)
	if err == nil {
		o.dev = nil
	}
	return err
}

// regMR is REG_MR: response, start, length, hca_va, pd_handle, access_flags.
func (c *call) regMR() syscall.Errno {
	start, length, iova := le.Uint64(c.req[8:]), le.Uint64(c.req[16:]), le.Uint64(c.req[24:])
	access := nic.Access(le.Uint32(c.req[36:]))
	pd, errno := get[*pdObject](c.ctx, uint64(le.Uint32(c.req[32:])))
	if errno != 0 {
		return syscall.EINVAL
	}
	pid := c.sys.PID()
	if pid == 0 {
		if c.sys.Valid() {
			return c.drv.report(c.sys.TID(), fmt.Errorf("registering memory of a process that cannot be watched: %w", syscall.ENFILE))
		}
		return syscall.EINTR // it is gone
	}
	space, err := c.drv.cfg.Programs.Space(c.sys)
	if err != nil {
		return c.failed(err)
	}
	mr, err := c.ctx.dev.RegMR(pd.dev, space, start, length, iova, access)
	if err != nil {
		// Not the program's fault, and nothing will work until it is mended.
		if e := space.Check(start, 1, false); errors.Is(e, dma.ErrRefused) {
			err = e
		}
		return c.failed(err)
	}
	if access&nic.AccessZeroBased != 0 {
		iova = 0
	}
	o := &mrObject{dev: mr, pd: pd, pid: pid, space: space, lkey: mr.LKey(), rkey: mr.RKey(), start: start, length: length, iova: iova, access: access}
	c.respond(words(c.add(o), o.lkey, o.rkey))
	return 0
}

// queryMR is MR, QUERY.
func (c *call) queryMR() syscall.Errno {
	o, errno := get[*mrObject](c.ctx, c.uint(mrHandle))
	if errno != 0 {
		return errno
	}
	c.put(mrRespLKey, words(o.lkey))
	c.put(mrRespRKey, words(o.rkey))
	c.put(mrRespLength, le.AppendUint64(nil, o.length))
	c.put(mrRespIOVA, le.AppendUint64(nil, o.iova))
	return 0
}

// ahObject is an address handle.
type ahObject struct{ dev *device.AH }

func (o *ahObject) destroy() error { return o.dev.Destroy() }

// createAH is CREATE_AH: response, user_handle, pd_handle, reserved, ib_uverbs_ah_attr; the provider
// gets struct rxe_create_ah_resp, whose number it puts into work requests.
func (c *call) createAH() syscall.Errno {
	pd, errno := get[*pdObject](c.ctx, uint64(le.Uint32(c.req[16:])))
	if errno != 0 {
		return syscall.EINVAL
	}
	ah, err := c.ctx.dev.CreateAH(pd.dev, decodeAHAttr(c.req[24:]))
	if err != nil {
		return c.failed(err)
	}
	c.respond(words(c.add(&ahObject{ah})))
	if c.uhwResp.len >= 8 {
		c.respondUHW(words(ah.Num(), 0))
	}
	return 0
}

// createCompChannel is CREATE_COMP_CHANNEL.
func (c *call) createCompChannel() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	_, n, errno := c.openChannel(sizeCompEvent)
	if errno != 0 {
		return errno
	}
	c.respond(words(uint32(n)))
	return 0
}

// cqObject is a completion queue.
type cqObject struct {
	ctx         *verbsContext
	dev         *device.CQ
	queue       queue
	userHandle  uint64
	comp, async *channel // may be nil
	compEvents  eventOrigin
	asyncEvents eventOrigin
	handle      uint32
}

func (o *cqObject) destroy() error {
	if err := o.dev.Destroy(); err != nil {
		return err
	}
	o.comp.remove(&o.compEvents)
	o.async.remove(&o.asyncEvents)
	o.ctx.free(o.queue)
	return nil
}

// cqInit is what the three ways to create a completion queue have in common.
type cqInit struct {
	userHandle  uint64
	cqe, vector uint32
	comp        *channel
	async       *channel
}

// leastCQE is the room of the smallest completion queue: what fits into the page that it takes anyway (11.2.8.1: at least what
// was asked for). Programs that make one for a single request and go on before it has completed, as perftest's latency tests with
// events do when an acknowledgement is lost, would overflow it, which is the end of its queue pairs.
const leastCQE = 31

func (c *call) createCQ(i cqInit) (*cqObject, uint32, syscall.Errno) {
	if errno := c.requireContext(); errno != 0 {
		return nil, 0, errno
	}
	if most := c.drv.attr.Limits.MaxCQE; i.cqe == 0 || i.cqe > most {
		return nil, 0, c.refused("create completion queue", "%d entries: 1 to %d are possible", i.cqe, most)
	}
	if n := c.drv.dev.Vectors(); i.vector >= uint32(n) {
		return nil, 0, c.refused("create completion queue", "there is no completion vector %d: 0 to %d are", i.vector, n-1)
	}
	if c.uhwResp.len < sizeMMInfo {
		return nil, 0, syscall.EINVAL
	}
	q, err := c.ctx.newQueue(max(i.cqe, leastCQE), ring.CQESize)
	if err != nil {
		return nil, 0, c.failed(err)
	}
	o := &cqObject{ctx: c.ctx, queue: q, userHandle: i.userHandle, comp: i.comp, async: i.async}
	if o.dev, err = c.ctx.dev.CreateCQ(device.CQInit{Ring: q.ring, Vector: int(i.vector), Cookie: o}); err != nil {
		c.ctx.free(q)
		return nil, 0, c.failed(err)
	}
	info := make([]byte, sizeMMInfo)
	q.info(info)
	c.respondUHW(info)
	return o, c.add(o), 0
}

// compChannelAt is the completion channel at a descriptor, none if that is negative.
func (c *call) compChannelAt(fd int32) (*channel, syscall.Errno) {
	if fd < 0 {
		return nil, 0
	}
	return c.channelAt(int(fd), sizeCompEvent)
}

// createCQCommand is CREATE_CQ: response, user_handle, cqe, comp_vector, comp_channel, reserved.
func (c *call) createCQCommand() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	ch, errno := c.compChannelAt(int32(le.Uint32(c.req[24:])))
	if errno != 0 {
		return errno
	}
	o, h, errno := c.createCQ(cqInit{le.Uint64(c.req[8:]), le.Uint32(c.req[16:]), le.Uint32(c.req[20:]), ch, c.ctx.async})
	if errno == 0 {
		c.respond(words(h, o.queue.ring.Capacity()))
	}
	return errno
}

// createCQExt is EX_CREATE_CQ: user_handle, cqe, comp_vector, comp_channel, comp_mask, flags, reserved.
func (c *call) createCQExt() syscall.Errno {
	if le.Uint32(c.req[20:]) != 0 || le.Uint32(c.req[28:]) != 0 {
		return syscall.EINVAL
	}
	if le.Uint32(c.req[24:]) != 0 {
		return syscall.EOPNOTSUPP
	}
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	ch, errno := c.compChannelAt(int32(le.Uint32(c.req[16:])))
	if errno != 0 {
		return errno
	}
	o, h, errno := c.createCQ(cqInit{le.Uint64(c.req), le.Uint32(c.req[8:]), le.Uint32(c.req[12:]), ch, c.ctx.async})
	if errno == 0 {
		c.respond(words(h, o.queue.ring.Capacity(), 0, 16))
	}
	return errno
}

// cqFlagsKnown are the flags of completion queues that there are (enum ib_uverbs_ex_create_cq_flags): time stamps by the device, and
// overrun that is not looked for. This device has neither.
const cqFlagsKnown = 1<<0 | 1<<1

// createCQMethod is CQ, CREATE.
func (c *call) createCQMethod() (errno syscall.Errno) {
	i := cqInit{userHandle: c.uint(cqUserHandle), cqe: uint32(c.uint(cqCQE)), vector: uint32(c.uint(cqCompVector))}
	flags, errno := c.flags(cqFlags, cqFlagsKnown)
	switch {
	case errno != 0:
		return errno
	case flags != 0:
		return syscall.EOPNOTSUPP
	}
	if c.has(cqCompChannel) {
		if i.comp, errno = c.channelIn(cqCompChannel, sizeCompEvent); errno != 0 {
			return errno
		}
	}
	if i.async, errno = c.asyncFor(cqEventFD); errno != 0 {
		return errno
	}
	c.uhwFromAttrs()
	o, h, errno := c.createCQ(i)
	if errno != 0 {
		return errno
	}
	c.putNumber(cqHandle, uint64(h))
	c.put(cqRespCQE, words(o.queue.ring.Capacity()))
	return 0
}

// uhwFromAttrs takes the provider's part from a method's attributes.
func (c *call) uhwFromAttrs() {
	c.uhw = c.bytes(attrUHWIn)
	if a := find(c.attrs, attrUHWOut); a != nil {
		c.uhwRespAt, c.uhwResp = a, span{a.data, int(a.len)}
	}
}

// destroyCQCommand is DESTROY_CQ: response, cq_handle, reserved.
func (c *call) destroyCQCommand() syscall.Errno {
	o, errno := destroy[*cqObject](c, uint64(le.Uint32(c.req[8:])))
	if errno == 0 {
		c.respond(c.reported(libraryCQ, o.userHandle, o.handle, o.compEvents.given, o.asyncEvents.given))
	}
	return errno
}

// destroyCQMethod is CQ, DESTROY. The counts are of events that the program has read: it waits
// until it has acknowledged so many.
func (c *call) destroyCQMethod() syscall.Errno {
	o, errno := destroy[*cqObject](c, c.uint(destroyHandle))
	if errno == 0 {
		c.put(destroyResp, c.reported(libraryCQ, o.userHandle, o.handle, o.compEvents.given, o.asyncEvents.given))
	}
	return errno
}

// reqNotifyCQ is REQ_NOTIFY_CQ: cq_handle, solicited_only.
func (c *call) reqNotifyCQ() syscall.Errno {
	o, errno := get[*cqObject](c.ctx, uint64(le.Uint32(c.req)))
	if errno != 0 {
		return syscall.EINVAL
	}
	return c.failed(o.dev.Arm(le.Uint32(c.req[4:]) != 0))
}

// qpObject is a queue pair.
type qpObject struct {
	ctx         *verbsContext
	dev         *device.QP
	sq, rq      queue
	cap         nic.Cap
	userHandle  uint64
	async       *channel // may be nil
	asyncEvents eventOrigin
	handle      uint32
	init        qpInit // what was asked for
}

func (o *qpObject) destroy() error {
	n := o.look()
	if err := o.dev.Destroy(); err != nil {
		return err
	}
	o.tallyUp(&n)
	o.async.remove(&o.asyncEvents)
	o.ctx.free(o.sq)
	o.ctx.free(o.rq)
	o.ctx.qps--
	return nil
}

// qpInit is what the three ways to create a queue pair have in common.
type qpInit struct {
	userHandle         uint64
	pd, sendCQ, recvCQ uint64
	srq                uint64 // with hasSRQ
	hasSRQ             bool
	cap                nic.Cap
	typ                uint64
	sigAll             bool
	async              *channel
}

// createQP creates a queue pair with its two queues. The capabilities that it has are at least those
// asked for: what the queues hold.
func (c *call) createQP(i qpInit) (o *qpObject, h uint32, errno syscall.Errno) {
	init, errno := c.resolveQP(&i)
	if errno != 0 {
		return nil, 0, errno
	}
	l := &c.drv.attr.Limits
	if i.cap.MaxSendWR > l.MaxQPWR || i.cap.MaxRecvWR > l.MaxQPWR || i.cap.MaxSendSGE > l.MaxSGE ||
		i.cap.MaxRecvSGE > l.MaxSGE || i.cap.MaxInline > l.MaxInline {
		return nil, 0, c.refused("create queue pair", "more than %d work requests, %d scatter/gather entries or %d bytes of inline data", l.MaxQPWR, l.MaxSGE, l.MaxInline)
	}
	if c.uhwResp.len < 2*sizeMMInfo {
		return nil, 0, syscall.EINVAL
	}
	// Entries and inline data share their room, which the provider derives from max_inline_data.
	inline := (max(i.cap.MaxInline, i.cap.MaxSendSGE*ring.SGESize) + ring.SGESize - 1) &^ (ring.SGESize - 1)
	o = &qpObject{ctx: c.ctx, userHandle: i.userHandle, async: i.async, cap: i.cap, init: i}
	var err error
	if o.sq, err = c.ctx.newQueue(i.cap.MaxSendWR, ring.SendWQESize+inline); err != nil {
		return nil, 0, c.failed(err)
	}
	if i.hasSRQ {
		o.cap.MaxRecvWR, o.cap.MaxRecvSGE = 0, 0
	} else if o.rq, err = c.ctx.newQueue(i.cap.MaxRecvWR, ring.RecvWQESize+i.cap.MaxRecvSGE*ring.SGESize); err != nil {
		c.ctx.free(o.sq)
		return nil, 0, c.failed(err)
	} else {
		o.cap.MaxRecvWR = o.rq.ring.Capacity()
	}
	o.cap.MaxSendWR = o.sq.ring.Capacity()
	o.cap.MaxInline, o.cap.MaxSendSGE = inline, inline/ring.SGESize
	h = c.ctx.newHandle()
	init.SQ, init.RQ, init.Cap, init.Handle, init.Cookie = o.sq.ring, o.rq.ring, o.cap, h, o
	init.Counters = c.drv.journal.counts()
	if o.dev, err = c.ctx.dev.CreateQP(init); err != nil {
		c.ctx.free(o.sq)
		c.ctx.free(o.rq)
		return nil, 0, c.failed(err)
	}
	c.ctx.qps++
	c.addAt(h, o)
	info := make([]byte, 2*sizeMMInfo) // struct rxe_create_qp_resp: rq, nothing with a shared one; sq
	if !i.hasSRQ {
		o.rq.info(info)
	}
	o.sq.info(info[sizeMMInfo:])
	c.respondUHW(info)
	return o, h, 0
}

// Types of queue pairs (enum ib_uverbs_qp_type) that this NIC does not have.
const (
	qpRawPacket = 8
	qpDriver    = 0xff
)

// resolveQP finds the objects that a queue pair is made of.
func (c *call) resolveQP(i *qpInit) (init device.QPInit, errno syscall.Errno) {
	init.Type, init.SigAll = nic.QPType(i.typ), i.sigAll
	init.RefuseSends = true // the doorbell is a plain write, which can refuse nothing
	switch i.typ {
	case uint64(nic.RC), uint64(nic.UC), uint64(nic.UD):
	case qpRawPacket, uint64(nic.XRCINI), uint64(nic.XRCTGT), qpDriver:
		return init, syscall.EOPNOTSUPP
	default:
		return init, syscall.EINVAL
	}
	pd, errno := get[*pdObject](c.ctx, i.pd)
	if errno != 0 {
		return init, errno
	}
	send, errno := get[*cqObject](c.ctx, i.sendCQ)
	if errno != 0 {
		return init, errno
	}
	recv, errno := get[*cqObject](c.ctx, i.recvCQ)
	if errno != 0 {
		return init, errno
	}
	init.PD, init.SendCQ, init.RecvCQ = pd.dev, send.dev, recv.dev
	if i.hasSRQ {
		srq, errno := get[*srqObject](c.ctx, i.srq)
		if errno != 0 {
			return init, errno
		}
		init.SRQ = srq.dev
	}
	return init, 0
}

// Flags of QP, CREATE (enum ib_uverbs_qp_create_flags).
const (
	qpFlagSigAll = 1 << 12
	// All that there are: no loopback of multicast, FCS and VLAN tags of raw packets, padding of writes.
	qpFlagsKnown = 1<<1 | 1<<8 | 1<<9 | 1<<11 | qpFlagSigAll
)

// createQPMethod is QP, CREATE.
func (c *call) createQPMethod() (errno syscall.Errno) {
	if c.has(qpXRCD) || c.has(qpIndTable) || c.has(qpSourceQPN) {
		return syscall.EOPNOTSUPP
	}
	if !c.has(qpPD) || !c.has(qpSendCQ) || !c.has(qpRecvCQ) {
		return syscall.EINVAL
	}
	flags, errno := c.flags(qpFlags, qpFlagsKnown)
	switch {
	case errno != 0:
		return errno
	case flags&^qpFlagSigAll != 0:
		return syscall.EOPNOTSUPP
	}
	i := qpInit{userHandle: c.uint(qpUserHandle), pd: c.uint(qpPD), sendCQ: c.uint(qpSendCQ), recvCQ: c.uint(qpRecvCQ), srq: c.uint(qpSRQ), hasSRQ: c.has(qpSRQ),
		cap: decodeCap(c.bytes(qpCap)), typ: c.uint(qpType), sigAll: flags&qpFlagSigAll != 0}
	if i.async, errno = c.asyncFor(qpEventFD); errno != 0 {
		return errno
	}
	c.uhwFromAttrs()
	o, h, errno := c.createQP(i)
	if errno != 0 {
		return errno
	}
	c.putNumber(qpHandle, uint64(h))
	b := make([]byte, sizeQPCap)
	encodeCap(b, &o.cap)
	c.put(qpRespCap, b)
	c.put(qpRespNum, words(o.dev.Num()))
	return 0
}

// createQPFrom reads the part that CREATE_QP and EX_CREATE_QP share: pd_handle, send_cq_handle,
// recv_cq_handle, srq_handle, capabilities, sq_sig_all, qp_type, is_srq.
func (c *call) createQPFrom(userHandle uint64, b []byte) (resp []byte, errno syscall.Errno) {
	o, h, errno := c.createQP(qpInit{userHandle: userHandle, pd: uint64(le.Uint32(b)), sendCQ: uint64(le.Uint32(b[4:])),
		recvCQ: uint64(le.Uint32(b[8:])), srq: uint64(le.Uint32(b[12:])), hasSRQ: b[38] != 0, cap: decodeCap(b[16:]), sigAll: b[36] != 0, typ: uint64(b[37]), async: c.ctx.async})
	switch errno {
	case 0:
	case syscall.ENOENT:
		return nil, syscall.EINVAL
	default:
		return nil, errno
	}
	resp = make([]byte, 32)
	le.PutUint32(resp, h)
	le.PutUint32(resp[4:], o.dev.Num())
	encodeCap(resp[8:], &o.cap)
	return resp, 0
}

// createQPCommand is CREATE_QP.
func (c *call) createQPCommand() syscall.Errno {
	resp, errno := c.createQPFrom(le.Uint64(c.req[8:]), c.req[16:])
	if errno == 0 {
		c.respond(resp)
	}
	return errno
}

// createQPExt is EX_CREATE_QP: the same from another offset, with comp_mask and create_flags.
func (c *call) createQPExt() syscall.Errno {
	if le.Uint32(c.req[48:]) != 0 || c.req[47] != 0 { // comp_mask, reserved
		return syscall.EINVAL
	}
	if len(c.req) >= 56 && le.Uint32(c.req[52:]) != 0 { // create_flags
		return syscall.EOPNOTSUPP
	}
	resp, errno := c.createQPFrom(le.Uint64(c.req), c.req[8:])
	if errno == 0 {
		c.respond(append(resp, words(0, 40)...)) // comp_mask, response_length
	}
	return errno
}

// queryQP is QUERY_QP: response, qp_handle, attr_mask. Everything is answered, whatever the mask.
func (c *call) queryQP() syscall.Errno {
	o, errno := get[*qpObject](c.ctx, uint64(le.Uint32(c.req[8:])))
	if errno != 0 {
		return syscall.EINVAL
	}
	a, init, err := o.dev.Query()
	if err != nil {
		return c.failed(err)
	}
	b := make([]byte, sizeQPAttr)
	encodeQPAttr(b, &a, &o.cap, init.SigAll)
	c.respond(b)
	return 0
}

// Masks of what MODIFY_QP and EX_MODIFY_QP know.
const (
	legacyAttrMask   = nic.AttrDestQPN<<1 - 1
	extendedAttrMask = legacyAttrMask | nic.AttrRateLimit
)

func (c *call) modifyQP(known nic.AttrMask) syscall.Errno {
	m := decodeModifyQP(c.req)
	o, errno := get[*qpObject](c.ctx, uint64(m.Handle))
	if errno != 0 {
		return syscall.EINVAL
	}
	if m.Mask&^known != 0 {
		return syscall.EOPNOTSUPP
	}
	return c.failed(o.dev.Modify(&m.Attr, m.Mask))
}

// modifyQPCommand is MODIFY_QP.
func (c *call) modifyQPCommand() syscall.Errno { return c.modifyQP(legacyAttrMask) }

// modifyQPExt is EX_MODIFY_QP, with a rate limit that is not supported.
func (c *call) modifyQPExt() syscall.Errno {
	errno := c.answerable()
	if errno == 0 {
		errno = c.modifyQP(extendedAttrMask &^ nic.AttrRateLimit)
	}
	if errno == 0 {
		c.respond(words(0, 8)) // comp_mask, response_length
	}
	return errno
}

// destroyQPCommand is DESTROY_QP: response, qp_handle, reserved.
func (c *call) destroyQPCommand() syscall.Errno {
	o, errno := destroy[*qpObject](c, uint64(le.Uint32(c.req[8:])))
	if errno == 0 {
		c.respond(c.reported(libraryQP, o.userHandle, o.handle, o.asyncEvents.given))
	}
	return errno
}

// destroyQPMethod is QP, DESTROY.
func (c *call) destroyQPMethod() syscall.Errno {
	o, errno := destroy[*qpObject](c, c.uint(destroyHandle))
	if errno == 0 {
		c.put(destroyResp, c.reported(libraryQP, o.userHandle, o.handle, o.asyncEvents.given))
	}
	return errno
}

// postSend is POST_SEND that was not written as the 32 bytes of a doorbell. Work requests are in the
// queue already; those in the command are of providers that have no queue.
func (c *call) postSend() syscall.Errno {
	o, errno := get[*qpObject](c.ctx, uint64(le.Uint32(c.req[8:])))
	if errno != 0 || le.Uint32(c.req[12:]) != 0 {
		return syscall.EINVAL
	}
	o.dev.Doorbell()
	return 0
}
