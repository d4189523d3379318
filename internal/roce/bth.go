package roce

import "encoding/binary"

// BTHSize is the size of the base transport header in bytes.
const BTHSize = 12

const (
	bthOpcode = 0
	bthFlags  = 1 // SE, M, PadCnt (2), TVer (4)
	bthPKey   = 2
	bthECN    = 4 // F, B, reserved (6); masked in the ICRC
	bthDestQP = 5
	bthAck    = 8 // A, reserved (7)
	bthPSN    = 9
)

const (
	bthSE       = 0x80
	bthMigReq   = 0x40
	bthPadShift = 4
	bthTVerMask = 0x0f
	bthFECN     = 0x80
	bthBECN     = 0x40
	bthAckReq   = 0x80
)

// BTH is a base transport header (9.2), the first in every packet. Its methods need BTHSize bytes.
type BTH []byte

// BTHFields are the fields of a BTH. Reserved bits are sent as zero and ignored when received.
type BTHFields struct {
	Opcode    Opcode
	Solicited bool   // SE: solicited event
	MigReq    bool   // M: migration state
	PadCount  uint8  // bytes of pad behind the payload, 0 to 3
	TVer      uint8  // transport header version, 0
	PKey      uint16 // partition key
	FECN      bool   // forward congestion notification
	BECN      bool   // backward congestion notification
	DestQP    uint32 // destination queue pair, 24 bits
	AckReq    bool   // A: the responder is to schedule an acknowledge
	PSN       PSN
}

// Opcode returns the operation code.
func (b BTH) Opcode() Opcode { return Opcode(b[bthOpcode]) }

// Solicited reports the SE bit: the receiver's completion is a solicited one.
func (b BTH) Solicited() bool { return b[bthFlags]&bthSE != 0 }

// MigReq reports the M bit.
func (b BTH) MigReq() bool { return b[bthFlags]&bthMigReq != 0 }

// PadCount returns the number of pad bytes, 0 to 3.
func (b BTH) PadCount() uint8 { return b[bthFlags] >> bthPadShift & 3 }

// TVer returns the transport header version.
func (b BTH) TVer() uint8 { return b[bthFlags] & bthTVerMask }

// PKey returns the partition key.
func (b BTH) PKey() uint16 { return binary.BigEndian.Uint16(b[bthPKey:]) }

// FECN reports the forward congestion notification bit.
func (b BTH) FECN() bool { return b[bthECN]&bthFECN != 0 }

// BECN reports the backward congestion notification bit.
func (b BTH) BECN() bool { return b[bthECN]&bthBECN != 0 }

// DestQP returns the destination queue pair number, 24 bits.
func (b BTH) DestQP() uint32 { return be24(b[bthDestQP:]) }

// AckReq reports the A bit.
func (b BTH) AckReq() bool { return b[bthAck]&bthAckReq != 0 }

// PSN returns the packet sequence number.
func (b BTH) PSN() PSN { return PSN(be24(b[bthPSN:])) }

// Fields returns all fields.
func (b BTH) Fields() BTHFields {
	return BTHFields{
		Opcode: b.Opcode(), Solicited: b.Solicited(), MigReq: b.MigReq(), PadCount: b.PadCount(), TVer: b.TVer(),
		PKey: b.PKey(), FECN: b.FECN(), BECN: b.BECN(), DestQP: b.DestQP(), AckReq: b.AckReq(), PSN: b.PSN(),
	}
}

// Encode writes all fields; bits of a value beyond its field are dropped.
func (b BTH) Encode(f *BTHFields) {
	_ = b[BTHSize-1]
	b[bthOpcode] = byte(f.Opcode)
	b[bthFlags] = flag(f.Solicited, bthSE) | flag(f.MigReq, bthMigReq) | f.PadCount&3<<bthPadShift | f.TVer&bthTVerMask
	binary.BigEndian.PutUint16(b[bthPKey:], f.PKey)
	b[bthECN] = flag(f.FECN, bthFECN) | flag(f.BECN, bthBECN)
	putBE24(b[bthDestQP:], f.DestQP)
	b[bthAck] = flag(f.AckReq, bthAckReq)
	putBE24(b[bthPSN:], uint32(f.PSN))
}

// SetOpcode sets the operation code.
func (b BTH) SetOpcode(op Opcode) { b[bthOpcode] = byte(op) }

// SetSolicited sets the SE bit.
func (b BTH) SetSolicited(on bool) { b[bthFlags] = b[bthFlags]&^bthSE | flag(on, bthSE) }

// SetMigReq sets the M bit.
func (b BTH) SetMigReq(on bool) { b[bthFlags] = b[bthFlags]&^bthMigReq | flag(on, bthMigReq) }

// SetPadCount sets the number of pad bytes, modulo 4.
func (b BTH) SetPadCount(n uint8) { b[bthFlags] = b[bthFlags]&^(3<<bthPadShift) | n&3<<bthPadShift }

// SetPKey sets the partition key.
func (b BTH) SetPKey(key uint16) { binary.BigEndian.PutUint16(b[bthPKey:], key) }

// SetFECN sets the forward congestion notification bit.
func (b BTH) SetFECN(on bool) { b[bthECN] = b[bthECN]&^bthFECN | flag(on, bthFECN) }

// SetBECN sets the backward congestion notification bit.
func (b BTH) SetBECN(on bool) { b[bthECN] = b[bthECN]&^bthBECN | flag(on, bthBECN) }

// SetDestQP sets the destination queue pair number.
func (b BTH) SetDestQP(qpn uint32) { putBE24(b[bthDestQP:], qpn) }

// SetAckReq sets the A bit.
func (b BTH) SetAckReq(on bool) { b[bthAck] = b[bthAck]&^bthAckReq | flag(on, bthAckReq) }

// SetPSN sets the packet sequence number.
func (b BTH) SetPSN(psn PSN) { putBE24(b[bthPSN:], uint32(psn)) }

func be24(b []byte) uint32 {
	_ = b[2]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

func putBE24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

// flag returns bit if on, else 0.
func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}
