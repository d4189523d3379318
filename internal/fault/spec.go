// Package fault decides what goes wrong with packets: which are dropped, duplicated, reordered,
// corrupted or delayed. The decisions come from a seed and the packets alone, so the same run
// replays the same faults; carrying them out is the work of the link that asks.
package fault

import (
	"slices"
	"time"

	"rnic/internal/roce"
)

// DefaultReorderDepth is how many later packets a reordered one lets pass at most, unless the
// Spec says otherwise.
const DefaultReorderDepth = 4

// Spec says which faults happen and how often. Rates are probabilities of each packet, from 0 to
// 1, rolled independently of each other; a packet that is dropped meets no other fault. The zero
// Spec has no faults. Parse reads one and String prints it.
type Spec struct {
	Drop, Duplicate, Reorder, Corrupt, Delay float64

	Mark float64 // of packets that are ECN capable (RFC 3168): congestion experienced

	DelayMin, DelayMax time.Duration // a delayed packet's delay is uniform from min to max, both included
	ReorderDepth       int           // 0 is DefaultReorderDepth
	Seed               uint64

	// Nth drops exactly these packets, counted from 1 among those that Ops and PSNs select.
	Nth []uint64
	// Ops and PSNs, unless empty, limit all rules to packets with one of these opcodes and one of
	// these packet sequence numbers. Other packets pass untouched and are not counted for Nth.
	Ops  []roce.Opcode
	PSNs []roce.PSN
}

// Active reports whether any packet can meet a fault.
func (s *Spec) Active() bool {
	return s.Drop > 0 || s.Duplicate > 0 || s.Reorder > 0 || s.Corrupt > 0 || s.Delay > 0 || s.Mark > 0 || len(s.Nth) > 0
}

// selects reports whether the rules apply to a packet that starts with this BTH.
func (s *Spec) selects(pkt []byte) bool {
	if len(s.Ops) == 0 && len(s.PSNs) == 0 {
		return true
	}
	if len(pkt) < roce.BTHSize {
		return false
	}
	bth := roce.BTH(pkt)
	return (len(s.Ops) == 0 || slices.Contains(s.Ops, bth.Opcode())) &&
		(len(s.PSNs) == 0 || slices.Contains(s.PSNs, bth.PSN()))
}
