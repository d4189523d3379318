// Package capture is a decorator that records a Link's packets as pcapng, for
// tshark and Wireshark. Links carry no Ethernet and IP headers, and links in
// memory no ICRC: these are made up from the packets' paths, the ICRC right.
//
// Around a fault decorator it shows what the NIC sent and got; inside of one,
// what the wire saw, corrupt packets with a wrong ICRC.
package capture

import (
	"time"

	"rnic/internal/link"
	"rnic/internal/roce"
)

// Config says how to record one link.
type Config struct {
	// Name is shown as the interface's name.
	Name string

	// SrcPort, when not 0, is the UDP source port of what is sent,
	// whatever its Path says: link/udp always sends from its own.
	SrcPort uint16

	// Clock gives unix time in nanoseconds, the system's when nil.
	Clock func() int64
}

// Link records what goes through the Link inside it.
type Link struct {
	link.Link
	file    *File
	iface   uint32
	srcPort uint16
	clock   func() int64
}

// New wraps inner. Closing the result closes inner, not file.
func New(inner link.Link, file *File, cfg Config) *Link {
	clock := cfg.Clock
	if clock == nil {
		clock = func() int64 { return time.Now().UnixNano() }
	}
	return &Link{Link: inner, file: file, iface: file.addInterface(cfg.Name), srcPort: cfg.SrcPort, clock: clock}
}

// Send sends and records what was accepted, with the time before sending: a
// reply never seems to be earlier than what it replies to.
func (l *Link) Send(pkts []link.Packet) (int, error) {
	if len(pkts) == 0 {
		return l.Link.Send(pkts)
	}
	now := l.clock()
	n, err := l.Link.Send(pkts)
	if n > 0 {
		l.file.record(l.iface, now, outbound, l.srcPort, pkts[:n], roce.ICRCSize)
	}
	return n, err
}

// Recv receives and records.
func (l *Link) Recv(pkts []link.Packet) (int, error) {
	n, err := l.Link.Recv(pkts)
	if n > 0 {
		l.file.record(l.iface, l.clock(), inbound, 0, pkts[:n], 0)
	}
	return n, err
}

// Notify implements link.Notifier.
func (l *Link) Notify(f func()) bool { return link.Notify(l.Link, f) }

// Close closes the link inside and writes out what is buffered. An error of
// the file is the file's to report, at its Close.
func (l *Link) Close() error {
	_ = l.file.Flush()
	return l.Link.Close()
}
