package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patient = 30 * time.Second

func serve(t *testing.T, devices ...string) *Server {
	t.Helper()
	s, err := Listen(About{Devices: devices, Command: "test of control", Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// mine are the NICs of this process.
func mine(t *testing.T) (own []NIC) {
	t.Helper()
	all, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		if n.PID == os.Getpid() {
			own = append(own, n)
		}
	}
	return own
}

func dial(t *testing.T, n *NIC) (*Conn, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	t.Cleanup(cancel)
	c, err := Dial(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, ctx
}

func TestFindAndCall(t *testing.T) {
	s := serve(t, "rxe7", "rxe8")
	s.Handle("double", func(_ context.Context, args json.RawMessage, c *Stream) error {
		var n int
		if err := json.Unmarshal(args, &n); err != nil {
			return fmt.Errorf("double: %w", err)
		}
		return c.Reply(2 * n)
	})
	own := mine(t)
	if len(own) != 1 || strings.Join(own[0].Devices, ",") != "rxe7,rxe8" || own[0].Command != "test of control" || own[0].Version != "1.2.3" {
		t.Fatalf("found %+v", own)
	}
	c, ctx := dial(t, &own[0])
	var n int
	if err := c.Call(ctx, "double", 21, &n); err != nil || n != 42 {
		t.Fatalf("double 21 = %d, %v", n, err)
	}
	c, ctx = dial(t, &own[0])
	var remote *RemoteError
	if err := c.Call(ctx, "double", "x", &n); !errors.As(err, &remote) || !strings.Contains(remote.Text, "double:") {
		t.Errorf("double x: %v", err)
	}
	c, ctx = dial(t, &own[0])
	if err := c.Call(ctx, "halve", nil, nil); !errors.As(err, &remote) || !strings.Contains(remote.Text, "halve") {
		t.Errorf("unknown operation: %v", err)
	}
	if err := s2Close(s); err != nil {
		t.Error(err)
	}
	if left := mine(t); len(left) != 0 {
		t.Errorf("after Close: %+v", left)
	}
}

func s2Close(s *Server) error {
	done := make(chan struct{})
	go func() { s.Close(); close(done) }()
	select {
	case <-done:
		return nil
	case <-time.After(patient):
		return errors.New("Close does not return")
	}
}

// Two processes of different process namespaces may have the same number.
func TestTwoServersOfOneNumber(t *testing.T) {
	serve(t, "a")
	serve(t, "b")
	if own := mine(t); len(own) != 2 {
		t.Errorf("found %+v", own)
	}
}

// An operation streams until the client has had enough, and what is under way still arrives.
func TestStream(t *testing.T) {
	s := serve(t, "rxe0")
	ended := make(chan struct{})
	s.Handle("count", func(ctx context.Context, _ json.RawMessage, c *Stream) error {
		defer close(ended)
		if err := c.Reply(nil); err != nil {
			return err
		}
		fmt.Fprintln(c, "first")
		<-ctx.Done()
		fmt.Fprintln(c, "last")
		return nil
	})
	own := mine(t)
	c, ctx := dial(t, &own[0])
	if err := c.Call(ctx, "count", nil, nil); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	if line, _ := in.ReadString('\n'); line != "first\n" {
		t.Fatalf("%q", line)
	}
	c.CloseWrite()
	rest, err := io.ReadAll(in)
	if string(rest) != "last\n" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	<-ended
}

// The server ends operations that wait for their client.
func TestCloseEndsOperations(t *testing.T) {
	s := serve(t, "rxe0")
	s.Handle("wait", func(ctx context.Context, _ json.RawMessage, c *Stream) error {
		_ = c.Reply(nil)
		<-ctx.Done()
		return nil
	})
	own := mine(t)
	c, ctx := dial(t, &own[0])
	if err := c.Call(ctx, "wait", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := s2Close(s); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); err != nil {
		t.Error(err)
	}
}

func raw(t *testing.T, n *NIC) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: n.address, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patient))
	return c
}

func TestHostileRequests(t *testing.T) {
	serve(t, "rxe0")
	own := mine(t)
	for _, q := range []string{"\n", "{}\n", "[1,2]\n", "{\"op\":7}\n", "{\"op\":\"\\u001b[2J\"}\n", "nonsense\n", strings.Repeat("[", 60_000) + "\n",
		strings.Repeat("x", MaxRequest+10)} {
		c := raw(t, &own[0])
		_, _ = io.WriteString(c, q)
		b, _ := io.ReadAll(c)
		if !strings.HasPrefix(string(b), `{"error":"`) || strings.ContainsRune(string(b), 0x1b) {
			t.Errorf("%.40q answers %.200q", q, b)
		}
	}
	if again := mine(t); len(again) != 1 {
		t.Error("the server is gone")
	}
}

// Connections that say nothing do not use up more than their places, and those are free again after a time.
func TestManyConnections(t *testing.T) {
	serve(t, "rxe0")
	own := mine(t)
	var idle []*net.UnixConn
	for range MaxConnections {
		idle = append(idle, raw(t, &own[0]))
	}
	c := raw(t, &own[0])
	b, _ := io.ReadAll(c)
	if !strings.Contains(string(b), "connected to this NIC already") {
		t.Errorf("one too many is told %q", b)
	}
	for _, c := range idle {
		c.Close()
	}
	for begin := time.Now(); len(mine(t)) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > patient {
			t.Fatal("no place is free again")
		}
	}
}

// Somebody listens at such a name and answers with what he likes.
func TestHostileServer(t *testing.T) {
	for _, answer := range []string{"", "{}", "nonsense\n", strings.Repeat("x", 2*MaxReply), "{\"ok\":{\"devices\":7}}\n",
		"{\"ok\":{\"devices\":[\"\\u001b[31m\"],\"command\":\"a\\u0007\\nb\"}}\n"} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: prefix() + fmt.Sprint(os.Getpid()), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := l.Accept()
			if err == nil {
				_, _ = io.WriteString(c, answer)
				c.Close()
			}
		}()
		for _, n := range mine(t) {
			if s := n.String(); strings.ContainsAny(s, "\x1b\a\n") {
				t.Errorf("%q", s)
			}
		}
		l.Close()
	}
}

func TestOnlyOwnAndRoot(t *testing.T) {
	for uid, may := range map[uint32]bool{0: true, uint32(os.Geteuid()): true, uint32(os.Geteuid()) + 7: false} {
		if mayAsk(&unix.Ucred{Uid: uid}) != may {
			t.Errorf("user %d: %v", uid, !may)
		}
	}
}

func TestListeningNames(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
0: 00000002 00000000 00010000 0001 01 1 @rnic-control/5/10
0: 00000002 00000000 00010000 0001 01 1 @rnic-control/5/10
0: 00000003 00000000 00000000 0001 03 1 @rnic-control/5/11
0: 00000002 00000000 00010000 0005 01 1 @rnic-control/5/12
0: 00000002 00000000 00010000 0001 01 1 @rnic-control/55/13
0: 00000002 00000000 00010000 0001 01 1 /run/x
short
`
	got := listening(strings.NewReader(table), "@rnic-control/5/")
	if len(got) != 1 || got[0] != "@rnic-control/5/10" {
		t.Error(got)
	}
}
