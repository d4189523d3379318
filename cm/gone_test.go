package cm_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"rnic/cm"
	"rnic/verbs"
)

// A NIC that is closed before its connection manager ends who listens, waits and connects: nothing will come any more.
func TestClosedNIC(t *testing.T) {
	a := newSide(t, 1, nil)
	wildcard := netip.AddrPortFrom(netip.IPv6Unspecified(), 0) // of no NIC in particular
	l, sl := get(a.mgr.Listen(wildcard, cm.ListenConfig{}))(t), get(a.mgr.ListenStream("rdma", net.JoinHostPort(a.addr.String(), "0")))(t)
	c, s := streamPair(t, a, a)
	ended := make(chan error)
	go func() { _, err := l.Accept(context.Background()); ended <- err }()
	go func() { _, err := sl.Accept(); ended <- err }()
	go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
	go func() {
		_, err := a.mgr.Dial(context.Background(), netip.AddrPortFrom(address(3), 1), a.config("")) // nobody is there
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond) // some wait already, or not
	go a.dev.Close()
	for range 4 {
		select {
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) && !errors.Is(err, cm.ErrDisconnected) {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("somebody waits for a NIC that is closed")
		}
	}
	a.dev.Close()
	_, listen := a.mgr.ListenStream("rdma", ":0")
	_, dial := a.mgr.DialStream(longEnough(t), "rdma", net.JoinHostPort(a.addr.String(), "1"))
	_, raw := a.mgr.Dial(longEnough(t), netip.AddrPortFrom(a.addr, 1), a.config(""))
	for what, err := range map[string]error{"listen": listen, "dial": dial, "dial without stream": raw} {
		if !errors.Is(err, verbs.ErrClosed) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.Close()
	s.Close()
}

// A NIC has one connection manager.
func TestSecondManager(t *testing.T) {
	a := newSide(t, 1, nil)
	if _, err := cm.New(a.dev); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("a second manager: %v", err)
	}
}
