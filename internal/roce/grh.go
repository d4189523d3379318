package roce

import (
	"encoding/binary"
	"net/netip"
)

// GRHSize is the size of the global route header in bytes, and of the area in front of the
// payload that every receive of an unreliable datagram starts with.
const GRHSize = 40

// GRH is a global route header (8.3), or what takes its place in front of a received datagram:
// over IPv6 the IPv6 header, which has the same layout; over IPv4 the IPv4 header in the last 20
// bytes, as union rdma_network_hdr of Linux has it. Its methods need GRHSize bytes.
type GRH []byte

// GRHFields are the fields of a GRH that holds an IPv6 header.
type GRHFields struct {
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	PayLen       uint16 // bytes behind the header
	NextHeader   uint8
	HopLimit     uint8
	SGID, DGID   GID
}

// Fields returns all fields, as an IPv6 header has them.
func (h GRH) Fields() GRHFields {
	word := binary.BigEndian.Uint32(h)
	return GRHFields{
		TrafficClass: uint8(word >> 20), FlowLabel: word & 0xfffff, PayLen: binary.BigEndian.Uint16(h[4:]),
		NextHeader: h[6], HopLimit: h[7], SGID: GID(h[8:24]), DGID: GID(h[24:40]),
	}
}

// Encode writes all fields, with IP version 6.
func (h GRH) Encode(f *GRHFields) {
	_ = h[GRHSize-1]
	binary.BigEndian.PutUint32(h, 6<<28|uint32(f.TrafficClass)<<20|f.FlowLabel&0xfffff)
	binary.BigEndian.PutUint16(h[4:], f.PayLen)
	h[6], h[7] = f.NextHeader, f.HopLimit
	copy(h[8:24], f.SGID[:])
	copy(h[24:40], f.DGID[:])
}

// EncodePath fills the area for a datagram that came along p: n is the number of bytes from the
// BTH to the pad, ident the IPv4 identification, or 0 where it is not known. The IPv4 checksum is
// good: rdma-core tells the two layouts apart by it.
func (h GRH) EncodePath(p *Path, ident uint16, n int) {
	_ = h[GRHSize-1]
	if p.IsIPv4() {
		clear(h[:GRHSize-IPv4HeaderSize])
		putIPv4(h[GRHSize-IPv4HeaderSize:], p, ident, n)
		return
	}
	putIPv6(h, p, n)
}

// Path returns what the area says about the packet's path, without its UDP source port, and
// whether it holds an IPv4 header with a good checksum or an IPv6 header.
func (h GRH) Path() (p Path, ok bool) {
	_ = h[GRHSize-1]
	if v4 := h[GRHSize-IPv4HeaderSize:]; v4[0] == 0x45 && checksum(v4[:IPv4HeaderSize]) == 0 {
		return Path{
			Src: netip.AddrFrom4([4]byte(v4[12:16])), Dst: netip.AddrFrom4([4]byte(v4[16:20])),
			TOS: v4[1], TTL: v4[8],
		}, true
	}
	if h[0]>>4 != 6 {
		return Path{}, false
	}
	f := h.Fields()
	return Path{
		Src: netip.AddrFrom16(f.SGID), Dst: netip.AddrFrom16(f.DGID),
		TOS: f.TrafficClass, TTL: f.HopLimit,
	}, true
}
