package udp

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/roce"
)

func openPlainGroup(t testing.TB, n int, addrs ...netip.Addr) *PlainGroup {
	t.Helper()
	g, err := OpenPlain(Config{Addrs: addrs}, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, l := range g.Links() {
			l.Close()
		}
	})
	return g
}

// collect receives want packets from any link, sleeping on its descriptors only.
func collect(t *testing.T, l link.Link, want int) (all []link.Packet) {
	t.Helper()
	pkts := make([]link.Packet, 7)
	for len(all) < want {
		n, err := l.Recv(pkts)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pkts[:n] {
			p.Data = append([]byte(nil), p.Data...)
			all = append(all, p)
		}
		if n == 0 && !pollable(l, 5*time.Second) {
			t.Fatalf("%d of %d packets arrived; %+v", len(all), want, l.Stats())
		}
	}
	return all
}

func pollable(l link.Link, wait time.Duration) bool {
	var fds []unix.PollFd
	for _, fd := range l.FDs() {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	n, _ := unix.Poll(fds, int(wait.Milliseconds()))
	return n > 0
}

// Plain sockets and Linux's carry the same packets to each other, over IPv4 and IPv6, and neither finds a wrong ICRC.
func TestPlainAndLinux(t *testing.T) {
	ownNetwork(t)
	for _, c := range []struct{ a, b netip.Addr }{{a4, b4}, {a6, b6}} {
		plain := openPlainGroup(t, 1, c.a).Links()[0]
		native := open(t, Config{Addrs: []netip.Addr{c.b}})
		lengths := append(repeat(40, 4116), 16, 40, 1044, roce.MaxPacketSize)
		for range 5 {
			sent := batch(roce.Path{Src: c.a, Dst: c.b}, 1, lengths...)
			for rest := sent; len(rest) > 0; { // a full socket takes them later
				n, err := plain.Send(rest)
				if err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			same(t, sent, receive(t, native, len(sent)))
			sent = batch(roce.Path{Src: c.b, Dst: c.a}, 2, lengths...)
			sendAll(t, native, sent)
			same(t, sent, collect(t, plain, len(sent)))
		}
		for _, l := range []link.Link{plain, native} {
			if s := l.Stats(); s.Sent != uint64(5*len(lengths)) || s.Received != s.Sent || s.BadICRC+s.Malformed+s.SendErrors != 0 {
				t.Errorf("%+v", s)
			}
		}
		if pollable(plain, 0) {
			t.Error("readable with nothing to receive")
		}
		plain.Close()
		native.Close()
	}
}

// What is on the wire is what the ICRC was computed with: peers that see the IPv4 header find it right.
func TestPlainIdentificationOnTheWire(t *testing.T) {
	ownNetwork(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	l := openPlainGroup(t, 1, a4).Links()[0]
	for _, p := range batch(roce.Path{Src: a4, Dst: b4}, 3, 64, 1044) {
		if n, err := l.Send([]link.Packet{p}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		ip := make([]byte, 4096)
		n, _, err := unix.Recvfrom(fd, ip, 0)
		if err != nil {
			t.Fatal(err)
		}
		if ip[4] != 0 || ip[5] != 0 || ip[6] != 0x40 {
			t.Errorf("identification and flags % x, want 0 and DF", ip[4:8])
		}
		path := roce.Path{Src: a4, Dst: b4, SrcPort: roce.Port, TTL: 64}
		if !roce.VerifyIdent(&path, 0, ip[28:n]) {
			t.Error("the ICRC is wrong")
		}
	}
}

// Packets reach the link that the queue pair's number or an exception says; each can be slept on.
func TestPlainGroupSteers(t *testing.T) {
	a, b := ownLoopback()
	g := openPlainGroup(t, 3, a)
	from := openPlainGroup(t, 1, b).Links()[0]
	if err := g.Steer(map[uint32]int{0x30: 1, 0x31: 0, 0x32: 3, 0x33: -1, multicastQPN: 2}); err != nil {
		t.Fatal(err)
	}
	want := map[uint32]int{0x30: 1, 0x31: 0, 0x32: 2, 0x33: 0, 0x34: 1, multicastQPN: 0}
	count := [3]int{}
	for num, at := range want {
		if n, err := from.Send(to(roce.Path{Src: b, Dst: a}, num)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		count[at]++
	}
	for i, l := range g.Links() {
		for _, p := range collect(t, l, count[i]) {
			if num := roce.BTH(p.Data).DestQP(); want[num] != i {
				t.Errorf("packet for QP %#x at link %d, want %d", num, i, want[num])
			}
		}
	}
	// A link that is closed is in nobody's way, nor one that nobody reads.
	g.Links()[2].Close()
	for range 2 * plainDatagrams {
		sendAll(t, from, to(roce.Path{Src: b, Dst: a}, 0x32, 0x33))
	}
	// Those before it may have filled the socket: one arrives in the end.
	pkts := make([]link.Packet, 1)
	for deadline := time.Now().Add(5 * time.Second); ; {
		sendAll(t, from, to(roce.Path{Src: b, Dst: a}, 0x34))
		if n, err := g.Links()[1].Recv(pkts); n == 1 && err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("nothing arrives beside a link that is full and one that is closed:", n, err)
		}
	}
	if s := g.Links()[0].Stats(); s.SocketDrops == 0 {
		t.Errorf("%+v: what found no room is not counted", s)
	}
}

// Whoever is told that something has come, and each time Recv leaves something, misses nothing.
func TestPlainNotify(t *testing.T) {
	a, b := ownLoopback()
	l, from := openPlainGroup(t, 1, a).Links()[0], openPlainGroup(t, 1, b).Links()[0]
	told := make(chan struct{}, 1)
	if !link.Notify(l, func() {
		select {
		case told <- struct{}{}:
		default:
		}
	}) {
		t.Fatal("does not tell")
	}
	const packets = 5000
	go func() {
		for i := range packets {
			_, _ = from.Send(to(roce.Path{Src: b, Dst: a}, uint32(i)))
			if i%50 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	pkts := make([]link.Packet, 3)
	for got := 0; got < packets; { // one look for each time
		select {
		case <-told:
		case <-time.After(5 * time.Second):
			t.Fatalf("%d of %d received, and nobody told of the rest: %+v", got, packets, l.Stats())
		}
		n, err := l.Recv(pkts)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
}

func TestPlainHostilePackets(t *testing.T) {
	a, b := ownLoopback()
	l := openPlainGroup(t, 1, a).Links()[0]
	conn, err := net.Dial("udp", netip.AddrPortFrom(a, roce.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int{0, 1, 11, 12, 15, 16, 17, 300, roce.MaxPacketSize, roce.MaxPacketSize + 1, roce.MaxPacketSize + 4, 60000} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	from := openPlainGroup(t, 1, b).Links()[0]
	broken := to(roce.Path{Src: b, Dst: a}, 8, 9)
	broken[0].Corrupt = 333
	before := append([]byte(nil), broken[0].Data[:92]...)
	if n, err := from.Send(broken); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if string(before) != string(broken[0].Data[:92]) {
		t.Error("the corruption stays in the caller's data")
	}
	if got := collect(t, l, 1); roce.BTH(got[0].Data).DestQP() != 9 {
		t.Errorf("received %+v", got)
	}
	if s := l.Stats(); s.Malformed != 8 || s.BadICRC != 5 {
		t.Errorf("%+v, want 8 malformed packets and 5 with a wrong ICRC", s)
	}
	// What cannot be sent is lost and counted.
	odd := to(roce.Path{Src: b, Dst: a}, 1, 1, 1)
	odd[0].Path.Src, odd[1].Path.Dst, odd[2].Data = a, a6, odd[2].Data[:8]
	if n, err := from.Send(odd); n != 3 || err != nil || from.Stats().SendErrors != 3 {
		t.Errorf("Send = %d, %v; %+v", n, err, from.Stats())
	}
}

func TestPlainOpenErrors(t *testing.T) {
	a, b := ownLoopback()
	first := openPlainGroup(t, 1, a).Links()[0]
	foreign := netip.MustParseAddr("192.0.2.77")
	for _, c := range []struct {
		cfg  Config
		want error
		hint string
	}{
		{Config{Addrs: []netip.Addr{b, a}}, syscall.EADDRINUSE, "held by process"},
		{Config{Addrs: []netip.Addr{b, foreign}}, syscall.EADDRNOTAVAIL, "no interface"},
		{Config{Addrs: []netip.Addr{foreign}, Optional: true}, syscall.EADDRNOTAVAIL, "no interface"},
		{Config{}, syscall.EADDRNOTAVAIL, "name the addresses"},
	} {
		if _, err := OpenPlain(c.cfg, 1); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("%v: %v, want %v and %q", c.cfg.Addrs, err, c.want, c.hint)
		}
	}
	if _, err := Open(Config{Addrs: []netip.Addr{a}}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Linux's beside plain sockets: %v", err)
	}
	g, err := OpenPlain(Config{Addrs: []netip.Addr{foreign, b}, Optional: true}, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := g.Links()[0]
	l.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Recv(make([]link.Packet, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after Close: %v", err)
	}
	if _, err := l.Send(to(roce.Path{Src: b, Dst: a}, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
	if err := first.Join(netip.MustParseAddr("239.1.2.3"), []int{1}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Join: %v", err)
	}
}

func TestPlainNoAllocation(t *testing.T) {
	a, b := ownLoopback()
	l, from := openPlainGroup(t, 1, a).Links()[0], openPlainGroup(t, 1, b).Links()[0]
	pkts := batch(roce.Path{Src: b, Dst: a}, 1, repeat(10, 1040)...)
	in := make([]link.Packet, 16)
	fds := []unix.PollFd{{Fd: int32(l.FDs()[0]), Events: unix.POLLIN}}
	round := func() {
		sendAll(t, from, pkts)
		for got := 0; got < len(pkts); {
			n, err := l.Recv(in)
			if err != nil {
				t.Fatal(err)
			}
			if got += n; n == 0 {
				_, _ = unix.Poll(fds, 5000)
			}
		}
	}
	for range 30 {
		round()
	}
	// To move a socket's deadline allocates, every ten milliseconds at most.
	if n := testing.AllocsPerRun(50, round); n > 3 {
		t.Errorf("%v allocations in a batch of %d packets", n, len(pkts))
	}
}
