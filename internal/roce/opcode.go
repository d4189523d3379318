package roce

import (
	"slices"
	"strings"
)

// Opcode is the operation code of a BTH (9.2.1): the transport in bits 7 to 5, the operation in
// bits 4 to 0.
type Opcode uint8

// Reliable connection.
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImm        Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImm        Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImm       Opcode = 0x09
	RCWriteOnly          Opcode = 0x0a
	RCWriteOnlyImm       Opcode = 0x0b
	RCReadRequest        Opcode = 0x0c
	RCReadResponseFirst  Opcode = 0x0d
	RCReadResponseMiddle Opcode = 0x0e
	RCReadResponseLast   Opcode = 0x0f
	RCReadResponseOnly   Opcode = 0x10
	RCAck                Opcode = 0x11
	RCAtomicAck          Opcode = 0x12
	RCCmpSwap            Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInv        Opcode = 0x16
	RCSendOnlyInv        Opcode = 0x17
	RCFlush              Opcode = 0x1c // annex A19
	RCAtomicWrite        Opcode = 0x1d // annex A19
)

// Unreliable connection.
const (
	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2a
	UCWriteOnlyImm Opcode = 0x2b
)

// Unreliable datagram, and the congestion notification packet of RoCEv2 (annex A17.9).
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81
)

// Extended reliable connection (annex A14).
const (
	XRCSendFirst          Opcode = 0xa0
	XRCSendMiddle         Opcode = 0xa1
	XRCSendLast           Opcode = 0xa2
	XRCSendLastImm        Opcode = 0xa3
	XRCSendOnly           Opcode = 0xa4
	XRCSendOnlyImm        Opcode = 0xa5
	XRCWriteFirst         Opcode = 0xa6
	XRCWriteMiddle        Opcode = 0xa7
	XRCWriteLast          Opcode = 0xa8
	XRCWriteLastImm       Opcode = 0xa9
	XRCWriteOnly          Opcode = 0xaa
	XRCWriteOnlyImm       Opcode = 0xab
	XRCReadRequest        Opcode = 0xac
	XRCReadResponseFirst  Opcode = 0xad
	XRCReadResponseMiddle Opcode = 0xae
	XRCReadResponseLast   Opcode = 0xaf
	XRCReadResponseOnly   Opcode = 0xb0
	XRCAck                Opcode = 0xb1
	XRCAtomicAck          Opcode = 0xb2
	XRCCmpSwap            Opcode = 0xb3
	XRCFetchAdd           Opcode = 0xb4
	XRCSendLastInv        Opcode = 0xb6
	XRCSendOnlyInv        Opcode = 0xb7
)

// Transport is the service that an opcode belongs to: its bits 7 to 5.
type Transport uint8

// The transports.
const (
	TransportRC  Transport = 0
	TransportUC  Transport = 1
	TransportUD  Transport = 3
	TransportCNP Transport = 4
	TransportXRC Transport = 5
)

// Kind is the operation that a packet takes part in.
type Kind uint8

// The kinds of packet.
const (
	KindSend Kind = iota + 1
	KindWrite
	KindReadRequest
	KindReadResponse
	KindAck
	KindAtomicAck
	KindCmpSwap
	KindFetchAdd
	KindCNP
	KindFlush
	KindAtomicWrite
	KindSelectiveAck
)

// OpInfo says what follows the BTH of an opcode and which place the packet has in its message.
// The entries of the table are shared: do not change them.
type OpInfo struct {
	Opcode    Opcode
	Name      string // as rdma-core's enum without its prefix, such as RC_RDMA_WRITE_ONLY
	Transport Transport
	Kind      Kind

	HasRETH      bool
	HasAETH      bool
	HasImm       bool
	HasIETH      bool
	HasDETH      bool
	HasAtomicETH bool
	HasAtomicAck bool
	HasFETH      bool
	HasXRCETH    bool
	HasSACK      bool

	HeaderLen int // bytes of the BTH and all extended headers

	// One of these is set for a packet of a SEND, WRITE or READ response, none for others.
	First, Middle, Last, Only bool

	Request bool // goes from the requester to the responder
	Payload bool // may carry a payload (of zero bytes, too)

	// Offsets from the start of the BTH, 0 where there is no such header.
	xrceth, deth, feth, reth, aeth, atomicETH, atomicAck, imm, ieth, sack uint8
}

// Ends reports whether the packet is the last or only one of its message.
func (i *OpInfo) Ends() bool { return i.Last || i.Only }

// Starts reports whether the packet is the first or only one of its message.
func (i *OpInfo) Starts() bool { return i.First || i.Only }

// The methods below find an extended header in a packet that starts at its BTH, to read or to
// encode it; nil if the opcode has no such header. Precondition: pkt has at least HeaderLen bytes.

// RETH returns the RDMA header in pkt.
func (i *OpInfo) RETH(pkt []byte) RETH { return header(pkt, i.reth, RETHSize) }

// AETH returns the acknowledge header in pkt.
func (i *OpInfo) AETH(pkt []byte) AETH { return header(pkt, i.aeth, AETHSize) }

// AtomicETH returns the atomic request header in pkt.
func (i *OpInfo) AtomicETH(pkt []byte) AtomicETH { return header(pkt, i.atomicETH, AtomicETHSize) }

// AtomicAckETH returns the atomic response header in pkt.
func (i *OpInfo) AtomicAckETH(pkt []byte) AtomicAckETH {
	return header(pkt, i.atomicAck, AtomicAckETHSize)
}

// ImmDt returns the immediate data in pkt.
func (i *OpInfo) ImmDt(pkt []byte) ImmDt { return header(pkt, i.imm, ImmDtSize) }

// IETH returns the invalidate header in pkt.
func (i *OpInfo) IETH(pkt []byte) IETH { return header(pkt, i.ieth, IETHSize) }

// XRCETH returns the header of XRC in pkt.
func (i *OpInfo) XRCETH(pkt []byte) XRCETH { return header(pkt, i.xrceth, XRCETHSize) }

// FETH returns the flush header in pkt.
func (i *OpInfo) FETH(pkt []byte) FETH { return header(pkt, i.feth, FETHSize) }

// SACK returns the map of a SelectiveAck in pkt.
func (i *OpInfo) SACK(pkt []byte) SACK { return header(pkt, i.sack, SACKSize) }

// DETH returns the datagram header in pkt.
func (i *OpInfo) DETH(pkt []byte) DETH { return header(pkt, i.deth, DETHSize) }

func header(pkt []byte, off uint8, size int) []byte {
	if off == 0 {
		return nil
	}
	return pkt[off : int(off)+size : int(off)+size]
}

// Info returns the entry of the opcode, nil if it is not defined.
func (op Opcode) Info() *OpInfo { return opTable[op] }

// String returns the name, or the number of an undefined opcode.
func (op Opcode) String() string {
	if i := op.Info(); i != nil {
		return i.Name
	}
	const hex = "0123456789abcdef"
	return "opcode 0x" + string([]byte{hex[op>>4], hex[op&15]})
}

// ParseOpcode finds an opcode by its name, in any case, with hyphens or underscores.
func ParseOpcode(name string) (op Opcode, ok bool) {
	name = strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	for _, i := range opTable {
		if i != nil && i.Name == name {
			return i.Opcode, true
		}
	}
	return 0, false
}

// cnpReserved is the size of the reserved bytes behind the BTH of a CNP (annex A17.9), which
// count as header here: they carry nothing.
const cnpReserved = 16

type opSet uint32

const (
	hasRETH opSet = 1 << iota
	hasAETH
	hasImm
	hasIETH
	hasDETH
	hasAtomicETH
	hasAtomicAck
	hasFETH
	hasXRCETH
	hasSACK
	isFirst
	isMiddle
	isLast
	isOnly
	isRequest
	hasPayload
)

// opDef defines an opcode.
type opDef struct {
	op   Opcode
	name string
	kind Kind
	set  opSet
}

// opDefs is the one definition of all opcodes (9.2.1, tables "OpCode field" and "Packet headers").
var opDefs = []opDef{
	{RCSendFirst, "RC_SEND_FIRST", KindSend, isFirst | isRequest | hasPayload},
	{RCSendMiddle, "RC_SEND_MIDDLE", KindSend, isMiddle | isRequest | hasPayload},
	{RCSendLast, "RC_SEND_LAST", KindSend, isLast | isRequest | hasPayload},
	{RCSendLastImm, "RC_SEND_LAST_WITH_IMMEDIATE", KindSend, isLast | isRequest | hasPayload | hasImm},
	{RCSendOnly, "RC_SEND_ONLY", KindSend, isOnly | isRequest | hasPayload},
	{RCSendOnlyImm, "RC_SEND_ONLY_WITH_IMMEDIATE", KindSend, isOnly | isRequest | hasPayload | hasImm},
	{RCWriteFirst, "RC_RDMA_WRITE_FIRST", KindWrite, isFirst | isRequest | hasPayload | hasRETH},
	{RCWriteMiddle, "RC_RDMA_WRITE_MIDDLE", KindWrite, isMiddle | isRequest | hasPayload},
	{RCWriteLast, "RC_RDMA_WRITE_LAST", KindWrite, isLast | isRequest | hasPayload},
	{RCWriteLastImm, "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", KindWrite, isLast | isRequest | hasPayload | hasImm},
	{RCWriteOnly, "RC_RDMA_WRITE_ONLY", KindWrite, isOnly | isRequest | hasPayload | hasRETH},
	{RCWriteOnlyImm, "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", KindWrite, isOnly | isRequest | hasPayload | hasRETH | hasImm},
	{RCReadRequest, "RC_RDMA_READ_REQUEST", KindReadRequest, isRequest | hasRETH},
	{RCReadResponseFirst, "RC_RDMA_READ_RESPONSE_FIRST", KindReadResponse, isFirst | hasPayload | hasAETH},
	{RCReadResponseMiddle, "RC_RDMA_READ_RESPONSE_MIDDLE", KindReadResponse, isMiddle | hasPayload},
	{RCReadResponseLast, "RC_RDMA_READ_RESPONSE_LAST", KindReadResponse, isLast | hasPayload | hasAETH},
	{RCReadResponseOnly, "RC_RDMA_READ_RESPONSE_ONLY", KindReadResponse, isOnly | hasPayload | hasAETH},
	{RCAck, "RC_ACKNOWLEDGE", KindAck, hasAETH},
	{RCAtomicAck, "RC_ATOMIC_ACKNOWLEDGE", KindAtomicAck, hasAETH | hasAtomicAck},
	{RCCmpSwap, "RC_COMPARE_SWAP", KindCmpSwap, isRequest | hasAtomicETH},
	{RCFetchAdd, "RC_FETCH_ADD", KindFetchAdd, isRequest | hasAtomicETH},
	{RCSendLastInv, "RC_SEND_LAST_WITH_INVALIDATE", KindSend, isLast | isRequest | hasPayload | hasIETH},
	{RCSendOnlyInv, "RC_SEND_ONLY_WITH_INVALIDATE", KindSend, isOnly | isRequest | hasPayload | hasIETH},
	{RCFlush, "RC_FLUSH", KindFlush, isRequest | hasFETH | hasRETH},
	{RCAtomicWrite, "RC_ATOMIC_WRITE", KindAtomicWrite, isRequest | hasPayload | hasRETH},

	{UCSendFirst, "UC_SEND_FIRST", KindSend, isFirst | isRequest | hasPayload},
	{UCSendMiddle, "UC_SEND_MIDDLE", KindSend, isMiddle | isRequest | hasPayload},
	{UCSendLast, "UC_SEND_LAST", KindSend, isLast | isRequest | hasPayload},
	{UCSendLastImm, "UC_SEND_LAST_WITH_IMMEDIATE", KindSend, isLast | isRequest | hasPayload | hasImm},
	{UCSendOnly, "UC_SEND_ONLY", KindSend, isOnly | isRequest | hasPayload},
	{UCSendOnlyImm, "UC_SEND_ONLY_WITH_IMMEDIATE", KindSend, isOnly | isRequest | hasPayload | hasImm},
	{UCWriteFirst, "UC_RDMA_WRITE_FIRST", KindWrite, isFirst | isRequest | hasPayload | hasRETH},
	{UCWriteMiddle, "UC_RDMA_WRITE_MIDDLE", KindWrite, isMiddle | isRequest | hasPayload},
	{UCWriteLast, "UC_RDMA_WRITE_LAST", KindWrite, isLast | isRequest | hasPayload},
	{UCWriteLastImm, "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE", KindWrite, isLast | isRequest | hasPayload | hasImm},
	{UCWriteOnly, "UC_RDMA_WRITE_ONLY", KindWrite, isOnly | isRequest | hasPayload | hasRETH},
	{UCWriteOnlyImm, "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", KindWrite, isOnly | isRequest | hasPayload | hasRETH | hasImm},

	{UDSendOnly, "UD_SEND_ONLY", KindSend, isOnly | isRequest | hasPayload | hasDETH},
	{UDSendOnlyImm, "UD_SEND_ONLY_WITH_IMMEDIATE", KindSend, isOnly | isRequest | hasPayload | hasDETH | hasImm},

	{CNP, "CNP", KindCNP, 0},
	{SelectiveAck, "SELECTIVE_ACKNOWLEDGE", KindSelectiveAck, hasAETH | hasSACK},
}

var opTable = buildOpTable()

// xrcDefs are the opcodes of XRC: the operations of RC, with an XRCETH in requests (annex A14).
func xrcDefs() (defs []opDef) {
	for _, d := range opDefs {
		if d.op > RCSendOnlyInv {
			continue
		}
		if d.set&isRequest != 0 {
			d.set |= hasXRCETH
		}
		d.op, d.name = d.op|XRCSendFirst, "X"+d.name
		defs = append(defs, d)
	}
	return defs
}

func buildOpTable() (table [256]*OpInfo) {
	for _, d := range slices.Concat(opDefs, xrcDefs()) {
		i := &OpInfo{
			Opcode: d.op, Name: d.name, Transport: Transport(d.op >> 5), Kind: d.kind,
			HasRETH: d.set&hasRETH != 0, HasAETH: d.set&hasAETH != 0, HasImm: d.set&hasImm != 0,
			HasIETH: d.set&hasIETH != 0, HasXRCETH: d.set&hasXRCETH != 0, HasDETH: d.set&hasDETH != 0,
			HasAtomicETH: d.set&hasAtomicETH != 0, HasAtomicAck: d.set&hasAtomicAck != 0, HasFETH: d.set&hasFETH != 0, HasSACK: d.set&hasSACK != 0,
			First: d.set&isFirst != 0, Middle: d.set&isMiddle != 0, Last: d.set&isLast != 0, Only: d.set&isOnly != 0,
			Request: d.set&isRequest != 0, Payload: d.set&hasPayload != 0,
		}
		i.placeHeaders()
		table[d.op] = i
	}
	return table
}

// placeHeaders sets the offsets in the order in which headers follow each other on the wire.
func (i *OpInfo) placeHeaders() {
	at := BTHSize
	place := func(has bool, off *uint8, size int) {
		if has {
			*off = uint8(at)
			at += size
		}
	}
	place(i.HasXRCETH, &i.xrceth, XRCETHSize)
	place(i.HasDETH, &i.deth, DETHSize)
	place(i.HasFETH, &i.feth, FETHSize)
	place(i.HasRETH, &i.reth, RETHSize)
	place(i.HasAtomicETH, &i.atomicETH, AtomicETHSize)
	place(i.HasAETH, &i.aeth, AETHSize)
	place(i.HasAtomicAck, &i.atomicAck, AtomicAckETHSize)
	place(i.HasImm, &i.imm, ImmDtSize)
	place(i.HasIETH, &i.ieth, IETHSize)
	place(i.HasSACK, &i.sack, SACKSize)
	if i.Kind == KindCNP {
		at += cnpReserved
	}
	i.HeaderLen = at
}
