package ucm

import (
	"syscall"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
)

// connect is struct rdma_ucm_connect: conn_param, id, reserved, ece.
func (c *command) connect() error {
	p, valid := decodeParam(c.in)
	if !valid {
		return syscall.EINVAL
	}
	i, err := c.id(272)
	if err != nil {
		return err
	}
	p.ECE = c.ece(280)
	return i.cm.Connect(p)
}

// accept is struct rdma_ucm_accept: uid, conn_param, id, reserved, ece.
func (c *command) accept() error {
	i, err := c.id(280)
	if err != nil {
		return err
	}
	p, valid := decodeParam(c.in[8:])
	if !valid {
		return i.cm.Accept(nil)
	}
	p.ECE = c.ece(288)
	c.drv.mu.Lock()
	old := i.uid
	i.uid = c.u64(0) // before an event can come
	c.drv.mu.Unlock()
	if err := i.cm.Accept(&p); err != nil {
		c.drv.mu.Lock()
		i.uid = old
		c.drv.mu.Unlock()
		return err
	}
	return nil
}

// rejVendor is the other reason that a program may give (IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED).
const rejVendor = 35

// reject is struct rdma_ucm_reject: id, private_data_len, reason, reserved, private data.
func (c *command) reject() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	reason := ibcm.Reason(c.in[5])
	if reason != 0 && reason != ibcm.RejConsumer && reason != rejVendor {
		return syscall.EINVAL
	}
	return i.cm.Reject(append([]byte(nil), c.in[8:8+int(c.in[4])]...), reason)
}

func (c *command) listen() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	backlog := int(int32(c.u32(4)))
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	return i.cm.Listen(backlog)
}

// maxBacklog is what the kernel's module bounds it by.
const maxBacklog = 1024

func (c *command) disconnect() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	return i.cm.Disconnect()
}

// initQPAttr is struct rdma_ucm_init_qp_attr: response, id, state. The answer is struct ib_uverbs_qp_attr.
func (c *command) initQPAttr() error {
	if c.outLen < sizeQPAttr {
		return syscall.ENOSPC
	}
	i, err := c.id(8)
	if err != nil {
		return err
	}
	state := c.u32(12)
	if state > uint32(nic.Err) {
		return syscall.EINVAL
	}
	a, mask, err := i.cm.Attr(nic.State(state))
	if err != nil {
		return err
	}
	return c.respond(c.u64(0), encodeQPAttr(&a, mask), sizeQPAttr)
}

// eventCommEst is enum ib_event_type IB_EVENT_COMM_EST.
const eventCommEst = 4

func (c *command) notify() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	if c.u32(4) != eventCommEst {
		return syscall.EINVAL // as the kernel
	}
	return i.cm.Notify()
}
