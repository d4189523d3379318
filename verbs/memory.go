package verbs

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"rnic/internal/device"
	"rnic/internal/dma"
	"rnic/internal/hostmem"
	"rnic/internal/nic"
)

// PD is a protection domain.
type PD struct {
	lifetime
	pd *device.PD
}

// AllocPD allocates a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	p, err := c.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	return &PD{lifetime: lifetime{ctx: c}, pd: p}, nil
}

// Context is the context that p is of.
func (p *PD) Context() *Context { return p.ctx }

// Close frees the protection domain; ErrBusy while something is in it.
func (p *PD) Close() error {
	_, err := p.close(p.pd.Dealloc)
	return err
}

// Access says what a region, or a queue pair, allows (enum ibv_access_flags).
type Access = nic.Access

// Rights of memory regions and queue pairs. Local reads are always allowed.
const (
	AccessLocalWrite   = nic.AccessLocalWrite
	AccessRemoteWrite  = nic.AccessRemoteWrite
	AccessRemoteRead   = nic.AccessRemoteRead
	AccessRemoteAtomic = nic.AccessRemoteAtomic
	AccessMWBind       = nic.AccessMWBind      // memory windows may be bound to the region
	AccessZeroBased    = nic.AccessZeroBased   // of a type 2 window: its first byte has address 0
	AccessOnDemand     = nic.AccessOnDemand    // the memory need not be there before it is used: of a RegSpace
	AccessFlushGlobal  = nic.AccessFlushGlobal // FLUSH
)

// MR is a memory region: bytes of this program that work requests and peers may name by key.
type MR struct {
	lifetime
	mr     *device.MR
	buf    []byte
	base   uint64
	pinner runtime.Pinner
	free   func() error
	once   sync.Once // of release
}

// RegMR registers buf and pins it until the region is closed. Peers address it by MR.Addr.
func (p *PD) RegMR(buf []byte, access Access) (*MR, error) {
	if len(buf) == 0 {
		return nil, fmt.Errorf("register memory: the slice is empty: %w", ErrInvalid)
	}
	m := &MR{lifetime: lifetime{ctx: p.ctx}, buf: buf}
	m.pinner.Pin(&buf[0])
	return p.register(m, access)
}

// AllocMR allocates size bytes of page-aligned memory outside of the garbage collector's heap and
// registers it. The memory is freed when the region is closed.
func (p *PD) AllocMR(size int, access Access) (*MR, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate memory region of %d bytes: %w", size, ErrInvalid)
	}
	buf, free, err := allocPages(size)
	if err != nil {
		return nil, fmt.Errorf("allocate memory region of %d bytes: %v: %w", size, err, ErrNoMemory)
	}
	return p.register(&MR{lifetime: lifetime{ctx: p.ctx}, buf: buf, free: free}, access)
}

func (p *PD) register(m *MR, access Access) (*MR, error) {
	if err := p.use("register memory"); err != nil {
		m.release()
		return nil, err
	}
	space := dma.NewSlice(m.buf)
	m.base = space.Base()
	mr, err := p.ctx.ctx.RegMR(p.pd, space, m.base, uint64(len(m.buf)), m.base, access)
	if err != nil {
		m.release()
		return nil, err
	}
	m.mr = mr
	return p.ctx.own(m)
}

// release unpins or frees the memory, once.
func (m *MR) release() {
	m.once.Do(func() {
		m.pinner.Unpin()
		if m.free != nil {
			_ = m.free()
			m.buf = nil
		}
	})
}

// Close ends the region: its keys are refused from now on. Memory that AllocMR allocated is gone. ErrBusy
// while memory windows are bound to it.
func (m *MR) Close() error {
	first, err := m.close(m.mr.Dereg)
	if first {
		m.ctx.disown(m)
		m.release()
	}
	return err
}

// Bytes is the region's memory.
func (m *MR) Bytes() []byte { return m.buf }

// Addr is the address of byte off of the region, as peers and work requests name it.
func (m *MR) Addr(off int) uint64 { return m.base + uint64(off) }

// LKey and RKey are the region's keys, for local work requests and for peers.
func (m *MR) LKey() uint32 { return m.mr.LKey() }
func (m *MR) RKey() uint32 { return m.mr.RKey() }

// SGE is a scatter/gather entry: length bytes at an address of a region.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SGE is the entry of length bytes of the region from byte off. Whether that is within the region, and within the longest message, is checked
// when the entry is used.
func (m *MR) SGE(off, length int) SGE {
	// More than the field holds, or less than nothing, stays longer than any message.
	return SGE{m.base + uint64(off), uint32(min(uint64(length), math.MaxUint32)), m.mr.LKey()}
}

// Slice is a list of the one entry SGE(off, length).
func (m *MR) Slice(off, length int) []SGE { return []SGE{m.SGE(off, length)} }

// RegSpace registers length bytes at start of another memory than this program's own, for this
// module's commands: peers name them by iova.
func (p *PD) RegSpace(space hostmem.Space, start, length, iova uint64, access Access) (*MR, error) {
	mr, err := p.ctx.ctx.RegMR(p.pd, space, start, length, iova, access)
	if err != nil {
		return nil, err
	}
	return p.ctx.own(&MR{lifetime: lifetime{ctx: p.ctx}, base: iova, mr: mr})
}
