// Package fault decides what goes wrong with packets: which are dropped, duplicated, reordered,
// corrupted, delayed or refused, when the port is down, and which completions are late. The decisions
// come from a seed, the packets and the times alone, so the same run replays the same faults;
// carrying them out is the work of the link, the device and the core that ask.
package fault

import (
	"net/netip"
	"slices"
	"time"

	"rnic/internal/roce"
)

// DefaultReorderDepth is how many later packets a reordered one lets pass at most, unless the
// Spec says otherwise.
const DefaultReorderDepth = 4

// Direction is which packets a rule is for: those that the NIC sends, those that it receives, or both.
type Direction uint8

// The directions.
const (
	Send Direction = iota
	Recv
	Both
)

// String is the prefix of a specification.
func (d Direction) String() string { return [...]string{"send", "recv", "both"}[d] }

// has tells whether packets of direction d are among those of o.
func (o Direction) has(d Direction) bool { return o == Both || o == d }

// PSNRange is a range of packet sequence numbers, both ends included. It may wrap around.
type PSNRange struct{ First, Last roce.PSN }

func (r PSNRange) has(p roce.PSN) bool {
	return (p-r.First)&roce.PSNMask <= (r.Last-r.First)&roce.PSNMask
}

// QueuePair names a queue pair of the NIC: by its number, or as the n-th, from 1, that was seen to send
// or receive.
type QueuePair struct {
	Number  uint32
	Ordinal bool
}

// Spec says which faults happen and how often. Rates are probabilities of each packet, from 0 to
// 1, rolled independently of each other; a packet that is dropped meets no other fault. The zero
// Spec has no faults. Parse and ParseRule read one and String prints it.
type Spec struct {
	Direction Direction // of a rule of a Set

	Drop, Duplicate, Reorder, Corrupt, Delay float64

	Mark float64 // of packets that are ECN capable (RFC 3168): congestion experienced

	DelayMin, DelayMax time.Duration // a delayed packet's delay is uniform from min to max, both included
	Jitter             time.Duration // up to so much later still, uniform, without that packets overtake each other
	ReorderDepth       int           // 0 is DefaultReorderDepth
	Burst              int           // each drop takes so many selected packets in a row; 0 is 1
	Seed               uint64

	// Bandwidth lets packets pass at so many bits of IP packets a second; 0: no limit. Those for which more than Queue bytes wait
	// are dropped; 0 is what passes in 50 ms, 64 KiB at least.
	Bandwidth uint64
	Queue     int

	// Blackhole drops every selected packet for so long.
	Blackhole time.Duration
	// Down takes the port down for so long: nothing is sent or received.
	Down time.Duration

	// NAK is the rate of requests of reliable connections that are lost, and answered to the requester with a NAK of this
	// Syndrome in the responder's place.
	NAK      float64
	Syndrome roce.Syndrome

	// Completion is the rate of completions that become visible later, by CompletionMin to CompletionMax. Later ones of the same
	// completion queue wait behind them.
	Completion                   float64
	CompletionMin, CompletionMax time.Duration

	// Nth drops exactly these packets, counted from 1 among those that are selected. With Blackhole and Down it is these packets
	// that begin it, with NAK these that are refused.
	Nth []uint64
	// Skip leaves the first selected packets alone, Every takes only each so-manieth behind those, and after Times faults the
	// rule is over; 0 is no limit.
	Skip, Every, Times uint64
	// After is when the rule begins, from when it was given, and For how long it lasts; 0 is at once, and for ever.
	After, For time.Duration

	// These, unless empty, limit all rules to packets with one of these opcodes, packet sequence numbers (PSNs and PSNRanges
	// together), queue pairs of this NIC, addresses of the peer, and kinds of acknowledgement. Other packets pass untouched and
	// are not counted.
	Ops       []roce.Opcode
	PSNs      []roce.PSN
	PSNRanges []PSNRange
	QPs       []QueuePair
	Peers     []netip.Prefix
	Acks      []roce.SyndromeKind
}

// Active reports whether any packet, port or completion can meet a fault.
func (s *Spec) Active() bool { return s.packets() || s.Down > 0 || s.Completion > 0 }

// packets reports whether any packet can meet a fault.
func (s *Spec) packets() bool {
	return s.Drop > 0 || s.Duplicate > 0 || s.Reorder > 0 || s.Corrupt > 0 || s.Delay > 0 || s.Mark > 0 || len(s.Nth) > 0 ||
		s.Jitter > 0 || s.Bandwidth > 0 || s.Blackhole > 0 || s.NAK > 0
}

// selective reports whether the rules are for some packets only.
func (s *Spec) selective() bool {
	return len(s.Ops) > 0 || len(s.PSNs) > 0 || len(s.PSNRanges) > 0 || len(s.QPs) > 0 || len(s.Peers) > 0 || len(s.Acks) > 0
}

// triggered reports whether what lasts, Blackhole and Down, begins with a packet, not with the rule.
func (s *Spec) triggered() bool {
	return len(s.Nth) > 0 || s.Skip > 0 || s.Every > 0 || s.Down > 0 && s.selective()
}

// Packet is what the rules look at.
type Packet struct {
	Data []byte     // from the BTH on
	Peer netip.Addr // who it goes to, or comes from
	QP   uint32     // the NIC's own queue pair; 0: not known

	// Front is the first PSN of QP that has not been acknowledged, of a packet sent, or executed, of one received.
	Front    roce.PSN
	HasFront bool

	ordinal uint32 // of QP, from 1; 0: not known
}

// selects reports whether the rules apply to a packet.
func (s *Spec) selects(p *Packet) bool {
	if !s.selective() && s.Syndrome == 0 {
		return true
	}
	if len(p.Data) < roce.BTHSize {
		return false
	}
	bth := roce.BTH(p.Data)
	return (len(s.Ops) == 0 || slices.Contains(s.Ops, bth.Opcode())) && s.selectsPSN(bth.PSN()) && s.selectsQP(p) && s.selectsPeer(p.Peer) &&
		s.selectsAck(p.Data) && (s.Syndrome == 0 || refusable(bth.Opcode()))
}

func (s *Spec) selectsPSN(psn roce.PSN) bool {
	if len(s.PSNs) == 0 && len(s.PSNRanges) == 0 || slices.Contains(s.PSNs, psn) {
		return true
	}
	for _, r := range s.PSNRanges {
		if r.has(psn) {
			return true
		}
	}
	return false
}

func (s *Spec) selectsQP(p *Packet) bool {
	if len(s.QPs) == 0 {
		return true
	}
	for _, q := range s.QPs {
		n := p.QP
		if q.Ordinal {
			n = p.ordinal
		}
		if n != 0 && q.Number == n {
			return true
		}
	}
	return false
}

func (s *Spec) selectsPeer(a netip.Addr) bool {
	if len(s.Peers) == 0 {
		return true
	}
	for _, p := range s.Peers {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func (s *Spec) selectsAck(pkt []byte) bool {
	if len(s.Acks) == 0 {
		return true
	}
	info := roce.BTH(pkt).Opcode().Info()
	if info == nil || len(pkt) < info.HeaderLen {
		return false
	}
	h := info.AETH(pkt)
	return h != nil && slices.Contains(s.Acks, h.Syndrome().Kind())
}

// refusable tells whether a packet is one that a responder may answer with a NAK.
func refusable(op roce.Opcode) bool {
	i := op.Info()
	return i != nil && i.Request && i.Transport == roce.TransportRC
}
