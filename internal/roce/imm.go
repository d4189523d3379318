package roce

import "encoding/binary"

// ImmDtSize is the size of the immediate data header in bytes.
const ImmDtSize = 4

// ImmDt is the immediate data header (9.3). Its methods need ImmDtSize bytes.
type ImmDt []byte

// ImmDtFields are the fields of an ImmDt.
type ImmDtFields struct {
	Imm uint32 // the four bytes read as a big-endian number; the verbs ABI keeps their order
}

// Imm returns the immediate data, read as a big-endian number.
func (h ImmDt) Imm() uint32 { return binary.BigEndian.Uint32(h) }

// Fields returns all fields.
func (h ImmDt) Fields() ImmDtFields { return ImmDtFields{Imm: h.Imm()} }

// Encode writes all fields.
func (h ImmDt) Encode(f *ImmDtFields) { binary.BigEndian.PutUint32(h, f.Imm) }
