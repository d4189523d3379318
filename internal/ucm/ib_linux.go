package ucm

import (
	"encoding/binary"
	"syscall"

	"rnic/internal/cma"
	"rnic/internal/ibcm"
)

const (
	afIB   = 27
	sizeIB = 48 // struct sockaddr_ib
)

// addrSize is the length that an address of a family has in the ABI; 0: no address has this family.
func addrSize(family uint16) int {
	switch family {
	case syscall.AF_INET:
		return 16
	case syscall.AF_INET6:
		return 28
	case afIB:
		return sizeIB
	}
	return 0
}

// sized checks that an address is as long as its family's are.
func sized(b []byte) error {
	if len(b) < 2 || len(b) != addrSize(le.Uint16(b)) {
		return syscall.EINVAL
	}
	return nil
}

func isIB(b []byte) bool { return len(b) == sizeIB && le.Uint16(b) == afIB }

// decodeIB reads struct sockaddr_ib (rdma/ib.h of the kernel): family, pkey, flowinfo, address, service id, mask, scope.
func decodeIB(b []byte) cma.IBAddr {
	be := binary.BigEndian
	return cma.IBAddr{PKey: be.Uint16(b[2:]), FlowInfo: be.Uint32(b[4:]), GID: [16]byte(b[8:24]), Service: be.Uint64(b[24:]), Mask: be.Uint64(b[32:]),
		Scope: be.Uint64(b[40:])}
}

// encodeIB writes it.
func encodeIB(b []byte, a *cma.IBAddr) int {
	be := binary.BigEndian
	le.PutUint16(b, afIB)
	be.PutUint16(b[2:], a.PKey)
	be.PutUint32(b[4:], a.FlowInfo)
	copy(b[8:24], a.GID[:])
	be.PutUint64(b[24:], a.Service)
	be.PutUint64(b[32:], a.Mask)
	be.PutUint64(b[40:], a.Scope)
	return sizeIB
}

// resolveIB is resolve where one of the addresses is of InfiniBand.
func (c *command) resolveIB(i *id, src, dst []byte) error {
	if !isIB(dst) || len(src) > 0 && !isIB(src) {
		return syscall.EINVAL
	}
	var from *cma.IBAddr
	if len(src) > 0 {
		a := decodeIB(src)
		from = &a
	}
	return i.cm.ResolveIB(from, decodeIB(dst))
}

// ece reads struct rdma_ucm_ece: vendor_id, attr_mod. Older libraries do not have it.
func (c *command) ece(at int) ibcm.ECE {
	if len(c.in) < at+sizeECE {
		return ibcm.ECE{}
	}
	return ibcm.ECE{Vendor: c.u32(at), Options: c.u32(at + 4)}
}

const sizeECE = 8
