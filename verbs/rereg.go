package verbs

import (
	"fmt"
	"runtime"

	"rnic/internal/dma"
	"rnic/internal/hostmem"
	"rnic/internal/nic"
)

// Rereg says what of a memory region changes. A nil field leaves what it is about as it is.
type Rereg struct {
	Memory []byte // other memory, pinned until the region is closed or changes again
	PD     *PD    // another protection domain
	Access *Access
}

// Rereg changes the region (ibv_rereg_mr; InfiniBand vol. 1, 11.2, Reregister Memory Region): it has new keys, and addresses,
// and the old keys are refused, also to what is under way with them. Memory that the region no longer is
// of is unpinned, or freed if AllocMR allocated it. With an error nothing changes. No other method of the
// region may be called at the same time.
func (m *MR) Rereg(c Rereg) error {
	if err := m.use("reregister memory"); err != nil {
		return err
	}
	var flags nic.ReregFlags
	var r nic.Region
	var pd = c.PD
	if c.PD != nil {
		if err := c.PD.use("reregister memory"); err != nil {
			return err
		}
		if c.PD.ctx != m.ctx {
			return fmt.Errorf("reregister memory: the protection domain is of another context: %w", ErrInvalid)
		}
		flags |= nic.ReregPD
	}
	if c.Access != nil {
		flags |= nic.ReregAccess
		r.Access = *c.Access
	}
	var pinner runtime.Pinner
	var space hostmem.Space
	var base uint64
	if c.Memory != nil {
		if len(c.Memory) == 0 {
			return fmt.Errorf("reregister memory: the slice is empty: %w", ErrInvalid)
		}
		flags |= nic.ReregTranslation
		pinner.Pin(&c.Memory[0])
		s := dma.NewSlice(c.Memory)
		space, base = s, s.Base()
		r.Space, r.Start, r.Length, r.IOVA = space, base, uint64(len(c.Memory)), base
	}
	if err := m.rereg(flags, pd, r); err != nil {
		pinner.Unpin()
		return m.told("reregister memory", err)
	}
	if c.Memory == nil {
		return nil
	}
	m.ctx.mu.Lock()
	if m.ctx.isClosed() { // which has released what the region was of before, and will not look again
		m.ctx.mu.Unlock()
		pinner.Unpin()
		return fmt.Errorf("reregister memory: %w", ErrClosed)
	}
	old := MR{buf: m.buf, pinner: m.pinner, free: m.free}
	m.buf, m.base, m.pinner, m.free = c.Memory, base, pinner, nil
	m.ctx.mu.Unlock()
	old.release()
	return nil
}

func (m *MR) rereg(flags nic.ReregFlags, pd *PD, r nic.Region) error {
	if pd == nil {
		return m.mr.Rereg(flags, nil, r)
	}
	return m.mr.Rereg(flags, pd.pd, r)
}
