package cma

import (
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/ibcm"
	"rnic/internal/nic"
)

// rdma_reject(3): the reason and the private data arrive; the id may ask again.
func TestReject(t *testing.T) {
	a, b := nicOn(t, loopbackAddr(1), nil), nicOn(t, loopbackAddr(2), nil)
	_, server, to := listening(t, b, loopbackAddr(2), 0)
	c, client := resolved(t, a, to)
	for range 2 {
		wantErrno(t, "connect", c.Connect(ConnParam{QPN: 5}), 0)
		req := server.next(t, ConnectRequest)
		wantErrno(t, "too much", req.ID.Reject(make([]byte, MaxRejectPrivate+1), 0), syscall.EINVAL)
		wantErrno(t, "reject", req.ID.Reject([]byte("not today"), 0), 0)
		if e := client.next(t, Rejected); e.Status != int(ibcm.RejConsumer) || string(e.Conn.Private[:9]) != "not today" {
			t.Errorf("rejected with status %d, %q", e.Status, e.Conn.Private)
		}
		wantErrno(t, "accept afterwards", req.ID.Accept(&ConnParam{}), syscall.EINVAL)
		req.ID.Destroy()
	}
	// The reply is rejected.
	wantErrno(t, "connect", c.Connect(ConnParam{QPN: 5}), 0)
	req := server.next(t, ConnectRequest)
	wantErrno(t, "accept", req.ID.Accept(&ConnParam{QPN: 6}), 0)
	client.next(t, ConnectResponse)
	wantErrno(t, "reject", c.Reject([]byte("on reflection"), 0), 0)
	if e := server.next(t, Rejected); string(e.Conn.Private[:13]) != "on reflection" {
		t.Errorf("private data %q", e.Conn.Private)
	}
	req.ID.Destroy()
}

// rdma_listen(3): more requests than the backlog has room for are rejected, as the kernel does; room comes with an answer.
func TestBacklog(t *testing.T) {
	m := nicOn(t, loopbackAddr(1), nil)
	_, server, to := listening(t, m, loopbackAddr(1), 1)
	first, _ := resolved(t, m, to)
	second, client := resolved(t, m, to)
	wantErrno(t, "connect", first.Connect(ConnParam{QPN: 5}), 0)
	req := server.next(t, ConnectRequest)
	wantErrno(t, "connect", second.Connect(ConnParam{QPN: 6}), 0)
	client.next(t, Rejected)
	wantErrno(t, "accept", req.ID.Accept(&ConnParam{QPN: 7}), 0)
	wantErrno(t, "connect", second.Connect(ConnParam{QPN: 6}), 0)
	server.next(t, ConnectRequest).ID.Destroy()
	client.next(t, Rejected)
	req.ID.Destroy()
}

// A wildcard of IPv6 takes IPv4 too, unless it is for IPv6 alone; who is bound to the address comes first.
func TestWildcard(t *testing.T) {
	m := nicOn(t, loopbackAddr(1), nil)
	any6, e6 := id(t, m, SpaceTCP, nic.RC, newEvents()), newEvents()
	any6.SetSink(e6.sink)
	wantErrno(t, "bind", any6.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 7100)), 0)
	wantErrno(t, "listen", any6.Listen(0), 0)
	c, client, s := linked(t, m, netip.AddrPortFrom(loopbackAddr(1), 7100), e6, 5)
	if in := s.Info(); in.Src != netip.AddrPortFrom(loopbackAddr(1), 7100) || in.Dst != c.Info().Src {
		t.Errorf("the passive id is from %v to %v, the active one from %v", in.Src, in.Dst, c.Info().Src)
	}
	wantErrno(t, "disconnect", c.Disconnect(), 0)
	e6.next(t, Disconnected)
	wantErrno(t, "disconnect", s.Disconnect(), 0)
	client.next(t, Disconnected)
	any6.Destroy()
	only := id(t, m, SpaceTCP, nic.RC, e6)
	_ = only.SetAFOnly(true)
	wantErrno(t, "bind", only.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 7100)), 0)
	wantErrno(t, "listen", only.Listen(0), 0)
	d, client := resolved(t, m, netip.AddrPortFrom(loopbackAddr(1), 7100))
	wantErrno(t, "connect", d.Connect(ConnParam{QPN: 6}), 0)
	client.next(t, Rejected)
}

// A request that says it means another address than the one to which it came does not reach who listens there alone.
func TestForeignHeader(t *testing.T) {
	x, y := loopbackAddr(1), loopbackAddr(3)
	m := nicAt(t, device.Config{Addrs: []netip.Addr{x, y}})
	l := id(t, m, SpaceTCP, nic.RC, newEvents())
	wantErrno(t, "bind", l.Bind(netip.AddrPortFrom(y, 7200)), 0)
	wantErrno(t, "listen", l.Listen(0), 0)
	private := make([]byte, ibcm.ReqPrivate)
	src := netip.AddrPortFrom(x, 9)
	for _, dst := range []netip.Addr{x, y} {
		ibcm.EncodeIPHeader(private, ibcm.IPHeader{Src: src, Dst: netip.AddrPortFrom(dst, 7200)})
		p := m.ports[0]
		m.mu.Lock()
		var sl *ibcm.Listener
		for _, s := range m.listeners {
			sl = s.per[0]
		}
		i, _ := p.accepted(sl, ibcm.Address{Local: ibcm.GIDOf(x), Remote: ibcm.GIDOf(x)}, private, ibcm.ServiceID(uint16(SpaceTCP), 7200), false)
		m.mu.Unlock()
		if i != nil {
			t.Errorf("a request to %v that says %v reached the listener at %v", x, dst, y)
		}
	}
}

// Two NICs with five percent of loss: every connection comes up, and ends on both sides.
func TestLossy(t *testing.T) {
	t.Parallel()
	lossy := func(seed uint64) func(*device.Config) {
		return func(c *device.Config) { c.SendFault = &fault.Spec{Drop: 0.05, Duplicate: 0.05, Seed: seed} }
	}
	a, b := nicOn(t, loopbackAddr(21), lossy(1)), nicOn(t, loopbackAddr(22), lossy(2))
	l, server, to := listening(t, b, loopbackAddr(22), 0)
	for k := range uint32(40) {
		c, client, s := linked(t, a, to, server, 100+2*k)
		wantErrno(t, "disconnect", c.Disconnect(), 0)
		server.next(t, Disconnected)
		wantErrno(t, "disconnect", s.Disconnect(), 0)
		client.next(t, Disconnected)
		c.Destroy()
		s.Destroy()
	}
	l.Destroy()
	eventually(t, "nothing left", func() bool { return a.left()+b.left() == 0 })
}

// The peer's machine is gone: who disconnects is told so all the same, and nothing hangs.
func TestPeerKilled(t *testing.T) {
	t.Parallel()
	a := nicOn(t, loopbackAddr(31), nil)
	b := nicOn(t, loopbackAddr(32), nil)
	_, server, to := listening(t, b, loopbackAddr(32), 0)
	c, client, _ := linked(t, a, to, server, 100)
	b.ports[0].stop() // it answers nothing any more
	b.ports[0].done.Wait()
	wantErrno(t, "disconnect", c.Disconnect(), 0)
	client.next(t, Disconnected)
	c.Destroy()
	eventually(t, "nothing left", func() bool { return a.left() == 0 })
}

// Many connections, one after the other, against one listener: no port, id, connection or goroutine is left.
func TestCycles(t *testing.T) {
	a, b := nicOn(t, loopbackAddr(1), nil), nicOn(t, loopbackAddr(2), nil)
	l, server, to := listening(t, b, loopbackAddr(2), 0)
	routines := runtime.NumGoroutine()
	for k := range uint32(2000) {
		client := newEvents()
		c, err := a.NewID(SpaceTCP, nic.RC, client.sink)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{c.Resolve(netip.AddrPort{}, to), c.ResolveRoute(), c.Connect(ConnParam{QPN: 2 * k})} {
			if err != nil {
				t.Fatalf("cycle %d: %v", k, err)
			}
		}
		s := server.next(t, ConnectRequest).ID
		wantErrno(t, "accept", s.Accept(&ConnParam{QPN: 2*k + 1}), 0)
		client.next(t, AddrResolved)
		client.next(t, RouteResolved)
		client.next(t, ConnectResponse)
		wantErrno(t, "accept", c.Accept(nil), 0)
		server.next(t, Established)
		wantErrno(t, "disconnect", c.Disconnect(), 0)
		server.next(t, Disconnected)
		s.Destroy()
		client.next(t, Disconnected)
		c.Destroy()
	}
	if n := runtime.NumGoroutine(); n > routines {
		t.Errorf("%d goroutines, were %d", n, routines)
	}
	l.Destroy()
	eventually(t, "nothing left", func() bool { return a.left()+b.left() == 0 })
}

// RDMA_CM_EVENT_DEVICE_REMOVAL (rdma_get_cm_event(3)): the NIC is closed under its ids; they can be destroyed, and the manager closed.
func TestDeviceRemoval(t *testing.T) {
	d, err := device.New(device.Config{Addrs: []netip.Addr{loopbackAddr(2)}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	a := nicOn(t, loopbackAddr(1), nil)
	_, server, to := listening(t, b, loopbackAddr(2), 0)
	c, client, s := linked(t, a, to, server, 100)
	own := newEvents()
	s.SetSink(own.sink)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	own.next(t, DeviceRemoval)
	server.next(t, DeviceRemoval) // of the listener
	s.Destroy()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	client.next(t, Disconnected)
	if len(client) > 0 {
		t.Errorf("event %v of the other NIC's id", (<-client).Type)
	}
	c.Destroy()
}

// RDMA_CM_EVENT_ADDR_CHANGE: an address goes away; the ids that have it are told, once, others are not.
func TestAddrChange(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: no network namespace can be made")
	}
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made: unshare: %v", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	going, _ := netlink.ParseAddr("10.47.70.1/32")
	staying, _ := netlink.ParseAddr("10.47.71.1/32")
	for _, err := range []error{netlink.LinkSetUp(lo), netlink.AddrAdd(lo, going), netlink.AddrAdd(lo, staying)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m := nicAt(t, device.Config{})
	_, e, _ := listening(t, m, netip.MustParseAddr("10.47.70.1"), 0)
	_, other, _ := listening(t, m, netip.MustParseAddr("10.47.71.1"), 0)
	if err := netlink.AddrDel(lo, going); err != nil {
		t.Fatal(err)
	}
	e.next(t, AddrChange)
	late := id(t, m, SpaceTCP, nic.RC, newEvents())
	wantErrno(t, "binding it", late.Bind(netip.MustParseAddrPort("10.47.70.1:0")), syscall.EADDRNOTAVAIL)
	time.Sleep(20 * time.Millisecond)
	if len(e)+len(other) != 0 {
		t.Errorf("%d and %d more events", len(e), len(other))
	}
}

// 12.7.31: the starting PSN of a message is where its receiver begins to send: what the kernel's Soft-RoCE expects.
func TestStartingPSN(t *testing.T) {
	m := nicOn(t, loopbackAddr(1), nil)
	_, server, to := listening(t, m, loopbackAddr(1), 0)
	c, _, s := linked(t, m, to, server, 100)
	for _, ends := range [][2]*ID{{c, s}, {s, c}} {
		rtr, _, err := ends[0].Attr(nic.RTR)
		rts, _, err2 := ends[1].Attr(nic.RTS)
		if err != nil || err2 != nil || rtr.RQPSN != ends[0].conn.Own().StartingPSN || rts.SQPSN != rtr.RQPSN {
			t.Errorf("%v %v: expects PSN %d, said %d, and the peer begins at %d", err, err2, rtr.RQPSN, ends[0].conn.Own().StartingPSN, rts.SQPSN)
		}
	}
}
