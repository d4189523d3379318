package roce

import "encoding/binary"

// Sizes in bytes of the headers in front of the BTH.
const (
	IPv4HeaderSize = 20
	IPv6HeaderSize = 40
	UDPHeaderSize  = 8
)

const protocolUDP = 17

// HeadersSize returns the bytes that AppendHeaders appends for p.
func (p *Path) HeadersSize() int {
	if p.IsIPv4() {
		return IPv4HeaderSize + UDPHeaderSize
	}
	return IPv6HeaderSize + UDPHeaderSize
}

// AppendHeaders appends the IP and UDP headers that a packet along p has on the wire: n is the
// number of bytes from the BTH to the pad, ident the IPv4 identification. The IPv4 header has DF
// set and a good checksum; the UDP checksum is 0, none.
func AppendHeaders(dst []byte, p *Path, ident uint16, n int) []byte {
	var room [IPv6HeaderSize + UDPHeaderSize]byte
	at := len(dst)
	dst = append(dst, room[:p.HeadersSize()]...)
	h := dst[at:]
	if p.IsIPv4() {
		putIPv4(h, p, ident, n)
		h = h[IPv4HeaderSize:]
	} else {
		putIPv6(h, p, n)
		h = h[IPv6HeaderSize:]
	}
	binary.BigEndian.PutUint16(h, p.SrcPort)
	binary.BigEndian.PutUint16(h[2:], Port)
	binary.BigEndian.PutUint16(h[4:], uint16(UDPHeaderSize+n+ICRCSize))
	return dst
}

// putIPv4 writes the IPv4 header (RFC 791) of a packet with n bytes from the BTH to the pad.
func putIPv4(h []byte, p *Path, ident uint16, n int) {
	_ = h[IPv4HeaderSize-1]
	h[0], h[1] = 0x45, p.TOS
	binary.BigEndian.PutUint16(h[2:], uint16(IPv4HeaderSize+UDPHeaderSize+n+ICRCSize))
	binary.BigEndian.PutUint16(h[4:], ident)
	binary.BigEndian.PutUint16(h[6:], ipv4DF)
	h[8], h[9] = p.TTL, protocolUDP
	h[10], h[11] = 0, 0
	src, dst := addr4(p)
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	binary.BigEndian.PutUint16(h[10:], checksum(h[:IPv4HeaderSize]))
}

// putIPv6 writes the IPv6 header (RFC 8200) of a packet with n bytes from the BTH to the pad.
func putIPv6(h []byte, p *Path, n int) {
	src, dst := p.Src.As16(), p.Dst.As16()
	GRH(h).Encode(&GRHFields{
		TrafficClass: p.TOS, PayLen: uint16(UDPHeaderSize + n + ICRCSize), NextHeader: protocolUDP, HopLimit: p.TTL,
		SGID: src, DGID: dst,
	})
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	return ^uint16(sum)
}
