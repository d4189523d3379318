package cma

import (
	"net/netip"
	"syscall"
	"testing"

	"rnic/internal/device"
	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// Addresses of InfiniBand on a RoCE device: what may be bound, resolved and listened to is what the kernel's rxe lets.
func TestIBAddresses(t *testing.T) {
	m := nicOn(t, loopbackAddr(1), nil)
	gid := roce.GID(loopbackAddr(1).As16())
	tcp, udp, own := ibcm.ServiceID(ibcm.SpaceTCP, 0), ibcm.ServiceID(ibcm.SpaceUDP, 0), ^uint64(0)
	for _, x := range []struct {
		what  string
		space PortSpace
		a     IBAddr
		want  syscall.Errno
		is    PortSpace
	}{
		{"any", SpaceTCP, IBAddr{}, 0, SpaceTCP},
		{"TCP's service", SpaceTCP, IBAddr{Service: tcp | 7001, Mask: own}, 0, SpaceTCP},
		{"a port alone", SpaceTCP, IBAddr{Service: 7002, Mask: 0xffff}, 0, SpaceTCP},
		{"UDP's service", SpaceTCP, IBAddr{Service: udp | 7001, Mask: own}, syscall.EPROTONOSUPPORT, 0},
		{"UDP's service", SpaceUDP, IBAddr{Service: udp | 7001, Mask: own}, 0, SpaceUDP},
		{"any of space IB", SpaceIB, IBAddr{}, 0, SpaceIB},
		{"UDP's service of space IB", SpaceIB, IBAddr{Service: udp | 7003, Mask: own}, 0, SpaceUDP},
		{"a service of nobody", SpaceIB, IBAddr{Service: 1 << 60, Mask: own}, syscall.EPROTONOSUPPORT, 0},
		{"a GID", SpaceTCP, IBAddr{GID: gid, Service: tcp | 7004, Mask: own}, syscall.ENODEV, 0},
	} {
		i := id(t, m, x.space, nic.RC, newEvents())
		wantErrno(t, x.what, i.BindIB(x.a), x.want)
		n := i.Info()
		if port := uint16(x.a.Service & x.a.Mask); x.want == 0 && (!n.IB || n.IBSrc.Mask != own || n.IBSrc.Service>>16 != uint64(x.is) || port != 0 && uint16(n.IBSrc.Service) != port) {
			t.Errorf("%s: bound to %+v", x.what, n.IBSrc)
		}
		if x.want != 0 { // it is as new
			wantErrno(t, x.what+", then an IP address", i.Bind(netip.AddrPortFrom(loopbackAddr(1), 0)), 0)
		}
	}
	for _, x := range []struct {
		what string
		src  *IBAddr
		dst  IBAddr
		want syscall.Errno
	}{
		{"the own GID", nil, IBAddr{PKey: 0xffff, GID: gid}, 0},
		{"a GID of the subnet", &IBAddr{}, IBAddr{PKey: 0x7fff, GID: roce.GID(netip.MustParseAddr("192.0.2.1").As16())}, 0},
		{"this machine", nil, IBAddr{}, 0},
		{"another subnet", nil, IBAddr{PKey: 0xffff, GID: roce.GID{0xfe, 0x80, 15: 1}}, syscall.ENODEV},
		{"another partition", nil, IBAddr{PKey: 3, GID: gid}, syscall.ENODEV},
		{"from a GID", &IBAddr{GID: gid}, IBAddr{PKey: 0xffff, GID: gid}, syscall.ENODEV},
	} {
		e := newEvents()
		i := id(t, m, SpaceTCP, nic.RC, e)
		wantErrno(t, x.what, i.ResolveIB(x.src, x.dst), x.want)
		if x.want != 0 {
			continue
		}
		e.next(t, AddrResolved)
		wantErrno(t, "a route to "+x.what, i.ResolveRoute(), syscall.ENODEV)
		wantErrno(t, "a connection to "+x.what, i.Connect(ConnParam{}), syscall.EINVAL)
		if n := i.Info(); n.Device == nil || n.IBDst != x.dst || x.dst.GID != (roce.GID{}) && n.IBSrc.GID != gid {
			t.Errorf("%s: %+v", x.what, n)
		}
	}
	i := id(t, m, SpaceTCP, nic.RC, newEvents())
	wantErrno(t, "bind", i.BindIB(IBAddr{}), 0)
	wantErrno(t, "an IP address from it", i.Resolve(netip.AddrPort{}, netip.AddrPortFrom(loopbackAddr(1), 1)), syscall.EINVAL)
	j := id(t, m, SpaceTCP, nic.RC, newEvents())
	wantErrno(t, "bind to IP", j.Bind(netip.AddrPortFrom(loopbackAddr(1), 0)), 0)
	wantErrno(t, "a GID from it", j.ResolveIB(nil, IBAddr{PKey: 0xffff, GID: gid}), syscall.EINVAL)
}

// Who listens to a service of InfiniBand hears nothing of Ethernet: its requests are of IP addresses, and rejected.
func TestIBListenerHearsNothing(t *testing.T) {
	m := nicAt(t, device.Config{Local: true})
	addr := addrOf(m.ports[0].dev.GIDs()[0].GID)
	l := id(t, m, SpaceTCP, nic.RC, newEvents())
	wantErrno(t, "bind", l.BindIB(IBAddr{Service: ibcm.ServiceID(ibcm.SpaceTCP, 7005), Mask: ^uint64(0)}), 0)
	wantErrno(t, "listen", l.Listen(0), 0)
	i, e := resolved(t, m, netip.AddrPortFrom(addr, 7005))
	wantErrno(t, "connect", i.Connect(ConnParam{QPN: 3}), 0)
	if got := e.next(t, Rejected); got.Status != int(ibcm.RejConsumer) {
		t.Errorf("rejected for reason %d", got.Status)
	}
	wantErrno(t, "the port is taken", id(t, m, SpaceTCP, nic.RC, newEvents()).Bind(netip.AddrPortFrom(addr, 7005)), syscall.EADDRINUSE)
}
