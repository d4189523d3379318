package ibcm

// State is the state of a connection (vol. 1, 12.9.7).
type State uint8

const (
	Idle State = iota
	ReqSent
	ReqReceived
	RepSent
	RepReceived
	Established
	DreqSent
	DreqReceived
	Timewait
)

func (s State) String() string {
	return [...]string{"idle", "REQ sent", "REQ received", "REP sent", "REP received", "established", "DREQ sent", "DREQ received", "timewait"}[s]
}

// Conn is one connection, or a request for one.
type Conn struct {
	cm                *CM
	state             State
	to                Address
	localID, remoteID uint32
	tid               uint64 // of the exchange that makes the connection
	listener          *Listener
	owner             any
	orphan            bool // its owner has closed it: no more events

	out      resend
	timewait timer
	wait     int64 // how long the queue pair stays in timewait, nanoseconds
	timeout  int64 // until the peer answers, nanoseconds
	retries  int

	asMRA  *Datagram // the MRA that was sent: repeated when the REQ or REP is
	asRTU  *Datagram // the RTU that was sent: repeated when the REP is
	asDREP *Datagram
	asREJ  *Datagram

	peer    Connection // what the peer said
	guid    [8]byte    // of the peer
	own     Connection
	hasPeer bool
}

// State, ids, addresses and owner of the connection.
func (k *Conn) State() State     { return k.state }
func (k *Conn) LocalID() uint32  { return k.localID }
func (k *Conn) RemoteID() uint32 { return k.remoteID }
func (k *Conn) Address() Address { return k.to }
func (k *Conn) Owner() any       { return k.owner }
func (k *Conn) SetOwner(o any)   { k.owner = o }

// Peer is what the other side said of its queue pair; nil before it did. Own is what this side said.
func (k *Conn) Peer() *Connection {
	if !k.hasPeer {
		return nil
	}
	return &k.peer
}
func (k *Conn) Own() *Connection { return &k.own }

func (c *CM) newConn(to Address) *Conn {
	k := &Conn{cm: c, to: to, localID: c.newID()}
	k.out.timer.index, k.timewait.index = -1, -1
	k.timewait.fire = k.leaveTimewait
	c.conns[k.localID] = k
	return k
}

func (k *Conn) setTimes(timeout, retries, ackTimeout uint8) {
	if timeout == 0 {
		timeout = defaultTimeout
	}
	k.timeout, k.retries = duration(timeout), int(retries)
	k.wait = max(duration(ackTimeout), 10_000_000)
}

// emit tells the owner.
func (k *Conn) emit(e Event) {
	if k.orphan {
		return
	}
	e.Conn, e.Address = k, k.to
	k.cm.emit(e)
}

// message makes a message of the connection.
func (k *Conn) message(kd kind, tid uint64) (*Datagram, mad) {
	d, m := k.cm.message(k.to, kd, tid)
	if kd != kindREQ {
		m.ids(k.localID, k.remoteID)
	}
	return d, m
}

// forget ends the connection at once.
func (k *Conn) forget() {
	c := k.cm
	k.state = Idle
	k.out.stop(c)
	c.unset(&k.timewait)
	delete(c.conns, k.localID)
	k.forgetPeer()
	k.answered()
}

func (k *Conn) forgetPeer() {
	c := k.cm
	if r := (remoteKey{k.remoteID, k.to.Remote}); c.remote[r] == k {
		delete(c.remote, r)
	}
	if q := (qpKey{k.guid, k.peer.QPN}); c.qps[q] == k {
		delete(c.qps, q)
	}
}

// answered takes a request out of its listener's backlog.
func (k *Conn) answered() {
	if k.listener != nil {
		delete(k.listener.pending, k)
		k.listener = nil
		k.cm.npend--
	}
}

// enterTimewait keeps the connection's ids and queue pair from being taken for new ones (12.9.8.4).
func (k *Conn) enterTimewait() {
	k.out.stop(k.cm)
	k.answered()
	k.state = Timewait
	k.cm.set(&k.timewait, k.cm.now+k.wait)
}

func (k *Conn) leaveTimewait() {
	k.emit(Event{Type: EventTimewaitEnd})
	k.forget()
}

// Connect sends a REQ.
func (c *CM) Connect(now int64, to Address, r *Request, owner any) (*Conn, error) {
	c.now = max(c.now, now)
	if len(c.conns) >= 2*c.cfg.MaxConns {
		return nil, ErrFull
	}
	q := *r
	if q.MaxCMRetry == 0 {
		q.MaxCMRetry = defaultMaxCMRetry
	}
	if q.RespTimeout == 0 {
		q.RespTimeout = defaultTimeout
	}
	q.Primary.AckTimeout = q.AckTimeout
	k := c.newConn(to)
	k.owner, k.own, k.tid = owner, q.Connection, c.random()
	k.setTimes(q.RespTimeout, q.MaxCMRetry, q.AckTimeout)
	d, m := k.message(kindREQ, k.tid)
	m.encodeREQ(k.localID, c.cfg.NodeGUID, &q)
	k.state = ReqSent
	k.out.start(c, d, kindREQ, k.timeout, k.retries, k.unreachable)
	return k, nil
}

// unreachable: no answer to REQ or REP (12.9.8.2).
func (k *Conn) unreachable() {
	if k.state == RepSent {
		_, m := k.message(kindREJ, k.tid)
		m.encodeREJ(aboutREP, RejTimeout, k.cm.cfg.NodeGUID[:], nil)
	}
	k.emit(Event{Type: EventUnreachable})
	k.forget()
}

// receiveREQ makes a connection for a listener.
func (c *CM) receiveREQ(from Address, m mad) {
	id := m.localID()
	if old := c.remote[remoteKey{id, from.Remote}]; old != nil {
		old.again(m)
		return
	}
	r := m.decodeREQ()
	if id == 0 || r.QPN > 0xffffff || r.Primary.Local != from.Remote || r.PathMTU < 1 || r.PathMTU > 5 {
		c.stats.Malformed++
		return
	}
	reject := func(reason Reason, info []byte) {
		_, j := c.message(from, kindREJ, m.tid())
		j.ids(0, id)
		j.encodeREJ(aboutREQ, reason, info, nil)
	}
	if old := c.qps[qpKey{r.RemoteGUID, r.QPN}]; old != nil && old.to.Remote == from.Remote {
		// The peer's queue pair has a connection that it does not know any more (12.9.8.3.1).
		reject(RejStale, nil)
		old.stale()
		return
	}
	l := c.listen[r.ServiceID]
	switch {
	case l == nil:
		reject(RejInvalidServiceID, nil)
		return
	case len(l.pending) >= l.backlog || c.npend >= c.cfg.MaxConns:
		c.stats.BacklogDrops++ // it will be repeated
		return
	}
	k := c.newConn(from)
	k.remoteID, k.tid, k.listener = id, m.tid(), l
	k.peer, k.guid, k.hasPeer = r.Connection, r.RemoteGUID, true
	k.setTimes(m.body()[43]>>3, r.MaxCMRetry, r.AckTimeout)
	l.pending[k] = struct{}{}
	c.npend++
	c.remote[remoteKey{id, from.Remote}] = k
	c.qps[qpKey{r.RemoteGUID, r.QPN}] = k
	k.state = ReqReceived
	k.emit(Event{Type: EventRequest, Listener: l, Request: r})
}

// again answers a REQ that has come before.
func (k *Conn) again(m mad) {
	c := k.cm
	c.stats.Duplicates++
	switch k.state {
	case ReqReceived:
		k.repeat(k.asMRA)
	case RepSent:
		k.out.again(c)
	case Timewait, DreqSent, DreqReceived:
		if k.asREJ != nil {
			k.repeat(k.asREJ)
			return
		}
		_, j := c.message(k.to, kindREJ, m.tid())
		j.ids(k.localID, k.remoteID)
		j.encodeREJ(aboutREQ, RejStale, nil, nil)
	}
}

// repeat sends an earlier message again.
func (k *Conn) repeat(d *Datagram) {
	if d != nil {
		k.cm.sends = append(k.cm.sends, *d)
		k.cm.stats.Repeated[kind(be.Uint16(d.MAD[offAttr:]))-kindREQ]++
	}
}

// stale ends a connection that the peer does not know any more.
func (k *Conn) stale() {
	switch k.state {
	case Established, RepSent, RepReceived:
		k.emit(Event{Type: EventDisconnect})
		k.enterTimewait()
	}
}

// Accept answers a request with a REP.
func (k *Conn) Accept(now int64, r *Reply) error {
	c := k.cm
	c.now = max(c.now, now)
	if k.state != ReqReceived {
		return ErrState
	}
	k.answered()
	k.own = r.Connection
	d, m := k.message(kindREP, k.tid)
	m.encodeREP(c.cfg.NodeGUID, r)
	k.state = RepSent
	k.out.start(c, d, kindREP, k.timeout, k.retries, k.unreachable)
	return nil
}

func (k *Conn) receiveREP(m mad) {
	switch k.state {
	case ReqSent:
	case RepReceived:
		k.cm.stats.Duplicates++
		k.repeat(k.asMRA)
		return
	case Established:
		k.cm.stats.Duplicates++
		k.repeat(k.asRTU)
		return
	default:
		k.cm.stats.Unknown++
		return
	}
	r := m.decodeREP()
	k.out.stop(k.cm)
	k.remoteID, k.peer, k.guid, k.hasPeer = m.localID(), r.Connection, r.RemoteGUID, true
	k.cm.remote[remoteKey{k.remoteID, k.to.Remote}] = k
	k.cm.qps[qpKey{k.guid, k.peer.QPN}] = k
	k.state = RepReceived
	k.emit(Event{Type: EventReply, Reply: r, Private: r.Private})
}

// Ready answers a REP with an RTU: the connection is made.
func (k *Conn) Ready(now int64, private []byte) error {
	k.cm.now = max(k.cm.now, now)
	if k.state != RepReceived {
		return ErrState
	}
	d, m := k.message(kindRTU, k.tid)
	copy(m.body()[rtuPrivateAt:rtuPrivateAt+RtuPrivate], private)
	k.asRTU = copyOf(d)
	k.state = Established
	return nil
}

func copyOf(d *Datagram) *Datagram {
	c := *d
	return &c
}

func (k *Conn) receiveRTU(m mad) {
	switch k.state {
	case RepSent:
		k.out.stop(k.cm)
		k.state = Established
		k.emit(Event{Type: EventReady, Private: clone(m.body()[rtuPrivateAt : rtuPrivateAt+RtuPrivate])})
	case Established: // after Established, or a duplicate
		k.cm.stats.Duplicates++
	default:
		k.cm.stats.Unknown++
	}
}

// Established says that data came before the RTU (12.9.7.1): the connection is made.
func (k *Conn) Established(now int64) error {
	k.cm.now = max(k.cm.now, now)
	switch k.state {
	case RepSent:
		k.out.stop(k.cm)
		k.state = Established
		k.emit(Event{Type: EventEstablished})
		return nil
	case Established:
		return nil
	}
	return ErrState
}

// Reject refuses a request or a reply.
func (k *Conn) Reject(now int64, reason Reason, info, private []byte) error {
	k.cm.now = max(k.cm.now, now)
	a := aboutREQ
	switch k.state {
	case ReqReceived:
	case RepReceived, RepSent:
		a = aboutREP
		if k.state == RepSent {
			a = aboutOther
		}
	default:
		return ErrState
	}
	d, m := k.message(kindREJ, k.tid)
	m.encodeREJ(a, reason, info, private)
	if a == aboutREQ {
		// Its repetitions are answered as it was, and the peer's queue pair may ask again.
		k.asREJ = copyOf(d)
		delete(k.cm.qps, qpKey{k.guid, k.peer.QPN})
	}
	k.enterTimewait()
	return nil
}

func (k *Conn) receiveREJ(m mad) {
	_, reason, info, private := m.decodeREJ()
	switch k.state {
	case ReqSent, RepSent, RepReceived, ReqReceived:
	case Established: // a REJ of a REP that crossed: 12.9.8.5 lets the connection end
		if reason != RejTimeout && reason != RejInvalidCommID {
			k.cm.stats.Unknown++
			return
		}
		k.emit(Event{Type: EventDisconnect})
		k.enterTimewait()
		return
	case DreqSent:
		k.emit(Event{Type: EventDisconnected})
		k.enterTimewait()
		return
	default:
		k.cm.stats.Unknown++
		return
	}
	k.emit(Event{Type: EventRejected, Reason: reason, Info: info, Private: private})
	if k.state == ReqSent {
		k.forget()
		return
	}
	k.enterTimewait()
}

// MoreTime sends an MRA: the answer takes longer, 4.096 us * 2^timeout.
func (k *Conn) MoreTime(now int64, timeout uint8, private []byte) error {
	k.cm.now = max(k.cm.now, now)
	a := aboutREQ
	switch k.state {
	case ReqReceived:
	case RepReceived:
		a = aboutREP
	default:
		return ErrState
	}
	d, m := k.message(kindMRA, k.tid)
	m.encodeMRA(a, timeout, private)
	k.asMRA = copyOf(d)
	return nil
}

func (k *Conn) receiveMRA(m mad) {
	b := m.body()
	a, want := about(b[8]>>6), aboutREQ
	if k.state == RepSent {
		want = aboutREP
	}
	if k.state != ReqSent && k.state != RepSent || a != want {
		k.cm.stats.Unknown++
		return
	}
	if k.state == ReqSent {
		k.remoteID = m.localID()
		k.cm.remote[remoteKey{k.remoteID, k.to.Remote}] = k
	}
	k.out.wait(k.cm, duration(b[9]>>3))
	k.emit(Event{Type: EventMoreTime, Private: clone(b[mraPrivateAt : mraPrivateAt+MraPrivate])})
}

// Disconnect sends a DREQ.
func (k *Conn) Disconnect(now int64, private []byte) error {
	c := k.cm
	c.now = max(c.now, now)
	if k.state != Established && k.state != RepSent {
		return ErrState
	}
	k.out.stop(c)
	d, m := k.message(kindDREQ, c.random())
	put24(m.body()[8:], k.peer.QPN)
	copy(m.body()[dreqPrivateAt:dreqPrivateAt+DreqPrivate], private)
	k.state = DreqSent
	k.out.start(c, d, kindDREQ, min(k.timeout, maxDreqWait), min(k.retries, maxDreqRetries), func() {
		k.emit(Event{Type: EventDisconnected, Err: true})
		k.enterTimewait()
	})
	return nil
}

// A DREQ needs no decision of the peer's, so nobody waits a minute for its answer.
const (
	maxDreqWait    = 1 << 30 // 1.07 s
	maxDreqRetries = 4
)

func (k *Conn) receiveDREQ(m mad) {
	if get24(m.body()[8:]) != k.own.QPN&0xffffff && k.own.QPN != 0 {
		k.cm.stats.Foreign++
		return
	}
	private := clone(m.body()[dreqPrivateAt : dreqPrivateAt+DreqPrivate])
	switch k.state {
	case RepSent, RepReceived, Established:
		k.out.stop(k.cm)
		k.tid, k.state = m.tid(), DreqReceived
		k.emit(Event{Type: EventDisconnect, Private: private})
		if k.orphan {
			k.dreply(nil)
		}
	case DreqSent: // both at once: 12.9.8.6
		k.tid = m.tid()
		k.emit(Event{Type: EventDisconnect, Private: private})
		k.dreply(nil)
	case DreqReceived:
		k.cm.stats.Duplicates++
	case Timewait:
		k.cm.stats.Duplicates++
		k.tid = m.tid()
		if k.asDREP == nil {
			_, r := k.message(kindDREP, k.tid)
			_ = r
			return
		}
		k.repeat(k.asDREP)
	default:
		k.cm.stats.Unknown++
	}
}

// DisconnectReply answers a DREQ.
func (k *Conn) DisconnectReply(now int64, private []byte) error {
	k.cm.now = max(k.cm.now, now)
	if k.state != DreqReceived {
		return ErrState
	}
	k.dreply(private)
	return nil
}

func (k *Conn) dreply(private []byte) {
	d, m := k.message(kindDREP, k.tid)
	copy(m.body()[drepPrivateAt:drepPrivateAt+DrepPrivate], private)
	k.asDREP = copyOf(d)
	k.enterTimewait()
}

func (k *Conn) receiveDREP(m mad) {
	if k.state != DreqSent {
		k.cm.stats.Unknown++
		return
	}
	k.emit(Event{Type: EventDisconnected, Private: clone(m.body()[drepPrivateAt : drepPrivateAt+DrepPrivate])})
	k.enterTimewait()
}

// receiveLAP refuses another path for a connection (12.8.3): paths are changed by attributes of the queue pair alone.
func (k *Conn) receiveLAP(m mad) {
	if k.state != Established {
		k.cm.stats.Unknown++
		return
	}
	_, r := k.message(kindAPR, m.tid())
	r.body()[9] = aprUnsupported
	k.emit(Event{Type: EventAlternate})
}

// Close lets go of the connection: no event of it comes afterwards. A request is rejected, a connection disconnected.
func (k *Conn) Close(now int64) {
	k.cm.now = max(k.cm.now, now)
	k.orphan, k.owner = true, nil
	switch k.state {
	case ReqSent:
		// The peer may have made its half (12.9.8.2).
		_, m := k.message(kindREJ, k.tid)
		m.encodeREJ(aboutOther, RejTimeout, k.cm.cfg.NodeGUID[:], nil)
		k.forget()
	case ReqReceived, RepReceived:
		_ = k.Reject(now, RejConsumer, nil, nil)
	case RepSent:
		_ = k.Reject(now, RejConsumer, nil, nil)
	case Established:
		_ = k.Disconnect(now, nil)
	case DreqReceived:
		k.dreply(nil)
	}
}
