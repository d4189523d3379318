package explain

import (
	"encoding/binary"
	"hash/crc32"

	"rnic/internal/roce"
)

// checkICRC computes the invariant CRC (annex A17) from the headers as they were captured, and compares.
func (p *Packet) checkICRC(head int, body []byte, length int) {
	if len(body) < length || len(p.ip) != head+udpHeader || head > 60 {
		return
	}
	var pseudo [8 + 60 + udpHeader + roce.BTHSize]byte
	h := append(pseudo[:0], 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	h = append(h, p.ip...)
	ip, u := h[8:], h[8+head:]
	if p.Src.Is4() {
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		ip[0], ip[1], ip[2], ip[3], ip[7] = 0x6f, 0xff, 0xff, 0xff, 0xff
	}
	u[6], u[7] = 0xff, 0xff
	h = append(h, body[:roce.BTHSize]...)
	h[len(h)-roce.BTHSize+4] = 0xff
	n := length - roce.ICRCSize
	want := crc32.Update(crc32.ChecksumIEEE(h), crc32.IEEETable, body[roce.BTHSize:n])
	got := binary.LittleEndian.Uint32(body[n:])
	if got == want {
		p.ICRC = Good
		return
	}
	p.ICRC = Bad
	p.delta = rewind(got^want, n)
}

// backwards undoes one byte of zeros: the CRC shifts right, so the byte that it was mixed with is found by the highest byte.
var backwards = func() (t [256]uint32) {
	for i, v := range crc32.IEEETable {
		t[v>>24] = v<<8 | uint32(i)
	}
	return t
}()

// rewind is the state of a CRC that n bytes of zeros turn into d. A CRC is linear: what two packets of one length
// differ by determines what their CRCs differ by, and, for as much as 32 bits, the other way round.
func rewind(d uint32, n int) uint32 {
	for range n {
		d = d<<8 ^ backwards[d>>24]
	}
	return d
}

// changedWord is the 32-bit word by which the headers differ, in the order of the wire, if the ICRC's difference delta (at the end
// of the UDP header) comes of that word alone, of which the last byte is behind bytes before that end.
func changedWord(delta uint32, behind int) (x [4]byte) {
	binary.LittleEndian.PutUint32(x[:], rewind(delta, behind+4))
	return x
}
