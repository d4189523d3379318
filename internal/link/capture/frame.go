package capture

import (
	"encoding/binary"
	"net/netip"

	"rnic/internal/roce"
)

const (
	etherSize = 14

	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	protocolUDP   = 17
	usualTTL      = 64
)

// frameSize is the length of the Ethernet frame around data bytes of BTH..pad.
func frameSize(path *roce.Path, data int) int {
	return etherSize + path.HeadersSize() + data + roce.ICRCSize
}

// appendFrame appends the Ethernet frame that carries data (BTH..pad) on
// path, with identification 0 and the ICRC that goes with it.
func appendFrame(b []byte, path *roce.Path, data []byte) []byte {
	b = appendMAC(appendMAC(b, path.Dst), path.Src)
	if path.IsIPv4() {
		b = binary.BigEndian.AppendUint16(b, etherTypeIPv4)
	} else {
		b = binary.BigEndian.AppendUint16(b, etherTypeIPv6)
	}
	b = roce.AppendHeaders(b, path, 0, len(data))
	start := len(b)
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, roce.ICRC(path, 0, data))
	if !path.IsIPv4() { // in IPv4 the UDP checksum may be 0 (RFC 768)
		datagram := b[start-roce.UDPHeaderSize:]
		binary.BigEndian.PutUint16(datagram[6:], udpChecksum6(path, datagram))
	}
	return b
}

// appendMAC makes up a locally administered address that shows the IP address.
func appendMAC(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(append(b, 0x02, 0), v[:]...)
	}
	v := a.As16()
	return append(append(b, 0x02), v[11:]...)
}

// udpChecksum6 is the UDP checksum over IPv6 (RFC 8200, 8.1) of a datagram
// whose checksum field is 0.
func udpChecksum6(path *roce.Path, datagram []byte) uint16 {
	src, dst := path.Src.As16(), path.Dst.As16()
	s := sum(sum(uint64(len(datagram))+protocolUDP, src[:]), dst[:])
	if c := ^fold(sum(s, datagram)); c != 0 {
		return c
	}
	return 0xffff
}

// sum adds b, padded to whole 16-bit words, to s. It does not overflow for
// anything that fits in a datagram.
func sum(s uint64, b []byte) uint64 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
