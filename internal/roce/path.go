package roce

import "net/netip"

// Path is what the IP and UDP headers of a packet say. It is a comparable value that keeps no
// memory of the packet. The UDP destination port is always Port.
type Path struct {
	Src, Dst netip.Addr // both IPv4 (Is4, not mapped) or both IPv6; no zone
	SrcPort  uint16     // UDP source port
	TOS      uint8      // traffic class, with the two ECN bits lowest
	TTL      uint8      // time to live or hop limit
}

// IsIPv4 reports whether the packet travels in IPv4.
func (p *Path) IsIPv4() bool { return p.Src.Is4() }

// Valid reports whether both addresses are set and of one family, and neither is mapped.
func (p *Path) Valid() bool {
	if p.Src.Is4() {
		return p.Dst.Is4()
	}
	return p.Src.Is6() && p.Dst.Is6() && !p.Src.Is4In6() && !p.Dst.Is4In6()
}
