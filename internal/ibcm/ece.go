package ibcm

// ECE is what a side of a connection says of what its NIC can do beyond the specification (enhanced connection establishment): who
// defines it, and in a word what. It means something only between two of one vendor; others pass it on. In messages the vendor stands in what were
// reserved fields (vol. 1, 12.6.5, 12.6.8, 12.11.2), the word in the attribute modifier of the header (13.4.3).
type ECE struct {
	Vendor  uint32 // 24 bits: the IEEE's number of the vendor; 0: nothing is said
	Options uint32
}

// offAttrMod is where the attribute modifier is in the header of a MAD.
const offAttrMod = 20

func (m mad) options() uint32 { return be.Uint32(m[offAttrMod:]) }

// setREQECE writes it into a REQ.
func (m mad) setREQECE(e ECE) {
	put24(m.body()[5:], e.Vendor)
	be.PutUint32(m[offAttrMod:], e.Options)
}

func (m mad) reqECE() ECE { return ECE{Vendor: get24(m.body()[5:]), Options: m.options()} }

// setREPECE writes it into a REP, which has a byte of the vendor behind each number of 24 bits.
func (m mad) setREPECE(e ECE) {
	b := m.body()
	b[15], b[19], b[23] = byte(e.Vendor>>16), byte(e.Vendor>>8), byte(e.Vendor)
	be.PutUint32(m[offAttrMod:], e.Options)
}

func (m mad) repECE() ECE {
	b := m.body()
	return ECE{Vendor: uint32(b[15])<<16 | uint32(b[19])<<8 | uint32(b[23]), Options: m.options()}
}

// setSIDRREPECE writes it into a SIDR_REP.
func (m mad) setSIDRREPECE(e ECE) {
	b := m.body()
	be.PutUint16(b[6:], uint16(e.Vendor>>8))
	b[11] = byte(e.Vendor)
	be.PutUint32(m[offAttrMod:], e.Options)
}
