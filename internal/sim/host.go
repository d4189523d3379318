package sim

import (
	"fmt"
	"net/netip"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// host is a machine: a NIC, a program's memory, and the program's objects.
type host struct {
	w      *world
	index  int
	nic    *nic.NIC // its first unit, by which commands come
	mtu    int
	policy nic.Policy
	pkeys  []uint16
	addrs  [hostAddrs]netip.Addr // the GID table
	pd     *nic.PD
	other  *nic.PD // a second protection domain, of another program
	// alien is a region of the other protection domain.
	alien *nic.MR
	mem   *arena
	words []*word
	cqs   []*cqueue
	pools []*pool
	qps   []*qpair
	byQPN map[uint32]*qpair
	wires []*wire // by the index of the host they lead to
	ahs   map[ahKey]*nic.AH
	xrcs  map[uint32]*xrcSender // by queue pair number
	ends  []*pathEnd            // its connections

	down, removed [hostAddrs]bool // addresses from which nothing leaves, and those that do not exist at the moment
	told          [hostAddrs]bool // what the NIC knows of down

	cm     *ibcm.CM // nil: none in this run
	cmWake int64    // when its timers are looked at next

	units      []*unit
	lonely     bool     // it is scheduled that the units are driven together
	drained    []*qpair // whose send queue has just drained
	duplicated int      // packets to this host that the links duplicated
}

type ahKey struct {
	group *mgroup // or
	to    *host
	index int // of the addresses at both ends
}

// cqueue is the program's view of a completion queue.
type cqueue struct {
	h     *host
	cq    *nic.CQ
	ring  *ring.Queue
	small bool // may overflow
	armed arming
	pace  pacing
	owed  int // completion events that must come with the present call
	got   int
}

type arming uint8

const (
	notArmed arming = iota
	armedSolicited
	armedAny
)

// put sends one packet to where its path leads.
func (h *host) put(p *nic.TxPacket) {
	w := h.w
	if p.Multicast {
		h.putGroup(p)
		return
	}
	to := w.hostOf(p.Path.Dst)
	if to == nil || h.addrIndex(p.Path.Src) < 0 {
		w.fail("host %d sends from %v to %v, which nobody asked for", h.index, p.Path.Src, p.Path.Dst)
	}
	if p.Local != (to == h) {
		w.fail("host %d sends to %v with Local %v", h.index, p.Path.Dst, p.Local)
	}
	w.observeSend(h, to, p)
	h.wires[to.index].send(p.Path, p.Data)
}

func (w *world) hostOf(a netip.Addr) *host {
	for _, h := range w.hosts {
		if h.addrIndex(a) >= 0 {
			return h
		}
	}
	return nil
}

// look is called after every call into the NIC: it takes the events, polls every completion queue
// and lets the model judge what it sees.
func (h *host) look(after string) {
	w := h.w
	for more := true; more; { // what overflowed is dealt with by one unit, and is told by others
		more = false
		for _, u := range h.units {
			for _, e := range u.nic.Events() {
				h.event(&e, after)
				more = true
			}
		}
	}
	for _, c := range h.cqs {
		if after == "timer" {
			c.timePassed()
		}
		if !c.small && c.ring.Pending() > 0 && w.chance(1) {
			w.resizeCQ(c)
		}
		for c.ring.Pending() > 0 {
			var e ring.CQE
			c.ring.LoadCQE(c.ring.Position(), &e)
			w.must(c.ring.Consume(), "polling a completion queue")
			solicited := w.complete(c, &e)
			if c.armed == armedAny || c.armed == armedSolicited && solicited {
				c.tell(e.Status != ring.StatusSuccess)
			}
		}
		if c.owed != c.got {
			w.fail("host %d, after %s: %d completion events of a queue where its completions and its arming ask for %d",
				h.index, after, c.got, c.owed)
		}
		fired := c.got > 0
		c.owed, c.got = 0, 0
		if c.armed == notArmed && (fired || w.chance(20)) && w.chance(90) {
			c.arm()
		}
	}
	for _, q := range h.qps {
		q.sharedOver = q.lastWQE > 0
	}
	for _, p := range h.pools {
		w.looked(p, after)
	}
	w.lookXRC(h)
	w.checkPaths(h, after)
	w.checkStates(h)
	for _, q := range h.drained {
		w.drained(q)
	}
	h.drained = h.drained[:0]
}

// arm asks for the next completion event. Nothing is pending: every look polls until empty.
func (c *cqueue) arm() {
	c.armed = pick(c.h.w, armedSolicited, armedAny, armedSolicited)
	c.cq.Arm(c.armed == armedSolicited)
}

func (h *host) event(e *nic.Event, after string) {
	w := h.w
	switch e.Type {
	case nic.EventCompletion:
		w.count.Events++
		for _, c := range h.cqs {
			if c.cq == e.CQ {
				c.got++
				return
			}
		}
		w.fail("host %d, after %s: a completion event of no completion queue", h.index, after)
	case nic.EventCQErr:
		w.overflowed(h, e.CQ)
	case nic.EventCommEst:
		if q := h.byQPN[e.QP.Num()]; q != nil && w.cm != nil {
			w.heardFirst(q)
		}
	case nic.EventQPLastWQE:
		w.lastWQE(h, e.QP)
	case nic.EventPathMig:
		w.migrated(h, e.QP)
	case nic.EventPathMigErr:
		w.cannotMigrate(h, e.QP)
	case nic.EventSRQLimit:
		for _, p := range h.pools {
			if p.srq == e.SRQ {
				p.raised++
			}
		}
	case nic.EventSQDrained:
		for _, q := range h.qps {
			if q.qp == e.QP {
				h.drained = append(h.drained, q)
			}
		}
		if s := h.xrcs[e.QP.Num()]; s != nil {
			w.drainedXRC(s, e.QP)
		}
	case nic.EventQPFatal, nic.EventQPReqErr, nic.EventQPAccessErr:
		for _, q := range h.qps {
			if q.qp == e.QP {
				q.asyncError = true
				w.note(h, "asynchronous event %d of QP %06x", e.Type, q.qp.Num())
				return
			}
		}
		if s := h.xrcs[e.QP.Num()]; s != nil && s.tgt == e.QP && s.expectsError() {
			s.tgtDown = true
			return
		}
		w.fail("host %d, after %s: an asynchronous event of no queue pair, or for no cause", h.index, after)
	default:
		w.fail("host %d, after %s: unexpected event %d", h.index, after, e.Type)
	}
}

// overflowed is the event that a completion queue had no room for a completion: it is dead, and its
// queue pairs go to ERR (11.6.3). What they still complete, nobody learns.
func (w *world) overflowed(h *host, cq *nic.CQ) {
	for _, q := range h.qps {
		if q.sendCQ.cq != cq && q.recvCQ.cq != cq || q.gone {
			continue
		}
		if c := q.sendCQ; c.cq == cq && !c.small || q.recvCQ.cq == cq && !q.recvCQ.small {
			w.fail("host %d: a completion queue of %d entries overflows, which cannot be full", h.index, c.ring.Capacity())
		}
		w.note(h, "a completion queue of %v overflows", q)
		q.deaf = true
		q.progErr = true
		if q.ud {
			w.endUnreliable(q)
		}
	}
}

// newQueue makes a shared queue and gives both sides' views of it.
func newQueue(w *world, g ring.Geometry) (nics, programs *ring.Queue) {
	b := make([]byte, g.Size()) // Go aligns what is larger than a word to 8 bytes
	nics, err := ring.Format(b, g)
	w.must(err, "formatting a queue")
	return nics, ring.View(b, g)
}

// String names the queue pair in messages.
func (q *qpair) String() string {
	return fmt.Sprintf("QP %06x of host %d", q.qp.Num(), q.h.index)
}

// gidOf is the entry i of the host's GID table.
func gidOf(h *host, i int) roce.GID { return roce.GIDFromAddr(h.addrs[i]) }
