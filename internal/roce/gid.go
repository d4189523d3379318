package roce

import "net/netip"

// GID is a global identifier: 16 bytes in network order, as on the wire and in the verbs ABI.
// RoCEv2 GIDs are IP addresses; an IPv4 address a.b.c.d is ::ffff:a.b.c.d (annex A17).
type GID [16]byte

// GIDFromAddr returns the GID of an address, without its zone. The invalid Addr gives the zero GID.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return GID(a.As16())
}

// Addr returns the address of the GID: IPv4 if it is mapped, the invalid Addr for the zero GID.
func (g GID) Addr() netip.Addr {
	if g.IsZero() {
		return netip.Addr{}
	}
	return netip.AddrFrom16(g).Unmap()
}

// IsZero reports whether g is the unset GID, which is no address.
func (g GID) IsZero() bool { return g == GID{} }

// String gives the sixteen bytes in the groups of four hexadecimal digits that rdma-core prints.
func (g GID) String() string { return netip.AddrFrom16(g).StringExpanded() }
