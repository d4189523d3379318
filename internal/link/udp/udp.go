// Package udp is the Link over UDP sockets: it works unprivileged everywhere.
//
// RoCEv2 packets go to UDP port 4791. The ICRC covers the IPv4
// identification, which a UDP socket neither sets nor shows; what Linux puts
// there is known for the one kind of socket used here (unconnected, DF by MTU
// discovery): segment i of a segmented send carries i, anything else 0.
// Received packets have their identification recovered from the ICRC, see
// identification.go. Other systems have Plain alone, see plain.go.
//
// The UDP source port on the wire is always the socket's own, 4791: an
// unconnected socket cannot send from another one, whatever Path.SrcPort
// says. The ICRC is computed with the true port. Receivers accept any source
// port (InfiniBand Architecture, annex A17.3: it is for load balancing only).
package udp

import (
	"net/netip"
	"sync/atomic"

	"rnic/internal/link"
	"rnic/internal/roce"
)

const (
	// DefaultSocketBuffer is what a Linux socket has without asking
	// (net.core.rmem_default): the size with which everything must work.
	DefaultSocketBuffer = 212992

	// wantedSocketBuffer is asked for; the system cuts it to net.core.rmem_max.
	wantedSocketBuffer = 4 << 20

	// maxSegments and maxSendBytes bound one UDP_SEGMENT send: the kernel's
	// UDP_MAX_SEGMENTS of before Linux 6.9, and the longest IPv4 packet with
	// some air for headers.
	maxSegments  = 64
	maxSendBytes = 65000

	// defaultTTL is what goes out when Path.TTL is 0, as with Soft-RoCE.
	defaultTTL = 64
)

// Config says which sockets to open and what not to use.
type Config struct {
	// Addrs are the local addresses to bind, one socket each. Empty: all of
	// the machine, that is one IPv4 and one IPv6 socket, of which one may be
	// missing where the system has no such protocol.
	Addrs []netip.Addr

	// Port is the local UDP port, roce.Port when 0. Packets always go to
	// roce.Port: other ports are for tests.
	Port uint16

	// Interfaces says which interface has which local address. Packets to a
	// multicast group leave by that of their source address; for IPv6 the
	// system would not find it out. May be nil.
	Interfaces map[netip.Addr]int

	// Optional leaves out an address that cannot be bound because it is not
	// there (yet), while others can. Of Plain only.
	Optional bool

	// KeepSocketBuffers leaves socket buffers at the system's default
	// instead of asking for 4 MiB.
	KeepSocketBuffers bool

	// These do without what the kernel may lack, for tests. The link finds
	// out for itself what is missing.
	NoSegment bool // UDP_SEGMENT
	NoGRO     bool // UDP_GRO
	NoMmsg    bool // sendmmsg and recvmmsg

	shared  bool // the sockets are of a Group
	follows bool // and not its first
}

func (c *Config) port() uint16 {
	if c.Port == 0 {
		return roce.Port
	}
	return c.Port
}

// Features are what the link uses of what the kernel offers.
type Features struct {
	Segment bool // UDP_SEGMENT on sending
	GRO     bool // UDP_GRO on receiving
	Mmsg    bool // several messages a call
}

type counters struct {
	sent, received           atomic.Uint64
	sentBytes, receivedBytes atomic.Uint64
	badICRC, malformed       atomic.Uint64
	sendErrors, drops        atomic.Uint64
}

func (c *counters) stats() link.Stats {
	return link.Stats{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		BadICRC: c.badICRC.Load(), Malformed: c.malformed.Load(), SendErrors: c.sendErrors.Load(),
		SocketDrops: c.drops.Load(),
	}
}

// minPacket is the shortest datagram that can be a packet.
const minPacket = link.MinPacketSize + roce.ICRCSize

// invert inverts the bit of p that Corrupt names; doing it twice undoes it.
func invert(p *link.Packet) {
	bit := p.Corrupt - 1
	if at := int(bit / 8); at < len(p.Data) {
		p.Data[at] ^= 1 << (bit % 8)
	}
}
