package device

import "rnic/internal/nic"

// MW is a memory window. Work requests bind it, which gives it another key.
type MW struct {
	ctx    *Context
	core   *nic.MW
	Cookie any
}

// AllocMW allocates a memory window.
func (c *Context) AllocMW(pd *PD, typ nic.MWType) (*MW, error) {
	w := &MW{ctx: c}
	err := c.do(func(core *nic.NIC, _ int64) (err error) {
		if w.core, err = core.AllocMW(pd.core, typ); err == nil {
			w.core.Owner = w
			c.mws[w] = struct{}{}
		}
		return err
	})
	return orNil(w, err)
}

// RKey is the window's key at present.
func (w *MW) RKey() (key uint32) {
	_ = w.ctx.do(func(*nic.NIC, int64) error {
		key = w.core.RKey()
		return nil
	})
	return key
}

// Dealloc ends the window, bound or not: its key is refused from now on.
func (w *MW) Dealloc() error {
	return w.ctx.do(func(*nic.NIC, int64) error {
		err := w.core.Dealloc()
		if err == nil {
			delete(w.ctx.mws, w)
		}
		return err
	})
}

// Revoke is Dereg for a region whose memory is gone: windows that are bound to it are unbound.
func (m *MR) Revoke() error {
	return m.ctx.do(func(*nic.NIC, int64) error {
		err := m.core.Revoke()
		if err == nil {
			delete(m.ctx.mrs, m)
		}
		return err
	})
}
