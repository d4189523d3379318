package cm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"rnic/cm"
	"rnic/internal/device"
)

// streamPair is two ends of a stream between two NICs.
func streamPair(t testing.TB, a, b *side) (client, server *cm.Stream) {
	t.Helper()
	l, err := b.mgr.ListenStream("rdma", net.JoinHostPort(b.addr.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := a.mgr.DialStream(longEnough(t), "rdma", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*cm.Stream), s.(*cm.Stream)
}

// The tests of golang.org/x/net for every net.Conn.
func TestConn(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		c, s := streamPair(t, a, b)
		return c, s, func() { c.Close(); s.Close() }, nil
	})
	idle(t, a)
	idle(t, b)
	if n := a.dev.Stats().RNRNAKsReceived + b.dev.Stats().RNRNAKsReceived; n != 0 {
		t.Errorf("%d times a message found no receive posted: credits are to prevent that", n)
	}
}

// Bytes go both ways at a time, whole and in order, with losses and in writes of all sizes; then both ends are closed.
func TestStreamBothWays(t *testing.T) {
	for _, test := range []struct {
		size   int
		change func(uint64) func(*device.Config)
	}{{3<<20 + 17, func(uint64) func(*device.Config) { return nil }}, {300_001, lossy}} {
		a, b := newSide(t, 1, test.change(3)), newSide(t, 2, test.change(4))
		c, s := streamPair(t, a, b)
		want := make([]byte, test.size)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range want {
			want[i] = byte(r.Uint32())
		}
		done := make(chan error, 4)
		for _, end := range []*cm.Stream{c, s} {
			go func() {
				r := rand.New(rand.NewPCG(3, 4))
				for rest := want; len(rest) > 0; {
					n := min(len(rest), 1+r.IntN(1<<r.IntN(20)))
					if _, err := end.Write(rest[:n]); err != nil {
						done <- err
						return
					}
					rest = rest[n:]
				}
				done <- end.CloseWrite()
			}()
			go func() {
				got, err := io.ReadAll(end)
				if err == nil && !bytes.Equal(got, want) {
					err = errors.New("other bytes have come")
				}
				done <- err
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write after CloseWrite: %v", err)
		}
		if n := a.dev.Stats().RNRNAKsReceived + b.dev.Stats().RNRNAKsReceived; n != 0 {
			t.Errorf("%d times a message found no receive posted", n)
		}
		c.Close()
		s.Close()
		a.mgr.Close()
		b.mgr.Close()
		a.dev.Close()
		b.dev.Close()
	}
}

// io.Copy uses ReadFrom and WriteTo.
func TestStreamCopy(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	c, s := streamPair(t, a, b)
	want := bytes.Repeat([]byte("0123456789abcdef!"), 100000)
	go func() {
		c.ReadFrom(bytes.NewReader(want))
		c.Close()
	}()
	var got bytes.Buffer
	if n, err := s.WriteTo(&got); err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes of %d, %v", n, len(want), err)
	}
	s.Close()
}

// What was written before Close arrives; then there is the end of the file, and writes to who has closed fail.
func TestStreamClose(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	c, s := streamPair(t, a, b)
	io.WriteString(c, "last words")
	c.Close()
	if got, err := io.ReadAll(s); err != nil || string(got) != "last words" {
		t.Errorf("%q, %v", got, err)
	}
	eventually(t, "writes fail", func() bool { _, err := s.Write([]byte("x")); return errors.Is(err, syscall.EPIPE) })
	s.Close()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	// A reader who does not read holds the writer up, and no one else: the writer's Close ends it.
	c, s = streamPair(t, a, b)
	c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	n, err := c.Write(make([]byte, 16<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n > 1<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	c.Close()
	if got, err := io.ReadAll(s); err != nil || len(got) != n {
		t.Errorf("%d bytes have arrived, %d were written: %v", len(got), n, err)
	}
	s.Close()
	// A peer that dies without a word is no end of the file.
	c, s = streamPair(t, a, b)
	go a.dev.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read on a NIC that is closed: %v", err)
	}
	s.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := s.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read from a peer whose NIC is closed: %v", err)
	}
	b.dev.Close() // otherwise the end of the stream waits for the peer
}

// Streams, one after the other, leave nothing.
func TestStreamCycles(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l, err := b.mgr.ListenStream("rdma4", net.JoinHostPort(b.addr.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			s, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(s, s)
				s.Close()
			}()
		}
	}()
	for range 60 {
		c, err := a.mgr.DialStream(longEnough(t), "rdma", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "echo")
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "echo" {
			t.Fatalf("%q, %v", b, err)
		}
		c.Close()
	}
	idle(t, a)
	idle(t, b)
	r := b.dev.Unwrap().Resources()
	if len(r.MRs) != 3 { // the connection manager's two, and the test's
		t.Errorf("%d memory regions are left", len(r.MRs))
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// Who speaks another protocol is rejected, or given up.
func TestStreamForeigner(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	l, err := b.mgr.ListenStream("rdma", net.JoinHostPort(b.addr.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.mgr.Dial(longEnough(t), netip.AddrPort(l.Addr().(cm.Addr)), a.config("something else"))
	if !errors.Is(err, cm.ErrRejected) {
		t.Errorf("a connection that is no stream: %v", err)
	}
	plain := b.listen(t, cm.ListenConfig{})
	go func() {
		if r, err := plain.Accept(context.Background()); err == nil {
			if c, err := r.Accept(context.Background(), b.config("what?")); err == nil {
				<-c.Done()
				c.Close()
			}
		}
	}()
	if _, err = a.mgr.DialStream(longEnough(t), "tcp", plain.Addr().String()); err == nil {
		t.Error("a stream to a listener that knows none")
	}
	if _, err := a.mgr.DialStream(longEnough(t), "udp", "127.0.0.1:5"); err == nil {
		t.Error("network udp")
	}
	idle(t, a)
	idle(t, b)
}
