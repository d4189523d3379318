package ibcm

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"

	"rnic/internal/roce"
)

// Errors of commands.
var (
	ErrState = errors.New("ibcm: the connection is not in a state that allows this")
	ErrInUse = errors.New("ibcm: the service id is in use")
	ErrFull  = errors.New("ibcm: too many connections")
)

// Stats are counters since the beginning.
type Stats struct {
	Sent, Received, Repeated [kinds]uint64 // by kind, from REQ on
	Duplicates               uint64        // messages that had come before, answered again
	Malformed                uint64        // no MAD of the CM, or a REQ that makes no sense
	Unknown                  uint64        // of no connection, or out of place
	Foreign                  uint64        // for a connection, but from another address
	BacklogDrops             uint64        // requests that found the listener's backlog full
}

// defaults of Config and of the messages.
const (
	defaultMaxConns   = 65536
	defaultMaxCMRetry = 15
	defaultTimeout    = 20
	// firstResend is when a message is repeated for the first time, if the specified time is longer; then the time doubles up
	// to that. Receivers take duplicates for what they are (12.9.8), and a lost message costs no seconds.
	firstResend = 128_000_000
)

// CM is one communication manager.
type CM struct {
	cfg     Config
	rng     *rand.ChaCha8
	now     int64
	conns   map[uint32]*Conn      // by local id
	remote  map[remoteKey]*Conn   // those that peers have asked for, by the peer's id
	qps     map[qpKey]*Conn       // by the peer's queue pair: a new REQ of it makes the old connection stale (12.9.8.3.1)
	look    map[uint32]*Lookup    // own lookups, by request id
	asked   map[remoteKey]*Lookup // those of peers that wait for an answer
	listen  map[uint64]*Listener
	waiting []*earlyRequest
	timers  timerHeap
	sends   []Datagram
	events  []Event
	stats   Stats
	npend   int // requests and lookups that wait for an answer
	lapsed  int // those that are remembered
}

type remoteKey struct {
	id  uint32
	gid roce.GID
}

// qpKey has the address too: a peer's word alone must not touch another's connection.
type qpKey struct {
	gid  roce.GID
	guid [8]byte
	qpn  uint32
}

// New makes a CM.
func New(cfg Config) *CM {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = defaultMaxConns
	}
	return &CM{cfg: cfg, rng: rand.NewChaCha8(cfg.Seed), conns: map[uint32]*Conn{}, remote: map[remoteKey]*Conn{}, qps: map[qpKey]*Conn{},
		look: map[uint32]*Lookup{}, asked: map[remoteKey]*Lookup{}, listen: map[uint64]*Listener{}}
}

// random is of a cipher: who sees the ids of its own connections learns nothing of those of others.
func (c *CM) random() uint64 { return c.rng.Uint64() }

func (c *CM) newID() uint32 {
	for {
		id := uint32(c.random())
		if id != 0 && c.conns[id] == nil && c.look[id] == nil {
			return id
		}
	}
}

// Stats are the counters.
func (c *CM) Stats() Stats { return c.stats }

// Conns is the number of connections, those in timewait included.
func (c *CM) Conns() int { return len(c.conns) }

// Sends takes the datagrams that are to be sent.
func (c *CM) Sends() []Datagram {
	s := c.sends
	c.sends = nil
	return s
}

// Events takes what has happened, in order.
func (c *CM) Events() []Event {
	e := c.events
	c.events = nil
	return e
}

func (c *CM) emit(e Event) { c.events = append(c.events, e) }

// message is a new datagram with its header.
func (c *CM) message(to Address, k kind, tid uint64) (*Datagram, mad) {
	c.sends = append(c.sends, Datagram{Address: to})
	d := &c.sends[len(c.sends)-1]
	m := mad(d.MAD[:])
	m.header(k, tid)
	c.stats.Sent[k-kindREQ]++
	return d, m
}

// A Listener takes the requests for a service id.
type Listener struct {
	cm      *CM
	id      uint64
	backlog int
	pending map[*Conn]struct{} // requests that nobody has answered
	lookups map[*Lookup]struct{}
	owner   any
}

// Listen takes the requests for a service id, those that have waited for it (Config.EarlyWait) too; backlog bounds those that wait for an
// answer, 0: 1024.
func (c *CM) Listen(serviceID uint64, backlog int, owner any) (*Listener, error) {
	if c.listen[serviceID] != nil {
		return nil, fmt.Errorf("service id %#x: %w", serviceID, ErrInUse)
	}
	if backlog <= 0 {
		backlog = 1024
	}
	l := &Listener{cm: c, id: serviceID, backlog: backlog, pending: map[*Conn]struct{}{}, lookups: map[*Lookup]struct{}{}, owner: owner}
	c.listen[serviceID] = l
	c.takeEarly(serviceID)
	return l, nil
}

// Owner is what Listen was given.
func (l *Listener) Owner() any { return l.owner }

// SetBacklog changes it.
func (l *Listener) SetBacklog(n int) { l.backlog = n }

// Close ends it. What nobody has answered stays with its owner.
func (l *Listener) Close() {
	if l.cm.listen[l.id] == l {
		delete(l.cm.listen, l.id)
	}
}

// Receive takes one datagram that came to queue pair 1.
func (c *CM) Receive(now int64, from Address, b []byte) {
	c.now = max(c.now, now)
	m, k, ok := decode(b)
	if !ok {
		c.stats.Malformed++
		return
	}
	c.stats.Received[k-kindREQ]++
	switch k {
	case kindREQ:
		c.receiveREQ(from, m)
	case kindSIDRREQ:
		c.receiveLookup(from, m)
	case kindSIDRREP:
		c.receiveLookupReply(from, m)
	default:
		c.receiveFor(from, m, k)
	}
}

// receiveFor takes a message of a connection: found by our id in it, and from the connection's peer.
func (c *CM) receiveFor(from Address, m mad, k kind) {
	conn := c.conns[m.remoteID()]
	if conn == nil && k == kindREJ && m.remoteID() == 0 && m.localID() != 0 {
		// Who gives up a REQ before it has heard of an answer knows no id of ours (12.6.7.2, reason 4).
		key := remoteKey{m.localID(), from.Remote}
		c.forgetEarly(earlyKey{kindREQ, key})
		conn = c.remote[key]
	}
	if conn == nil {
		c.receiveUnknown(from, m, k)
		return
	}
	known := m.localID() == conn.remoteID && conn.remoteID != 0
	switch {
	case conn.remoteID == 0 && m.localID() != 0: // the first answer to a REQ says it
		known = k == kindREP || k == kindREJ || k == kindMRA
	case m.localID() == 0: // a REQ that the peer makes no connection of
		known = k == kindREJ
	}
	if (conn.to != from || !known) && c.cfg.Planted != PlantedStaleID {
		c.stats.Foreign++
		return
	}
	switch k {
	case kindREP:
		conn.receiveREP(m)
	case kindRTU:
		conn.receiveRTU(m)
	case kindREJ:
		conn.receiveREJ(m)
	case kindMRA:
		conn.receiveMRA(m)
	case kindDREQ:
		conn.receiveDREQ(m)
	case kindDREP:
		conn.receiveDREP(m)
	case kindLAP:
		conn.receiveLAP(m)
	default:
		c.stats.Unknown++
	}
}

// receiveUnknown answers what belongs to no connection where the peer would wait for an answer (12.9.8, 12.10.8).
func (c *CM) receiveUnknown(from Address, m mad, k kind) {
	c.stats.Unknown++
	switch k {
	case kindREP:
		_, r := c.message(from, kindREJ, m.tid())
		r.ids(m.remoteID(), m.localID())
		r.encodeREJ(aboutREP, RejInvalidCommID, nil, nil)
	case kindDREQ:
		_, r := c.message(from, kindDREP, m.tid())
		r.ids(m.remoteID(), m.localID())
	case kindLAP:
		_, r := c.message(from, kindAPR, m.tid())
		r.ids(m.remoteID(), m.localID())
		r.body()[aprStatusAt] = aprUnknownID
	}
}

// Timers.

// timer is a deadline of a connection or lookup.
type timer struct {
	at    int64
	index int // in the heap, -1: not set
	fire  func()
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}

func (c *CM) set(t *timer, at int64) {
	t.at = at
	if t.index >= 0 {
		heap.Fix(&c.timers, t.index)
		return
	}
	heap.Push(&c.timers, t)
}

func (c *CM) unset(t *timer) {
	if t.index >= 0 {
		heap.Remove(&c.timers, t.index)
	}
}

// Next is the time of the next timer.
func (c *CM) Next() (at int64, ok bool) {
	if len(c.timers) == 0 {
		return 0, false
	}
	return c.timers[0].at, true
}

// Expire lets timers act that are due.
func (c *CM) Expire(now int64) {
	c.now = max(c.now, now)
	for len(c.timers) > 0 && c.timers[0].at <= c.now {
		t := heap.Pop(&c.timers).(*timer)
		t.fire()
	}
}

// duration is 4.096 us * 2^code in nanoseconds, as all times in messages are (12.6); at least a millisecond, at most 9 minutes.
func duration(code uint8) int64 {
	return max(int64(4096)<<min(code, 27), 1_000_000)
}

// resend repeats one message until it is answered, or has not been for as long as its repetitions at the specified times would take.
type resend struct {
	timer    timer
	message  Datagram
	kind     kind
	step     int64 // until the next
	full     int64 // the specified time between repetitions
	deadline int64
	give     func()
}

// start sends a message and repeats it. give is called when there was no answer.
func (r *resend) start(c *CM, d *Datagram, k kind, timeout int64, retries int, give func()) {
	r.message, r.kind, r.full, r.give = *d, k, timeout, give
	r.step = min(firstResend, timeout)
	r.deadline = c.now + timeout*int64(retries+1)
	r.timer.fire = func() { r.due(c) }
	c.set(&r.timer, c.now+r.step)
}

func (r *resend) due(c *CM) {
	if c.now >= r.deadline {
		r.give()
		return
	}
	r.step = min(2*r.step, r.full)
	r.again(c)
	c.set(&r.timer, min(c.now+r.step, r.deadline))
}

// again sends the message once more.
func (r *resend) again(c *CM) {
	c.sends = append(c.sends, r.message)
	c.stats.Repeated[r.kind-kindREQ]++
}

// wait lets the peer take longer: no repetition before then.
func (r *resend) wait(c *CM, time int64) {
	r.step = r.full
	r.deadline += time + r.full
	c.set(&r.timer, c.now+time+r.full)
}

func (r *resend) stop(c *CM) { c.unset(&r.timer) }
