package nic

import (
	"fmt"

	"rnic/internal/ring"
)

// MWType is enum ib_mw_type.
type MWType uint8

// The types of memory windows. The device's type 2 windows are of kind 2B: bound to one queue pair
// (vol. 1, 10.6.7.2).
const (
	MWType1 MWType = 1
	MWType2 MWType = 2
)

// MW is a memory window: a key for a part of a memory region, with rights of its own, that work
// requests bind and invalidate. What the key stands for at present is a region of its own, grant.
type MW struct {
	nic   *shared
	pd    *PD
	typ   MWType
	grant *MR
	dead  bool
	Owner any // the device service's
}

// bindRights are the rights that a window can give.
const bindRights = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessFlushGlobal

// bindAccess are the access flags that a bind may name. Local ones mean nothing.
const bindAccess = bindRights | AccessLocalWrite | AccessZeroBased

const opAllocMW = "allocate memory window"

// AllocMW makes a window that is bound to nothing (11.2, Allocate Memory Window). EINVAL: the type, or the protection
// domain. ENOMEM: the limit.
func (n *NIC) AllocMW(pd *PD, typ MWType) (*MW, error) {
	switch {
	case !pd.usable(n):
		return nil, refuse(EINVAL, opAllocMW, "", "no such protection domain")
	case typ != MWType1 && typ != MWType2:
		return nil, refuse(EINVAL, opAllocMW, "", fmt.Sprintf("there is no type %d: 1 and 2 are", typ))
	case n.mws >= n.limits.MaxMW:
		return nil, refuse(ENOMEM, opAllocMW, "", "the limit of memory windows is reached: deallocate some")
	}
	w := &MW{nic: n.shared, pd: pd, typ: typ}
	w.stand(&MR{nic: n.shared, pd: pd, key: n.newMRKey()})
	n.mws++
	pd.refs++
	return w, nil
}

// RKey is the window's key at present; a bind gives it another.
func (w *MW) RKey() uint32 { return w.grant.key }

// Type is the window's type.
func (w *MW) Type() MWType { return w.typ }

// Dealloc ends the window, bound or not (11.2, Deallocate Memory Window): its key is of no use from now on.
func (w *MW) Dealloc() error {
	if w.dead {
		return refuse(ENOENT, "deallocate memory window", fmt.Sprintf("key %#x", w.grant.key), "it is deallocated already")
	}
	w.unbind()
	w.dead = true
	delete(w.nic.mrs, w.grant.key>>8)
	w.grant.dead = true
	w.nic.mws--
	w.pd.refs--
	return nil
}

// bound tells whether the window grants access to a region.
func (w *MW) bound() bool { return w.grant.parent != nil }

// stand makes m what the window's key stands for. What stood there before is of no use any more, nor to
// transfers that have begun.
func (w *MW) stand(m *MR) {
	if old := w.grant; old != nil {
		old.dead = true
	}
	m.window = w
	w.grant = m
	w.nic.mrs[m.key>>8] = m
	if p := m.parent; p != nil {
		p.windows = addWindow(p.windows, w)
	}
	if q := m.only; q != nil {
		q.windows = addWindow(q.windows, w)
	}
}

func addWindow(set map[*MW]struct{}, w *MW) map[*MW]struct{} {
	if set == nil {
		set = make(map[*MW]struct{})
	}
	set[w] = struct{}{}
	return set
}

// unbind takes the access away. The key stays the window's, and grants nothing.
func (w *MW) unbind() {
	m := w.grant
	if m.parent == nil {
		return
	}
	delete(m.parent.windows, w)
	if m.only != nil {
		delete(m.only.windows, w)
	}
	w.stand(&MR{nic: w.nic, pd: w.pd, key: m.key})
}

func unbindAll(set map[*MW]struct{}) {
	for w := range set { // the order does not show
		w.unbind()
	}
}

// Revoke is Dereg for a region whose memory is gone: its windows are unbound first.
func (m *MR) Revoke() error {
	unbindAll(m.windows)
	return m.Dereg()
}

// runLocal carries out a bind or a local invalidate (10.6.7, 10.8.2).
func (q *QP) runLocal(w *sendRequest) ring.Status {
	ok := false
	if w.op == ring.OpLocalInv {
		ok = q.invalidate(w.imm)
	} else {
		ok = q.bind(&w.bind)
	}
	if !ok {
		return ring.StatusMWBindErr
	}
	return ring.StatusSuccess
}

// bind binds a window (10.6.7.2, C10-72 to C10-75), by a request that everything may be wrong with.
func (q *QP) bind(b *ring.Bind) bool {
	n, access := q.nic, Access(b.Access)
	old := n.lookupMR(b.MWKey)
	if old == nil || old.window == nil || access&^bindAccess != 0 {
		return false
	}
	w := old.window
	if w.pd != q.pd || w.typ == MWType1 && access&AccessZeroBased != 0 || w.typ == MWType2 && (w.bound() || b.Length == 0) {
		return false
	}
	to := &MR{nic: n.shared, pd: w.pd, key: b.MWKey&^0xff | b.RKey&0xff}
	if b.Length != 0 && !q.grantTo(to, b, access) {
		return false
	}
	w.unbind()
	if w.typ == MWType2 {
		to.only = q
	}
	w.stand(to)
	return true
}

// grantTo makes to a part of the region that b names, if that allows it.
func (q *QP) grantTo(to *MR, b *ring.Bind, access Access) bool {
	m := q.nic.lookupMR(b.LKey)
	if m == nil || m.window != nil || m.access&AccessMWBind == 0 || m.access&AccessZeroBased != 0 {
		return false
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && m.access&AccessLocalWrite == 0 { // C10-74
		return false
	}
	if !m.check(q.pd, b.Addr, b.Length, 0) { // C10-75
		return false
	}
	to.parent, to.space, to.access = m, m.space, access&bindRights
	to.start, to.length, to.iova = m.hostAddr(b.Addr), b.Length, b.Addr
	if q.nic.planted == PlantedWindowBounds {
		to.start, to.length, to.iova = m.start, m.length, m.iova
	}
	if access&AccessZeroBased != 0 {
		to.iova = 0
	}
	return true
}

// invalidates finds the window that a key would invalidate on behalf of the queue pair: one of type 2,
// bound to it (10.6.7.2, 9.4.1.1.3). nil: the key is of an ordinary region, of another queue pair's
// window, or of nothing.
func (q *QP) invalidates(key uint32) *MW {
	m := q.nic.lookupMR(key)
	if m == nil || m.parent == nil || m.only != q {
		return nil
	}
	return m.window
}

func (q *QP) invalidate(key uint32) bool {
	w := q.invalidates(key)
	if w == nil {
		return false
	}
	if q.nic.planted != PlantedInvalidateIgnored {
		w.unbind()
	}
	return true
}
