package cma

import (
	"net/netip"
	"syscall"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// requestHead is the length of what precedes the user's private data in a request: none in SpaceIB with its own addresses.
const requestHead = ibcm.IPHeaderSize

// Limits of private data in bytes, by message.
const (
	MaxConnectPrivate = ibcm.ReqPrivate - requestHead
	MaxLookupPrivate  = ibcm.SIDRReqPrivate - requestHead
	MaxAcceptPrivate  = ibcm.RepPrivate
	MaxRejectPrivate  = ibcm.RejPrivate
)

func (i *ID) address() ibcm.Address {
	return ibcm.Address{Local: ibcm.GIDOf(i.src.Addr()), Remote: ibcm.GIDOf(i.dst.Addr())}
}

// Connect asks for a connection, or for the queue pair that datagrams go to: ConnectResponse (Established for datagrams), Rejected or Unreachable follows.
func (i *ID) Connect(p ConnParam) error {
	defer i.lock()()
	if i.state != stateRouteResolved {
		return refuse(syscall.EINVAL, "connect", "the id is %v", i.state)
	}
	limit := MaxConnectPrivate
	if i.datagrams() {
		limit = MaxLookupPrivate
	}
	if len(p.Private) > limit {
		return refuse(syscall.EINVAL, "connect", "%d bytes of private data: %d are possible", len(p.Private), limit)
	}
	private := make([]byte, requestHead+len(p.Private))
	ibcm.EncodeIPHeader(private, ibcm.IPHeader{Src: i.src, Dst: i.dst})
	copy(private[requestHead:], p.Private)
	sid := ibcm.ServiceID(uint16(i.space), i.dst.Port())
	i.param, i.active = p, true
	now := i.m.now()
	if i.datagrams() {
		i.lookup = i.port.cm.Lookup(now, i.address(), sid, 0xffff, private, i)
	} else {
		i.retry, i.rnrRetry = p.RetryCount&7, p.RNRRetryCount&7
		transport := ibcm.TransportRC
		if i.typ == nic.UC {
			transport = ibcm.TransportUC
		}
		c, err := i.port.cm.Connect(now, i.address(), &ibcm.Request{ServiceID: sid, Transport: transport, RetryCount: i.retry, PathMTU: i.pathMTU,
			AckTimeout: i.ackTimeout, PKey: 0xffff, Private: private, Connection: ibcm.Connection{QPN: p.QPN, StartingPSN: i.psn,
				ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, FlowControl: p.FlowControl, RNRRetry: i.rnrRetry, SRQ: p.SRQ, ECE: p.ECE},
			Primary: ibcm.Path{Local: i.address().Local, Remote: i.address().Remote, HopLimit: i.hopLimit, TrafficClass: i.tos, PacketRate: 18}}, i)
		if err != nil {
			return refuse(syscall.ENOMEM, "connect", "%v", err)
		}
		i.conn = c
	}
	i.state = stateConnect
	i.port.work()
	return nil
}

// Accept answers a request, with p; Established follows when the peer is ready. On the active side, with nil, it completes the
// connection after ConnectResponse.
func (i *ID) Accept(p *ConnParam) error {
	defer i.lock()()
	if i.state != stateConnect {
		return refuse(syscall.EINVAL, "accept", "the id is %v", i.state)
	}
	now := i.m.now()
	var err error
	switch {
	case i.datagrams():
		err = i.acceptLookup(now, p)
	case p == nil:
		err = i.conn.Ready(now, nil)
	default:
		if len(p.Private) > MaxAcceptPrivate {
			return refuse(syscall.EINVAL, "accept", "%d bytes of private data: %d are possible", len(p.Private), MaxAcceptPrivate)
		}
		i.param = *p
		i.responder, i.initiator = p.ResponderResources, p.InitiatorDepth
		err = i.conn.Accept(now, &ibcm.Reply{Private: p.Private, AckDelay: 15, Connection: ibcm.Connection{QPN: p.QPN, StartingPSN: i.psn,
			ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, FlowControl: p.FlowControl, RNRRetry: p.RNRRetryCount & 7, SRQ: p.SRQ, ECE: p.ECE}})
		i.answered()
	}
	if err != nil {
		return refuse(syscall.EINVAL, "accept", "%v", err)
	}
	i.port.work()
	return nil
}

func (i *ID) acceptLookup(now int64, p *ConnParam) error {
	if p == nil || i.lookup == nil || i.active {
		return ibcm.ErrState
	}
	key := p.QKey
	if key == 0 {
		key = QKey
	}
	if len(p.Private) > ibcm.SIDRRepPrivate {
		return ibcm.ErrState
	}
	i.answered()
	i.lookup.ECE = p.ECE
	return i.lookup.Reply(now, ibcm.LookupOK, p.QPN, key, nil, p.Private)
}

// Reject refuses a request, or a response.
func (i *ID) Reject(private []byte, reason ibcm.Reason) error {
	defer i.lock()()
	if i.state != stateConnect {
		return refuse(syscall.EINVAL, "reject", "the id is %v", i.state)
	}
	if len(private) > MaxRejectPrivate {
		return refuse(syscall.EINVAL, "reject", "%d bytes of private data: %d are possible", len(private), MaxRejectPrivate)
	}
	if reason == 0 {
		reason = ibcm.RejConsumer
	}
	now := i.m.now()
	var err error
	switch {
	case i.datagrams() && i.lookup != nil && !i.active:
		err = i.lookup.Reply(now, ibcm.LookupReject, 0, 0, nil, private[:min(len(private), ibcm.SIDRRepPrivate)])
	case i.conn != nil:
		err = i.conn.Reject(now, reason, nil, private)
	default:
		err = ibcm.ErrState
	}
	i.answered()
	if err != nil {
		return refuse(syscall.EINVAL, "reject", "%v", err)
	}
	i.port.work()
	return nil
}

// Disconnect ends the connection: Disconnected follows on both sides.
func (i *ID) Disconnect() error {
	defer i.lock()()
	if i.conn == nil && (i.state == stateDisconnect || i.state == stateConnect || i.active) {
		return nil // as the kernel: of datagrams, or what was a connection, or should have become one, is none any more
	}
	if i.conn == nil || i.state != stateConnect && i.state != stateDisconnect {
		return refuse(syscall.EINVAL, "disconnect", "the id is %v", i.state)
	}
	now := i.m.now()
	if err := i.conn.Disconnect(now, nil); err != nil {
		if err = i.conn.DisconnectReply(now, nil); err != nil && i.state == stateConnect {
			return refuse(syscall.EINVAL, "disconnect", "%v", err)
		}
	}
	i.port.work()
	return nil
}

// Notify says that data has come before the peer's last message of the handshake: the connection is made.
func (i *ID) Notify() error {
	defer i.lock()()
	if i.conn == nil {
		return refuse(syscall.EINVAL, "notify", "the id is %v", i.state)
	}
	if err := i.conn.Established(i.m.now()); err != nil {
		return refuse(syscall.EINVAL, "notify", "%v", err)
	}
	i.port.work()
	return nil
}

// event takes one event of the protocol. The manager is held.
func (p *port) event(e *ibcm.Event) {
	switch e.Type {
	case ibcm.EventRequest:
		p.requested(e)
		return
	case ibcm.EventLookup:
		p.lookedUp(e)
		return
	}
	var i *ID
	if e.Conn != nil {
		i, _ = e.Conn.Owner().(*ID)
	} else if e.Lookup != nil {
		i, _ = e.Lookup.Owner().(*ID)
	}
	if i == nil || i.state == stateDestroyed || e.Conn != i.conn || e.Lookup != i.lookup {
		return
	}
	switch e.Type {
	case ibcm.EventReply:
		i.peer, i.rnrRetry = e.Reply.Connection, e.Reply.RNRRetry
		// What the peer answers is what we may have in flight, and the other way round.
		i.responder, i.initiator = e.Reply.InitiatorDepth, e.Reply.ResponderResources
		i.emit(Event{Type: ConnectResponse, Conn: i.peerParam(e.Private)})
	case ibcm.EventReady, ibcm.EventEstablished:
		i.emit(Event{Type: Established, Conn: ConnParam{Private: e.Private}})
	case ibcm.EventRejected:
		i.ended(Rejected, int(e.Reason), e.Private)
	case ibcm.EventUnreachable:
		i.ended(Unreachable, -int(syscall.ETIMEDOUT), nil)
	case ibcm.EventDisconnect, ibcm.EventDisconnected:
		if i.state == stateConnect {
			i.state = stateDisconnect
			i.emit(Event{Type: Disconnected, Conn: ConnParam{Private: e.Private}})
		}
	case ibcm.EventTimewaitEnd:
		i.conn = nil
		i.emit(Event{Type: TimewaitExit})
	case ibcm.EventLookupReply:
		i.lookup = nil
		if e.Status != ibcm.LookupOK {
			i.ended(Unreachable, int(e.Status), e.Private)
			return
		}
		i.emit(Event{Type: Established, UD: UDParam{Private: e.Private, AH: i.vector(), QPN: e.QPN, QKey: e.QKey}})
	case ibcm.EventLookupFailed:
		i.lookup = nil
		i.ended(Unreachable, -int(syscall.ETIMEDOUT), nil)
	}
}

// ended tells of a connection that was not made. An active id may connect again; a passive one is over.
func (i *ID) ended(t EventType, status int, private []byte) {
	i.answered()
	if i.active {
		i.state = stateRouteResolved
	}
	if i.conn != nil && i.conn.State() == ibcm.Idle {
		i.conn = nil
	}
	i.emit(Event{Type: t, Status: status, Conn: ConnParam{Private: private}})
}

func (i *ID) peerParam(private []byte) ConnParam {
	return ConnParam{Private: private, ResponderResources: i.responder, InitiatorDepth: i.initiator, FlowControl: i.peer.FlowControl,
		RetryCount: i.retry, RNRRetryCount: i.peer.RNRRetry, SRQ: i.peer.SRQ, QPN: i.peer.QPN, ECE: i.peer.ECE}
}

// accepted makes the id of a request for a listener; nil if nobody wants it.
func (p *port) accepted(l *ibcm.Listener, addr ibcm.Address, private []byte, sid uint64, datagrams bool) (*ID, []byte) {
	srv, _ := l.Owner().(*serviceListener)
	h, ok := ibcm.DecodeIPHeader(private, sid)
	if srv == nil || !ok {
		return nil, nil
	}
	// The addresses of the header are the sender's word; packets go by those of the datagram. Another one's must not reach who listens at an
	// address that is not for it.
	if h.Dst.Addr() != addrOf(addr.Local) || h.Src.Addr() != addrOf(addr.Remote) {
		return nil, nil
	}
	lis := srv.find(h.Dst.Addr())
	if lis == nil || lis.pending >= lis.backlog || lis.datagrams() != datagrams {
		return nil, nil
	}
	g := p.gidIndex(addr.Local)
	if g < 0 {
		return nil, nil
	}
	i := &ID{m: p.m, space: lis.space, typ: lis.typ, sink: lis.sink, Owner: lis.Owner, PID: lis.PID, state: stateConnect, port: p, gid: g, parent: lis,
		src: netip.AddrPortFrom(addrOf(addr.Local), h.Dst.Port()), dst: netip.AddrPortFrom(addrOf(addr.Remote), h.Src.Port()),
		ackTimeout: defaultAckTimeout, tos: lis.tos, hopLimit: 64, psn: newPSN()}
	lis.pending++
	p.m.add(i)
	return i, private[requestHead:]
}

func (p *port) requested(e *ibcm.Event) {
	r := e.Request
	i, private := p.accepted(e.Listener, e.Address, r.Private, r.ServiceID, false)
	now := p.m.now()
	if i == nil {
		_ = e.Conn.Reject(now, ibcm.RejConsumer, nil, nil)
		return
	}
	if mine := roce.MTUCode(p.dev.MTU()); r.PathMTU > mine && !p.own(e.Address.Remote) {
		i.destroy()
		_ = e.Conn.Reject(now, ibcm.RejInvalidMTU, []byte{mine}, nil)
		return
	}
	if r.Transport == ibcm.TransportUC {
		i.typ = nic.UC
	}
	i.conn = e.Conn
	e.Conn.SetOwner(i)
	i.peer, i.pathMTU, i.retry, i.rnrRetry = r.Connection, r.PathMTU, r.RetryCount, r.RNRRetry
	if r.AckTimeout != 0 {
		i.ackTimeout = r.AckTimeout
	}
	i.tos = r.Primary.TrafficClass
	i.responder, i.initiator = r.InitiatorDepth, r.ResponderResources
	i.emitRequest(Event{Conn: i.peerParam(private)})
}

// own tells whether an address is one of the NIC's.
func (p *port) own(g roce.GID) bool { return p.gidIndex(g) >= 0 }

func (p *port) lookedUp(e *ibcm.Event) {
	i, private := p.accepted(e.Listener, e.Address, e.Private, e.ServiceID, true)
	if i == nil {
		_ = e.Lookup.Reply(p.m.now(), ibcm.LookupReject, 0, 0, nil, nil)
		return
	}
	i.lookup = e.Lookup
	e.Lookup.SetOwner(i)
	i.emitRequest(Event{UD: UDParam{Private: private, AH: i.vector()}, Conn: ConnParam{Private: private}})
}

// emitRequest tells the listener's owner of a request.
func (i *ID) emitRequest(e Event) {
	e.Type, e.Listen = ConnectRequest, i.parent
	i.emit(e)
}

// vector is the address vector to the peer.
func (i *ID) vector() nic.AHAttr {
	return nic.AHAttr{DGID: ibcm.GIDOf(i.dst.Addr()), SGIDIndex: uint8(i.gid), HopLimit: i.hopLimit, TrafficClass: i.tos, IsGlobal: true, Port: 1}
}
