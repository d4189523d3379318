package nic

import (
	"net/netip"
)

// A window bounds bytes in flight. A packet counts with its payload and an overhead, which is about
// what it costs in the receiver's socket; the response of a READ counts from its request on.
type window struct {
	inFlight uint32
	limit    uint32
	low      uint32 // the policy keeps limit within [low, high]
	high     uint32
	acked    uint32 // acknowledged since limit last grew
	cutAt    int64  // time of the last cut
}

// room tells whether cost more bytes may be sent. One packet in flight is always allowed.
func (w *window) room(cost uint32) bool { return w.inFlight == 0 || w.inFlight+cost <= w.limit }

// A windowPolicy says how windows follow what is acknowledged and what is lost.
type windowPolicy interface {
	start(w *window, peer, local bool)
	acked(w *window, bytes uint32)
	lost(w *window)
	overhead() uint32 // of a packet, bytes
}

// aimd is additive increase, multiplicative decrease. Losses of a link that loses at random must not
// starve it: a cut is by an eighth, which at one packet lost in a hundred balances at nearly 30
// packets in flight. A socket that is overrun loses more at once, and is left alone within a few
// round trips.
type aimd struct{ p WindowPolicy }

// Windows between queue pairs of one NIC are bounded by nobody's socket.
const localWindow = 1 << 20

func newAIMD(p WindowPolicy) *aimd {
	def(&p.QPMin, 16<<10)
	def(&p.QPMax, 160<<10)
	def(&p.PeerMin, 32<<10)
	def(&p.PeerMax, 160<<10)
	def(&p.PacketOverhead, 512)
	p.QPMax, p.PeerMax = min(max(p.QPMax, p.QPMin), 1<<28), min(max(p.PeerMax, p.PeerMin), 1<<28)
	return &aimd{p: p}
}

func (a *aimd) start(w *window, peer, local bool) {
	*w = window{low: a.p.QPMin, high: a.p.QPMax}
	if peer {
		w.low, w.high = a.p.PeerMin, a.p.PeerMax
	}
	if local {
		w.high = max(w.high, localWindow)
	}
	w.limit = w.high
}

func (a *aimd) acked(w *window, bytes uint32) {
	if w.limit >= w.high {
		return
	}
	if w.acked += bytes; w.acked >= w.limit {
		w.acked = 0
		w.limit = min(w.high, w.limit+4096+a.p.PacketOverhead)
	}
}

func (a *aimd) lost(w *window) {
	w.acked = 0
	w.limit = max(w.low, w.limit-w.limit/8)
}

func (a *aimd) overhead() uint32 { return a.p.PacketOverhead }

// A peer is an address that queue pairs of a unit send to: they share one window, so that thousands of them
// do not overrun its socket. Units share it in equal parts.
type peer struct {
	key     peerKey
	share   *peerShare
	refs    int
	window  window
	waiting schedList
	turn    *QP   // of those that waited, the one that may send now
	clock   int64 // of the pace of its unreliable connections
}

type peerKey struct {
	addr  netip.Addr
	local bool
}

// joinPeer attaches q to the peer that its path leads to.
func (q *QP) joinPeer() {
	t := &q.nic.transport
	key := peerKey{q.path.Dst, q.local}
	if p := q.req.peer; p != nil {
		if p.key == key {
			return
		}
		q.leavePeer()
	}
	p := t.peers[key]
	if p == nil {
		p = &peer{key: key, share: q.nic.joinShare(key), waiting: schedList{kind: onPeer}}
		t.windows.start(&p.window, true, q.local)
		t.peers[key] = p
	}
	p.refs++
	q.req.peer = p
	t.windows.start(&q.req.window, false, q.local)
}

// leavePeer gives back what q has in flight.
func (q *QP) leavePeer() {
	p := q.req.peer
	if p == nil {
		return
	}
	q.returnPace()
	q.landed(q.req.window.inFlight)
	p.waiting.remove(q)
	q.passTurn()
	q.req.peer = nil
	if p.refs--; p.refs == 0 {
		delete(q.nic.transport.peers, p.key)
		q.nic.leaveShare(p.key)
	}
}

// launched counts bytes as in flight.
func (q *QP) launched(bytes uint32) {
	q.req.window.inFlight += bytes
	q.req.peer.window.inFlight += bytes
}

// landed counts bytes as no longer in flight, and lets those go on that waited for room.
func (q *QP) landed(bytes uint32) {
	p, own := q.req.peer, &q.req.window
	if p == nil || bytes == 0 {
		return
	}
	bytes = min(bytes, own.inFlight) // no part of others'
	own.inFlight -= bytes
	p.window.inFlight -= bytes
	p.wake()
}

// room tells whether cost more bytes may be sent to the peer. One packet in flight is always allowed.
func (p *peer) room(cost uint32) bool {
	w := &p.window
	return w.inFlight == 0 || w.inFlight+cost <= p.limit()
}

// limit is the unit's part of the window.
func (p *peer) limit() uint32 { return p.window.limit / uint32(max(1, p.share.units.Load())) }

// admit tells whether q may send cost more bytes to the peer; if not, q waits in line.
func (p *peer) admit(q *QP, cost uint32) bool {
	if p.room(cost) && (p.waiting.head == nil || p.turn == q) {
		return true
	}
	q.req.wants = cost
	p.waiting.pushBack(q)
	return false
}

// wake gives the turn to the first of those that wait, if there is room for it.
func (p *peer) wake() {
	q := p.waiting.head
	if q == nil || p.turn != nil || !p.room(q.req.wants) {
		return
	}
	p.waiting.remove(q)
	p.turn = q
	q.activate()
}

// passTurn ends q's turn, if it had it.
func (q *QP) passTurn() {
	if p := q.req.peer; p != nil {
		if p.turn == q {
			p.turn = nil
		}
		p.wake()
	}
}

// lossSeen cuts the windows, once for each event: what a round trip shows is one event.
func (q *QP) lossSeen(now int64) {
	r := &q.req
	policy := q.nic.transport.windows
	if now-r.window.cutAt >= r.rtt.smoothed {
		r.window.cutAt = now
		policy.lost(&r.window)
	}
	if w := &r.peer.window; now-w.cutAt >= r.rtt.smoothed {
		w.cutAt = now
		policy.lost(w)
	}
}
