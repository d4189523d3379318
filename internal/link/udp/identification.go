package udp

import (
	"encoding/binary"
	"net/netip"

	"rnic/internal/roce"
)

// An ICRC of 32 bits from which an unknown identification of 16 bits was
// recovered checks only the other 16 bits: one corrupt packet in 65,536 would
// pass. Two things win the strength back. First, an identification that was
// expected is checked alone, with all 32 bits. Second, packets sent by this
// package never carry an identification of 64 or more, and come from port
// 4791: a source that has kept to that for a while is held to it, and then
// one corrupt packet in 2^26 passes.

const (
	// learnPackets good packets in a row with an identification below
	// maxSegments make a source strict. More than maxSegments, so that a
	// source that counts up from 0 or through 65,535 does not qualify.
	learnPackets = 2 * maxSegments

	// unlearnPackets refused in a row make a strict source an ordinary one
	// again: another machine may have taken over the address. Corruption
	// does not do this: of corrupt packets only one in 65,536 counts.
	unlearnPackets = 4

	sourceBits = 8 // of the index into the table of sources
)

// source is what is known of one sender. The zero value knows nothing.
type source struct {
	addr    netip.Addr
	small   uint16 // good packets in a row with identification < maxSegments, up to learnPackets
	refused uint16 // recoverable packets refused in a row
}

// identifications verifies received packets. It is a direct-mapped table: a
// source that loses its slot to another starts to learn again. Its size is
// fixed, whatever arrives.
type identifications struct {
	sources [1 << sourceBits]source
	next    uint16 // guess for the next packet that is received on its own
}

// slot returns the entry of addr, an IPv4 address, emptied if it was another's.
func (t *identifications) slot(addr netip.Addr) *source {
	b := addr.As4()
	h := binary.BigEndian.Uint32(b[:]) * 2654435769 // Fibonacci hashing: the top bits are the mixed ones
	s := &t.sources[h>>(32-sourceBits)]
	if s.addr != addr {
		*s = source{addr: addr}
	}
	return s
}

// verify reports whether the ICRC of pkt (BTH .. ICRC), received on path, is
// right, and with which identification; guess is the one to try first.
//
// Preconditions: pkt holds at least a BTH and an ICRC.
func (t *identifications) verify(path *roce.Path, guess uint16, pkt []byte) (uint16, bool) {
	if !path.Src.Is4() {
		return 0, roce.VerifyIdent(path, 0, pkt)
	}
	ident, expected := guess, roce.VerifyIdent(path, guess, pkt)
	if !expected {
		var ok bool
		if ident, ok = roce.Verify(path, pkt); !ok {
			return 0, false
		}
	}
	if path.SrcPort == roce.Port && !t.admit(path.Src, ident, expected) {
		return 0, false
	}
	return ident, true
}

// verifyLone is verify for a packet that was received on its own. Senders
// either repeat 0 or count: the guess follows what the last packet did.
func (t *identifications) verifyLone(path *roce.Path, pkt []byte) bool {
	ident, ok := t.verify(path, t.next, pkt)
	switch {
	case !ok:
	case ident == 0:
		t.next = 0
	default:
		t.next = ident + 1
	}
	return ok
}

// admit applies what is known of the source of a packet whose ICRC is right
// with identification ident, and learns from it.
func (t *identifications) admit(addr netip.Addr, ident uint16, expected bool) bool {
	s := t.slot(addr)
	switch {
	case ident < maxSegments:
		if s.small < learnPackets {
			s.small++
		}
	case s.small == learnPackets && !expected && s.refused < unlearnPackets:
		s.refused++
		return false
	default:
		s.small = 0
	}
	s.refused = 0
	return true
}
