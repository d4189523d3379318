package nic

import (
	"fmt"

	"rnic/internal/hostmem"
)

const (
	accessKnown = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
		AccessMWBind | AccessZeroBased | AccessOnDemand | AccessHugeTLB | AccessFlushGlobal | AccessFlushPersist
	// The device has no memory that outlives a loss of power.
	accessUnsupported = AccessFlushPersist
)

// RegMR registers [start, start+length) of space as a memory region, which work requests and peers
// address as [iova, iova+length), or as [0, length) with AccessZeroBased (vol. 1, 11.2, Register Memory Region). Any
// iova goes with any start.
//
// With AccessOnDemand the program's memory is looked at when it is used and not here: it may be mapped, unmapped
// and mapped again while the region lives, and an access to what is not there at that moment fails as one beyond the
// region does. ImplicitLength from 0 is then the whole address space.
//
// EINVAL: remote write or atomic rights without local write (11.2, Register Memory Region), unknown access bits, or a
// range that passes the end of the address space. EOPNOTSUPP: rights for operations that the
// device does not have. EFAULT: the program's memory does not allow it. ENOMEM: the limit.
func (n *NIC) RegMR(pd *PD, space hostmem.Space, start, length, iova uint64, access Access) (*MR, error) {
	if err := n.AdmitMR(pd, start, length, iova, access); err != nil {
		return nil, err
	}
	if err := CheckMemory(space, start, length, access); err != nil {
		return nil, err
	}
	return n.RegCheckedMR(pd, space, start, length, iova, access)
}

const opRegister = "register memory region"

// ImplicitLength is the length of a region of the whole address space (ibv_reg_mr(3): SIZE_MAX), which begins at 0 and
// is AccessOnDemand.
const ImplicitLength = ^uint64(0)

// AdmitMR is the part of RegMR that comes before the program's memory is looked at.
func (n *NIC) AdmitMR(pd *PD, start, length, iova uint64, access Access) error {
	if !pd.usable(n) {
		return refuse(EINVAL, opRegister, "", "no such protection domain")
	}
	if err := checkAccess(opRegister, access); err != nil {
		return err
	}
	if access&AccessZeroBased != 0 {
		iova = 0
	}
	if length > -start-1 || length > -iova-1 {
		return refuse(EINVAL, opRegister, fmt.Sprintf("%#x+%#x at %#x", start, length, iova),
			"the range passes the end of the address space")
	}
	if len(n.mrs)-n.mws >= n.limits.MaxMR {
		return refuse(ENOMEM, opRegister, "", "the limit of memory regions is reached: deregister some")
	}
	return nil
}

// CheckMemory is the part of RegMR that looks at the program's memory, which may take long: it needs no NIC.
// On demand there is nothing to look at yet.
func CheckMemory(space hostmem.Space, start, length uint64, access Access) error {
	if access&AccessOnDemand != 0 {
		return nil
	}
	if err := space.Check(start, length, access&AccessLocalWrite != 0); err != nil {
		return refuse(EFAULT, opRegister, fmt.Sprintf("%#x+%#x", start, length), err.Error())
	}
	return nil
}

// RegCheckedMR is RegMR without CheckMemory, which must have been called.
func (n *NIC) RegCheckedMR(pd *PD, space hostmem.Space, start, length, iova uint64, access Access) (*MR, error) {
	if err := n.AdmitMR(pd, start, length, iova, access); err != nil {
		return nil, err
	}
	if access&AccessZeroBased != 0 {
		iova = 0
	}
	m := &MR{nic: n.shared, pd: pd, space: space, start: start, length: length, iova: iova,
		access: access &^ AccessOptional, key: n.newMRKey()}
	n.mrs[m.key>>8] = m
	pd.refs++
	return m, nil
}

func checkAccess(op string, access Access) error {
	switch {
	case access&^(accessKnown|AccessOptional) != 0:
		return refuse(EINVAL, op, "", fmt.Sprintf("unknown access bits %#x", access&^(accessKnown|AccessOptional)))
	case access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0:
		return refuse(EINVAL, op, "", "remote write and remote atomic access need local write access too")
	case access&accessUnsupported != 0:
		return refuse(EOPNOTSUPP, op, "", fmt.Sprintf("the device does not support access %#x", access&accessUnsupported))
	}
	return nil
}

// Dereg ends the region: its key is of no use from now on. Transfers in the list that Memory has
// handed out may still touch the memory. EBUSY while memory windows are bound to it (11.2, Deregister Memory Region).
func (m *MR) Dereg() error {
	if m.dead {
		return refuse(ENOENT, "deregister memory region", fmt.Sprintf("key %#x", m.key), "it is deregistered already")
	}
	if len(m.windows) > 0 {
		return refuse(EBUSY, "deregister memory region", fmt.Sprintf("key %#x", m.key), "memory windows are bound to it: unbind or deallocate them first")
	}
	m.dead = true
	m.pd.refs--
	if m.nic.planted != PlantedStaleKey {
		delete(m.nic.mrs, m.key>>8)
	}
	return nil
}

// check tells whether [addr, addr+length) lies in the region, and pd and the rights fit. No sum is
// computed: each of these may be anything up to 2^64-1.
func (m *MR) check(pd *PD, addr, length uint64, need Access) bool {
	if m.pd != pd || need&^m.access != 0 {
		return false
	}
	if m.nic.planted == PlantedBoundsWrap {
		return addr >= m.iova && addr+length <= m.iova+m.length
	}
	off := addr - m.iova
	return addr >= m.iova && off <= m.length && length <= m.length-off
}

// hostAddr is the address in the program of addr. Precondition: check said yes.
func (m *MR) hostAddr(addr uint64) uint64 { return m.start + (addr - m.iova) }
