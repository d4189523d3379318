// Package link is the port of the NIC: it carries RoCEv2 packets in batches.
// Its modules are udp (sockets), pipe (in memory), and the decorators fault
// and capture, which wrap any other Link.
package link

import (
	"fmt"
	"unsafe"

	"rnic/internal/roce"
)

// Packet is one RoCEv2 packet with what its IP and UDP headers say.
type Packet struct {
	Path roce.Path

	// Data of a packet to send is BTH..pad followed by roce.ICRCSize bytes
	// of room for the ICRC, which the link fills in: only the link knows the
	// IPv4 identification that the ICRC covers. Data of a received packet is
	// BTH..pad: the ICRC has been checked and cut off.
	Data []byte

	// QP, on sending, is the queue pair that the packet comes from, 0 if that is not known. Fault injection
	// and filters use it.
	QP uint32

	// Corrupt, on sending, when not zero: bit Corrupt-1 of Data is inverted
	// after the ICRC was computed. Fault injection uses it.
	Corrupt uint32
}

// TrafficClassECN is the part of roce.Path.TOS that is the ECN field (RFC 3168, 5).
const TrafficClassECN = 0x03

// MinPacketSize is the smallest packet a Link ever hands up: a BTH.
const MinPacketSize = 12

// Stats are the counters of a Link since it was made. Bytes are those of
// BTH..ICRC, without IP and UDP headers.
type Stats struct {
	Sent, Received           uint64
	SentBytes, ReceivedBytes uint64
	BadICRC                  uint64 // received with a wrong ICRC and dropped
	Malformed                uint64 // received, too short or not with a usable address, and dropped
	SendErrors               uint64 // accepted by Send but refused by the network: lost
	SocketDrops              uint64 // received by the system and dropped for want of buffer
}

// Add adds o's counters to s's.
func (s *Stats) Add(o Stats) {
	s.Sent += o.Sent
	s.Received += o.Received
	s.SentBytes += o.SentBytes
	s.ReceivedBytes += o.ReceivedBytes
	s.BadICRC += o.BadICRC
	s.Malformed += o.Malformed
	s.SendErrors += o.SendErrors
	s.SocketDrops += o.SocketDrops
}

// Link sends and receives packets in batches. A Link is used by one goroutine
// at a time, except for Stats, which may be called at any time.
//
// A packet that Send accepted may still be lost, as on any network: the
// transport above retransmits. An error that Send or Recv returns means that
// the link itself is of no further use.
type Link interface {
	// Send sends pkts in order and returns how many it accepted; fewer than
	// len(pkts) with a nil error means that the link is full for now and the
	// rest must be offered again. A packet that the network refuses (too
	// long, no route) counts as accepted and is counted in SendErrors.
	//
	// Packets that follow each other in pkts and lie back to back in one
	// array (see Contiguous), with equal Path and equal length, of which the
	// last may be shorter, go to the system as one.
	//
	// Data may be overwritten as soon as Send returns. Send itself writes
	// the ICRC into the last four bytes of every Data: no two packets of one
	// Send may share memory.
	Send(pkts []Packet) (int, error)

	// Recv fills pkts from the front and returns how many it filled; it never
	// blocks. Data refers to the link's own buffers and is valid until the
	// next Recv.
	Recv(pkts []Packet) (int, error)

	// FDs are the descriptors that become readable when Recv has something;
	// nil for links in memory.
	FDs() []int

	// NextDelayed is the time, on the clock of SetNow, at which the link
	// has something to do of its own: Send (with no packets, if need be) and
	// Recv must be called again then. 0: nothing is pending.
	NextDelayed() int64

	// SetNow tells the link the time: monotonic nanoseconds. Links that
	// delay packets read no clock of their own.
	SetNow(now int64)

	Stats() Stats
	Close() error
}

// Contiguous reports whether b begins where a ends, in the same array.
func Contiguous(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 || cap(a)-len(a) < len(b) {
		return false
	}
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(a)), len(a)) == unsafe.Pointer(unsafe.SliceData(b))
}

// Error says what was attempted, on which link, why it failed and what to do.
type Error struct {
	Op   string // "open", "send", "receive"
	Link string // "udp 192.0.2.1:4791"
	Hint string // what to do about it, may be empty
	Err  error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s link %s: %v", e.Op, e.Link, e.Err)
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }
