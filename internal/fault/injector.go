package fault

import (
	"math/bits"
	"math/rand/v2"
	"slices"
)

// Decision is what happens to one packet. The zero Decision lets it pass.
type Decision struct {
	Drop       bool
	Duplicate  bool
	Corrupt    bool
	CorruptBit uint32 // with Corrupt: the bit to flip, counted from the BTH's first; bit b is 1<<(b%8) of byte b/8
	Hold       int    // pass after this many later packets have; 0 does not reorder
	DelayNanos int64  // pass this much later
	Mark       bool   // mark it as a congested network does (RFC 3168), if it is ECN capable
}

// Counters are how many packets were seen, how many of them the rules selected, and how many met
// each fault.
type Counters struct {
	Seen, Selected                                     uint64
	Dropped, Duplicated, Corrupted, Reordered, Delayed uint64

	Marked uint64 // or would be, if they are not ECN capable
}

// Injector decides about packets, one after the other. It is not safe for concurrent use. Two
// Injectors of equal Specs that see the same packets decide the same. Every kind of fault has its
// own stream of random numbers, so that changing one rate moves no fault of another kind.
type Injector struct {
	spec     Spec
	nth      []uint64 // ascending, those still to come
	counters Counters

	drop, duplicate, corrupt, reorder, delay, mark rand.PCG
}

// New returns an Injector at the start of its decisions. It keeps no memory of spec's.
func New(spec Spec) *Injector {
	spec.Nth, spec.Ops, spec.PSNs = slices.Clone(spec.Nth), slices.Clone(spec.Ops), slices.Clone(spec.PSNs)
	if spec.ReorderDepth <= 0 {
		spec.ReorderDepth = DefaultReorderDepth
	}
	in := &Injector{spec: spec, nth: slices.Clone(spec.Nth)}
	slices.Sort(in.nth)
	in.nth = slices.DeleteFunc(slices.Compact(in.nth), func(n uint64) bool { return n == 0 })
	const apart = 0x9e3779b97f4a7c15 // any odd number: the streams start far from each other
	for i, stream := range []*rand.PCG{&in.drop, &in.duplicate, &in.corrupt, &in.reorder, &in.delay, &in.mark} {
		stream.Seed(spec.Seed, uint64(i)*apart)
	}
	return in
}

// Decide decides about the next packet, pkt, which starts at its BTH and should reach to the end
// of its ICRC: one of these bits is the one that may be flipped. It does not change pkt, allocates
// nothing, and takes any bytes.
func (in *Injector) Decide(pkt []byte) (d Decision) {
	in.counters.Seen++
	if !in.spec.selects(pkt) {
		return d
	}
	in.counters.Selected++
	// All kinds are rolled for every packet, even one that is dropped: see Injector.
	d.Drop = roll(&in.drop, in.spec.Drop)
	d.Duplicate = roll(&in.duplicate, in.spec.Duplicate)
	if roll(&in.corrupt, in.spec.Corrupt) {
		d.CorruptBit, d.Corrupt = corruptBit(&in.corrupt, len(pkt))
	}
	if roll(&in.reorder, in.spec.Reorder) {
		d.Hold = 1 + int(below(&in.reorder, uint64(in.spec.ReorderDepth)))
	}
	if roll(&in.delay, in.spec.Delay) {
		d.DelayNanos = in.delayNanos()
	}
	d.Mark = roll(&in.mark, in.spec.Mark)
	if len(in.nth) > 0 && in.nth[0] == in.counters.Selected {
		in.nth = in.nth[1:]
		d.Drop = true
	}
	if d.Drop {
		d = Decision{Drop: true}
	}
	in.counters.count(&d)
	return d
}

// Counters returns the counts so far.
func (in *Injector) Counters() Counters { return in.counters }

// Spec returns what the Injector was made of. The caller must not change its slices.
func (in *Injector) Spec() Spec { return in.spec }

func (c *Counters) count(d *Decision) {
	add := func(n *uint64, on bool) {
		if on {
			*n++
		}
	}
	add(&c.Dropped, d.Drop)
	add(&c.Duplicated, d.Duplicate)
	add(&c.Corrupted, d.Corrupt)
	add(&c.Reordered, d.Hold > 0)
	add(&c.Delayed, d.DelayNanos > 0)
	add(&c.Marked, d.Mark)
}

func (in *Injector) delayNanos() int64 {
	least, most := int64(in.spec.DelayMin), int64(in.spec.DelayMax)
	if most <= least {
		return max(least, 0)
	}
	return max(least+int64(below(&in.delay, uint64(most-least)+1)), 0)
}

// Bits of the BTH's byte 4, which the ICRC does not cover.
const (
	maskedBit  = 4 * 8
	maskedBits = 8
)

// corruptBit chooses a bit of a packet of so many bytes. The bits that the ICRC does not cover are
// never chosen: flipping them is no corruption that a receiver could notice.
func corruptBit(stream *rand.PCG, bytes int) (bit uint32, ok bool) {
	n := 8 * bytes
	if n > maskedBit {
		n = max(n-maskedBits, maskedBit)
	}
	if n == 0 {
		return 0, false
	}
	bit = uint32(below(stream, uint64(n)))
	if bit >= maskedBit {
		bit += maskedBits
	}
	return bit, true
}

// roll is true with the probability rate. A rate of zero takes no random number.
func roll(stream *rand.PCG, rate float64) bool {
	return rate > 0 && float64(stream.Uint64()>>11)/(1<<53) < rate
}

// below returns a number from 0 to n-1. Its bias, of less than n in 2^64, does not matter here.
func below(stream *rand.PCG, n uint64) uint64 {
	hi, _ := bits.Mul64(stream.Uint64(), n)
	return hi
}
