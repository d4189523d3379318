package sim

import (
	"hash/crc32"
	"math/bits"
	"slices"
	"time"

	"rnic/internal/fault"
	"rnic/internal/roce"
)

// packet is a packet under way: from BTH to pad, and behind it room for the ICRC.
type packet struct {
	path   roce.Path
	data   []byte
	forged bool
	ghost  bool   // and from the peer, to all appearances
	local  bool   // from the same host
	echo   bool   // a multicast packet that comes back to its sender
	faults uint16 // 1<<kind for every fault that it met
}

// wire carries packets from one host to another, or to the same one, with faults of its own.
type wire struct {
	w        *world
	from, to *host
	latency  int64
	jitter   int64
	spec     fault.Spec
	marks    float64 // of packets that are ECN capable: marked
	inj      *fault.Injector
	detour   int64                        // more latency, on routes with an address of the second network
	last     [hostAddrs * hostAddrs]int64 // arrival of the latest packet of a route that kept its place
	silences []silence
	held     []held
	outages  []outage
}

// held is a packet that lets later ones pass.
type held struct {
	p    *packet
	left int
}

// outage is a time in which nothing arrives.
type outage struct{ from, to int64 }

// heldNanos is how long a held packet waits for later ones at most.
const heldNanos = 300_000

func (x *wire) lossy() bool {
	return x.spec.Drop > 0 || x.spec.Corrupt > 0 || len(x.outages) > 0 || len(x.silences) > 0
}

// delayBound is more than any packet spends on the wire.
func (x *wire) delayBound() int64 {
	return x.latency + x.detour + x.jitter + int64(x.spec.DelayMax) + heldNanos + 200_000
}

func (x *wire) out() bool {
	for _, o := range x.outages {
		if x.w.now >= o.from && x.w.now < o.to {
			return true
		}
	}
	return false
}

// send puts a packet, with its room for the ICRC, on the wire.
func (x *wire) send(path *roce.Path, data []byte) {
	w := x.w
	w.count.Packets++
	w.count.PacketBytes += uint64(len(data))
	w.mix(uint64(w.now), uint64(x.from.index)<<32|uint64(crc32.Checksum(data[:len(data)-roce.ICRCSize], castagnoli)), uint64(len(data)))
	d := x.inj.Decide(data)
	r, single := x.routeOf(path)
	switch {
	case x.out(), single && x.silent(r):
		w.count.Outage++
		w.meet(x.to, path, data, FaultOutage)
		w.notePacket(x.from, "lost in an outage", data)
	case d.Drop:
		w.count.Dropped++
		w.meet(x.to, path, data, FaultDrop)
		w.notePacket(x.from, "dropped", data)
	case d.Corrupt:
		w.count.Corrupted++
		w.meet(x.to, path, data, FaultCorrupt)
		w.notePacket(x.from, "corrupted", data)
		x.corrupt(path, data, d.CorruptBit)
	default:
		if w.count.Packets%16 == 0 {
			x.verify(path, data)
		}
		w.notePacket(x.from, "sends", data)
		x.deliver(path, data, &d)
	}
	x.letHeldPass()
}

func (x *wire) deliver(path *roce.Path, data []byte, d *fault.Decision) {
	w := x.w
	p := w.packet(path, data[:len(data)-roce.ICRCSize])
	if path.TOS&3 != 0 && w.rng.Float64() < x.marks {
		p.path.TOS |= 3 // congestion experienced
		w.count.Marked++
		p.faults |= 1 << FaultMark
	}
	if d.Duplicate {
		w.count.Duplicated++
		x.to.duplicated++
		twin := w.packet(path, p.data)
		twin.faults |= 1 << FaultDuplicate
		x.arriveAt(w.now+x.latency+w.nanos(0, 100_000), twin)
	}
	if d.Hold > 0 {
		w.count.Reordered++
		p.faults |= 1 << FaultReorder
		// One more than asked: this packet itself is counted next.
		x.held = append(x.held, held{p, d.Hold + 1})
		w.after(heldNanos, func() { x.release(p) })
		return
	}
	r, _ := x.routeOf(path)
	at := w.now + x.latency + w.nanos(0, x.jitter)
	if r.src > 1 || r.dst > 1 {
		at += x.detour
	}
	last := &x.last[r.src*hostAddrs+r.dst]
	at = max(at, *last)
	*last = at
	if d.DelayNanos > 0 {
		w.count.Delayed++
		p.faults |= 1 << FaultLate
		at += d.DelayNanos
	}
	x.arriveAt(at, p)
}

func (x *wire) arriveAt(at int64, p *packet) {
	p.local = x.from == x.to
	x.w.events.push(event{at: at, host: x.to, pkt: p})
}

func (x *wire) letHeldPass() {
	keep := x.held[:0]
	for _, h := range x.held {
		if h.left--; h.left > 0 {
			keep = append(keep, h)
			continue
		}
		x.arriveAt(max(x.w.now+x.latency, slices.Max(x.last[:])), h.p)
	}
	clear(x.held[len(keep):])
	x.held = keep
}

// release lets a held packet go that no later ones have passed.
func (x *wire) release(p *packet) {
	for i := range x.held {
		if x.held[i].p == p {
			x.held = append(x.held[:i], x.held[i+1:]...)
			x.arriveAt(x.w.now+x.latency, p)
			return
		}
	}
}

// corrupt inverts a bit behind the sender's ICRC: the receiver must notice, and drop the packet.
func (x *wire) corrupt(path *roce.Path, data []byte, bit uint32) {
	ident := uint16(x.w.rng.Uint32())
	roce.PutICRC(path, ident, data)
	data[bit/8] ^= 1 << (bit % 8)
	defer func() { data[bit/8] ^= 1 << (bit % 8) }() // other copies of the packet go to the other members of a group
	// Without the identification one in 65,536 is accepted, as another identification: that is
	// what not knowing it costs.
	if seen, ok := roce.Verify(path, data); ok && (seen == ident || !path.IsIPv4()) || roce.VerifyIdent(path, ident, data) {
		x.w.fail("a packet with bit %d inverted has a good ICRC: %s", bit, describe(data, len(data)))
	}
}

// verify checks that an intact packet is accepted.
func (x *wire) verify(path *roce.Path, data []byte) {
	ident := uint16(x.w.rng.Uint32())
	roce.PutICRC(path, ident, data)
	if seen, ok := roce.Verify(path, data); !ok || path.IsIPv4() && seen != ident {
		x.w.fail("an intact packet has a bad ICRC: %s", describe(data, len(data)))
	}
}

// randomSpec gives a link its faults. Rates stay where eight losses in a row are out of the
// question, so that no retry counter of 7 runs out by chance.
func (w *world) randomSpec() fault.Spec {
	s := fault.Spec{Seed: w.rng.Uint64()}
	if w.chance(25) {
		return s // a clean link
	}
	rate := func(percent int, most float64) float64 {
		if !w.chance(percent) {
			return 0
		}
		return w.rng.Float64() * most
	}
	s.Drop = rate(60, 0.03)
	s.Duplicate = rate(50, 0.08)
	s.Reorder = rate(40, 0.08)
	s.ReorderDepth = w.between(1, 8)
	s.Corrupt = rate(40, 0.02)
	s.Delay = rate(40, 0.05)
	s.DelayMin = time.Duration(w.nanos(1000, 50_000))
	s.DelayMax = s.DelayMin + time.Duration(pick(w, w.nanos(0, 1_500_000), w.nanos(0, 1_500_000), w.nanos(0, 12_000_000)))
	return s
}

// packet makes a copy in a buffer of an earlier packet.
func (w *world) packet(path *roce.Path, data []byte) *packet {
	var p *packet
	if n := len(w.free); n > 0 {
		p, w.free = w.free[n-1], w.free[:n-1]
	} else {
		p = &packet{data: make([]byte, 0, roce.MaxPacketSize)}
	}
	p.path, p.forged, p.ghost, p.local, p.echo, p.faults = *path, false, false, false, false, 0
	p.data = append(p.data[:0], data...)
	return p
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mix adds values to the hash of the run.
func (w *world) mix(values ...uint64) {
	for _, v := range values {
		hi, lo := bits.Mul64(w.hash^v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
		w.hash = hi ^ lo ^ bits.RotateLeft64(w.hash, 17)
	}
}
