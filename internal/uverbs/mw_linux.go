package uverbs

import (
	"syscall"

	"rnic/internal/device"
	"rnic/internal/nic"
)

// mwObject is a memory window.
type mwObject struct{ dev *device.MW }

func (o *mwObject) destroy() error { return o.dev.Dealloc() }

// allocMW is ALLOC_MW: response, pd_handle, mw_type, reserved. Binds are work requests.
func (c *call) allocMW() syscall.Errno {
	pd, errno := get[*pdObject](c.ctx, uint64(le.Uint32(c.req[8:])))
	if errno != 0 {
		return syscall.EINVAL
	}
	mw, err := c.ctx.dev.AllocMW(pd.dev, nic.MWType(c.req[12]))
	if err != nil {
		return c.failed(err)
	}
	c.respond(words(c.add(&mwObject{mw}), mw.RKey()))
	return 0
}
