package cm_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"rnic/cm"
	"rnic/verbs"
)

func send(t *testing.T, s *side, c *cm.Conn, text string) {
	t.Helper()
	copy(s.mr.Bytes()[8192:], text)
	get(c.QP().PostSend(&verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: s.mr.Slice(8192, len(text))}))(t)
}

// A connection comes back ready to use, with both sides' private data; its end flushes the queue pairs.
func TestConnection(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		a, b := newSide(t, 1, nil), newSide(t, 2, nil)
		ca, cb := a.config("hello"), b.config("welcome")
		ca.QP.Type = typ
		client, server := connect(t, a, b.listen(t, cm.ListenConfig{}), b, ca, cb)
		if !bytes.HasPrefix(server.PrivateData(), []byte("hello\x00")) || !bytes.HasPrefix(client.PrivateData(), []byte("welcome\x00")) {
			t.Errorf("private data %q and %q", server.PrivateData(), client.PrivateData())
		}
		if client.LocalAddr() != server.RemoteAddr() || client.RemoteAddr() != server.LocalAddr() {
			t.Errorf("%v to %v, and %v to %v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
		}
		send(t, a, client, "ping")
		if w := b.next(t); w.Status != verbs.StatusSuccess || string(b.mr.Bytes()[:4]) != "ping" {
			t.Errorf("%v: %v, %q", typ, w.Status, b.mr.Bytes()[:4])
		}
		if w := a.next(t); w.Status != verbs.StatusSuccess {
			t.Errorf("%v: send: %v", typ, w.Status)
		}
		send(t, b, server, "pong")
		if w := a.next(t); w.Status != verbs.StatusSuccess || string(a.mr.Bytes()[:4]) != "pong" {
			t.Errorf("%v: %v, %q", typ, w.Status, a.mr.Bytes()[:4])
		}
		b.next(t)
		if err := client.Disconnect(); err != nil {
			t.Error(err)
		}
		ended(t, server)
		if e := <-server.Events(); e.Type != cm.Disconnected {
			t.Errorf("event %v", e.Type)
		}
		if err := server.Err(); !errors.Is(err, cm.ErrDisconnected) {
			t.Errorf("error %v", err)
		}
		for _, c := range []*cm.Conn{client, server} {
			if q, err := c.QP().Query(); err != nil || q.State != verbs.StateError {
				t.Errorf("the queue pair is in %v (%v)", q.State, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		a.mgr.Close()
		b.mgr.Close()
		a.dev.Close()
		b.dev.Close()
	}
}

// A READ works, as deep as the sides agree (InfiniBand vol. 1, 12.7.29).
func TestReadDepth(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	ca, cb := a.config(""), b.config("")
	ca.RDAtomic, cb.RDAtomic = 8, 3
	client, server := connect(t, a, b.listen(t, cm.ListenConfig{}), b, ca, cb)
	qa, qb := get(client.QP().Query())(t), get(server.QP().Query())(t)
	if qa.MaxRDAtomic != 3 || qa.MaxDestRDAtomic != 3 || qb.MaxRDAtomic != 3 || qb.MaxDestRDAtomic != 3 {
		t.Errorf("depths %d %d %d %d", qa.MaxRDAtomic, qa.MaxDestRDAtomic, qb.MaxRDAtomic, qb.MaxDestRDAtomic)
	}
	copy(b.mr.Bytes()[100:], "to be read")
	get(client.QP().PostSend(&verbs.SendWR{ID: 3, Opcode: verbs.OpRead, Flags: verbs.Signaled, SGE: a.mr.Slice(9000, 10),
		RemoteAddr: b.mr.Addr(100), RKey: b.mr.RKey()}))(t)
	if w := a.next(t); w.Status != verbs.StatusSuccess || string(a.mr.Bytes()[9000:9010]) != "to be read" {
		t.Errorf("%v: %q", w.Status, a.mr.Bytes()[9000:9010])
	}
}

// A UD listener tells where its datagrams go.
func TestDatagrams(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	ca, cb := a.config("hello"), b.config("")
	ca.QP.Type = verbs.UD
	client, _ := connect(t, a, b.listen(t, cm.ListenConfig{Datagrams: true}), b, ca, cb)
	ah, qpn, qkey := client.Datagrams()
	copy(a.mr.Bytes()[8192:], "datagram")
	get(client.QP().PostSend(&verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: a.mr.Slice(8192, 8), AH: ah, RemoteQPN: qpn, RemoteQKey: qkey}))(t)
	if w := b.next(t); w.Status != verbs.StatusSuccess || string(b.mr.Bytes()[40:48]) != "datagram" {
		t.Errorf("%v: %q", w.Status, b.mr.Bytes()[40:48])
	}
}

func TestReject(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := b.listen(t, cm.ListenConfig{})
	go func() {
		if r, err := l.Accept(context.Background()); err == nil {
			r.Reject(42, []byte("not today"))
		}
	}()
	_, err := a.mgr.Dial(longEnough(t), l.Addr(), a.config(""))
	var why *cm.RejectError
	if !errors.As(err, &why) || why.Reason != 42 || !bytes.HasPrefix(why.Private, []byte("not today\x00")) {
		t.Errorf("%v", err)
	}
	if !errors.Is(err, cm.ErrRejected) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v is neither a rejection nor ECONNREFUSED", err)
	}
	_, err = a.mgr.Dial(longEnough(t), netip.AddrPortFrom(b.addr, 9), a.config(""))
	if !errors.As(err, &why) || why.Reason != cm.ReasonNoListener {
		t.Errorf("to a port where nobody listens: %v", err)
	}
	_, err = b.mgr.Listen(l.Addr(), cm.ListenConfig{})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second listener: %v", err)
	}
	if _, err = a.mgr.Listen(netip.MustParseAddrPort("192.0.2.1:5"), cm.ListenConfig{}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("listener at a foreign address: %v", err)
	}
	if _, err = a.mgr.Dial(longEnough(t), l.Addr(), a.config(string(make([]byte, 57)))); !errors.Is(err, syscall.EINVAL) || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("57 bytes of private data: %v", err)
	}
	idle(t, a)
	idle(t, b)
}

// idle waits until nothing of connections is left on a NIC but the manager's own queue pair.
func idle(t testing.TB, s *side) {
	t.Helper()
	eventually(t, "only the management queue pair is left", func() bool { return len(s.dev.Unwrap().Resources().QPs) == 1 })
}

// A dial that is given up leaves nothing, and a request of it that waited is nobody's.
func TestCancel(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := b.listen(t, cm.ListenConfig{})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.mgr.Dial(ctx, l.Addr(), a.config("")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody accepts: %v", err)
	}
	idle(t, a)
	// The next request is that of a living dialer: the dead one has gone from the queue, or answers with an error.
	client, _ := func() (*cm.Conn, *cm.Conn) {
		ctx := longEnough(t)
		go func() {
			for {
				r, err := l.Accept(ctx)
				if err != nil {
					return
				}
				if c, err := r.Accept(ctx, b.config("")); err == nil {
					t.Cleanup(func() { c.Close() })
					return
				}
			}
		}()
		return get(a.mgr.Dial(ctx, l.Addr(), a.config("")))(t), nil
	}()
	client.Close()
	// An accepter who is given up.
	gone, stop := context.WithCancel(context.Background())
	stop()
	if _, err := l.Accept(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// A peer that is not there.
	ctx2, cancel2 := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel2()
	if _, err := a.mgr.Dial(ctx2, netip.AddrPortFrom(address(3), 5), a.config("")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no such NIC: %v", err)
	}
}

// A listener that is closed rejects who waits, and ends Accept.
func TestListenerClose(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := b.listen(t, cm.ListenConfig{Backlog: 1})
	failed := make(chan error, 2)
	for range 2 { // one of them finds the backlog full
		go func() {
			_, err := a.mgr.Dial(longEnough(t), l.Addr(), a.config(""))
			failed <- err
		}()
	}
	if err := <-failed; !errors.Is(err, cm.ErrRejected) {
		t.Errorf("beyond the backlog: %v", err)
	}
	l.Close()
	if err := <-failed; !errors.Is(err, cm.ErrRejected) {
		t.Errorf("at a listener that was closed: %v", err)
	}
	if _, err := l.Accept(context.Background()); !errors.Is(err, cm.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	l2 := b.listen(t, cm.ListenConfig{})
	go b.mgr.Close()
	if _, err := l2.Accept(context.Background()); !errors.Is(err, cm.ErrClosed) {
		t.Errorf("accept of a closed manager: %v", err)
	}
	b.mgr.Close()
	if _, err := b.mgr.Dial(longEnough(t), l.Addr(), b.config("")); !errors.Is(err, cm.ErrClosed) {
		t.Errorf("dial of a closed manager: %v", err)
	}
}

// A peer that is closed altogether ends the connection.
func TestManagerClose(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	client, _ := connect(t, a, b.listen(t, cm.ListenConfig{}), b, a.config(""), b.config(""))
	b.mgr.Close()
	ended(t, client)
}

// 500 times connected and disconnected leave nothing: no queue pair, goroutine nor memory.
func TestCycles(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l := b.listen(t, cm.ListenConfig{})
	ctx := longEnough(t)
	go func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			if c, err := r.Accept(ctx, b.config("")); err == nil {
				go func() { <-c.Done(); c.Close() }()
			}
		}
	}()
	cycle := func(n int) {
		for range n {
			c := get(a.mgr.Dial(ctx, l.Addr(), a.config("")))(t)
			if err := c.Disconnect(); err != nil {
				t.Fatal(err)
			}
			c.Close()
			drain(t, a.cq)
			drain(t, b.cq)
		}
		idle(t, a)
		idle(t, b)
	}
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	cycle(100)
	goroutines, before := runtime.NumGoroutine(), memory()
	cycle(400)
	// What is in timewait is some hundred bytes, for a while.
	if after := memory(); after > before+400*4096 {
		t.Errorf("the heap has grown from %d to %d bytes", before, after)
	}
	eventually(t, "goroutines are those of the beginning", func() bool { return runtime.NumGoroutine() <= goroutines })
}

func drain(t testing.TB, q *verbs.CQ) {
	t.Helper()
	var wc [32]verbs.WC
	for {
		if n := get(q.Poll(wc[:]))(t); n == 0 {
			return
		}
	}
}

// With 5 % of loss each way connections come up, and end.
func TestLossyConnections(t *testing.T) {
	a, b := newSide(t, 1, lossy(1)), newSide(t, 2, lossy(2))
	l := b.listen(t, cm.ListenConfig{})
	for range 5 {
		client, server := connect(t, a, l, b, a.config("x"), b.config("y"))
		client.Disconnect()
		ended(t, server)
		client.Close()
		server.Close()
	}
}
