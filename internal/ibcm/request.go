package ibcm

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
	k.active, k.owner, k.own, k.tid = true, owner, q.Connection, c.random()
	k.setTimes(q.RespTimeout, q.MaxCMRetry, q.AckTimeout)
	d, m := k.message(kindREQ, k.tid)
	m.encodeREQ(k.localID, c.cfg.NodeGUID, &q)
	k.state = ReqSent
	k.out.start(c, d, kindREQ, k.timeout, k.retries, k.unreachable)
	return k, nil
}

// unreachable: no answer to REQ or REP. The peer is told, if it hears (12.6.7.2, reason 4).
func (k *Conn) unreachable() {
	k.end(Event{Type: EventUnreachable})
	if k.state == RepSent {
		k.giveUp(aboutREP)
		k.lapse()
		return
	}
	k.giveUp(aboutOther)
	k.forget()
}

// giveUp sends the REJ of who waits no longer; peers find the connection by the GUID in it and the sender's id (12.6.7.2).
func (k *Conn) giveUp(a about) {
	_, m := k.message(kindREJ, k.tid)
	m.encodeREJ(a, RejTimeout, k.cm.cfg.NodeGUID[:], nil)
}

// receiveREQ makes a connection for a listener.
func (c *CM) receiveREQ(from Address, m mad) {
	id := m.localID()
	r := m.decodeREQ()
	if id == 0 || r.Primary.Local != from.Remote {
		c.stats.Malformed++
		return
	}
	reject := func(m mad, reason Reason, info []byte) {
		_, j := c.message(from, kindREJ, m.tid())
		j.ids(0, id)
		j.encodeREJ(aboutREQ, reason, info, nil)
	}
	key := remoteKey{id, from.Remote}
	if old := c.remote[key]; old != nil && c.cfg.Planted != PlantedRequestTwice {
		if old.tid == m.tid() && old.peer.QPN == r.QPN {
			old.again(m)
			return
		}
		// The peer has taken the id for something new: what it was for is stale, or nothing any more.
		if !old.lapsed && !old.superseded() {
			reject(m, RejStale, nil)
			return
		}
		old.forget()
	}
	if old := c.qps[qpKey{from.Remote, r.RemoteGUID, r.QPN}]; old != nil && !old.superseded() && c.cfg.Planted != PlantedRequestTwice {
		// The peer's queue pair has a connection that it does not know any more (12.9.8.3.1).
		reject(m, RejStale, nil)
		return
	}
	switch {
	case r.Primary.Remote != from.Local:
		reject(m, RejInvalidGID, from.Local[:])
		return
	case r.Transport != TransportRC && r.Transport != TransportUC && r.Transport != TransportXRC:
		reject(m, RejInvalidTransport, nil)
		return
	case r.PathMTU < 1 || r.PathMTU > 5:
		reject(m, RejInvalidMTU, []byte{5})
		return
	}
	l := c.listen[r.ServiceID]
	switch {
	case l == nil:
		c.early(earlyKey{kindREQ, key}, from, m, r.ServiceID, func(m mad) { reject(m, RejInvalidServiceID, nil) })
		return
	case len(l.pending) >= l.backlog || c.npend >= c.cfg.MaxConns:
		c.stats.BacklogDrops++ // it will be repeated
		return
	}
	c.forgetEarly(earlyKey{kindREQ, key}) // of the same id, for what the peer wants no more
	k := c.newConn(from)
	k.remoteID, k.tid, k.listener = id, m.tid(), l
	k.peer, k.guid, k.hasPeer = r.Connection, r.RemoteGUID, true
	k.setTimes(r.RespTimeout, r.MaxCMRetry, r.AckTimeout)
	k.memory = max(k.wait, min(3*duration(m.remoteTimeout()), 2*maxWait))
	l.pending[k] = struct{}{}
	c.npend++
	c.remote[key] = k
	k.holdQP()
	k.state = ReqReceived
	k.emit(Event{Type: EventRequest, Listener: l, Request: r})
}

// superseded deals with a connection whose queue pair, or id, the peer asks another connection for. False: it counts as connected here, so
// the new one is rejected and the old one ended (12.9.8.3.1). True: the peer is right, and the new one may go on.
func (k *Conn) superseded() bool {
	switch k.state {
	case ReqReceived: // not connected yet: the peer has given up that request, and its REJ was lost
		k.end(Event{Type: EventRejected, Reason: RejTimeout})
		k.lapse()
		return true
	case RepSent, RepReceived, Established:
		k.end(Event{Type: EventDisconnect})
		k.disconnect(nil)
	case DreqReceived:
		return true
	}
	return false
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
	case DreqSent, Timewait:
		if k.lapsed { // the peer has not heard yet, and will ask again
			c.set(&k.timewait, c.now+k.memory+k.granted)
		}
		if k.asREJ != nil {
			k.repeat(k.asREJ)
			return
		}
		_, j := c.message(k.to, kindREJ, m.tid())
		j.ids(k.localID, k.remoteID)
		j.encodeREJ(aboutREQ, RejStale, nil, nil)
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
	if !k.active {
		k.cm.stats.Unknown++
		return
	}
	switch k.state {
	case ReqSent:
	case RepReceived:
		k.cm.stats.Duplicates++
		k.repeat(k.asMRA)
		return
	case Established:
		k.cm.stats.Duplicates++
		if k.cm.cfg.Planted != PlantedRTUOnce {
			k.repeat(k.asRTU)
		}
		return
	case Timewait:
		// The peer has not heard that it is over.
		k.cm.stats.Duplicates++
		if k.asREJ == nil {
			d, j := k.message(kindREJ, k.tid)
			j.encodeREJ(aboutREP, RejInvalidCommID, nil, nil)
			k.asREJ = copyOf(d)
			return
		}
		k.repeat(k.asREJ)
		return
	default:
		k.cm.stats.Unknown++
		return
	}
	r := m.decodeREP()
	k.out.stop(k.cm)
	k.remoteID, k.peer, k.guid, k.hasPeer = m.localID(), r.Connection, r.RemoteGUID, true
	k.state = RepReceived
	if old := k.cm.qps[qpKey{k.to.Remote, k.guid, k.peer.QPN}]; old != nil && !old.superseded() {
		k.end(Event{Type: EventRejected, Reason: RejStale}) // 12.9.8.3.1 holds for REP too
		k.refuse(aboutREP, RejStale, nil, nil)
		k.lapse()
		return
	}
	k.holdQP()
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
	// The peer repeats its message only when that is over: so long an answer that was lost must be remembered.
	k.granted = max(k.granted, duration(min(timeout, maxMRACode)))
	return nil
}

func (k *Conn) receiveMRA(m mad) {
	b := m.body()
	a, want := about(b[8]>>6), aboutREQ
	if k.state == RepSent {
		want = aboutREP
	}
	if k.state != ReqSent && k.state != RepSent || a != want || k.mras == 0 {
		k.cm.stats.Unknown++
		return
	}
	k.mras--
	if k.state == ReqSent {
		k.remoteID = m.localID()
	}
	k.out.wait(k.cm, duration(min(b[9]>>3, maxMRACode)))
	k.emit(Event{Type: EventMoreTime, Private: clone(b[mraPrivateAt : mraPrivateAt+MraPrivate])})
}

// maxMRACode is the longest that a peer's MRA is heeded for: 68 seconds at a time.
const maxMRACode = 24
