package sim

import (
	"fmt"
	"strings"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// settle checks, at the end of a connection or of the run, that everything posted to q has come to
// its end, and what is left in memory of what failed. Nothing of it may complete later.
func (w *world) settle(q *qpair) {
	w.settleShared(q)
	if s := q.qp.State(); q.deaf && s != nic.Err && s != nic.Reset && !q.reset && !q.down {
		w.fail("%v is in %v, and a completion queue of it has overflowed", q, s) // 11.6.3
	}
	if !q.reset && !q.deaf {
		w.checkComplete(q)
	}
	for _, x := range q.sends {
		if !x.success && !q.unreliable() {
			w.resolve(x)
		}
		x.done, x.final = true, true
	}
	for _, r := range q.recvs {
		switch {
		case r.success:
		case !q.unreliable():
			w.resolveReceive(r)
		case q.ud && (q.deaf || r.mustFail): // a datagram may be in it, of which nobody heard
			q.h.mem.accept(r.local)
		}
		r.done, r.final = true, true
	}
}

// checkComplete holds for a queue pair that had the time to finish.
func (w *world) checkComplete(q *qpair) {
	state := q.qp.State()
	for _, x := range q.sends[q.nextSend:] {
		switch {
		case q.sendErr:
			w.fail("%s was never flushed, %v is in %v", x, q, state)
		case x.signalled && state == nic.Err:
			w.fail("%s has no completion, and %v is in %v", x, q, state)
		case x.signalled || !q.errState && !w.finished(x):
			w.fail("liveness: %s never completes, %v is in %v", x, q, state)
		}
		if x.closed && !x.landed {
			continue
		}
		w.silent(x)
	}
	q.nextSend = len(q.sends)
	if q.errState && q.nextRecv < len(q.recvs) {
		w.fail("%s was never flushed, %v is in %v", q.recvs[q.nextRecv], q, state)
	}
}

// finished tells whether an unsignalled work request at the end of a queue was carried out.
func (w *world) finished(x *work) bool {
	switch {
	case x.q.unreliable(), x.closed, x.op == ring.OpFlush: // nobody can tell
		return true
	case x.fetches():
		return x.arrived()
	case x.consumes():
		return x.match != nil && x.match.success || x.q.peer.deaf
	}
	_, ok := x.remote.r.a.holds([]seg{x.remote}, x.data)
	return ok
}

// resolve looks at what a work request that failed, or whose end nobody learned, has left.
func (w *world) resolve(x *work) {
	switch {
	case x.isAtomic():
		x.q.h.mem.accept(x.local)
	case x.op == ring.OpRead:
		w.resolveRead(x)
	case x.isWrite() && !x.landed:
		if x.mustFail && !x.partial || x.closed {
			return // nothing of it may be there: the comparison at the end tells
		}
		target, p := []seg{x.remote}, x.remote.r.a
		if !p.mixes(target, x.data) {
			w.fail("%s left bytes in its target that are neither old nor its own", x)
		}
		p.accept(target)
	}
}

// resolveRead is resolve for a READ. It goes out in pieces, of which the first may be within bounds:
// what one that must fail leaves in its own buffer is not specified.
func (w *world) resolveRead(x *work) {
	mem, data := x.q.h.mem, x.data
	for _, s := range x.local {
		if s != x.shut {
			if !x.mustFail && !mem.mixes([]seg{s}, data) {
				w.fail("%s left bytes in its buffer that are neither old nor its own", x)
			}
			mem.accept([]seg{s})
		}
		data = data[s.n:]
	}
}

// resolveReceive is resolve for a receive.
func (w *world) resolveReceive(r *work) {
	p := r.q.peer
	if r.index >= len(p.consuming) || p.consuming[r.index].isWrite() {
		return
	}
	m := p.consuming[r.index]
	if !r.q.h.mem.mixes(r.local, m.data) {
		w.fail("%s holds bytes that are neither old nor of %s", r, m)
	}
	r.q.h.mem.accept(r.local)
}

// finish checks everything at the end of the run.
func (w *world) finish() {
	w.finishCM()
	for _, c := range w.conns {
		for _, q := range []*qpair{c.a, c.b} {
			if q.number > 0 && !q.gone && q.qp.State() != nic.Reset {
				w.settle(q)
			}
		}
	}
	for _, q := range w.uds {
		if q.qp.State() != nic.Reset {
			w.settle(q)
		}
		if !q.deaf {
			w.finishDatagrams(q)
		}
	}
	for _, q := range w.ucs {
		if q.qp.State() != nic.Reset {
			w.settle(q)
		}
		w.finishUnreliable(q)
	}
	for _, g := range w.xrcs {
		w.finishXRC(g)
	}
	for _, h := range w.hosts {
		for _, p := range h.pools {
			w.finishPool(p)
		}
		for _, d := range h.words {
			w.checkWord(d)
		}
		if at := firstDifference(h.mem.space.Mem, h.mem.want); at < arenaBytes {
			w.fail("host %d: byte %#x of its memory was changed, which nobody asked for: %s", h.index, at, w.ownerOf(h, at))
		}
		w.countNIC(h)
	}
}

func (w *world) finishDatagrams(q *qpair) {
	succeeded := 0
	for _, x := range q.sends {
		if x.success {
			succeeded++
		}
		w.checkDeliveries(x)
	}
	if q.sent < succeeded || q.sent > len(q.sends) {
		w.fail("%v sent %d datagrams and completed %d of %d", q, q.sent, succeeded, len(q.sends))
	}
}

// ownerOf says what an offset of a host's memory is used for.
func (w *world) ownerOf(h *host, at int) string {
	for _, x := range w.works {
		for _, s := range x.local {
			if s.r.a == h.mem && at >= s.off && at < s.off+s.n {
				return "in the buffer of " + x.String()
			}
		}
		if s := x.remote; s.r != nil && s.r.a == h.mem && at >= s.off && at < s.off+s.n {
			return "in the target of " + x.String()
		}
	}
	return "in no buffer"
}

func (w *world) countNIC(h *host) {
	var s nic.Stats
	for _, u := range h.units {
		s.Add(u.nic.Stats())
	}
	w.count.Retransmitted += s.RetransmittedPackets
	w.count.Timeouts += s.Timeouts
	w.count.EarlyResends += s.EarlyResends
	w.count.RNRNAKs += s.RNRNAKsSent
	w.count.SequenceNAKs += s.SeqNAKsSent
	w.count.Duplicates += s.Duplicates
}

// outstanding names what a run that does not end waits for.
func (w *world) outstanding() string {
	var b strings.Builder
	for _, h := range w.hosts {
		for _, q := range h.qps {
			if q.nextSend < len(q.sends) && q.sends[q.nextSend].signalled {
				fmt.Fprintf(&b, "%s in %v waits; ", q.sends[q.nextSend], q.qp.State())
			}
			if q.left > 0 && !q.down && q.sq.Free() == 0 {
				fmt.Fprintf(&b, "the send queue of %v in %v is full; ", q, q.qp.State())
			}
		}
	}
	for _, g := range w.xrcs {
		for _, s := range g.senders {
			if !s.failed && s.done < len(s.sends) {
				fmt.Fprintf(&b, "%s %d of XRC QP %06x in %v waits (target in %v, %d receives posted, %d to be); ", OpNames[s.sends[s.done].op], s.done,
					s.qp.Num(), s.qp.State(), s.tgt.State(), len(s.sends[s.done].to.recvs), len(s.sends[s.done].to.plan))
			}
		}
	}
	for _, h := range w.hosts {
		for _, u := range h.units {
			if t := u.nic.NextTimer(); t != 0 {
				fmt.Fprintf(&b, "host %d's next timer is at %s; ", h.index, clock(t-startNanos))
			}
		}
	}
	return b.String()
}
