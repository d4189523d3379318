package roce

import (
	"hash/crc32"
	"sync/atomic"
)

// Recovery of the IPv4 identification from the CRC.
//
// The CRC is an affine function of the message, so the CRCs of two packets that differ only in
// the identification differ by a linear image of it: the two bytes, as a polynomial over GF(2),
// times x to the power of the number of bits behind them, modulo the CRC's polynomial. That power
// depends only on the packet's length. The map has an inverse on 32 bits: divide by the power of
// x. The result is an identification if its other 16 bits are zero; if not, the packet is corrupt.

// unshift divides by a fixed power of x, four bits of the dividend at a time.
type unshift [8][16]uint32

// unshifts holds the tables by packet length / 4; each is made when the first packet of its length
// comes. At most 512 bytes for each of the lengths that Verify accepts.
var unshifts [MaxPacketSize/4 + 1]atomic.Pointer[unshift]

// recoverIdent returns the identification of an IPv4 packet with n bytes from the BTH to the pad
// whose received CRC is the one for identification 0 XOR diff.
func recoverIdent(diff uint32, n int) (ident uint16, ok bool) {
	slot := &unshifts[n/4]
	u := slot.Load()
	if u == nil {
		u = newUnshift(bytesBehindIdent(n))
		slot.Store(u)
	}
	v := u[0][diff&15] ^ u[1][diff>>4&15] ^ u[2][diff>>8&15] ^ u[3][diff>>12&15] ^
		u[4][diff>>16&15] ^ u[5][diff>>20&15] ^ u[6][diff>>24&15] ^ u[7][diff>>28]
	return swap16(uint16(v)), v>>16 == 0
}

// bytesBehindIdent is the number of bytes that the CRC covers behind the identification, which
// ends at byte 6 of the IPv4 header.
func bytesBehindIdent(n int) int { return IPv4HeaderSize - 6 + UDPHeaderSize + n }

// newUnshift makes the table that takes the difference of two CRCs back by so many bytes and the
// two of the identification. What is left is the state that these two bytes were added to.
func newUnshift(bytes int) *unshift {
	const one = 1 << 31 // the polynomial 1: the state's highest bit is the coefficient of x^0
	power := uint32(one)
	for range bytes + 2 {
		power = crcBack(power)
	}
	u := new(unshift)
	for bit := 31; bit >= 0; bit-- { // the image of this bit alone is power
		for v := range uint32(16) {
			if v>>(bit&3)&1 != 0 {
				u[bit/4][v] ^= power
			}
		}
		power = power>>1 ^ crc32.IEEE&-(power&1) // times x
	}
	return u
}

// crcBack undoes the step of one zero byte on the state: c = table[b] ^ c' >> 8 with b the low byte
// of c'. The upper bytes of the table's entries differ, so the top byte of c tells b.
func crcBack(c uint32) uint32 {
	b := crcBackIndex[c>>24]
	return (c^crcTable[0][b])<<8 | uint32(b)
}

// crcBackIndex finds an entry of crcTable[0] by its top byte.
var crcBackIndex = buildCRCBackIndex()

func buildCRCBackIndex() (t [256]byte) {
	for b, v := range crcTable[0] {
		t[v>>24] = byte(b)
	}
	return t
}
