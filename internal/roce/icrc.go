package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// The invariant CRC of RoCEv2 (annex A17): CRC-32 of IEEE 802.3 over eight bytes FF in place
// of the local route header, the IP and UDP headers, and the packet from the BTH to the pad, with
// every field that a router may change replaced by ones: IPv4 type of service, time to live and
// header checksum; IPv6 traffic class, flow label and hop limit; UDP checksum; byte 4 of the BTH.
// It is stored little-endian. The IPv4 identification, flags and lengths are covered as they are.

// ipv4DF is the flags and fragment offset of every RoCEv2 packet: do not fragment.
const ipv4DF = 0x4000

// ICRC returns the invariant CRC of pkt, from the BTH to the pad, along p. ident is the IPv4
// identification; IPv6 has none.
// Preconditions: p is Valid, and pkt has at least BTHSize bytes.
func ICRC(p *Path, ident uint16, pkt []byte) uint32 {
	n := len(pkt)
	c := crcAfterFF
	udpLen := uint64(uint16(UDPHeaderSize + n + ICRCSize))
	src, dst := p.SrcPort, uint64(Port)
	// Words are little-endian: the byte that comes first on the wire is lowest.
	udp := uint64(swap16(src)) | uint64(swap16(uint16(dst)))<<16 | uint64(swap16(uint16(udpLen)))<<32 | 0xffff<<48
	bth0 := binary.LittleEndian.Uint64(pkt) | 0xff<<(8*bthECN)
	bth1 := uint64(binary.LittleEndian.Uint32(pkt[8:]))
	if p.Src.Is4() {
		s, d := addr4(p)
		src, dst := uint64(binary.LittleEndian.Uint32(s[:])), uint64(binary.LittleEndian.Uint32(d[:]))
		total := swap16(uint16(IPv4HeaderSize + UDPHeaderSize + n + ICRCSize))
		c = crcWord(c, 0xff45|uint64(total)<<16|uint64(swap16(ident))<<32|ipv4DF>>8<<48)
		c = crcWord(c, 0xffff11ff|src<<32)
		c = crcWord(c, dst|udp<<32)
		c = crcWord(c, udp>>32|bth0<<32)
		c = crcWord(c, bth0>>32|bth1<<32)
		return ^crcBytes(c, pkt[BTHSize:])
	}
	s, d := p.Src.As16(), p.Dst.As16()
	c = crcWord(c, 0xffffff6f|udpLen>>8<<32|udpLen&0xff<<40|protocolUDP<<48|0xff<<56)
	c = crcWord(c, binary.LittleEndian.Uint64(s[:8]))
	c = crcWord(c, binary.LittleEndian.Uint64(s[8:]))
	c = crcWord(c, binary.LittleEndian.Uint64(d[:8]))
	c = crcWord(c, binary.LittleEndian.Uint64(d[8:]))
	c = crcWord(c, udp)
	c = crcWord(c, bth0)
	c = crcHalf(c, uint32(bth1))
	return ^crcBytes(c, pkt[BTHSize:])
}

// PutICRC computes the invariant CRC of all but the last ICRCSize bytes of pktWithRoom and stores
// it in these. Preconditions: as ICRC.
func PutICRC(p *Path, ident uint16, pktWithRoom []byte) {
	n := len(pktWithRoom) - ICRCSize
	binary.LittleEndian.PutUint32(pktWithRoom[n:], ICRC(p, ident, pktWithRoom[:n]))
}

// VerifyIdent reports whether the last ICRCSize bytes of pktWithICRC are the invariant CRC of the
// rest, when the IPv4 identification is known. It is false for a packet that is too short, too
// long, or no multiple of four bytes, and for an invalid path.
func VerifyIdent(p *Path, ident uint16, pktWithICRC []byte) bool {
	if !verifiable(p, pktWithICRC) {
		return false
	}
	n := len(pktWithICRC) - ICRCSize
	return ICRC(p, ident, pktWithICRC[:n]) == binary.LittleEndian.Uint32(pktWithICRC[n:])
}

// Verify is VerifyIdent for a receiver that cannot see the IPv4 identification, as behind a UDP
// socket: it finds the one identification that makes the CRC right, if there is any. This costs
// 16 of the CRC's 32 bits: of random corruptions one in 65,536 is accepted, though none of a single
// bit. So where the sender's identifications are known, compare ident with what is expected: the
// two together are the full check. Over IPv6 the check is full, and ident is 0. A packet without
// DF, which RoCEv2 does not allow, is not accepted.
func Verify(p *Path, pktWithICRC []byte) (ident uint16, ok bool) {
	if !verifiable(p, pktWithICRC) {
		return 0, false
	}
	n := len(pktWithICRC) - ICRCSize
	diff := ICRC(p, 0, pktWithICRC[:n]) ^ binary.LittleEndian.Uint32(pktWithICRC[n:])
	if diff == 0 {
		return 0, true
	}
	if !p.IsIPv4() {
		return 0, false
	}
	return recoverIdent(diff, n)
}

func verifiable(p *Path, pkt []byte) bool {
	return len(pkt) >= BTHSize+ICRCSize && len(pkt) <= MaxPacketSize && len(pkt)&3 == 0 && p.Valid()
}

// addr4 returns the IPv4 addresses of p; zeros for a Dst of the wrong family, which is a fault of
// the caller that must not become a panic.
func addr4(p *Path) (src, dst [4]byte) {
	src = p.Src.As4()
	if p.Dst.Is4() {
		dst = p.Dst.As4()
	}
	return src, dst
}

func swap16(v uint16) uint16 { return v>>8 | v<<8 }

// crcTable is the slicing-by-8 table of the polynomial: crcTable[k][b] is what byte b contributes
// when k more bytes follow it in the word.
var crcTable = buildCRCTable()

// crcAfterFF is the state, not inverted, after the eight bytes FF.
var crcAfterFF = crcWord(^uint32(0), ^uint64(0))

func buildCRCTable() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for b := range t[0] {
		for k := 1; k < 8; k++ {
			last := t[k-1][b]
			t[k][b] = t[0][byte(last)] ^ last>>8
		}
	}
	return t
}

// crcWord advances the state c, not inverted, by eight bytes, the lowest of w first. The prefix
// goes through here in registers: handed to hash/crc32 as bytes it would escape to the heap.
func crcWord(c uint32, w uint64) uint32 {
	w ^= uint64(c)
	return crcTable[7][byte(w)] ^ crcTable[6][byte(w>>8)] ^ crcTable[5][byte(w>>16)] ^ crcTable[4][byte(w>>24)] ^
		crcTable[3][byte(w>>32)] ^ crcTable[2][byte(w>>40)] ^ crcTable[1][byte(w>>48)] ^ crcTable[0][byte(w>>56)]
}

// crcHalf is crcWord for four bytes.
func crcHalf(c uint32, w uint32) uint32 {
	w ^= c
	return crcTable[3][byte(w)] ^ crcTable[2][byte(w>>8)] ^ crcTable[1][byte(w>>16)] ^ crcTable[0][byte(w>>24)]
}

// crcBytes advances the state c, not inverted, by b, a multiple of four bytes or not. hash/crc32
// works with vectors from 64 bytes on, and in blocks of 16; what does not fill these is done here.
func crcBytes(c uint32, b []byte) uint32 {
	odd := len(b)
	if odd >= 64 {
		odd &= 15
	}
	head, blocks := b[:odd], b[odd:]
	for ; len(head) >= 8; head = head[8:] {
		c = crcWord(c, binary.LittleEndian.Uint64(head))
	}
	if len(head) >= 4 {
		c = crcHalf(c, binary.LittleEndian.Uint32(head))
		head = head[4:]
	}
	for _, v := range head {
		c = crcTable[0][byte(c)^v] ^ c>>8
	}
	if len(blocks) > 0 {
		c = ^crc32.Update(^c, crc32.IEEETable, blocks)
	}
	return c
}
