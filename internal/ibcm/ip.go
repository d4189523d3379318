package ibcm

import (
	"net/netip"

	"rnic/internal/roce"
)

// Port spaces of the RDMA IP CM service (annex A11, and rdma/rdma_cma.h of Linux): a service id is the port space and the port.
const (
	SpaceIPoIB = 0x0002
	SpaceTCP   = 0x0106
	SpaceUDP   = 0x0111
	SpaceIB    = 0x013f
)

// ServiceID is that of a port.
func ServiceID(space, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// IPHeaderSize is the length of what precedes the user's private data in a REQ and SIDR_REQ of that service.
const IPHeaderSize = 36

// IPHeader is that header (A11.2): the addresses that the active side means.
type IPHeader struct{ Src, Dst netip.AddrPort }

// EncodeIPHeader writes the header: version 0, IP version, source port, the two addresses. The destination port is in the service id.
func EncodeIPHeader(b []byte, h IPHeader) {
	clear(b[:IPHeaderSize])
	b[1] = 4 << 4
	if h.Dst.Addr().Is6() && !h.Dst.Addr().Is4In6() {
		b[1] = 6 << 4
	}
	be.PutUint16(b[2:], h.Src.Port())
	for i, a := range []netip.Addr{h.Src.Addr(), h.Dst.Addr()} {
		at := b[4+16*i : 20+16*i]
		if a = a.Unmap(); a.Is4() {
			v := a.As4()
			copy(at[12:], v[:])
		} else if a.IsValid() {
			v := a.As16()
			copy(at, v[:])
		}
	}
}

// DecodeIPHeader reads it; false if it is none. The destination's port is that of the service.
func DecodeIPHeader(b []byte, serviceID uint64) (h IPHeader, ok bool) {
	if len(b) < IPHeaderSize || b[0] != 0 {
		return h, false
	}
	addr := func(at []byte) netip.Addr {
		if b[1]>>4 == 4 {
			return netip.AddrFrom4([4]byte(at[12:16]))
		}
		return netip.AddrFrom16([16]byte(at))
	}
	switch b[1] >> 4 {
	case 4, 6:
	default:
		return h, false
	}
	h.Src = netip.AddrPortFrom(addr(b[4:20]), be.Uint16(b[2:]))
	h.Dst = netip.AddrPortFrom(addr(b[20:36]), uint16(serviceID))
	return h, !h.Src.Addr().Is4In6() && !h.Dst.Addr().Is4In6() // those are of IP version 4
}

// GIDOf is the GID of an IP address: IPv4 is mapped (A17.4).
func GIDOf(a netip.Addr) roce.GID { return roce.GID(a.As16()) }
