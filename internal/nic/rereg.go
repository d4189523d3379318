package nic

import (
	"fmt"

	"rnic/internal/hostmem"
)

// ReregFlags says what of a memory region changes: enum ibv_rereg_mr_flags.
type ReregFlags uint32

// What ReregMR changes.
const (
	ReregTranslation ReregFlags = 1 << 0 // memory and iova
	ReregPD          ReregFlags = 1 << 1
	ReregAccess      ReregFlags = 1 << 2
)

// Region is what a memory region is registered with.
type Region struct {
	PD                  *PD
	Space               hostmem.Space
	Start, Length, IOVA uint64
	Access              Access
}

const opReregister = "reregister memory region"

// AdmitRereg is the part of reregistering that comes before the program's memory is looked at: what m
// becomes, of which flags says what is taken from r. EINVAL: no flag, or one that there is not, or what
// RegMR refuses. ENOENT: m is gone. EBUSY: memory windows are bound to it (11.2, Reregister Memory Region).
func (n *NIC) AdmitRereg(m *MR, flags ReregFlags, r Region) (Region, error) {
	if m.dead {
		return Region{}, refuse(ENOENT, opReregister, fmt.Sprintf("key %#x", m.key), "it is deregistered")
	}
	if len(m.windows) > 0 {
		return Region{}, refuse(EBUSY, opReregister, fmt.Sprintf("key %#x", m.key), "memory windows are bound to it: unbind or deallocate them first")
	}
	if flags == 0 || flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 {
		return Region{}, refuse(EINVAL, opReregister, "", fmt.Sprintf("flags %#x do not say what is to change", uint32(flags)))
	}
	now := Region{m.pd, m.space, m.start, m.length, m.iova, m.access}
	if flags&ReregTranslation != 0 {
		now.Space, now.Start, now.Length, now.IOVA = r.Space, r.Start, r.Length, r.IOVA
	}
	if flags&ReregPD != 0 {
		now.PD = r.PD
	}
	if flags&ReregAccess != 0 {
		now.Access = r.Access
	}
	if !now.PD.usable(n) {
		return Region{}, refuse(EINVAL, opReregister, "", "no such protection domain")
	}
	if err := checkAccess(opReregister, now.Access); err != nil {
		return Region{}, err
	}
	if now.Access&AccessZeroBased != 0 {
		now.IOVA = 0
	}
	if now.Length > -now.Start-1 || now.Length > -now.IOVA-1 {
		return Region{}, refuse(EINVAL, opReregister, fmt.Sprintf("%#x+%#x at %#x", now.Start, now.Length, now.IOVA),
			"the range passes the end of the address space")
	}
	return now, nil
}

// ReregMR makes another region of m (vol. 1, 11.2, Reregister Memory Region): m ends and its keys are refused, also to what is
// under way; the region returned has new keys. With an error m is as before. The memory that the region
// refers to must have been looked at with CheckMemory, as AdmitRereg says what it is.
func (n *NIC) ReregMR(m *MR, flags ReregFlags, r Region) (*MR, error) {
	now, err := n.AdmitRereg(m, flags, r)
	if err != nil {
		return nil, err
	}
	if err := m.Dereg(); err != nil {
		return nil, err
	}
	if n.planted == PlantedReregKey {
		n.mrs[m.key>>8] = m
	}
	again := &MR{nic: n.shared, pd: now.PD, space: now.Space, start: now.Start, length: now.Length, iova: now.IOVA,
		access: now.Access &^ AccessOptional, key: n.newMRKey(), Owner: m.Owner}
	n.mrs[again.key>>8] = again
	now.PD.refs++
	return again, nil
}
