package sim

import (
	"encoding/binary"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
)

// cmEvent judges an event of a host's communication manager, and does what the program would.
func (h *host) cmEvent(e *ibcm.Event) {
	w, m := h.w, h.w.cm
	if e.Type == ibcm.EventRequest {
		w.requested(h, e)
		return
	}
	s, ok := e.Conn.Owner().(cmSide)
	if !ok {
		w.fail("host %d: event %d of a connection that nobody has", h.index, e.Type)
	}
	a, n := s.a, s.n
	met := &a.met[n]
	w.note(h, "connection %d, side %d: event %d", a.index, n, e.Type)
	switch e.Type {
	case ibcm.EventReply:
		met.replies++
		r := e.Reply.Connection
		if r != a.own[1] || met.replies > 1 || n == 1 {
			w.fail("connection %d: a reply, number %d, of %+v, and the peer is %+v", a.index, met.replies, r, a.own[1])
		}
		w.whenever(func() { w.replied(a) })
	case ibcm.EventReady, ibcm.EventEstablished:
		met.made++
		if n == 0 || met.made > 1 || !a.accept || !a.agree {
			w.fail("connection %d, side %d: made, for the %d. time", a.index, n, met.made)
		}
		w.letTalk(a, 1)
		w.maybeQuit(a, 1)
	case ibcm.EventMoreTime, ibcm.EventTimewaitEnd:
	default:
		met.ends++
		w.over(a, n, e)
		if e.Type == ibcm.EventDisconnect && e.Conn.State() == ibcm.DreqReceived {
			k := e.Conn
			w.after(m.nanos(2_000_000), func() {
				if k.State() == ibcm.DreqReceived {
					w.must(k.DisconnectReply(w.now, nil), "answering a DREQ")
					h.cmWork()
				}
			})
		}
	}
}

// whenever is when a program gets round to it.
func (w *world) whenever(f func()) { w.after(w.cm.nanos(200_000), f) }

// requested is the passive side of a connection.
func (w *world) requested(h *host, e *ibcm.Event) {
	m := w.cm
	a := m.attempts[binary.BigEndian.Uint32(e.Request.Private)]
	met := &a.met[1]
	met.requests++
	if met.requests > 1 && a.hung[1] && w.mayPart(a) { // refused, and the peer could not hear it for longer than that is remembered
		met.requests, met.ends = 1, 0
	}
	if met.requests > 1 || a.hosts[1] != h || e.Request.Connection != a.own[0] {
		w.fail("host %d is asked for connection %d the %d. time, by %+v, and the peer is %+v", h.index, a.index, met.requests, e.Request.Connection, a.own[0])
	}
	k := e.Conn
	a.ends[1] = k
	k.SetOwner(cmSide{a, 1})
	if m.chance(10) {
		w.must(k.MoreTime(w.now, 14, nil), "asking for more time")
	}
	w.whenever(func() {
		if k.State() != ibcm.ReqReceived { // given up meanwhile
			return
		}
		q := a.qpair(1)
		if !a.accept || a.c != nil && q == nil {
			a.hung[1] = true
			w.must(k.Reject(w.now, ibcm.RejConsumer, nil, nil), "rejecting a request")
			h.cmWork()
			return
		}
		if q != nil && q.qp.State() == nic.Init {
			w.toRTR(q)
		}
		w.must(k.Accept(w.now, &ibcm.Reply{Connection: a.own[1]}), "accepting a request")
		h.cmWork()
	})
}

// replied is the active side, when the reply has come.
func (w *world) replied(a *cmAttempt) {
	k := a.ends[0]
	if k.State() != ibcm.RepReceived {
		return
	}
	q := a.qpair(0)
	if !a.agree || a.c != nil && q == nil {
		a.hung[0] = true
		w.must(k.Reject(w.now, ibcm.RejConsumer, nil, nil), "rejecting a reply")
		a.hosts[0].cmWork()
		return
	}
	w.must(k.Ready(w.now, nil), "getting ready")
	a.hosts[0].cmWork()
	w.letTalk(a, 0)
	w.maybeQuit(a, 0)
}

// qpair is the queue pair of a side, nil if there is none, or if it is of another connection by now.
func (a *cmAttempt) qpair(n int) *qpair {
	if a.c == nil {
		return nil
	}
	q := []*qpair{a.c.a, a.c.b}[n]
	if a.c.attempt != a || q.number != a.number || a.c.breaking || q.down || q.gone {
		return nil
	}
	return q
}

// letTalk lets a queue pair talk.
func (w *world) letTalk(a *cmAttempt, n int) {
	q := a.qpair(n)
	if q == nil || !q.held {
		return
	}
	if q.qp.State() == nic.Init {
		w.toRTR(q)
	}
	q.held = false
	if q.qp.State() == nic.RTR && !q.progErr && !q.errState && !q.reset {
		w.toRTS(q)
	}
}

// maybeQuit has a side hang up, soon or in a while, if it wants to.
func (w *world) maybeQuit(a *cmAttempt, n int) {
	m := w.cm
	if !a.quits[n] || a.c != nil {
		return
	}
	d := m.nanos(1_000_000)
	if m.chance(30) {
		d = 0
	}
	w.after(d, func() { w.hangUp(a, n) })
}

// hangUp ends a connection from one side, if it is made there.
func (w *world) hangUp(a *cmAttempt, n int) {
	k := a.ends[n]
	if k == nil || k.State() != ibcm.Established {
		return
	}
	a.hung[n] = true
	w.must(k.Disconnect(w.now, nil), "disconnecting")
	a.hosts[n].cmWork()
}

// endCM ends what the communication managers know of a connection whose queue pairs are torn down.
func (w *world) endCM(c *conn) {
	a := c.attempt
	if a == nil {
		return
	}
	c.attempt = nil
	n := w.cm.rng.IntN(2)
	for _, n := range []int{n, 1 - n} {
		k := a.ends[n]
		if k == nil {
			continue
		}
		switch k.State() {
		case ibcm.Idle, ibcm.Timewait, ibcm.DreqSent, ibcm.DreqReceived:
		default:
			a.hung[n] = true
			k.Close(w.now)
			a.hosts[n].cmWork()
			return // the other side learns of it
		}
	}
}

// over judges the end of a connection, and of one that was not made.
func (w *world) over(a *cmAttempt, n int, e *ibcm.Event) {
	peer := a.hung[1-n]
	cut := w.mayPart(a)
	switch {
	case a.met[n].ends > 1:
		w.fail("connection %d, side %d: a second end, event %d", a.index, n, e.Type)
	case cut:
	case e.Type == ibcm.EventRejected && (peer || a.met[1-n].ends > 0 || a.c != nil && e.Reason == ibcm.RejStale):
	case e.Type == ibcm.EventDisconnect && (peer || a.c != nil):
	case e.Type == ibcm.EventDisconnected && a.hung[n] && !e.Err:
	default:
		w.fail("connection %d, side %d: event %d (reason %d, err %v), for which there is no cause", a.index, n, e.Type, e.Reason, e.Err)
	}
	if a.c == nil || a.qpair(n) == nil {
		return
	}
	switch {
	case e.Type == ibcm.EventRejected && e.Reason == ibcm.RejStale && n == 0: // the last connection is not over yet at the peer
		c := a.c
		w.after(1_000_000+w.cm.nanos(20_000_000), func() {
			if a.qpair(0) != nil && a.qpair(0).qp.State() == nic.Init {
				w.askCM(c)
			}
		})
	case cut: // the queue pairs are connected all the same: what becomes of them is theirs
		w.letTalk(a, 0)
		w.letTalk(a, 1)
	}
}

// mayPart tells whether the two hosts may not reach each other for long.
func (w *world) mayPart(a *cmAttempt) bool {
	x, y := a.hosts[0].wires[a.hosts[1].index], a.hosts[1].wires[a.hosts[0].index]
	return len(x.outages)+len(y.outages)+len(x.silences)+len(y.silences) > 0
}

// finishCM looks at what is left when nothing happens any more.
func (w *world) finishCM() {
	if w.cm == nil {
		return
	}
	for _, a := range w.cm.attempts {
		for n, k := range a.ends {
			if k == nil {
				continue
			}
			if s := k.State(); s != ibcm.Idle && s != ibcm.Established {
				w.fail("connection %d, side %d, stays in %v", a.index, n, s)
			}
		}
		b := a.ends[1]
		if w.mayPart(a) || a.hung[0] || a.hung[1] || a.met[0].ends > 0 && a.c != nil {
			continue
		}
		if b == nil || a.ends[0].State() != ibcm.Established || b.State() != ibcm.Established || a.met[1].made != 1 {
			w.fail("connection %d should be made, and is %v at the active side, and made %d times at the passive one", a.index, a.ends[0].State(), a.met[1].made)
		}
		w.count.CMMade++
	}
}

// heardFirst says that data has come to a queue pair before it was told that its peer is ready: once the other events of that moment have been
// looked at, as what it leads to changes the queue pair.
func (w *world) heardFirst(q *qpair) {
	if q.conn == nil || q.conn.attempt == nil || !w.cm.chance(50) {
		return
	}
	k := q.conn.attempt.ends[1]
	if k == nil || q != q.conn.b {
		return
	}
	w.after(0, func() {
		if k.State() == ibcm.RepSent {
			w.must(k.Established(w.now), "communication established")
			q.h.cmWork()
		}
	})
}
