package cma

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rnic/internal/device"
	"rnic/internal/nic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loopback is an address of the loopback interface that other packages' tests do not use.
func loopbackAddr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 88, 1, n}) }

func id(t testing.TB, m *Manager, space PortSpace, typ nic.QPType, e events) *ID {
	t.Helper()
	i, err := m.NewID(space, typ, e.sink)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Destroy)
	return i
}

// listening is a listener on a free port of an address.
func listening(t testing.TB, m *Manager, a netip.Addr, backlog int) (*ID, events, netip.AddrPort) {
	t.Helper()
	e := newEvents()
	l := id(t, m, SpaceTCP, nic.RC, e)
	if err := l.Bind(netip.AddrPortFrom(a, 0)); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(backlog); err != nil {
		t.Fatal(err)
	}
	return l, e, netip.AddrPortFrom(a, l.Info().Src.Port())
}

// resolved is an id that has found its way to an address.
func resolved(t *testing.T, m *Manager, to netip.AddrPort) (*ID, events) {
	t.Helper()
	e := newEvents()
	i := id(t, m, SpaceTCP, nic.RC, e)
	if err := i.Resolve(netip.AddrPort{}, to); err != nil {
		t.Fatal(err)
	}
	e.next(t, AddrResolved)
	if err := i.ResolveRoute(); err != nil {
		t.Fatal(err)
	}
	e.next(t, RouteResolved)
	return i, e
}

// linked is a connection from one manager to a listener of another.
func linked(t *testing.T, m *Manager, to netip.AddrPort, server events, qpn uint32) (c *ID, client events, s *ID) {
	t.Helper()
	c, client = resolved(t, m, to)
	if err := c.Connect(ConnParam{QPN: qpn, RetryCount: 7}); err != nil {
		t.Fatal(err)
	}
	req := server.next(t, ConnectRequest)
	s = req.ID
	t.Cleanup(s.Destroy)
	if err := s.Accept(&ConnParam{QPN: qpn + 1}); err != nil {
		t.Fatal(err)
	}
	client.next(t, ConnectResponse)
	if err := c.Accept(nil); err != nil {
		t.Fatal(err)
	}
	server.next(t, Established)
	return c, client, s
}

// eventually waits for what timers bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// left is how much a manager still has.
func (m *Manager) left() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.ports {
		n += p.cm.Conns()
	}
	return n + len(m.bound) + len(m.listeners) + len(m.ids)
}

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if err == nil && want != 0 || err != nil && Errno(err) != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func nicOn(t *testing.T, a netip.Addr, change func(*device.Config)) *Manager {
	t.Helper()
	cfg := device.Config{Addrs: []netip.Addr{a}}
	if change != nil {
		change(&cfg)
	}
	return nicAt(t, cfg)
}
