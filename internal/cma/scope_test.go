package cma

import (
	"net/netip"
	"syscall"
	"testing"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// Two runs share a manager, each of which has one of its NICs: an id binds to its own run's addresses, hears requests for these
// alone, and both runs may have the same port.
func TestScopes(t *testing.T) {
	a, b := loopbackAddr(41), loopbackAddr(42)
	var devs []*device.Device
	for _, addr := range []netip.Addr{a, b} {
		d, err := device.New(device.Config{Addrs: []netip.Addr{addr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		devs = append(devs, d)
	}
	m, err := New(devs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	first, second := &Scope{}, &Scope{}
	first.Add(devs[0])
	second.Add(devs[1])
	within := func(s *Scope) (*ID, events) {
		e := newEvents()
		i := id(t, m, SpaceTCP, nic.RC, e)
		i.Scope = s
		return i, e
	}

	i, _ := within(first)
	wantErrno(t, "bind to the other run's address", i.Bind(netip.AddrPortFrom(b, 0)), syscall.EADDRNOTAVAIL)
	wantErrno(t, "bind to its own", i.Bind(netip.AddrPortFrom(a, 0)), 0)

	// By addresses of InfiniBand too: its own NIC is of the subnet of all IPv4 addresses, the other run's is the one meant.
	i, _ = within(first)
	wantErrno(t, "resolve the other run's GID", i.ResolveIB(nil, IBAddr{PKey: 0xffff, GID: roce.GID(b.As16())}), 0)
	if got := i.Info().Device; got != devs[0] {
		t.Errorf("the id of the first run is of the NIC %v", got.Name())
	}

	const port = 20777
	heard := map[*Scope]events{}
	for _, s := range []*Scope{first, second} {
		l, e := within(s)
		wantErrno(t, "bind", l.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), port)), 0)
		wantErrno(t, "listen", l.Listen(1), 0)
		heard[s] = e
	}
	l, _ := within(nil)
	wantErrno(t, "bind of a run that has both", l.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), port)), syscall.EADDRINUSE)

	// From the first run to the second one's listener: by the first one's NIC.
	c, e := within(first)
	wantErrno(t, "resolve", c.Resolve(netip.AddrPort{}, netip.AddrPortFrom(b, port)), 0)
	e.next(t, AddrResolved)
	if got := c.Info(); got.Src.Addr() != a || got.Device != devs[0] {
		t.Errorf("source %v", got.Src)
	}
	wantErrno(t, "resolve route", c.ResolveRoute(), 0)
	e.next(t, RouteResolved)
	wantErrno(t, "connect", c.Connect(ConnParam{QPN: 77}), 0)
	req := heard[second].next(t, ConnectRequest)
	t.Cleanup(req.ID.Destroy)
	if req.ID.Info().Device != devs[1] || req.ID.Scope != second {
		t.Errorf("the request is for %v", req.ID.Info().Src)
	}

	second.Add(devs[0]) // the run has joined the other NIC as well
	i, _ = within(second)
	wantErrno(t, "bind to an address of the NIC joined later", i.Bind(netip.AddrPortFrom(a, 0)), 0)
}
