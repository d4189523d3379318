package cm_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rnic/cm"
	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/testnet"
	"rnic/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func address(n byte) netip.Addr { return testnet.Loopback(132, n) }

// side is one NIC with its manager, and what queue pairs need.
type side struct {
	addr netip.Addr
	dev  *verbs.Device
	mgr  *cm.Manager
	ctx  *verbs.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	mr   *verbs.MR
}

func newSide(t testing.TB, n byte, change func(*device.Config)) *side {
	t.Helper()
	s := &side{addr: address(n)}
	cfg := device.Config{Addrs: []netip.Addr{s.addr}}
	if change != nil {
		change(&cfg)
	}
	d, err := device.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.dev = verbs.Wrap(d)
	s.ctx = s.dev.Open()
	s.mgr = get(cm.New(s.dev))(t)
	s.pd = get(s.ctx.AllocPD())(t)
	s.cq = get(s.ctx.CreateCQ(256))(t)
	s.mr = get(s.pd.AllocMR(64<<10, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead))(t)
	t.Cleanup(func() {
		s.mgr.Close()
		s.dev.Close()
	})
	return s
}

// get is the value of a call that must not fail.
func get[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func lossy(seed uint64) func(*device.Config) {
	return func(c *device.Config) { c.SendFault = &fault.Spec{Drop: 0.05, Seed: seed} }
}

func (s *side) config(private string) cm.Config {
	return cm.Config{PD: s.pd, QP: verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq}, Private: []byte(private), Prepare: func(qp *verbs.QP) error {
		_, err := qp.PostRecv(&verbs.RecvWR{ID: 1, SGE: s.mr.Slice(0, 4096)})
		return err
	}}
}

func (s *side) next(t testing.TB) verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := s.cq.Next(ctx, wc[:]); err != nil {
		t.Fatal(err)
	}
	return wc[0]
}

func (s *side) listen(t testing.TB, cfg cm.ListenConfig) *cm.Listener {
	t.Helper()
	l := get(s.mgr.Listen(netip.AddrPortFrom(s.addr, 0), cfg))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// longEnough is a context that a test which works does not see the end of.
func longEnough(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// connect makes a connection from a to a listener of b.
func connect(t testing.TB, a *side, l *cm.Listener, b *side, ca, cb cm.Config) (client, server *cm.Conn) {
	t.Helper()
	ctx := longEnough(t)
	got := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			server, err = r.Accept(ctx, cb)
		}
		got <- err
	}()
	client, err := a.mgr.Dial(ctx, l.Addr(), ca)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func ended(t testing.TB, c *cm.Conn) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the connection has not ended")
	}
}
