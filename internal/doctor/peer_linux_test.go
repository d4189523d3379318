package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	MaybeChild()
	os.Exit(m.Run())
}

// Addresses of the loopback interface: who asks, a translator between, and who listens.
const (
	client     = "127.0.0.1"
	translator = "127.0.0.2"
	server     = "127.0.0.3"
)

// freePort returns a port that nobody has for UDP and TCP on the addresses above.
func freePort(t *testing.T) uint16 {
	for range 100 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		if c, err := net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", port)); err == nil {
			c.Close()
			return uint16(port)
		}
	}
	t.Fatal("no free port")
	return 0
}

// listen runs Listen until the test ends.
func listen(t *testing.T, o PeerOptions) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, said := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Listen(ctx, o, said) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line := make([]byte, 4096)
	if _, err := ready.Read(line); err != nil || !bytes.Contains(line, []byte("listens")) {
		t.Fatalf("%v: %s", err, line)
	}
	go io.Copy(io.Discard, ready)
}

// want finds a finding by level, check and a part of its text.
func want(t *testing.T, r Report, level Level, check, part string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Level == level && f.Check == check && strings.Contains(f.Found+" "+f.Means+" "+strings.Join(f.Fix, " "), part) {
			return
		}
	}
	t.Errorf("no %s of %s with %q in %+v", level, check, part, r.Findings)
}

func TestPeerOnLoopback(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t), Addr: server}
	listen(t, o)
	for range 2 { // it serves more than one
		r := Peer(t.Context(), server, o)
		if !r.Works || len(r.Findings) != 17 {
			t.Errorf("%+v", r)
		}
		want(t, r, OK, "address translation", "none, "+client)
		want(t, r, OK, "path MTU", "up to 4096")
	}
}

// Who tries it out on one machine is told that it takes two.
func TestPeerIsThisMachine(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t), Addr: client}
	listen(t, o)
	r := Peer(t.Context(), client, o)
	want(t, r, Problem, "connection", "it is this machine")
	want(t, r, Problem, "connection", "on the other machine")
	if r.Works || len(r.Findings) != 1 {
		t.Errorf("%+v", r)
	}
}

// A translator forwards TCP and UDP, so that both ends see its address in place of each other's.
func TestPeerBehindTranslator(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t), Addr: server}
	listen(t, o)
	translate(t, o, false)
	r := Peer(t.Context(), translator, o)
	if r.Works {
		t.Error("works across a translator")
	}
	want(t, r, Problem, "address translation", "to the peer: packets of "+client)
	want(t, r, Problem, "address translation", "as if from "+translator)
	want(t, r, Problem, "ICRC", "to the peer: wrong in")
	want(t, r, Problem, "connection", "sees this machine as "+translator)
}

// A way that lets UDP through in one direction only is seen as that.
func TestPeerFilteredOneWay(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t), Addr: server}
	listen(t, o)
	translate(t, o, true)
	r := Peer(t.Context(), translator, o)
	want(t, r, Problem, "reachability", "to the peer: none of 16")
	want(t, r, OK, "reachability", "from the peer: 16 of 16")
	if r.Works {
		t.Error("works across a filter")
	}
}

// translate forwards between client and server until the test ends; filter drops the packets to the server.
func translate(t *testing.T, o PeerOptions, filter bool) {
	t.Helper()
	at := func(host string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(host), port)
	}
	udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at(translator, o.Port)))
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp4", at(translator, o.Control).String())
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { udp.Close(); tcp.Close(); running.Wait() })
	running.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			to := at(server, o.Port)
			if from.Addr() == to.Addr() {
				to = at(client, o.Port)
			} else if filter {
				continue
			}
			if err == nil {
				udp.WriteToUDPAddrPort(buf[:n], to)
			}
		}
	})
	running.Go(func() {
		for {
			near, err := tcp.Accept()
			if err != nil {
				return
			}
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(translator)}}
			far, err := d.Dial("tcp4", at(server, o.Control).String())
			if err != nil {
				near.Close()
				continue
			}
			running.Go(func() { io.Copy(far, near); far.Close() })
			running.Go(func() { io.Copy(near, far); near.Close() })
		}
	})
}

func TestPeerNotThere(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t)}
	r := Peer(t.Context(), server, o)
	if r.Works || len(r.Findings) != 1 {
		t.Errorf("%+v", r)
	}
	want(t, r, Problem, "connection", "rnic doctor --listen")
}

func TestPeerPortHeld(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t), Addr: server}
	listen(t, o)
	for _, host := range []string{client, server} { // either end's
		c, err := net.ListenPacket("udp4", fmt.Sprintf("%s:%d", host, o.Port))
		if err != nil {
			t.Fatal(err)
		}
		r := Peer(t.Context(), server, o)
		c.Close()
		want(t, r, Problem, "connection", fmt.Sprintf("--port %d", o.Port+1))
	}
}

// Whatever a client sends, the listener sends UDP to no address but the client's own, and serves the next one.
func TestListenerWithHostileClients(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t), Addr: server}
	listen(t, o)
	for _, text := range []string{"\n", "{}\n", "GET / HTTP/1.1\r\n\r\n", `{"op":"hello","version":99}` + "\n", `{"op":"send"}` + "\n",
		`{"op":"hello","version":1,"port":9}` + "\n" + `{"op":"send"}` + "\n" + `{"op":"send"}` + "\n" + `{"op":"x"}` + "\n",
		strings.Repeat("x", 2*maxLine)} {
		c, err := net.Dial("tcp4", net.JoinHostPort(server, fmt.Sprint(o.Control)))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, text)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
	}
	if r := Peer(t.Context(), server, o); !r.Works {
		t.Errorf("%+v", r.Findings)
	}
}

// A connection is answered by one volley of probes: the listener is of no use for flooding anybody.
func TestListenerSendsOnce(t *testing.T) {
	o := PeerOptions{Port: freePort(t), Control: freePort(t), Addr: server}
	listen(t, o)
	c, err := net.Dial("tcp4", net.JoinHostPort(server, fmt.Sprint(o.Control)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	talk := newTalk(c)
	if _, err := talk.ask(message{Version: protocolVersion, Op: "hello", Port: o.Port}); err != nil {
		t.Fatal(err)
	}
	if _, err := talk.ask(message{Op: "send"}); err != nil {
		t.Fatal(err)
	}
	if _, err := talk.ask(message{Op: "send"}); err == nil {
		t.Error("a second volley was sent")
	}
}

// A peer that claims nonsense leads to a finding, not to a crash.
func TestHostileListener(t *testing.T) {
	for _, answers := range [][]message{
		{{Version: 1}},
		{{Version: 1, Port: 0, Error: "no"}},
		{{Version: 1, Port: 1}, {}},
		{{Version: 1, Port: 1}, {Arrivals: &arrivals{Seen: []observation{{Seq: -5}, {Seq: 1 << 40}, {Seq: 1}}}}, {Refused: map[int]string{-1: "x", 1 << 40: "y"}}},
	} {
		o := PeerOptions{Port: freePort(t), Control: freePort(t)}
		l, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", server, o.Control))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			talk := newTalk(c)
			for _, a := range answers {
				talk.hear()
				if a.Port != 0 {
					a.Port = o.Port
				}
				json.NewEncoder(c).Encode(a)
			}
		}()
		if r := Peer(t.Context(), server, o); r.Works {
			t.Errorf("%+v", r)
		}
		l.Close()
	}
}

// inNamespace runs f in a goroutine with a network namespace of its own, whose descriptor it returns.
func inNamespace(t *testing.T, f func() error) int {
	t.Helper()
	ns := make(chan int, 1)
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ended <- err
			return
		}
		fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			ended <- err
			return
		}
		ns <- fd
		ended <- f()
	}()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case fd := <-ns:
		return fd
	case err := <-ended:
		ended <- nil
		t.Skipf("no network namespace can be made: %v", err)
		return -1
	}
}

// Two namespaces and a veth pair between: the interface's MTU bounds the path MTU, a narrower way behind it is a warning,
// a filter for the port alone a problem.
func TestPeerOverVeth(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	o := PeerOptions{Port: 4791, Control: DefaultControlPort}
	configured := make(chan struct{})
	far := inNamespace(t, func() error { <-configured; return Listen(ctx, o, io.Discard) })
	t.Cleanup(stop)
	defer unix.Close(far)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "d0", MTU: 1500}, PeerName: "d1", PeerNamespace: netlink.NsFd(far)}); err != nil {
		close(configured)
		stop()
		t.Skipf("no veth devices: %v", err)
	}
	there, err := netlink.NewHandleAt(netns.NsHandle(far))
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	here, err := netlink.NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	near, remote := bring(t, here, "d0", "10.9.9.1/24"), bring(t, there, "d1", "10.9.9.2/24")
	close(configured)

	r := peerWhenThere(t, "10.9.9.2", o)
	if !r.Works {
		t.Errorf("%+v", r.Findings)
	}
	want(t, r, OK, "path MTU", "to the peer: 1024; packets of path MTU 2048 are refused")
	want(t, r, OK, "TTL", "0 routers")

	for _, l := range []struct {
		h    *netlink.Handle
		link netlink.Link
		mtu  int
	}{{here, near, 9000}, {there, remote, 3000}} {
		if err := l.h.LinkSetMTU(l.link, l.mtu); err != nil {
			t.Fatal(err)
		}
	}
	r = peerWhenThere(t, "10.9.9.2", o)
	want(t, r, Warning, "path MTU", "rnic run --mtu 2048")
	want(t, r, OK, "path MTU", "from the peer: 2048")

	blackhole(t, far)
	r = peerWhenThere(t, "10.9.9.2", o)
	want(t, r, Problem, "reachability", "to the peer: none of 16")
}

// peerWhenThere is Peer, again until the listener has begun.
func peerWhenThere(t *testing.T, host string, o PeerOptions) (r Report) {
	for range 200 {
		if r = Peer(t.Context(), host, o); len(r.Findings) != 1 {
			return r
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%+v", r)
	return r
}

func bring(t *testing.T, h *netlink.Handle, name, addr string) netlink.Link {
	t.Helper()
	l, err := h.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := netlink.ParseAddr(addr)
	if err := errors.Join(h.AddrAdd(l, a), h.LinkSetUp(l)); err != nil {
		t.Fatal(err)
	}
	return l
}

// blackhole drops UDP to port 4791 in the namespace, by a rule ahead of the table of local addresses.
func blackhole(t *testing.T, ns int) {
	t.Helper()
	for _, args := range []string{"rule add pref 10 lookup local", "rule del pref 0", "rule add pref 5 ipproto 17 dport 4791 blackhole"} {
		cmd := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), ns), "ip"}, strings.Fields(args)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
}
