// Package fault is a decorator that lets things go wrong on a Link, on the
// way out, on the way in, or both, as rnic/internal/fault decides. The same
// seed, packets and times give the same faults.
//
// It reuses buffers of its own once the inner link has accepted them, as
// link.Link allows; a pipe inside must copy (pipe.Config.Reference not set).
package fault

import (
	"sync/atomic"

	"rnic/internal/fault"
	"rnic/internal/link"
	"rnic/internal/roce"
)

// batchSize is how many packets go to the inner link in one call.
const batchSize = 256

// retryNanos is when to try again after the inner link was full.
const retryNanos = 50_000

// Config says what goes wrong.
type Config struct {
	// Send and Recv, where they are Active, are the rules of a Set of the link's own, if it is given none.
	Send, Recv fault.Spec

	// Set is what decides. Links may share one; it may change at any time.
	Set *fault.Set
	// Front tells of a queue pair of reliable connections, what it takes to refuse requests. It is called by Send and Recv. nil: none
	// are refused.
	Front func(qp uint32) (f fault.Front, ok bool)
}

// Both gives both directions the rates of spec, and seeds that differ.
func Both(spec fault.Spec) Config {
	c := Config{Send: spec, Recv: spec}
	c.Recv.Seed++
	return c
}

// Link is the decorator.
type Link struct {
	inner link.Link
	set   *fault.Set
	front func(qp uint32) (fault.Front, bool)
	now   int64
	pkt   fault.Packet // being decided about
	// copier is the inner link if that keeps references to what is sent.
	copier interface{ Copy(on bool) }
	copied bool

	out     lane
	batch   []link.Packet // to the inner link
	copies  []link.Packet // those of batch that have pooled buffers
	retryAt int64         // when out.ready is to be tried again, 0: no need

	in      lane
	scratch []link.Packet // from the inner link
	lent    []link.Packet // pooled buffers handed out by the last Recv

	badICRC atomic.Uint64 // corrupt packets dropped on the way in
	lostOut atomic.Uint64
	lostIn  atomic.Uint64
}

var _ link.Link = (*Link)(nil)

// New wraps inner. Closing the result closes inner.
func New(inner link.Link, cfg Config) *Link {
	if cfg.Set == nil {
		cfg.Send.Direction, cfg.Recv.Direction = fault.Send, fault.Recv
		cfg.Set = fault.NewSet(cfg.Send, cfg.Recv)
	}
	l := &Link{inner: inner, set: cfg.Set, front: cfg.Front,
		batch: make([]link.Packet, 0, batchSize), scratch: make([]link.Packet, batchSize)}
	l.copier, _ = inner.(interface{ Copy(on bool) })
	return l
}

// Injected returns what has gone wrong so far, on all links of the Set.
func (l *Link) Injected() (send, recv fault.Counters) { return l.set.Counters() }

// Notify implements link.Notifier: of what comes from inside. What waits here, NextDelayed tells.
func (l *Link) Notify(f func()) bool { return link.Notify(l.inner, f) }

// Send implements link.Link. A batch with holes still goes down in one call.
func (l *Link) Send(pkts []link.Packet) (int, error) {
	if len(l.batch) > 0 {
		l.forget()
	}
	l.set.Advance(l.now)
	if l.out.empty() && !l.set.Active() {
		l.copyBelow(false)
		return l.inner.Send(pkts)
	}
	l.copyBelow(true)
	l.out.wake(l.now)
	if free, err := l.sendReady(); !free || err != nil {
		return 0, err
	}
	for i := range pkts {
		l.decide(&pkts[i])
		// One packet adds at most itself, a copy, and what it releases.
		if len(l.out.ready) > 0 || len(l.batch) > batchSize-4 {
			if free, err := l.sendReady(); !free || err != nil {
				return i + 1, err
			}
		}
	}
	_, err := l.sendReady()
	return len(pkts), err
}

// forget loses what a call of Send was about to hand on when a panic ended it: who recovers from that does not know how far it came,
// and by now the bytes may be those of other packets.
func (l *Link) forget() {
	l.out.lost += uint64(len(l.batch))
	l.handedOn()
}

// handedOn empties the batch, and takes back the buffers of what was in it.
func (l *Link) handedOn() {
	l.batch = l.batch[:0]
	for i := range l.copies {
		l.out.recycle(&l.copies[i])
	}
	l.copies = l.copies[:0]
}

// decide puts p where the injector wants it.
func (l *Link) decide(p *link.Packet) {
	q := &l.out
	d := l.sent(p)
	c := *p // the caller may offer its packets again
	p = &c
	if d.Corrupt && p.Corrupt == 0 {
		p.Corrupt = d.CorruptBit + 1
	}
	if d.Mark {
		mark(p)
	}
	switch {
	case d.Drop:
		if d.NAK != 0 {
			l.refuseSent(p, d.NAK)
		}
		return
	case d.Hold > 0:
		q.hold(p, &d, l.now)
	case d.DelayNanos > 0:
		q.delay(p, l.now+d.DelayNanos)
	default:
		l.batch = append(l.batch, *p)
		q.overtaken(l.now)
	}
	if d.Duplicate && !q.full() {
		// A copy: the link below writes each packet's own ICRC into it.
		l.batch = append(l.batch, q.copyOf(p))
		l.copies = append(l.copies, l.batch[len(l.batch)-1])
	}
}

// copyBelow has the inner link copy what is sent while that lies in buffers which are used again.
func (l *Link) copyBelow(on bool) {
	if l.copier != nil && on != l.copied {
		l.copier.Copy(on)
		l.copied = on
	}
}

// sent has a packet to send decided about.
func (l *Link) sent(p *link.Packet) fault.Decision {
	l.pkt = fault.Packet{Data: p.Data, Peer: p.Path.Dst, QP: p.QP}
	if l.set.WantsFront() && l.front != nil {
		var f fault.Front
		f, l.pkt.HasFront = l.front(p.QP)
		l.pkt.Front = f.Unacknowledged
	}
	return l.set.Decide(l.now, fault.Send, &l.pkt)
}

// received has a packet that has come decided about.
func (l *Link) received(p *link.Packet) fault.Decision {
	l.pkt = fault.Packet{Data: p.Data, Peer: p.Path.Src}
	if len(p.Data) >= roce.BTHSize {
		l.pkt.QP = roce.BTH(p.Data).DestQP()
	}
	if l.set.WantsFront() && l.front != nil {
		var f fault.Front
		f, l.pkt.HasFront = l.front(l.pkt.QP)
		l.pkt.Front = f.Expected
	}
	return l.set.Decide(l.now, fault.Recv, &l.pkt)
}

// refuseSent gives the NIC the NAK of a request that it has sent.
func (l *Link) refuseSent(p *link.Packet, s roce.Syndrome) {
	var buf [nakSize]byte
	nak := link.Packet{Path: back(&p.Path), Data: buf[:nakSize-roce.ICRCSize]}
	encodeNAK(nak.Data, roce.BTH(p.Data), p.QP, s, 0)
	l.in.queue(&nak)
}

// refuseReceived sends the peer the NAK of a request that has come.
func (l *Link) refuseReceived(p *link.Packet, s roce.Syndrome) {
	qp := roce.BTH(p.Data).DestQP()
	f, ok := l.front(qp)
	if !ok {
		return
	}
	var buf [nakSize]byte
	nak := link.Packet{Path: back(&p.Path), Data: buf[:], QP: qp}
	encodeNAK(nak.Data, roce.BTH(p.Data), f.Peer, s, f.MSN)
	l.out.queue(&nak)
	l.retryAt = max(l.now, 1)
}

const nakSize = roce.BTHSize + roce.AETHSize + roce.ICRCSize

// encodeNAK writes the acknowledge packet that refuses a request (9.7.5.1): the PSN is the request's.
func encodeNAK(data []byte, request roce.BTH, dest uint32, s roce.Syndrome, msn uint32) {
	roce.BTH(data).Encode(&roce.BTHFields{Opcode: roce.RCAck, PKey: request.PKey(), DestQP: dest, PSN: request.PSN(), MigReq: request.MigReq()})
	roce.AETH(data[roce.BTHSize:]).Encode(&roce.AETHFields{Syndrome: s, MSN: msn})
}

// back is the way of an answer.
func back(p *roce.Path) roce.Path {
	return roce.Path{Src: p.Dst, Dst: p.Src, SrcPort: p.SrcPort, TOS: p.TOS &^ link.TrafficClassECN, TTL: p.TTL}
}

// mark is what a congested network does to a packet that is ECN capable (RFC 3168, 5).
func mark(p *link.Packet) {
	if p.Path.TOS&link.TrafficClassECN != 0 {
		p.Path.TOS |= link.TrafficClassECN
	}
}

// sendReady sends what is in the batch and then what is ready; free is false
// when the inner link is full and packets are left, all in out.ready.
func (l *Link) sendReady() (free bool, err error) {
	q := &l.out
	defer func() { l.lostOut.Store(q.lost) }()
	for {
		taken := 0
		for taken < len(q.ready) && len(l.batch) < batchSize {
			p := q.ready[taken].pkt
			l.batch = append(l.batch, p)
			l.copies = append(l.copies, p)
			taken++
		}
		q.ready = q.ready[:copy(q.ready, q.ready[taken:])]
		if len(l.batch) == 0 {
			l.retryAt = 0
			return true, nil
		}
		n, err := l.inner.Send(l.batch)
		full := n < len(l.batch)
		if full && err == nil {
			l.keep(l.batch[n:])
		}
		l.handedOn()
		if full || err != nil {
			l.retryAt = l.now + retryNanos
			return false, err
		}
	}
}

// keep puts what the inner link did not take in front of what is ready: it
// has been decided about and must not be again.
func (l *Link) keep(pkts []link.Packet) {
	q := &l.out
	behind := len(q.ready)
	for i := range pkts {
		q.queue(&pkts[i])
	}
	rotate(q.ready, behind)
}

// rotate moves the first n elements behind the others.
func rotate(w []waiting, n int) {
	reverse(w[:n])
	reverse(w[n:])
	reverse(w)
}

func reverse(w []waiting) {
	for i, j := 0, len(w)-1; i < j; i, j = i+1, j-1 {
		w[i], w[j] = w[j], w[i]
	}
}

// FDs are those of the inner link.
func (l *Link) FDs() []int { return l.inner.FDs() }

// NextDelayed is when a packet that waits is due, or the inner link's time.
func (l *Link) NextDelayed() int64 {
	t := earlier(l.out.next(), l.in.next())
	if len(l.out.ready) > 0 {
		t = earlier(t, l.retryAt)
	}
	if len(l.in.ready) > 0 {
		t = earlier(t, max(l.now, 1))
	}
	return earlier(earlier(t, l.set.Next()), l.inner.NextDelayed())
}

// SetNow implements link.Link.
func (l *Link) SetNow(now int64) {
	l.now = now
	l.inner.SetNow(now)
}

// Stats are the inner link's. Packets corrupted on the way in count as
// BadICRC, those lost because too many wait as SendErrors and SocketDrops.
func (l *Link) Stats() link.Stats {
	s := l.inner.Stats()
	s.BadICRC += l.badICRC.Load()
	s.SendErrors += l.lostOut.Load()
	s.SocketDrops += l.lostIn.Load()
	return s
}

// Close closes the inner link. What waits is lost.
func (l *Link) Close() error { return l.inner.Close() }
