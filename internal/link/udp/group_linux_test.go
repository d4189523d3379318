package udp

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/roce"
)

func openGroup(t *testing.T, cfg Config, n int) *Group {
	t.Helper()
	g, err := OpenGroup(cfg, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

// to makes packets for queue pairs.
func to(path roce.Path, numbers ...uint32) []link.Packet {
	pkts := batch(path, 7, repeat(len(numbers), 96)...)
	for i, num := range numbers {
		b := roce.BTH(pkts[i].Data)
		b.Encode(&roce.BTHFields{Opcode: roce.RCSendOnly, DestQP: num})
	}
	return pkts
}

// arrivals says at which links packets for queue pairs arrive.
func arrivals(t *testing.T, g *Group, want int) map[uint32]int {
	t.Helper()
	at := map[uint32]int{}
	pkts := make([]link.Packet, 64)
	for end := time.Now().Add(5 * time.Second); len(at) < want && time.Now().Before(end); {
		for i, l := range g.Links() {
			n, err := l.Recv(pkts)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pkts[:n] {
				at[roce.BTH(p.Data).DestQP()] = i
			}
		}
	}
	return at
}

// Packets arrive at the link that the number of their queue pair says, or an exception; those to multicast groups, and what is too short
// to say anything, at the first.
func TestGroupSteersByQueuePair(t *testing.T) {
	ownNetwork(t)
	for _, c := range []struct{ src, dst string }{{"127.0.0.2", "127.0.0.1"}, {"::1", "::1"}} {
		for _, wildcard := range []bool{false, true} {
			steers(t, netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst), wildcard)
		}
	}
}

func steers(t *testing.T, src, dst netip.Addr, wildcard bool) {
	t.Helper()
	t.Logf("to %v, wildcard %v", dst, wildcard)
	cfg := Config{Addrs: []netip.Addr{dst}}
	if wildcard {
		cfg.Addrs = nil
	}
	const n = 3
	g := openGroup(t, cfg, n)
	defer g.close()
	from := g.Links()[1]
	if src != dst && !wildcard {
		from = open(t, Config{Addrs: []netip.Addr{src}})
		defer from.Close()
	}
	if wildcard {
		src = dst
	}
	path := roce.Path{Src: src, Dst: dst, TTL: 64}
	send := func(numbers []uint32) {
		for _, p := range to(path, numbers...) { // each its own datagram
			sendAll(t, from, []link.Packet{p})
		}
	}
	var numbers []uint32
	for i := range uint32(40) {
		numbers = append(numbers, 0x100+i*0x12345)
	}
	send(append(numbers, multicastQPN))
	for num, at := range arrivals(t, g, len(numbers)+1) {
		want := int(num % n)
		if num == multicastQPN {
			want = 0
		}
		if at != want {
			t.Errorf("packet for QP %#x at link %d, want %d", num, at, want)
		}
	}
	moved := map[uint32]int{numbers[0]: 2, numbers[1]: 0, numbers[2]: 1, 5: n, 6: -1}
	if err := g.Steer(moved); err != nil {
		t.Fatal(err)
	}
	send(numbers[:4])
	got := arrivals(t, g, 4)
	for i, num := range numbers[:4] {
		want := int(num % n)
		if i < 3 {
			want = moved[num]
		}
		if at, ok := got[num]; !ok || at != want {
			t.Errorf("packet for QP %#x at link %d (%v), want %d: there is an exception", num, at, ok, want)
		}
	}
	// Back, with as many exceptions as anybody may ask for.
	many := map[uint32]int{}
	for i := range uint32(5000) {
		many[0x900000+i] = 1
	}
	if err := g.Steer(many); err != nil {
		t.Fatal(err)
	}
	send(numbers[:1])
	if got := arrivals(t, g, 1); got[numbers[0]] != int(numbers[0]%n) {
		t.Errorf("packet for QP %#x at link %d after the exception was withdrawn", numbers[0], got[numbers[0]])
	}
	conn, err := net.Dial("udp", netip.AddrPortFrom(dst, roce.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for size := range 9 {
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	send(numbers[4:5])
	if got := arrivals(t, g, 1); got[numbers[4]] != int(numbers[4]%n) {
		t.Error("short datagrams are in the way")
	}
}

// Nobody takes part in a group by accident, and a group takes part in nobody's.
func TestGroupKeepsItsAddress(t *testing.T) {
	ownNetwork(t)
	addr := netip.MustParseAddr("127.0.0.1")
	g := openGroup(t, Config{Addrs: []netip.Addr{addr}}, 2)
	for _, n := range []int{1, 2} {
		if _, err := OpenGroup(Config{Addrs: []netip.Addr{addr}}, n); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another NIC with %d links on the address: %v, want EADDRINUSE", n, err)
		}
	}
	g.close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: roce.Port, Addr: addr.As4()}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenGroup(Config{Addrs: []netip.Addr{addr}}, 2); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a group where another program has a shared socket: %v, want EADDRINUSE", err)
	}
}
