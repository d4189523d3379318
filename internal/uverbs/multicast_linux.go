package uverbs

import (
	"syscall"

	"rnic/internal/device"
	"rnic/internal/roce"
)

// attachMcast is ATTACH_MCAST: gid, qp_handle, mlid, reserved. The mlid means nothing on RoCE.
func (c *call) attachMcast() syscall.Errno { return c.multicast((*device.QP).AttachMulticast) }

// detachMcast is DETACH_MCAST, with the same fields.
func (c *call) detachMcast() syscall.Errno { return c.multicast((*device.QP).DetachMulticast) }

func (c *call) multicast(f func(*device.QP, roce.GID) error) syscall.Errno {
	o, errno := get[*qpObject](c.ctx, uint64(le.Uint32(c.req[16:])))
	if errno != 0 {
		return syscall.EINVAL // as the kernel, which finds no queue pair
	}
	if err := f(o.dev, roce.GID(c.req[:16])); err != nil {
		return c.failed(err)
	}
	return 0
}
