package cma

import (
	"net/netip"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/nic"
)

// nicAt makes a NIC on an address of the loopback interface, and its connection manager.
func nicAt(t *testing.T, cfg device.Config) *Manager {
	t.Helper()
	d, err := device.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		d.Close()
	})
	return m
}

// events collects an id's events.
type events chan Event

func (c events) sink(e Event) { c <- e }

// next waits for an event of a type.
func (c events) next(t *testing.T, want EventType) Event {
	t.Helper()
	select {
	case e := <-c:
		if e.Type != want {
			t.Fatalf("event %v (status %d), want %v", e.Type, e.Status, want)
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatalf("no event %v", want)
	}
	return Event{}
}

func newEvents() events { return make(events, 64) }

func TestConnection(t *testing.T) {
	m := nicAt(t, device.Config{Local: true})
	addr := addrOf(m.ports[0].dev.GIDs()[0].GID)
	server, client := newEvents(), newEvents()
	l, err := m.NewID(SpaceTCP, nic.RC, server.sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 7471)); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(0); err != nil {
		t.Fatal(err)
	}
	c, _ := m.NewID(SpaceTCP, nic.RC, client.sink)
	if err := c.Resolve(netip.AddrPort{}, netip.AddrPortFrom(addr, 7471)); err != nil {
		t.Fatal(err)
	}
	client.next(t, AddrResolved)
	if err := c.ResolveRoute(); err != nil {
		t.Fatal(err)
	}
	client.next(t, RouteResolved)
	if err := c.Connect(ConnParam{Private: []byte("hello"), QPN: 0x1234, ResponderResources: 3, InitiatorDepth: 5, RetryCount: 7, RNRRetryCount: 7}); err != nil {
		t.Fatal(err)
	}
	req := server.next(t, ConnectRequest)
	if string(req.Conn.Private[:5]) != "hello" || req.Listen != l || req.Conn.ResponderResources != 5 || req.Conn.InitiatorDepth != 3 || req.Conn.QPN != 0x1234 {
		t.Errorf("request %+v", req)
	}
	if err := req.ID.Accept(&ConnParam{Private: []byte("welcome"), QPN: 0x4321, ResponderResources: 5, InitiatorDepth: 3, RNRRetryCount: 6}); err != nil {
		t.Fatal(err)
	}
	rep := client.next(t, ConnectResponse)
	if string(rep.Conn.Private[:7]) != "welcome" || rep.Conn.QPN != 0x4321 {
		t.Errorf("response %+v", rep)
	}
	a, _, err := c.Attr(nic.RTR)
	b, _, err2 := req.ID.Attr(nic.RTS)
	if err != nil || err2 != nil || a.RQPSN != b.SQPSN || a.DestQPN != 0x4321 || b.MaxRDAtomic != 3 {
		t.Errorf("attributes %+v %+v, %v %v", a, b, err, err2)
	}
	if err := c.Accept(nil); err != nil {
		t.Fatal(err)
	}
	server.next(t, Established)
	if err := c.Disconnect(); err != nil {
		t.Fatal(err)
	}
	server.next(t, Disconnected)
	if err := req.ID.Disconnect(); err != nil {
		t.Fatal(err)
	}
	client.next(t, Disconnected)
	client.next(t, TimewaitExit)
	server.next(t, TimewaitExit)
	c.Destroy()
	req.ID.Destroy()
	l.Destroy()
	if n := m.ports[0].cm.Conns(); n != 0 || len(m.bound) != 0 || len(m.listeners) != 0 {
		t.Errorf("%d connections, %d ports, %d services are left", n, len(m.bound), len(m.listeners))
	}
}

func TestDatagrams(t *testing.T) {
	m := nicAt(t, device.Config{Local: true})
	addr := addrOf(m.ports[0].dev.GIDs()[0].GID)
	server, client := newEvents(), newEvents()
	l, _ := m.NewID(SpaceUDP, nic.UD, server.sink)
	if err := l.Bind(netip.AddrPortFrom(addr, 7174)); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(1); err != nil {
		t.Fatal(err)
	}
	c, _ := m.NewID(SpaceUDP, nic.UD, client.sink)
	if err := c.Resolve(netip.AddrPort{}, netip.AddrPortFrom(addr, 7174)); err != nil {
		t.Fatal(err)
	}
	client.next(t, AddrResolved)
	_ = c.ResolveRoute()
	client.next(t, RouteResolved)
	if err := c.Connect(ConnParam{Private: []byte("who")}); err != nil {
		t.Fatal(err)
	}
	req := server.next(t, ConnectRequest)
	if err := req.ID.Accept(&ConnParam{QPN: 0x77}); err != nil {
		t.Fatal(err)
	}
	e := client.next(t, Established)
	if e.UD.QPN != 0x77 || e.UD.QKey != QKey || string(req.UD.Private[:3]) != "who" {
		t.Errorf("%+v, request %+v", e, req)
	}
	for _, i := range []*ID{c, req.ID, l} {
		i.Destroy()
	}
}

// Nobody listens: a rejection, and the id may try again.
func TestNobodyListens(t *testing.T) {
	m := nicAt(t, device.Config{Local: true})
	addr := addrOf(m.ports[0].dev.GIDs()[0].GID)
	client := newEvents()
	c, _ := m.NewID(SpaceTCP, nic.RC, client.sink)
	_ = c.Resolve(netip.AddrPort{}, netip.AddrPortFrom(addr, 1))
	client.next(t, AddrResolved)
	_ = c.ResolveRoute()
	client.next(t, RouteResolved)
	for range 2 {
		if err := c.Connect(ConnParam{}); err != nil {
			t.Fatal(err)
		}
		if e := client.next(t, Rejected); e.Status != 8 {
			t.Errorf("status %d", e.Status)
		}
	}
	c.Destroy()
}
