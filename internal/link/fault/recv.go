package fault

import "rnic/internal/link"

// Recv implements link.Link.
func (l *Link) Recv(pkts []link.Packet) (int, error) {
	q := &l.in
	for i := range l.lent {
		q.recycle(&l.lent[i])
	}
	l.lent = l.lent[:0]
	l.set.Advance(l.now)
	if q.empty() && !l.set.Active() {
		return l.inner.Recv(pkts)
	}
	q.wake(l.now)
	n := l.takeReady(pkts, 0)
	for n < len(pkts) {
		got, err := l.inner.Recv(l.scratch[:min(len(pkts)-n, len(l.scratch))])
		if err != nil {
			return n, err
		}
		before := n
		for i := range got {
			n = l.arrive(pkts, n, &l.scratch[i])
		}
		// The inner link's buffers are lent to the caller once one of its
		// packets was handed out; until then it may be asked for more.
		if got == 0 || n > before {
			break
		}
	}
	l.lostIn.Store(q.lost)
	return n, nil
}

// takeReady hands out what is ready, and returns how many packets there are.
func (l *Link) takeReady(pkts []link.Packet, n int) int {
	q := &l.in
	taken := 0
	for taken < len(q.ready) && n < len(pkts) {
		pkts[n] = q.ready[taken].pkt
		l.lent = append(l.lent, pkts[n])
		taken++
		n++
	}
	if taken > 0 {
		q.ready = q.ready[:copy(q.ready, q.ready[taken:])]
	}
	return n
}

// arrive deals with one packet from the inner link: to pkts[n:] if it passes
// and there is room.
func (l *Link) arrive(pkts []link.Packet, n int, p *link.Packet) int {
	q := &l.in
	d := l.received(p)
	if d.Mark {
		mark(p)
	}
	switch {
	case d.Drop:
		if d.NAK != 0 {
			l.refuseReceived(p, d.NAK)
		}
		return n
	case d.Corrupt:
		l.badICRC.Add(1)
		return n
	case d.Hold > 0:
		q.hold(p, &d, l.now)
	case d.DelayNanos > 0:
		q.delay(p, l.now+d.DelayNanos)
	case n < len(pkts) && len(q.ready) == 0:
		pkts[n] = *p
		n++
		q.overtaken(l.now)
	default:
		q.queue(p)
		q.overtaken(l.now)
	}
	if d.Duplicate {
		q.queue(p)
	}
	return l.takeReady(pkts, n)
}
