package ibcm

import "testing"

// patient is a net whose host 1 keeps early requests for a tenth of a second.
func patient(t testing.TB) *net {
	n := newNet(t, 1, PlantedNone)
	n.hosts[1].cm.cfg.EarlyWait = 100 * millisecond
	return n
}

// A REQ and a SIDR REQ that come before anybody listens reach who listens soon, once, though they are repeated meanwhile, and in order.
func TestEarlyRequest(t *testing.T) {
	n := patient(t)
	n.hosts[1].cm.cfg.EarlyWait = second
	for _, qpn := range []uint32{0x111, 0x112} {
		_, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, qpn), nil)
		must(t, err)
	}
	n.hosts[0].cm.Lookup(n.now, n.addr(0), service, 0xffff, nil, nil)
	n.pass(500 * millisecond)
	n.hosts[0].wants(t)
	n.hosts[1].wants(t)
	_, err := n.hosts[1].cm.Listen(service, 0, nil)
	must(t, err)
	n.pass(millisecond)
	told := n.hosts[1].told
	if len(told) != 3 || told[0].Type != EventRequest || told[0].Request.QPN != 0x111 || told[1].Request.QPN != 0x112 || told[2].Type != EventLookup {
		t.Fatalf("told %+v", told)
	}
	must(t, told[0].Conn.Accept(n.now, reply(0x222)))
	n.pass(millisecond)
	n.hosts[0].wants(t, EventReply)
}

// Nobody listens in time, or for another service: the answers of 12.6.7.2 (8) and 12.11.2.3.
func TestEarlyRefused(t *testing.T) {
	n := patient(t)
	_, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
	must(t, err)
	n.hosts[0].cm.Lookup(n.now, n.addr(0), service, 0xffff, nil, nil)
	n.pass(50 * millisecond)
	n.hosts[0].wants(t)
	_, err = n.hosts[1].cm.Listen(service+1, 0, nil)
	must(t, err)
	n.pass(51 * millisecond)
	e := n.hosts[0].told
	if len(e) != 2 || e[0].Reason != RejInvalidServiceID || e[1].Status != LookupUnsupported {
		t.Errorf("told %+v", e)
	}
	n.hosts[1].wants(t)
	n.empty()
}

// Who has given up is not brought back.
func TestEarlyGivenUp(t *testing.T) {
	n := patient(t)
	a, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), nil)
	must(t, err)
	n.pass(millisecond)
	a.Close(n.now)
	n.pass(millisecond)
	_, err = n.hosts[1].cm.Listen(service, 0, nil)
	must(t, err)
	n.pass(second)
	n.hosts[1].wants(t)
}

// Those that wait are bounded: one more is refused at once, and the others are not forgotten.
func TestEarlyFlood(t *testing.T) {
	n := patient(t)
	for i := range uint32(maxEarly + 1) {
		_, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x1000+i), nil)
		must(t, err)
	}
	n.pass(millisecond)
	n.hosts[0].wants(t, EventRejected)
	n.pass(200 * millisecond)
	if got := len(n.hosts[0].told); got != maxEarly {
		t.Errorf("%d refused later, want %d", got, maxEarly)
	}
	n.empty()
}

// A peer that takes its id for another service, since its REJ of the first request was lost, has one request.
func TestEarlyReplaced(t *testing.T) {
	n := patient(t)
	_, err := n.hosts[1].cm.Listen(service, 0, nil)
	must(t, err)
	r := request(n, 0x111)
	r.ServiceID++
	a, err := n.hosts[0].cm.Connect(n.now, n.addr(0), r, nil)
	must(t, err)
	n.pass(millisecond)
	first := n.hosts[0].sent[0]
	be.PutUint64(mad(first.MAD[:]).body()[8:], service)
	n.give(1, &first)
	n.pass(millisecond)
	n.hosts[1].wants(t, EventRequest)
	n.pass(200 * millisecond)
	n.hosts[0].wants(t)
	a.Close(n.now)
}
