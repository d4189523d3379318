package ibcm

import (
	"errors"
	"testing"
)

// 12.9.7, 12.4: a connection is made, carries what both sides said, ends, and its ids rest in timewait before nothing is left.
func TestLifetime(t *testing.T) {
	n, a, b := asked(t)
	r := n.hosts[1].told[0].Request
	if r.QPN != 0x111 || r.StartingPSN != 77 || string(r.Private[:5]) != "hello" || n.hosts[1].told[0].Listener.Owner() != "listener" {
		t.Errorf("request %+v", r)
	}
	must(t, b.Accept(n.now, reply(0x222)))
	n.pass(10 * microsecond)
	if p := a.Peer(); p == nil || p.QPN != 0x222 || p.StartingPSN != 88 {
		t.Errorf("peer %+v", p)
	}
	must(t, a.Ready(n.now, []byte("ready")))
	n.pass(10 * microsecond)
	if e := n.hosts[1].told[1]; e.Type != EventReady || string(e.Private[:5]) != "ready" {
		t.Errorf("event %+v", e)
	}
	disconnects(n, a, b)
	for _, k := range []*Conn{a, b} {
		if k.State() != Timewait {
			t.Errorf("state %v", k.State())
		}
	}
	n.pass(second)
	n.hosts[0].wants(t, EventReply, EventDisconnected, EventTimewaitEnd)
	n.hosts[1].wants(t, EventRequest, EventReady, EventDisconnect, EventTimewaitEnd)
	n.empty()
}

// 12.9.8: whatever message is lost the first time, the connection comes up and ends, and costs less than the specified timeout of 4.3 s.
func TestLoss(t *testing.T) {
	for _, lost := range []kind{kindREQ, kindREP, kindRTU, kindDREQ, kindDREP} {
		for _, times := range []int{1, 3} {
			n := newNet(t, 5, PlantedNone)
			n.drop(lost, times)
			n.acts = func(h *host, e *Event) {
				switch e.Type {
				case EventRequest:
					must(t, e.Conn.Accept(n.now, reply(0x222)))
				case EventReply:
					must(t, e.Conn.Ready(n.now, nil))
				case EventReady:
					must(t, e.Conn.Disconnect(n.now, nil))
				case EventDisconnect:
					must(t, e.Conn.DisconnectReply(n.now, nil))
				}
			}
			_, err := n.hosts[1].cm.Listen(service, 0, nil)
			must(t, err)
			_, err = n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
			must(t, err)
			n.pass(4 * second)
			n.hosts[0].wants(t, EventReply, EventDisconnect, EventTimewaitEnd)
			n.hosts[1].wants(t, EventRequest, EventReady, EventDisconnected, EventTimewaitEnd)
			n.empty()
		}
	}
}

// 12.6.5, 12.9.8: nobody answers. The REQ is repeated early, then every Remote CM Response Timeout, and given up after 16 of those.
func TestUnreachable(t *testing.T) {
	n := newNet(t, 6, PlantedNone)
	n.fate = func(*Datagram) []int64 { return nil }
	a, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
	must(t, err)
	start := n.now
	n.pass(68 * second)
	n.hosts[0].wants(t)
	sent := len(n.hosts[0].sent)
	if sent < 16 || sent > 22 {
		t.Errorf("%d REQs", sent)
	}
	n.pass(2 * second)
	n.hosts[0].wants(t, EventUnreachable)
	if last := n.hosts[0].sent[len(n.hosts[0].sent)-1]; kindOf(&last) != kindREJ {
		t.Errorf("the last datagram is a %v: the peer may be waiting", kindOf(&last))
	}
	if a.State() != Idle || n.now-start > 70*second {
		t.Errorf("state %v after %d ns", a.State(), n.now-start)
	}
	n.empty()
}

// The passive side gives up in the same way, and remembers the request so that a late REQ makes no second one.
func TestReplyNeverAnswered(t *testing.T) {
	n, _, b := asked(t)
	n.hosts[1].heard()
	n.fate = func(*Datagram) []int64 { return nil }
	must(t, b.Accept(n.now, reply(0x222)))
	n.pass(75 * second)
	n.hosts[1].wants(t, EventUnreachable)
	if b.State() != Timewait {
		t.Errorf("state %v", b.State())
	}
	n.pass(60 * second)
	n.hosts[0].wants(t, EventUnreachable)
	n.empty()
}

// 12.9.8.6: both sides disconnect at once, with and without loss: each is told once.
func TestSimultaneousDisconnect(t *testing.T) {
	for _, lost := range []kind{kindLAP, kindDREQ, kindDREP} { // no LAP is ever sent
		n, a, b := made(t)
		n.drop(lost, 2)
		must(t, a.Disconnect(n.now, nil))
		must(t, b.Disconnect(n.now, nil))
		n.pass(10 * second)
		for _, h := range n.hosts {
			e := h.heard()
			if len(e) != 2 || e[0] != EventDisconnect && e[0] != EventDisconnected || e[1] != EventTimewaitEnd {
				t.Errorf("without %v: events %v", lost, e)
			}
		}
		n.empty()
	}
}

// 12.9.7.1: data comes before the RTU: the connection is made, and the RTU that follows is nothing new.
func TestEstablishedByData(t *testing.T) {
	n, a, b := asked(t)
	n.hosts[1].heard()
	must(t, b.Accept(n.now, reply(0x222)))
	n.pass(10 * microsecond)
	must(t, b.Established(n.now))
	must(t, b.Established(n.now))
	must(t, a.Ready(n.now, nil))
	n.pass(10 * second)
	n.hosts[1].wants(t, EventEstablished)
	if s := n.hosts[1].cm.Stats(); s.Duplicates != 1 {
		t.Errorf("%d duplicates", s.Duplicates)
	}
	if err := a.Established(n.now); err != nil {
		t.Error(err)
	}
}

// 12.6.6: an MRA holds repetitions back for the time it says, and is repeated for who repeats all the same.
func TestMoreTime(t *testing.T) {
	n, _, b := asked(t)
	must(t, b.MoreTime(n.now, 22, []byte("wait"))) // 17.2 s
	n.pass(millisecond)
	n.hosts[0].wants(t, EventMoreTime)
	n.hosts[0].took()
	n.pass(17 * second)
	if s := n.hosts[0].took(); s != "" {
		t.Errorf("meanwhile %s", s)
	}
	n.pass(5 * second)
	if s := n.hosts[0].took(); s != "REQ" {
		t.Errorf("afterwards %s", s)
	}
	if s := n.hosts[1].took(); s != "MRA MRA" {
		t.Errorf("the passive side sends %s", s)
	}
	// An endless row of them does not keep a connection in suspense for ever.
	d := n.from(0, b, 0, kindMRA)
	for n.now < 3600*second && n.hosts[0].cm.Conns() > 0 {
		for _, k := range n.hosts[0].cm.conns {
			d = n.from(0, k, b.localID, kindMRA)
			mad(d.MAD[:]).body()[9] = 31 << 3
		}
		n.give(0, &d)
		n.pass(10 * second)
	}
	if n.hosts[0].cm.Conns() != 0 {
		t.Error("the connection is still waiting after an hour")
	}
}

// 12.6.7: a rejection with its reason, its information and private data, of the request and of the reply; when it is lost, it is repeated.
func TestReject(t *testing.T) {
	for _, loss := range []int{0, 2} {
		n, _, b := asked(t)
		n.hosts[1].heard()
		n.drop(kindREJ, loss)
		must(t, b.Reject(n.now, RejConsumer, []byte("info"), []byte("no")))
		if err := b.Accept(n.now, reply(1)); !errors.Is(err, ErrState) {
			t.Errorf("accepted afterwards: %v", err)
		}
		n.pass(2 * second)
		e := n.hosts[0].told
		if len(e) != 1 || e[0].Type != EventRejected || e[0].Reason != RejConsumer || string(e[0].Info) != "info" || string(e[0].Private[:2]) != "no" {
			t.Errorf("told %+v", e)
		}
		n.pass(20 * second)
		n.hosts[1].wants(t)
		n.empty()

		n, a, b := asked(t)
		n.hosts[1].heard()
		n.drop(kindREJ, loss)
		must(t, b.Accept(n.now, reply(0x222)))
		n.pass(10 * microsecond)
		must(t, a.Reject(n.now, RejConsumer, nil, []byte("no")))
		n.pass(20 * second)
		n.hosts[1].wants(t, EventRejected)
		n.empty()
	}
}

// Who has sent a REP and changes its mind: the peer learns of it although it takes the connection for made, and although the REJ is lost.
func TestRejectAfterReply(t *testing.T) {
	for _, loss := range []int{0, 1} {
		n, a, b := asked(t)
		must(t, b.Accept(n.now, reply(0x222)))
		n.pass(10 * microsecond)
		n.drop(kindRTU, -1)
		must(t, a.Ready(n.now, nil))
		n.pass(10 * microsecond)
		n.hosts[0].heard()
		n.drop(kindREJ, loss)
		b.Close(n.now)
		n.pass(10 * millisecond)
		n.hosts[0].wants(t, EventDisconnect)
		if a.State() == DreqReceived {
			must(t, a.DisconnectReply(n.now, nil))
		}
		n.pass(20 * second)
		n.empty()
	}
}

// A rejection that is late, of an attempt before the one that succeeded, does not end the connection.
func TestLateRejection(t *testing.T) {
	n, a, _ := made(t)
	d := Datagram{Address: n.addr(1)}
	m := mad(d.MAD[:])
	m.header(kindREJ, a.tid)
	m.ids(0, a.localID)
	m.encodeREJ(aboutREQ, RejInvalidServiceID, nil, nil)
	n.give(0, &d)
	n.pass(millisecond)
	if a.State() != Established {
		t.Errorf("state %v", a.State())
	}
}

// 12.9.8.3.1: the peer has forgotten the connection and asks for another with the same queue pair: it is rejected as stale, the old connection
// is ended, and then the peer gets through.
func TestStale(t *testing.T) {
	n, a, b := made(t)
	a.forget() // its machine has crashed
	c, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
	must(t, err)
	n.pass(millisecond)
	if e := n.hosts[0].told; len(e) != 1 || e[0].Type != EventRejected || e[0].Reason != RejStale {
		t.Errorf("told %+v", e)
	}
	n.hosts[0].told = nil
	n.hosts[1].wants(t, EventDisconnect)
	if s := n.hosts[1].took(); s != "DREQ REJ" {
		t.Errorf("sent %s", s)
	}
	if b.State() != Timewait || c.State() != Idle {
		t.Errorf("states %v and %v", b.State(), c.State())
	}
	_, err = n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
	must(t, err)
	n.pass(millisecond)
	n.hosts[1].wants(t, EventRequest)
}

// The old connection is one whose REP was lost: whoever asked for it hears at its next repetition that it is over, and is not taken for
// one who asks for the first time when all has been forgotten.
func TestStaleBeforeReply(t *testing.T) {
	n, a, b := asked(t)
	n.hosts[1].heard()
	n.drop(kindREP, -1)
	must(t, b.Accept(n.now, reply(0x222)))
	n.pass(millisecond)
	_, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
	must(t, err)
	n.pass(millisecond)
	n.hosts[0].wants(t, EventRejected)
	n.hosts[1].wants(t, EventDisconnect)
	n.pass(60 * second)
	n.hosts[0].wants(t, EventRejected)
	n.hosts[1].wants(t, EventTimewaitEnd)
	if a.State() != Idle {
		t.Errorf("state %v", a.State())
	}
	n.empty()
}

// The same, of a REP: its queue pair has a connection already.
func TestStaleReply(t *testing.T) {
	n, _, _ := made(t)
	_, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x112), nil)
	must(t, err)
	n.pass(millisecond)
	k := n.hosts[1].told[0].Conn
	n.hosts[0].heard()
	n.hosts[1].heard()
	must(t, k.Accept(n.now, reply(0x222)))
	n.pass(millisecond)
	n.hosts[0].wants(t, EventDisconnect, EventRejected)
	n.hosts[1].wants(t, EventDisconnect, EventRejected)
}

// A request that the peer has given up, of which the REJ was lost, does not stand in the way of its next one.
func TestRequestAgain(t *testing.T) {
	n, a, _ := asked(t)
	n.hosts[1].heard()
	n.drop(kindREJ, 1)
	a.Close(n.now)
	n.pass(millisecond)
	_, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
	must(t, err)
	n.pass(millisecond)
	n.hosts[1].wants(t, EventRejected, EventRequest)
	n.hosts[0].wants(t)
}

// What the passive side refuses by itself, with the reason that the table of 12.6.7.2 has for it.
func TestReasons(t *testing.T) {
	for want, change := range map[Reason]func(r *Request){
		RejInvalidServiceID: func(r *Request) { r.ServiceID++ },
		RejInvalidTransport: func(r *Request) { r.Transport = 2 }, // reliable datagrams
		RejInvalidMTU:       func(r *Request) { r.PathMTU = 6 },
		RejInvalidGID:       func(r *Request) { r.Primary.Remote = gid(9) },
	} {
		n := newNet(t, 1, PlantedNone)
		_, err := n.hosts[1].cm.Listen(service, 0, nil)
		must(t, err)
		r := request(n, 0x111)
		change(r)
		_, err = n.hosts[0].cm.Connect(n.now, n.addr(0), r, nil)
		must(t, err)
		n.pass(millisecond)
		if e := n.hosts[0].told; len(e) != 1 || e[0].Reason != want {
			t.Errorf("told %+v, want reason %d", e, want)
		}
		n.empty()
	}
}

// A listener's backlog is full: requests are dropped, and come through when there is room, since they are repeated.
func TestBacklog(t *testing.T) {
	n := newNet(t, 1, PlantedNone)
	l, err := n.hosts[1].cm.Listen(service, 2, nil)
	must(t, err)
	for i := range uint32(3) {
		_, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111+i), nil)
		must(t, err)
	}
	n.pass(100 * millisecond)
	e := n.hosts[1].told
	n.hosts[1].wants(t, EventRequest, EventRequest)
	must(t, e[0].Conn.Accept(n.now, reply(0x222)))
	n.pass(second)
	n.hosts[1].wants(t, EventRequest)
	if n.hosts[1].cm.Stats().BacklogDrops == 0 {
		t.Error("no drops are counted")
	}
	if _, err := n.hosts[1].cm.Listen(service, 0, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("listening twice: %v", err)
	}
	l.Close()
	_, err = n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x999), nil)
	must(t, err)
	n.hosts[0].heard()
	n.pass(millisecond)
	n.hosts[0].wants(t, EventRejected)
}

// 12.9.8, 12.8: what belongs to no connection is answered where somebody waits for the answer: REP, DREQ, LAP.
func TestUnknown(t *testing.T) {
	n, a, b := made(t)
	b.forget()
	must(t, a.Disconnect(n.now, nil))
	n.pass(millisecond)
	n.hosts[0].wants(t, EventDisconnected)
	if a.State() != Timewait {
		t.Errorf("state %v", a.State())
	}
	n, a, _ = asked(t)
	a.Close(n.now)
	n.pass(millisecond)
	n.hosts[1].wants(t, EventRequest, EventRejected)
	n, a, b = asked(t)
	a.forget()
	must(t, b.Accept(n.now, reply(0x222)))
	n.pass(millisecond)
	n.hosts[1].wants(t, EventRequest, EventRejected)
	n.pass(20 * second)
	n.empty()
}

// What is closed tells nothing any more, and ends on both sides, whatever its state was.
func TestClose(t *testing.T) {
	for s, x := range situations {
		n, a, b := asked(t)
		if x.reach != nil {
			x.reach(n, a, b)
			n.pass(10 * microsecond)
		}
		own, peer, h := a, b, 0
		if x.passive {
			own, peer, h = b, a, 1
		}
		n.hosts[h].heard()
		own.Close(n.now)
		n.pass(100 * millisecond)
		peer.Close(n.now)
		n.pass(150 * second)
		if e := n.hosts[h].heard(); len(e) != 0 {
			t.Errorf("%s: told %v", situations[s].name, e)
		}
		n.empty()
	}
}

// Who has told the peer to wait (MRA) and then refuses remembers that for as long: the peer asks again only then, if the REJ is lost (12.9.8.1).
func TestRefusedAfterAnMRA(t *testing.T) {
	n, _, b := asked(t)
	n.hosts[1].heard()
	const code = 23 // 34 seconds
	must(t, b.MoreTime(n.now, code, nil))
	n.pass(millisecond)
	n.drop(kindREJ, 1)
	must(t, b.Reject(n.now, RejConsumer, nil, nil))
	n.pass(60 * second)
	n.hosts[1].wants(t) // not asked a second time
	n.hosts[0].wants(t, EventMoreTime, EventRejected)
}
