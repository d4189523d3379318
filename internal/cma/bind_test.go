package cma

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"rnic/internal/device"
	"rnic/internal/nic"
)

// rdma_bind_addr(3): which ids can have a port at the same time. Each case binds, and listens, one after the other.
func TestPorts(t *testing.T) {
	a, b := loopbackAddr(1), loopbackAddr(2)
	m := nicAt(t, device.Config{Addrs: []netip.Addr{a, b}})
	four, six := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	type one struct {
		addr   netip.Addr
		reuse  bool
		only   bool // IPv6 only
		listen bool
		space  PortSpace
	}
	const inUse = syscall.EADDRINUSE
	for n, x := range []struct {
		ids    [2]one
		bind   syscall.Errno // of the second
		listen syscall.Errno
	}{
		{ids: [2]one{{addr: a}, {addr: a}}, bind: inUse},
		{ids: [2]one{{addr: a, listen: true}, {addr: b, listen: true}}},
		{ids: [2]one{{addr: a}, {addr: four}}, bind: inUse},
		{ids: [2]one{{addr: four}, {addr: a}}, bind: inUse},
		{ids: [2]one{{addr: a}, {addr: six}}, bind: inUse},
		{ids: [2]one{{addr: six}, {addr: four}}, bind: inUse},
		{ids: [2]one{{addr: six, only: true, listen: true}, {addr: four, listen: true}}},
		{ids: [2]one{{addr: a, listen: true}, {addr: six, only: true, listen: true}}},
		{ids: [2]one{{addr: a, reuse: true}, {addr: a}}, bind: inUse},
		{ids: [2]one{{addr: a, reuse: true}, {addr: a, reuse: true}}},
		{ids: [2]one{{addr: a, reuse: true, listen: true}, {addr: a, reuse: true}}, bind: inUse},
		{ids: [2]one{{addr: a}, {addr: a, space: SpaceUDP, listen: true}}},
	} {
		port := uint16(20000 + n)
		var made []*ID
		for k, o := range x.ids {
			space, typ := SpaceTCP, nic.RC
			if o.space == SpaceUDP {
				space, typ = SpaceUDP, nic.UD
			}
			i := id(t, m, space, typ, newEvents())
			made = append(made, i)
			if err := i.SetReuse(o.reuse); err != nil {
				t.Fatal(err)
			}
			if err := i.SetAFOnly(o.only); err != nil {
				t.Fatal(err)
			}
			want := syscall.Errno(0)
			if k == 1 {
				want = x.bind
			}
			err := i.Bind(netip.AddrPortFrom(o.addr, port))
			wantErrno(t, fmt.Sprintf("case %d, bind %d", n, k), err, want)
			if o.listen && err == nil {
				wantErrno(t, fmt.Sprintf("case %d, listen %d", n, k), i.Listen(0), x.listen*syscall.Errno(k))
			}
		}
		made[0].Destroy()
		if x.bind == inUse { // the port is free again
			i := id(t, m, SpaceTCP, nic.RC, newEvents())
			_ = i.SetAFOnly(x.ids[1].only)
			wantErrno(t, fmt.Sprintf("case %d, afterwards", n), i.Bind(netip.AddrPortFrom(x.ids[1].addr, port)), 0)
		}
	}
}

// Two ids that share an address cannot both listen.
func TestReuseListensOnce(t *testing.T) {
	m := nicOn(t, loopbackAddr(1), nil)
	var two [2]*ID
	for k := range two {
		two[k] = id(t, m, SpaceTCP, nic.RC, newEvents())
		_ = two[k].SetReuse(true)
		wantErrno(t, "bind", two[k].Bind(netip.AddrPortFrom(loopbackAddr(1), 7000)), 0)
	}
	wantErrno(t, "listen", two[0].Listen(0), 0)
	wantErrno(t, "listen twice", two[1].Listen(0), syscall.EADDRINUSE)
}

// Ephemeral ports are of the range that the kernel has by default, and no two are equal; addresses that no NIC has cannot be bound.
func TestEphemeral(t *testing.T) {
	m := nicOn(t, loopbackAddr(1), nil)
	seen := map[uint16]bool{}
	for range 200 {
		i := id(t, m, SpaceTCP, nic.RC, newEvents())
		wantErrno(t, "bind", i.Bind(netip.AddrPortFrom(loopbackAddr(1), 0)), 0)
		p := i.Info().Src.Port()
		if seen[p] || p < 32768 || p > 60999 {
			t.Fatalf("port %d", p)
		}
		seen[p] = true
	}
	i := id(t, m, SpaceTCP, nic.RC, newEvents())
	wantErrno(t, "a strange address", i.Bind(netip.MustParseAddrPort("192.0.2.1:0")), syscall.EADDRNOTAVAIL)
	wantErrno(t, "a good one", i.Bind(netip.AddrPortFrom(loopbackAddr(1), 0)), 0)
	wantErrno(t, "bound twice", i.Bind(netip.AddrPortFrom(loopbackAddr(1), 0)), syscall.EINVAL)
	if _, err := m.NewID(7, nic.RC, nil); Errno(err) != syscall.EPROTONOSUPPORT {
		t.Errorf("port space 7: %v", err)
	}
}

// rdma_resolve_addr(3): what cannot be reached is an event, or an error that says why.
func TestResolveErrors(t *testing.T) {
	m := nicAt(t, device.Config{Local: true}) // whose address is of IPv6 and means nothing outside
	e := newEvents()
	i := id(t, m, SpaceTCP, nic.RC, e)
	wantErrno(t, "resolve", i.Resolve(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:7000")), 0)
	if got := e.next(t, AddrError); got.Status >= 0 {
		t.Errorf("status %d", got.Status)
	}
	wantErrno(t, "route before address", i.ResolveRoute(), syscall.EINVAL)
	wantErrno(t, "connect before route", i.Connect(ConnParam{}), syscall.EINVAL)
	j := id(t, m, SpaceTCP, nic.RC, newEvents())
	wantErrno(t, "bind", j.Bind(netip.AddrPortFrom(addrOf(m.ports[0].dev.GIDs()[0].GID), 0)), 0)
	wantErrno(t, "two families", j.Resolve(netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:1")), syscall.EINVAL)
	if _, _, err := j.Attr(nic.RTR); err == nil {
		t.Error("attributes without a connection")
	}
}
