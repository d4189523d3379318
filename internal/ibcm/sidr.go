package ibcm

// Lookup is a service resolution (vol. 1, 12.11): one's own, or a peer's that waits for an answer.
type Lookup struct {
	cm       *CM
	to       Address
	id       uint32
	tid      uint64
	service  uint64
	listener *Listener // a peer's
	out      resend
	expiry   timer
	owner    any
	asReply  *Datagram
	closed   bool

	// ECE is told in the answer to a peer's lookup; set it before Reply.
	ECE ECE
}

// Owner is what Lookup was given.
func (l *Lookup) Owner() any       { return l.owner }
func (l *Lookup) SetOwner(o any)   { l.owner = o }
func (l *Lookup) Address() Address { return l.to }

// lookupMemory is how long an answered lookup is remembered, so that its repetitions get the same answer.
const lookupMemory = 10_000_000_000

// Lookup asks the peer for the queue pair of a service.
func (c *CM) Lookup(now int64, to Address, serviceID uint64, pkey uint16, private []byte, owner any) *Lookup {
	c.now = max(c.now, now)
	l := &Lookup{cm: c, to: to, id: c.newID(), tid: c.random(), service: serviceID, owner: owner}
	l.out.timer.index, l.expiry.index = -1, -1
	c.look[l.id] = l
	d, m := c.message(to, kindSIDRREQ, l.tid)
	b := m.body()
	be.PutUint32(b, l.id)
	be.PutUint16(b[4:], pkey)
	be.PutUint64(b[8:], serviceID)
	copy(b[sidrReqPrivateAt:sidrReqPrivateAt+SIDRReqPrivate], private)
	l.out.start(c, d, kindSIDRREQ, duration(defaultTimeout), defaultMaxCMRetry, func() {
		delete(c.look, l.id)
		if !l.closed {
			c.emit(Event{Type: EventLookupFailed, Lookup: l, Address: l.to})
		}
	})
	return l
}

func (c *CM) receiveLookupReply(from Address, m mad) {
	b := m.body()
	l := c.look[be.Uint32(b)]
	switch {
	case l == nil:
		c.stats.Unknown++
		return
	case l.to != from:
		c.stats.Foreign++
		return
	}
	l.out.stop(c)
	delete(c.look, l.id)
	if l.closed {
		return
	}
	n := min(int(b[5]), SIDRRepInfo)
	c.emit(Event{Type: EventLookupReply, Lookup: l, Address: l.to, Status: LookupStatus(b[4]), QPN: get24(b[8:]), QKey: be.Uint32(b[20:]),
		ServiceID: be.Uint64(b[12:]), Info: clone(b[sidrRepInfoAt : sidrRepInfoAt+n]), Private: clone(b[sidrRepPrivateAt : sidrRepPrivateAt+SIDRRepPrivate])})
}

// receiveLookup is the passive side.
func (c *CM) receiveLookup(from Address, m mad) {
	b := m.body()
	key := remoteKey{be.Uint32(b), from.Remote}
	if key.id == 0 {
		c.stats.Malformed++
		return
	}
	if old := c.asked[key]; old != nil {
		c.stats.Duplicates++
		if old.asReply != nil {
			mad(old.asReply.MAD[:]).setTID(m.tid())
			c.sends = append(c.sends, *old.asReply)
			c.stats.Repeated[kindSIDRREP-kindREQ]++
		}
		return
	}
	l := &Lookup{cm: c, to: from, id: key.id, tid: m.tid(), service: be.Uint64(b[8:])}
	l.out.timer.index, l.expiry.index = -1, -1
	srv := c.listen[l.service]
	switch {
	case srv == nil:
		c.early(earlyKey{kindSIDRREQ, key}, from, m, l.service, func(m mad) {
			l.tid = m.tid()
			l.send(LookupUnsupported, 0, 0, nil, nil)
		})
		return
	case len(srv.lookups) >= srv.backlog || c.npend >= c.cfg.MaxConns:
		c.stats.BacklogDrops++
		return
	}
	c.forgetEarly(earlyKey{kindSIDRREQ, key})
	l.listener = srv
	srv.lookups[l] = struct{}{}
	c.npend++
	c.asked[key] = l
	c.emit(Event{Type: EventLookup, Lookup: l, Listener: srv, Address: from, ServiceID: l.service, PKey: be.Uint16(b[4:]),
		Private: clone(b[sidrReqPrivateAt : sidrReqPrivateAt+SIDRReqPrivate])})
}

func (l *Lookup) send(status LookupStatus, qpn, qkey uint32, info, private []byte) *Datagram {
	d, m := l.cm.message(l.to, kindSIDRREP, l.tid)
	b := m.body()
	be.PutUint32(b, l.id)
	b[4] = byte(status)
	info = info[:min(len(info), SIDRRepInfo)]
	b[5] = byte(len(info))
	put24(b[8:], qpn)
	m.setSIDRREPECE(l.ECE)
	be.PutUint64(b[12:], l.service)
	be.PutUint32(b[20:], qkey)
	copy(b[sidrRepInfoAt:], info)
	copy(b[sidrRepPrivateAt:sidrRepPrivateAt+SIDRRepPrivate], private)
	return d
}

// Reply answers a peer's lookup.
func (l *Lookup) Reply(now int64, status LookupStatus, qpn, qkey uint32, info, private []byte) error {
	c := l.cm
	c.now = max(c.now, now)
	if l.listener == nil || l.asReply != nil {
		return ErrState
	}
	l.asReply = copyOf(l.send(status, qpn, qkey, info, private))
	l.answered()
	if c.lapsed >= maxLapse {
		delete(c.asked, remoteKey{l.id, l.to.Remote})
		return nil
	}
	c.lapsed++
	l.expiry.fire = func() {
		c.lapsed--
		delete(c.asked, remoteKey{l.id, l.to.Remote})
	}
	c.set(&l.expiry, c.now+lookupMemory)
	return nil
}

func (l *Lookup) answered() {
	delete(l.listener.lookups, l)
	l.cm.npend--
}

// Close lets go of it: a peer's that was not answered is rejected.
func (l *Lookup) Close(now int64) {
	l.cm.now = max(l.cm.now, now)
	l.closed, l.owner = true, nil
	if l.listener == nil {
		l.out.stop(l.cm)
		delete(l.cm.look, l.id)
		return
	}
	if l.asReply == nil {
		_ = l.Reply(now, LookupReject, 0, 0, nil, nil)
	}
}
