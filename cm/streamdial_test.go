package cm_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"rnic/cm"
)

// Errors of DialStream say what those of net.Dialer do: whether time ran out, and the address, once.
func TestDialStreamErrors(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	dial := func(ctx context.Context, addr netip.AddrPort) net.Error {
		_, err := a.mgr.DialStream(ctx, "rdma", addr.String())
		var ne net.Error
		if !errors.As(err, &ne) || strings.Count(err.Error(), addr.String()) != 1 {
			t.Fatalf("dial %v: %v", addr, err)
		}
		return ne
	}
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	nobody := netip.AddrPortFrom(address(3), 5)
	if err := dial(short, nobody); !errors.Is(err, context.DeadlineExceeded) || !err.Timeout() {
		t.Errorf("no time is left: %v, timeout %v", err, err.Timeout())
	}
	gone, stop := context.WithCancel(context.Background())
	stop()
	if err := dial(gone, nobody); !errors.Is(err, context.Canceled) || err.Timeout() {
		t.Errorf("given up: %v, timeout %v", err, err.Timeout())
	}
	if err := dial(longEnough(t), netip.AddrPortFrom(b.addr, 9)); !errors.Is(err, syscall.ECONNREFUSED) || err.Timeout() {
		t.Errorf("refused: %v, timeout %v", err, err.Timeout())
	}
}

// A name that has several addresses is tried at each, and the first ones do not use up the time.
func TestDialStreamAddresses(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := get(b.mgr.ListenStream("rdma", net.JoinHostPort(b.addr.String(), "0")))(t)
	defer l.Close()
	port := netip.AddrPort(l.Addr().(cm.Addr)).Port()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := a.mgr.DialStreams(ctx, []netip.AddrPort{netip.AddrPortFrom(address(3), port), netip.AddrPortFrom(b.addr, port)})
	if err != nil {
		t.Fatalf("nobody answers at the first address, and there is a listener at the second: %v", err)
	}
	c.Close()
	// Where none takes it, the error is that of the first.
	_, err = a.mgr.DialStreams(longEnough(t), []netip.AddrPort{netip.AddrPortFrom(b.addr, 9), netip.AddrPortFrom(b.addr, 10)})
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), netip.AddrPortFrom(b.addr, 9).String()) {
		t.Errorf("%v", err)
	}
	// A listener takes the first address that is one of the NIC's.
	s, err := b.mgr.ListenStreams([]netip.AddrPort{netip.AddrPortFrom(address(3), 0), netip.AddrPortFrom(b.addr, 0)})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := b.mgr.ListenStreams([]netip.AddrPort{netip.AddrPortFrom(address(3), 0)}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("listen at a foreign address: %v", err)
	}
}

// After Close Accept hands out nothing, also when a connection is ready.
func TestStreamAcceptAfterClose(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	for range 10 {
		l := get(b.mgr.ListenStream("rdma", net.JoinHostPort(b.addr.String(), "0")))(t)
		c := get(a.mgr.DialStream(longEnough(t), "rdma", l.Addr().String()))(t)
		l.Close()
		if s, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v, %v", s, err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection that nobody has accepted stays")
		}
		c.Close()
	}
}

// A Write of nothing does not wait for the peer, but says when writing is over.
func TestStreamWriteNothing(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	c, s := streamPair(t, a, b)
	c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Write(make([]byte, 16<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := c.Write(nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("when the time has passed: %v", err)
	}
	c.SetWriteDeadline(time.Now().Add(30 * time.Second))
	if n, err := c.Write(nil); n != 0 || err != nil {
		t.Errorf("when the peer does not read: %d, %v", n, err)
	}
	c.CloseWrite()
	if _, err := c.Write(nil); !errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) {
		t.Errorf("after CloseWrite: %v", err)
	}
	c.Close()
	if _, err := c.Write(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	io.Copy(io.Discard, s)
	s.Close()
}
