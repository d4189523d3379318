// Package roce is the codec of RoCEv2 packets: InfiniBand transport headers over UDP and IP.
//
// Headers are typed byte slices over the packet's own bytes, with a Fields struct for encoding.
// One table describes every opcode. Everything here is a pure function of its arguments, safe for
// concurrent use, and nothing that is called for a packet allocates.
//
// Sources: InfiniBand Architecture Specification, volume 1, chapter 9 (transport layer), and its
// annex A17 (RoCEv2).
package roce

// Port is the UDP destination port of RoCEv2, assigned by IANA and required by annex A17.
const Port = 4791

// Sizes in bytes.
const (
	// ICRCSize is the size of the invariant CRC, which follows the pad.
	ICRCSize = 4
	// MaxHeaderSize bounds the BTH and the extended headers of any opcode. The longest is an
	// atomic request; the bound has room for the header that the XRC transport puts before it.
	MaxHeaderSize = BTHSize + XRCETHSize + AtomicETHSize
	// MaxPayload is the largest payload of one packet: the largest path MTU.
	MaxPayload = 4096
	// MaxPacketSize bounds a packet from the BTH to the ICRC, both included.
	MaxPacketSize = MaxHeaderSize + MaxPayload + ICRCSize
)
