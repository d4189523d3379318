package verbs

import (
	"fmt"
	"sync/atomic"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// MWType is the type of a memory window (enum ibv_mw_type).
type MWType = nic.MWType

// Types of memory windows (InfiniBand vol. 1, 10.6.7).
const (
	MWType1 = nic.MWType1 // for every queue pair of the protection domain; bound again at will
	MWType2 = nic.MWType2 // for the queue pair that binds it (kind 2B), until it is invalidated
)

// MW is a memory window: a key for a part of a memory region, with rights of its own, which work requests
// bind and invalidate in their place among the others.
type MW struct {
	lifetime
	mw  *device.MW
	key atomic.Uint32
}

// AllocMW allocates a memory window, bound to nothing.
func (p *PD) AllocMW(typ MWType) (*MW, error) {
	if err := p.use("allocate memory window"); err != nil {
		return nil, err
	}
	w, err := p.ctx.ctx.AllocMW(p.pd, typ)
	if err != nil {
		return nil, err
	}
	m := &MW{lifetime: lifetime{ctx: p.ctx}, mw: w}
	m.key.Store(w.RKey())
	return m, nil
}

// RKey is the window's key for peers: since the last bind that was posted, whose completion says that it
// may be used.
func (m *MW) RKey() uint32 { return m.key.Load() }

// Close frees the window, bound or not: its key is refused from now on.
func (m *MW) Close() error {
	_, err := m.close(m.mw.Dealloc)
	return err
}

// rebound takes over the bits of a key that the program chooses.
func (m *MW) rebound(key uint32) { m.key.Store(m.key.Load()&^0xff | key&0xff) }

// NextRKey is a key that differs from key in the 8 bits that belong to the program (ibv_inc_rkey).
func NextRKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// Bind says what a memory window is bound to (struct ibv_mw_bind_info).
type Bind struct {
	MW     *MW
	MR     *MR    // registered with AccessMWBind; may be nil if Length is 0
	Addr   uint64 // of the first byte, as MR.Addr gives it
	Length uint64 // bytes; 0 unbinds a window of type 1
	Access Access // AccessRemoteWrite, AccessRemoteRead, AccessRemoteAtomic, AccessFlushGlobal; type 2: AccessZeroBased
	RKey   uint32 // the key from now on: its lowest 8 bits; 0: NextRKey of the present one
}

func (q *QP) fillBind(w *ring.Bind, b *Bind) error {
	if b == nil || b.MW == nil || b.MR == nil && b.Length > 0 {
		return fmt.Errorf("post to QP %#x: a bind needs a window, and a region unless its length is 0: %w", q.Num(), ErrInvalid)
	}
	if b.MW.ctx != q.ctx || b.MR != nil && b.MR.ctx != q.ctx { // keys of which may mean something else here
		return fmt.Errorf("post to QP %#x: the window or the region is of another context: %w", q.Num(), ErrInvalid)
	}
	if err := b.MW.use("bind memory window"); err != nil {
		return err
	}
	*w = ring.Bind{Addr: b.Addr, Length: b.Length, MWKey: b.MW.RKey(), RKey: b.RKey, Access: uint32(b.Access)}
	if b.MR != nil {
		w.LKey = b.MR.LKey()
	}
	if b.RKey == 0 {
		w.RKey = NextRKey(w.MWKey)
	}
	return nil
}

// BindMW posts a bind (ibv_bind_mw): for those who post nothing else with it. Its completion has id.
func (q *QP) BindMW(id uint64, flags Flags, b Bind) error {
	_, err := q.PostSend(&SendWR{ID: id, Opcode: OpBindMW, Flags: flags, Bind: &b})
	return err
}

// Flush says which data written before FLUSH places where (InfiniBand vol. 1, annex A19). The only placement
// that the device has is that everything on the peer's machine sees them.
type Flush struct {
	Length uint32 // bytes from RemoteAddr; at most 1 GiB
	Region bool   // the whole region of RKey instead
}

func (f Flush) toRing() ring.Flush {
	r := ring.Flush{Length: f.Length, Type: uint8(roce.PlaceGlobal)}
	if f.Region {
		r.Level = uint8(roce.SelectRegion)
	}
	return r
}
