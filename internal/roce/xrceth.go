package roce

// XRCETHSize is the size of the extended header of XRC in bytes.
const XRCETHSize = 4

// XRCETH is the extended transport header of XRC (annex A14): the shared receive queue that a request is
// for. It lies right behind the BTH of every request, and of no response. Its methods need XRCETHSize bytes.
type XRCETH []byte

// XRCETHFields are the fields of an XRCETH. Reserved bits are sent as zero and ignored when received.
type XRCETHFields struct {
	SRQ uint32 // number of the shared receive queue: 24 bits
}

// SRQ returns the number of the shared receive queue.
func (h XRCETH) SRQ() uint32 { return uint32(h[1])<<16 | uint32(h[2])<<8 | uint32(h[3]) }

// Fields returns all fields.
func (h XRCETH) Fields() XRCETHFields { return XRCETHFields{SRQ: h.SRQ()} }

// Encode writes all fields.
func (h XRCETH) Encode(f *XRCETHFields) {
	h[0], h[1], h[2], h[3] = 0, byte(f.SRQ>>16), byte(f.SRQ>>8), byte(f.SRQ)
}
