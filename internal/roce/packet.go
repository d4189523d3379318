package roce

import "errors"

// What is wrong with a packet that Decode refuses. A receiver drops such a packet silently (9.6).
var (
	ErrShort   = errors.New("roce: packet is shorter than its headers")
	ErrLong    = errors.New("roce: packet is longer than the largest path MTU or its opcode allows")
	ErrAlign   = errors.New("roce: packet with its pad is not a multiple of four bytes")
	ErrVersion = errors.New("roce: unknown transport header version")
	ErrOpcode  = errors.New("roce: undefined opcode")
	ErrPad     = errors.New("roce: more pad than payload")
)

// Packet is a decoded packet: slices of the bytes that were given to Decode.
type Packet struct {
	Data    []byte  // BTH to pad
	BTH     BTH     // the first BTHSize bytes
	Info    *OpInfo // never nil after Decode
	Payload []byte  // without the pad
}

// Decode checks pkt, from the BTH to the pad without the ICRC, and describes it in p. After nil,
// the headers of the opcode are all there, the version is 0, and the payload has at most
// MaxPayload bytes. The order of packets in a message and the path MTU are not checked here.
// After an error, one of the Err values of this package, p is unchanged.
func Decode(pkt []byte, p *Packet) error {
	if len(pkt) < BTHSize {
		return ErrShort
	}
	bth := BTH(pkt[:BTHSize:BTHSize])
	if bth.TVer() != 0 {
		return ErrVersion
	}
	info := bth.Opcode().Info()
	if info == nil {
		return ErrOpcode
	}
	body := len(pkt) - info.HeaderLen
	if body < 0 {
		return ErrShort
	}
	if body&3 != 0 {
		return ErrAlign
	}
	if body > MaxPayload || body > 0 && !info.Payload {
		return ErrLong
	}
	pad := int(bth.PadCount())
	if pad > body {
		return ErrPad
	}
	p.Data, p.BTH, p.Info = pkt, bth, info
	p.Payload = pkt[info.HeaderLen : len(pkt)-pad : len(pkt)-pad]
	return nil
}

// The extended headers, nil where the opcode has none.

// RETH returns the RDMA header.
func (p *Packet) RETH() RETH { return p.Info.RETH(p.Data) }

// AETH returns the acknowledge header.
func (p *Packet) AETH() AETH { return p.Info.AETH(p.Data) }

// AtomicETH returns the atomic request header.
func (p *Packet) AtomicETH() AtomicETH { return p.Info.AtomicETH(p.Data) }

// AtomicAckETH returns the atomic response header.
func (p *Packet) AtomicAckETH() AtomicAckETH { return p.Info.AtomicAckETH(p.Data) }

// ImmDt returns the immediate data.
func (p *Packet) ImmDt() ImmDt { return p.Info.ImmDt(p.Data) }

// SACK returns the map of a SelectiveAck, nil if there is none.
func (p *Packet) SACK() SACK { return p.Info.SACK(p.Data) }

// IETH returns the invalidate header, nil if there is none.
func (p *Packet) IETH() IETH { return p.Info.IETH(p.Data) }

// XRCETH returns the header of XRC.
func (p *Packet) XRCETH() XRCETH { return p.Info.XRCETH(p.Data) }

// FETH returns the flush header.
func (p *Packet) FETH() FETH { return p.Info.FETH(p.Data) }

// DETH returns the datagram header.
func (p *Packet) DETH() DETH { return p.Info.DETH(p.Data) }

// PadCount returns the bytes of pad, 0 to 3, that a payload of n bytes needs.
func PadCount(n int) uint8 { return uint8(-n) & 3 }
