package fault

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"rnic/internal/roce"
)

// Decision is what happens to one packet. The zero Decision lets it pass.
type Decision struct {
	Drop       bool
	Duplicate  bool
	Corrupt    bool
	CorruptBit uint32        // with Corrupt: the bit to flip, counted from the BTH's first; bit b is 1<<(b%8) of byte b/8
	Hold       int           // pass after this many later packets have; 0 does not reorder
	DelayNanos int64         // pass this much later
	Mark       bool          // mark it as a congested network does (RFC 3168), if it is ECN capable
	NAK        roce.Syndrome // with Drop: answer it so to who sent it, in the responder's place; 0: not
	down       time.Duration // take the port down for so long
}

// Counters are how many packets were seen, how many of them the rules selected, and how many met
// each fault.
type Counters struct {
	Seen, Selected                                     uint64
	Dropped, Duplicated, Corrupted, Reordered, Delayed uint64

	Marked uint64 // or would be, if they are not ECN capable

	Refused            uint64 // requests answered with a NAK; they count as dropped too
	LinkDowns          uint64 // times that the port went down
	DelayedCompletions uint64
}

// Add adds o's counters.
func (c *Counters) Add(o *Counters) {
	c.Seen += o.Seen
	c.Selected += o.Selected
	c.Dropped += o.Dropped
	c.Duplicated += o.Duplicated
	c.Corrupted += o.Corrupted
	c.Reordered += o.Reordered
	c.Delayed += o.Delayed
	c.Marked += o.Marked
	c.Refused += o.Refused
	c.LinkDowns += o.LinkDowns
	c.DelayedCompletions += o.DelayedCompletions
}

// Faults is how many faults there were: a packet that met several counts once for each.
func (c *Counters) Faults() uint64 {
	return c.Dropped + c.Duplicated + c.Corrupted + c.Reordered + c.Delayed + c.Marked + c.LinkDowns + c.DelayedCompletions
}

// Injector decides about packets, one after the other. It is not safe for concurrent use. Two
// Injectors of equal Specs that see the same packets at the same times decide the same. Every kind of fault has its
// own stream of random numbers, so that changing one rate moves no fault of another kind.
type Injector struct {
	spec     Spec
	nth      []uint64 // ascending, those still to come
	counters Counters

	begun     bool
	start     int64 // when the rules begin
	end       int64 // when they are over; 0: never
	hits      uint64
	burst     int   // packets that the latest drop still takes
	holeUntil int64 // black hole: until when
	freeAt    int64 // bandwidth: when the line is free
	lastDue   int64 // jitter: of the latest packet
	refusing  []refusal

	drop, duplicate, corrupt, reorder, delay, mark, nak, jitter, completion rand.PCG
}

// refusal is a request that is to be refused as soon as all before it has been acknowledged: a NAK acknowledges that (9.7.5.1),
// and must not say more than is true.
type refusal struct {
	qp  uint32
	psn roce.PSN
}

// maxRefusals is how many requests wait at most to be refused; others are let pass.
const maxRefusals = 64

// New returns an Injector at the start of its decisions. It keeps no memory of spec's.
func New(spec Spec) *Injector {
	spec.Nth, spec.Ops, spec.PSNs = slices.Clone(spec.Nth), slices.Clone(spec.Ops), slices.Clone(spec.PSNs)
	spec.PSNRanges, spec.QPs, spec.Peers, spec.Acks = slices.Clone(spec.PSNRanges), slices.Clone(spec.QPs), slices.Clone(spec.Peers), slices.Clone(spec.Acks)
	if spec.ReorderDepth <= 0 {
		spec.ReorderDepth = DefaultReorderDepth
	}
	if (spec.Blackhole > 0 || spec.Down > 0) && spec.Every == 0 && spec.Times == 0 && len(spec.Nth) == 0 {
		spec.Times = 1 // what lasts begins once
	}
	in := &Injector{spec: spec, nth: slices.Clone(spec.Nth)}
	slices.Sort(in.nth)
	in.nth = slices.DeleteFunc(slices.Compact(in.nth), func(n uint64) bool { return n == 0 })
	if spec.NAK > 0 {
		in.refusing = make([]refusal, 0, maxRefusals)
	}
	const apart = 0x9e3779b97f4a7c15 // any odd number: the streams start far from each other
	for i, stream := range []*rand.PCG{&in.drop, &in.duplicate, &in.corrupt, &in.reorder, &in.delay, &in.mark, &in.nak, &in.jitter, &in.completion} {
		stream.Seed(spec.Seed, uint64(i)*apart)
	}
	return in
}

// Begin says when the rules were given, on the clock of DecideAt. Without, that is the time of the first packet.
func (in *Injector) Begin(now int64) {
	s := &in.spec
	in.begun, in.start = true, now+int64(s.After)
	if s.For > 0 {
		in.end = in.start + int64(s.For)
	}
	if s.Blackhole > 0 && !s.triggered() {
		in.holeUntil = in.start + int64(s.Blackhole)
		in.end = in.holeUntil
	}
}

// Decide decides about the next packet, pkt, which starts at its BTH and should reach to the end
// of its ICRC: one of these bits is the one that may be flipped. It does not change pkt, allocates
// nothing, and takes any bytes.
func (in *Injector) Decide(pkt []byte) Decision { return in.DecideAt(0, &Packet{Data: pkt}) }

// DecideAt is Decide with all that rules may look at, and the time in nanoseconds.
func (in *Injector) DecideAt(now int64, p *Packet) (d Decision) {
	if !in.begun {
		in.Begin(now)
	}
	in.counters.Seen++
	if in.refuses(p) {
		return in.refuseAgain(p)
	}
	if now < in.start || in.end != 0 && now >= in.end || !in.spec.selects(p) {
		return d
	}
	in.counters.Selected++
	d = in.roll(len(p.Data))
	nth := len(in.nth) > 0 && in.nth[0] == in.counters.Selected
	if nth {
		in.nth = in.nth[1:]
	}
	if !in.eligible() {
		d = Decision{}
		nth = false
	}
	in.lasting(now, nth, &d)
	if in.spec.NAK > 0 {
		in.choose(p, nth, &d)
	}
	if d != (Decision{}) {
		in.hits++
	}
	in.bursts(&d)
	if now < in.holeUntil {
		d.Drop = true
	}
	in.line(now, p, &d)
	if d.Drop {
		d = Decision{Drop: true, NAK: d.NAK, down: d.down}
	}
	in.counters.count(&d)
	return d
}

// roll rolls for a packet. All kinds are rolled for every one, even if it is dropped: see Injector.
func (in *Injector) roll(size int) (d Decision) {
	d.Drop = roll(&in.drop, in.spec.Drop)
	d.Duplicate = roll(&in.duplicate, in.spec.Duplicate)
	if roll(&in.corrupt, in.spec.Corrupt) {
		d.CorruptBit, d.Corrupt = corruptBit(&in.corrupt, size)
	}
	if roll(&in.reorder, in.spec.Reorder) {
		d.Hold = 1 + int(below(&in.reorder, uint64(in.spec.ReorderDepth)))
	}
	if roll(&in.delay, in.spec.Delay) {
		d.DelayNanos = uniform(&in.delay, in.spec.DelayMin, in.spec.DelayMax)
	}
	d.Mark = roll(&in.mark, in.spec.Mark)
	return d
}

// eligible tells whether Skip, Every and Times leave the latest selected packet to the rules.
func (in *Injector) eligible() bool {
	s, n := &in.spec, in.counters.Selected
	return n > s.Skip && (s.Every <= 1 || (n-s.Skip)%s.Every == 0) && (s.Times == 0 || in.hits < s.Times)
}

// lasting is what the nth packet does: it begins what lasts, or else is dropped.
func (in *Injector) lasting(now int64, nth bool, d *Decision) {
	s := &in.spec
	begins := nth || len(s.Nth) == 0 && s.triggered() && in.eligible()
	switch {
	case s.Blackhole > 0 && begins && s.triggered():
		in.holeUntil, d.Drop = now+int64(s.Blackhole), true
	case s.Down > 0 && begins && s.triggered():
		d.down, d.Drop = s.Down, true
	case nth && s.NAK == 0 && s.Blackhole == 0 && s.Down == 0:
		d.Drop = true
	}
}

// choose decides whether a request is to be refused.
func (in *Injector) choose(p *Packet, nth bool, d *Decision) {
	rolled := roll(&in.nak, in.spec.NAK)
	if len(in.spec.Nth) > 0 {
		rolled = nth
	}
	if !rolled || !in.eligible() || !p.HasFront || len(in.refusing) == maxRefusals {
		return
	}
	psn := roce.BTH(p.Data).PSN()
	ahead := roce.Diff(psn, p.Front)
	if ahead < 0 {
		return // a duplicate of what has been executed
	}
	d.Drop = true
	if ahead == 0 {
		d.NAK = in.spec.Syndrome
		return
	}
	in.refusing = append(in.refusing, refusal{p.QP, psn})
}

// refuses tells whether p is a request that waits to be refused.
func (in *Injector) refuses(p *Packet) bool {
	if len(in.refusing) == 0 || len(p.Data) < roce.BTHSize {
		return false
	}
	bth := roce.BTH(p.Data)
	return refusable(bth.Opcode()) && slices.Contains(in.refusing, refusal{p.QP, bth.PSN()})
}

// refuseAgain deals with a request that waits to be refused: now, if all before it has been acknowledged.
func (in *Injector) refuseAgain(p *Packet) (d Decision) {
	psn := roce.BTH(p.Data).PSN()
	ahead := roce.Diff(psn, p.Front)
	if ahead <= 0 || !p.HasFront {
		i := slices.Index(in.refusing, refusal{p.QP, psn})
		in.refusing = slices.Delete(in.refusing, i, i+1)
	}
	switch {
	case !p.HasFront || ahead < 0:
		return d // the queue pair is another one by now, or the request is a duplicate
	case ahead == 0:
		d.NAK = in.spec.Syndrome
	}
	d.Drop = true
	in.counters.Selected++
	in.counters.count(&d)
	return d
}

// bursts extends a drop to the packets behind.
func (in *Injector) bursts(d *Decision) {
	switch {
	case d.Drop && d.NAK == 0 && in.spec.Burst > 1 && in.burst == 0:
		in.burst = in.spec.Burst - 1
	case in.burst > 0:
		in.burst--
		d.Drop = true
	}
}

// ipOverhead is what the IP and UDP headers add to a packet on a line.
const (
	ipv4Overhead = 28
	ipv6Overhead = 48
)

const (
	defaultQueue     = 64 << 10
	defaultQueueTime = 50 * time.Millisecond
)

// line is what a line of limited bandwidth, and jitter, do to a packet that is not lost otherwise.
func (in *Injector) line(now int64, p *Packet, d *Decision) {
	s := &in.spec
	if d.Drop {
		return
	}
	if s.Bandwidth > 0 {
		size := len(p.Data) + ipv4Overhead
		if p.Peer.Is6() && !p.Peer.Is4In6() {
			size = len(p.Data) + ipv6Overhead
		}
		in.freeAt = max(in.freeAt, now)
		if in.freeAt-now > s.queueNanos() {
			d.Drop = true
			return
		}
		in.freeAt += lineNanos(size, s.Bandwidth)
		d.DelayNanos += in.freeAt - now
	}
	if s.Jitter > 0 {
		due := max(now+d.DelayNanos+uniform(&in.jitter, 0, s.Jitter), in.lastDue)
		in.lastDue, d.DelayNanos = due, due-now
	}
}

// lineNanos is how long so many bytes take.
func lineNanos(bytes int, bandwidth uint64) int64 {
	hi, lo := bits.Mul64(uint64(bytes)*8, 1e9)
	if hi >= bandwidth {
		return int64(time.Hour)
	}
	q, _ := bits.Div64(hi, lo, bandwidth)
	return int64(min(q, uint64(time.Hour)))
}

// queueNanos is how long what may wait takes.
func (s *Spec) queueNanos() int64 {
	if s.Queue > 0 {
		return lineNanos(s.Queue, s.Bandwidth)
	}
	return max(int64(defaultQueueTime), lineNanos(defaultQueue, s.Bandwidth))
}

// CompletionDelay decides about the next completion of a queue pair, whose ordinal is 0 if it is not known: how much later it
// becomes visible, in nanoseconds.
func (in *Injector) completionDelay(now int64, qp, ordinal uint32) int64 {
	if !in.begun {
		in.Begin(now)
	}
	if in.spec.Completion <= 0 || now < in.start || in.end != 0 && now >= in.end || !in.spec.selectsQP(&Packet{QP: qp, ordinal: ordinal}) {
		return 0
	}
	in.counters.Selected++
	if !roll(&in.completion, in.spec.Completion) || !in.eligible() {
		return 0
	}
	in.hits++
	in.counters.DelayedCompletions++
	return uniform(&in.completion, in.spec.CompletionMin, in.spec.CompletionMax)
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
	add(&c.Refused, d.NAK != 0)
	add(&c.LinkDowns, d.down > 0)
}

// uniform returns a time from least to most, both included.
func uniform(stream *rand.PCG, from, to time.Duration) int64 {
	least, most := int64(from), int64(to)
	if most <= least {
		return max(least, 0)
	}
	return max(least+int64(below(stream, uint64(most-least)+1)), 0)
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
