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
	endTID            uint64 // of the DREQ that is to be answered
	listener          *Listener
	owner             any
	active            bool // this side has sent the REQ
	orphan            bool // its owner has closed it: no more events
	told              bool // its end has been told
	lapsed            bool // it ended before it was made: remembered for the peer's repetitions alone

	out      resend
	timewait timer
	wait     int64 // how long the queue pair stays in timewait, nanoseconds
	memory   int64 // how long a request that came to nothing is remembered, nanoseconds
	granted  int64 // how long the peer has been told to wait (MRA), nanoseconds
	timeout  int64 // until the peer answers, nanoseconds
	retries  int
	mras     int // MRAs that the peer may still send

	asMRA  *Datagram // the MRA that was sent: repeated when the REQ or REP is
	asRTU  *Datagram // the RTU that was sent: repeated when the REP is
	asREJ  *Datagram // the REJ that was sent: repeated when the REQ or REP is
	asDREP *Datagram

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
	k := &Conn{cm: c, to: to, localID: c.newID(), mras: maxMRAs}
	k.out.timer.index, k.timewait.index = -1, -1
	k.timewait.fire = k.leaveTimewait
	c.conns[k.localID] = k
	return k
}

// Bounds of times that peers may ask for, whatever they say, and of what is remembered for their sake.
const (
	minWait  = 10_000_000     // of timewait
	maxWait  = 8_600_000_000  // of timewait
	maxSlow  = 34_400_000_000 // until an answer: code 23
	maxMRAs  = 16             // that prolong one exchange
	maxLapse = 4096           // requests that came to nothing, and lookups that were answered
)

// setTimes takes the times of a REQ: how long the peer may take for an answer, how often it is asked, and the local ACK timeout, which is
// twice the packet's lifetime and the peer's delay: what a queue pair has to stay in timewait for (12.4, 12.9.8.4).
func (k *Conn) setTimes(timeout, retries, ackTimeout uint8) {
	if timeout == 0 {
		timeout = defaultTimeout
	}
	k.timeout, k.retries = min(duration(timeout), maxSlow), int(retries)
	k.wait = min(max(duration(ackTimeout), minWait), maxWait)
	k.memory = k.wait
}

// emit tells the owner.
func (k *Conn) emit(e Event) {
	if k.orphan {
		return
	}
	e.Conn, e.Address = k, k.to
	k.cm.emit(e)
}

// end tells the owner that the connection is over, or comes to nothing: once, whatever else happens.
func (k *Conn) end(e Event) {
	if !k.told {
		k.told = true
		k.emit(e)
	}
}

// message makes a message of the connection.
func (k *Conn) message(kd kind, tid uint64) (*Datagram, mad) {
	d, m := k.cm.message(k.to, kd, tid)
	if kd != kindREQ {
		m.ids(k.localID, k.remoteID)
	}
	return d, m
}

func copyOf(d *Datagram) *Datagram {
	c := *d
	return &c
}

// repeat sends an earlier message again.
func (k *Conn) repeat(d *Datagram) {
	if d != nil {
		k.cm.sends = append(k.cm.sends, *d)
		k.cm.stats.Repeated[kind(be.Uint16(d.MAD[offAttr:]))-kindREQ]++
	}
}

// forget ends the connection at once.
func (k *Conn) forget() {
	c := k.cm
	if k.lapsed {
		k.lapsed = false
		c.lapsed--
	}
	k.state = Idle
	k.out.stop(c)
	c.unset(&k.timewait)
	delete(c.conns, k.localID)
	if r := (remoteKey{k.remoteID, k.to.Remote}); c.remote[r] == k {
		delete(c.remote, r)
	}
	k.forgetQP()
	k.answered()
}

// forgetQP lets the peer's queue pair be taken for another connection.
func (k *Conn) forgetQP() {
	if q := (qpKey{k.to.Remote, k.guid, k.peer.QPN}); k.cm.qps[q] == k {
		delete(k.cm.qps, q)
	}
}

// holdQP notes that the peer's queue pair has this connection.
func (k *Conn) holdQP() { k.cm.qps[qpKey{k.to.Remote, k.guid, k.peer.QPN}] = k }

// answered takes a request out of its listener's backlog.
func (k *Conn) answered() {
	if k.listener != nil {
		delete(k.listener.pending, k)
		k.listener = nil
		k.cm.npend--
	}
}

// enterTimewait keeps the connection's ids from being taken for new ones while anything of it may be under way (12.9.8.4). The peer's queue
// pair counts as connected no more.
func (k *Conn) enterTimewait() { k.stay(k.wait) }

func (k *Conn) stay(time int64) {
	k.out.stop(k.cm)
	k.answered()
	k.forgetQP()
	k.state = Timewait
	if k.cm.cfg.Planted == PlantedNoTimewait {
		time = 0
	}
	k.cm.set(&k.timewait, k.cm.now+time)
}

// lapse ends a connection that was never made. It is remembered, if there is room, so that repetitions get the same answer.
func (k *Conn) lapse() {
	if k.cm.lapsed >= maxLapse {
		k.forget()
		return
	}
	k.lapsed = true
	k.cm.lapsed++
	k.stay(k.memory + k.granted)
}

func (k *Conn) leaveTimewait() {
	if !k.lapsed {
		k.emit(Event{Type: EventTimewaitEnd})
	}
	k.forget()
}

// Close lets go of the connection: no event of it comes afterwards. A request is rejected, a connection disconnected.
func (k *Conn) Close(now int64) {
	k.cm.now = max(k.cm.now, now)
	k.orphan, k.owner = true, nil
	switch k.state {
	case ReqSent:
		k.giveUp(aboutOther) // the peer may have made its half
		k.forget()
	case ReqReceived, RepReceived, RepSent:
		_ = k.Reject(now, RejConsumer, nil, nil)
	case Established:
		_ = k.Disconnect(now, nil)
	case DreqReceived:
		k.dreply(nil)
	}
}
