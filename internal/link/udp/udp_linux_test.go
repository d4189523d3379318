package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/roce"
)

func open(t testing.TB, cfg Config) *Link {
	t.Helper()
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// batch makes packets of the given lengths, ICRC included, back to back in
// one arena, with random contents.
func batch(path roce.Path, seed uint64, lengths ...int) []link.Packet {
	total := 0
	for _, n := range lengths {
		total += n
	}
	arena := make([]byte, total)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range arena {
		arena[i] = byte(r.Uint32())
	}
	pkts := make([]link.Packet, len(lengths))
	at := 0
	for i, n := range lengths {
		pkts[i] = link.Packet{Path: path, Data: arena[at : at+n]}
		at += n
	}
	return pkts
}

// repeat is n times length.
func repeat(n, length int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = length
	}
	return s
}

func sendAll(t testing.TB, l *Link, pkts []link.Packet) {
	t.Helper()
	for len(pkts) > 0 {
		n, err := l.Send(pkts)
		if err != nil {
			t.Fatal(err)
		}
		pkts = pkts[n:]
	}
}

// receive collects want packets, copied; it gives up when none has come for
// two seconds.
func receive(t testing.TB, l *Link, want int) []link.Packet {
	t.Helper()
	var all []link.Packet
	pkts := make([]link.Packet, 7) // not a divisor of batches: they must be cut and continued
	for len(all) < want {
		n, err := l.Recv(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 && !readable(l, 2*time.Second) {
			t.Fatalf("%d of %d packets arrived; %+v", len(all), want, l.Stats())
		}
		for _, p := range pkts[:n] {
			p.Data = bytes.Clone(p.Data)
			all = append(all, p)
		}
	}
	return all
}

func readable(l *Link, wait time.Duration) bool {
	var fds []unix.PollFd
	for _, fd := range l.FDs() {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	n, _ := unix.Poll(fds, int(wait.Milliseconds()))
	return n > 0
}

// quiet fails the test if l receives anything, given time to.
func quiet(t *testing.T, l *Link) {
	t.Helper()
	pkts := make([]link.Packet, 4)
	for readable(l, 50*time.Millisecond) {
		n, err := l.Recv(pkts)
		if n != 0 || err != nil {
			t.Fatalf("received %d packets, %v, want none", n, err)
		}
	}
}

// same checks that got is what was sent: the bytes, in order, and the path.
func same(t *testing.T, sent, got []link.Packet) {
	t.Helper()
	if len(sent) != len(got) {
		t.Fatalf("%d packets sent, %d received", len(sent), len(got))
	}
	for i := range sent {
		want := sent[i].Data[:len(sent[i].Data)-roce.ICRCSize]
		if !bytes.Equal(got[i].Data, want) {
			t.Fatalf("packet %d: %d bytes received differ from %d sent", i, len(got[i].Data), len(want))
		}
		path := sent[i].Path
		path.SrcPort = roce.Port
		if path.TTL == 0 {
			path.TTL = defaultTTL
		}
		if got[i].Path != path {
			t.Fatalf("packet %d: path %+v, want %+v", i, got[i].Path, path)
		}
	}
}

// Every combination of what the kernel may lack, on either side, delivers
// the same bytes in the same order.
func TestEveryFallbackDelivers(t *testing.T) {
	ownNetwork(t)
	for _, addrs := range [][2]netip.Addr{{a4, b4}, {a6, b6}} {
		for i := range 64 {
			without := func(bits int) Config {
				return Config{NoSegment: bits&1 != 0, NoGRO: bits&2 != 0, NoMmsg: bits&4 != 0}
			}
			ca, cb := without(i&7), without(i>>3)
			ca.Addrs, cb.Addrs = addrs[:1], addrs[1:]
			la, err := Open(ca)
			if err != nil {
				t.Fatal(err)
			}
			lb, err := Open(cb)
			if err != nil {
				t.Fatal(err)
			}
			if f := la.Features(); f.Segment == ca.NoSegment || f.Mmsg == ca.NoMmsg || f.GRO == ca.NoGRO {
				t.Fatalf("%+v: features %+v", ca, f)
			}
			path := roce.Path{Src: addrs[0], Dst: addrs[1], SrcPort: 50000, TOS: 0x6a}
			lengths := append(repeat(17, 1040), 300) // a batch whose last is shorter
			lengths = append(lengths, 16)            // the shortest
			lengths = append(lengths, repeat(9, 4116)...)
			lengths = append(lengths, repeat(70, 16)...) // more than UDP_MAX_SEGMENTS
			pkts := batch(path, uint64(i), lengths...)
			pkts[20].Path.TTL = 9 // these two go alone
			pkts[21].Path.TOS = 0x03
			sendAll(t, la, pkts)
			got := receive(t, lb, len(pkts))
			same(t, pkts, got)
			if s := lb.Stats(); s.BadICRC != 0 || s.Malformed != 0 || s.Received != uint64(len(pkts)) {
				t.Fatalf("%+v -> %+v: %+v", ca, cb, s)
			}
			la.Close()
			lb.Close()
		}
	}
}

// Sends that the kernel takes as one message are one, so that speed does not
// get lost silently: 64 KiB in 16 packets of the largest path MTU.
func TestSegmentedSendIsOneMessage(t *testing.T) {
	a, b := ownLoopback()
	la := open(t, Config{Addrs: []netip.Addr{a}})
	if !la.Features().Segment {
		t.Skip("the kernel has no UDP_SEGMENT")
	}
	pkts := batch(roce.Path{Src: a, Dst: b}, 1, repeat(40, 4116)...)
	if _, n := la.build(pkts, 0); n != 3 { // 15 packets are 61,740 bytes
		t.Errorf("40 packets of 4116 bytes: %d messages, want 3", n)
	}
	small := batch(roce.Path{Src: a, Dst: b}, 1, repeat(130, 64)...)
	if _, n := la.build(small, 0); n != 3 {
		t.Errorf("130 packets of 64 bytes: %d messages, want 3 of at most 64", n)
	}
	gap := append(small[:3:3], small[4:8]...)
	if _, n := la.build(gap, 0); n != 2 {
		t.Errorf("a batch with one hole: %d messages, want 2", n)
	}
}

// A segmented message that a device refuses (EIO without checksum offload) goes
// out packet by packet, with the identifications of single packets.
func TestRefusedMessageGoesSingly(t *testing.T) {
	a, b := ownLoopback()
	la, lb := open(t, Config{Addrs: []netip.Addr{a}}), open(t, Config{Addrs: []netip.Addr{b}, NoGRO: true})
	if !la.Features().Segment {
		t.Skip("the kernel has no UDP_SEGMENT")
	}
	path := roce.Path{Src: a, Dst: b}
	pkts := batch(path, 1, repeat(8, 1040)...)
	pkts[4].Corrupt = 999
	intact := bytes.Clone(pkts[4].Data[:1036])
	sock, n := la.build(pkts, 0) // as far as Send comes before it is refused
	la.restore(pkts, n)
	if done, full := la.sendSingly(sock, pkts); done != 8 || full {
		t.Fatalf("sendSingly = %d, %v", done, full)
	}
	got := receive(t, lb, 7)
	same(t, append(append([]link.Packet{}, pkts[:4]...), pkts[5:]...), got)
	if la.Features().Segment || lb.Stats().BadICRC != 1 {
		t.Errorf("segmentation still on: %v; %+v", la.Features().Segment, lb.Stats())
	}
	if !bytes.Equal(intact, pkts[4].Data[:1036]) {
		t.Error("the injected corruption stayed in the caller's data")
	}
	wire := path
	wire.SrcPort = roce.Port
	for i := range got {
		if p := pkts[[]int{0, 1, 2, 3, 5, 6, 7}[i]]; !roce.VerifyIdent(&wire, 0, p.Data) {
			t.Errorf("packet %d: its ICRC is not for identification 0", i)
		}
	}
	more := batch(path, 2, repeat(5, 1040)...)
	if _, n := la.build(more, 0); n != 5 {
		t.Errorf("5 packets after a refusal: %d messages", n)
	}
	la.send.singly = len(more) // and not many thousands
	sendAll(t, la, more)
	same(t, more, receive(t, lb, 5))
	if _, n := la.build(more, 0); n != 1 {
		t.Errorf("5 packets a while after a refusal: %d messages", n)
	}
}

func TestBothFamiliesAndSourceAddressOnWildcard(t *testing.T) {
	ownNetwork(t)
	l := open(t, Config{})
	if len(l.sockets) != 2 {
		t.Fatalf("%d sockets, want one IPv4 and one IPv6", len(l.sockets))
	}
	// One link sends from each of its addresses to each other.
	for _, p := range []roce.Path{{Src: a4, Dst: b4}, {Src: b4, Dst: a4}, {Src: a6, Dst: b6}, {Src: b6, Dst: a6}, {Src: a4, Dst: a4}} {
		pkts := batch(p, 3, repeat(5, 512)...)
		sendAll(t, l, pkts)
		same(t, pkts, receive(t, l, len(pkts)))
	}
	// Mixed in one Send: neither family may be lost or wait for the other.
	pkts := append(batch(roce.Path{Src: a4, Dst: b4}, 4, 64, 64), batch(roce.Path{Src: a6, Dst: b6}, 5, 64, 64)...)
	sendAll(t, l, pkts)
	if got := receive(t, l, 4); len(got) != 4 {
		t.Errorf("%d packets, want 4", len(got))
	}
}

// Annex A17.3.3: a packet with a wrong ICRC is dropped silently.
func TestCorruptPacketsAreDropped(t *testing.T) {
	a, b := ownLoopback()
	la, lb := open(t, Config{Addrs: []netip.Addr{a}}), open(t, Config{Addrs: []netip.Addr{b}})
	pkts := batch(roce.Path{Src: a, Dst: b}, 6, repeat(12, 1040)...)
	before := bytes.Clone(pkts[5].Data[:1036])
	pkts[5].Corrupt = 8*700 + 3 + 1
	pkts[7].Corrupt = 8*1039 + 7 + 1 // in the ICRC itself
	sendAll(t, la, pkts)
	if !bytes.Equal(before, pkts[5].Data[:1036]) {
		t.Error("the injected corruption stayed in the caller's data")
	}
	want := append(append(pkts[:5:5], pkts[6]), pkts[8:]...)
	same(t, want, receive(t, lb, 10))
	if s := lb.Stats(); s.BadICRC != 2 {
		t.Errorf("BadICRC = %d, want 2", s.BadICRC)
	}
}

// A corrupt packet whose CRC happens to be right for some other
// identification is refused once its source is known for its habits.
func TestCorruptionWithRecoverableIdentification(t *testing.T) {
	a, b := ownLoopback()
	lb := open(t, Config{Addrs: []netip.Addr{b}})
	raw := rawSender(t, a, unix.IP_PMTUDISC_DO)
	path := roce.Path{Src: a, Dst: b, SrcPort: roce.Port}
	send := func(ident uint16) {
		p := batch(path, uint64(ident), 64)[0]
		roce.PutICRC(&path, ident, p.Data)
		raw(b, p.Data)
	}
	for range learnPackets {
		send(0)
	}
	receive(t, lb, learnPackets)
	send(40000)
	quiet(t, lb)
	if s := lb.Stats(); s.BadICRC != 1 {
		t.Fatalf("BadICRC = %d, want 1", s.BadICRC)
	}
	send(5)
	receive(t, lb, 1)

	// A source that really counts, as another system with the same
	// address, gets through after a few.
	for i := range uint16(50) {
		send(1000 + i)
	}
	receive(t, lb, 50-unlearnPackets)
}

// rawSender returns a function that sends datagrams as they are from port
// 4791 of src, by a plain socket with the given MTU discovery.
func rawSender(t *testing.T, src netip.Addr, discovery int) func(dst netip.Addr, data []byte) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, roce.Port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	rc, _ := c.SyscallConn()
	rc.Control(func(fd uintptr) {
		if src.Is4() {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discovery)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, discovery)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(dst netip.Addr, data []byte) {
		t.Helper()
		if _, err := c.WriteToUDPAddrPort(data, netip.AddrPortFrom(dst, roce.Port)); err != nil {
			t.Fatal(err)
		}
	}
}

// Soft-RoCE and hardware number their packets: any identification is
// accepted, and recovered from the ICRC, which covers it.
func TestForeignIdentifications(t *testing.T) {
	a, b := ownLoopback()
	lb := open(t, Config{Addrs: []netip.Addr{b}})
	raw := rawSender(t, a, unix.IP_PMTUDISC_DO)
	path := roce.Path{Src: a, Dst: b, SrcPort: roce.Port}
	r := rand.New(rand.NewPCG(7, 7))
	var sent []link.Packet
	for i := range 300 {
		ident := uint16(r.Uint32())
		if i >= 100 {
			ident = uint16(65400 + i) // counting, through the wrap
		}
		p := batch(path, uint64(i), 16+4*(i%50))[0]
		roce.PutICRC(&path, ident, p.Data)
		raw(b, p.Data)
		sent = append(sent, p)
		if i%50 == 49 {
			same(t, sent, receive(t, lb, 50))
			sent = sent[:0]
		}
	}
}

// Datagrams recorded from the kernel's Soft-RoCE would come from another
// source port; the ICRC covers it.
func TestForeignSourcePort(t *testing.T) {
	a, b := ownLoopback()
	lb := open(t, Config{Addrs: []netip.Addr{b}})
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	path := roce.Path{Src: a, Dst: b, SrcPort: port}
	p := batch(path, 1, 64)[0]
	roce.PutICRC(&path, 4711, p.Data)
	if _, err := c.WriteToUDPAddrPort(p.Data, netip.AddrPortFrom(b, roce.Port)); err != nil {
		t.Fatal(err)
	}
	got := receive(t, lb, 1)[0]
	if got.Path.SrcPort != port || got.Path.Src != a {
		t.Errorf("path %+v, want source %v port %d", got.Path, a, port)
	}
}

// RFC 6936 and Linux's Soft-RoCE: IPv6 with UDP checksum 0.
func TestZeroChecksumIPv6(t *testing.T) {
	ownNetwork(t)
	lb := open(t, Config{Addrs: []netip.Addr{b6}})
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_UDP)
	if err != nil {
		t.Skipf("no raw socket: %v", err)
	}
	defer unix.Close(fd)
	path := roce.Path{Src: a6, Dst: b6, SrcPort: 49441}
	p := batch(path, 1, 64)[0]
	roce.PutICRC(&path, 0, p.Data)
	udp := make([]byte, 8, 8+64)
	binary.BigEndian.PutUint16(udp[0:], path.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], roce.Port)
	binary.BigEndian.PutUint16(udp[4:], 8+64)
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: a6.As16()}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, append(udp, p.Data...), 0, &unix.SockaddrInet6{Addr: b6.As16()}); err != nil {
		t.Fatal(err)
	}
	got := receive(t, lb, 1)
	if !bytes.Equal(got[0].Data, p.Data[:60]) {
		t.Error("other bytes")
	}
}

// Datagrams that cannot be packets are counted and never handed up.
func TestShortAndOddDatagrams(t *testing.T) {
	a, b := ownLoopback()
	lb := open(t, Config{Addrs: []netip.Addr{b}})
	raw := rawSender(t, a, unix.IP_PMTUDISC_DO)
	for n := range 64 {
		raw(b, make([]byte, n))
	}
	raw(b, make([]byte, 65507))
	quiet(t, lb)
	if s := lb.Stats(); s.Malformed+s.BadICRC != 65 || s.Malformed < 16 || s.Received != 0 {
		t.Errorf("%+v, want all 65 counted as malformed or bad, none received", s)
	}
}

// What the network refuses is lost, as on a wire, and stops nothing.
func TestRefusedPacketsAreLostAndCounted(t *testing.T) {
	ownNetwork(t)
	la, lb := open(t, Config{Addrs: []netip.Addr{a4}}), open(t, Config{Addrs: []netip.Addr{b4}})
	good := batch(roce.Path{Src: a4, Dst: b4}, 1, repeat(4, 256)...)
	nowhere := batch(roce.Path{Src: a4, Dst: netip.MustParseAddr("192.0.2.1")}, 1, 256, 256)
	other := batch(roce.Path{Src: b4, Dst: a4}, 1, 256)                              // not this link's address
	mixed := batch(roce.Path{Src: a4, Dst: b6}, 1, 256)                              // two families
	unset := batch(roce.Path{}, 1, 256)                                              // none
	dead := batch(roce.Path{Src: a4, Dst: netip.MustParseAddr("127.0.0.9")}, 1, 256) // port unreachable comes back
	var pkts []link.Packet
	pkts = append(pkts, nowhere...)
	pkts = append(pkts, good[0])
	pkts = append(pkts, other...)
	pkts = append(pkts, good[1])
	pkts = append(pkts, mixed...)
	pkts = append(pkts, unset...)
	pkts = append(pkts, dead...)
	pkts = append(pkts, good[2:]...)
	sendAll(t, la, pkts)
	sendAll(t, la, good)
	same(t, append(good, good...), receive(t, lb, 8))
	if s := la.Stats(); s.SendErrors != 5 || s.Sent != 9 {
		t.Errorf("SendErrors = %d, Sent = %d, want 5 and 9", s.SendErrors, s.Sent)
	}
	quiet(t, la)
}

// The kernel refuses segments that do not fit the MTU; so it does single
// packets (DF). Segmentation must survive that.
func TestTooLongForTheMTU(t *testing.T) {
	pair := vethPair(t, 1500)
	la := open(t, Config{Addrs: []netip.Addr{pair.a4}})
	pair.enterPeer(t)
	lb := open(t, Config{Addrs: []netip.Addr{pair.b4}})
	path := roce.Path{Src: pair.a4, Dst: pair.b4}
	long := batch(path, 1, append(repeat(4, 4116), 516)...)
	fits := batch(path, 2, repeat(40, 1040)...)
	sendAll(t, la, long)
	sendAll(t, la, fits)
	same(t, append(long[4:5:5], fits...), receive(t, lb, 41)) // the short one may be another queue pair's
	if s := la.Stats(); s.SendErrors != 4 {
		t.Errorf("SendErrors = %d, want 4", s.SendErrors)
	}
	if !la.Features().Segment {
		t.Error("segmentation was given up because of packets that are too long")
	}
}

// Over a real device, with segmentation in the device or without: the
// identifications that the ICRC was computed with are those on the wire, so a
// receiver that looks at the IP header agrees. Here the receiver is a packet
// socket.
func TestIdentificationOnTheWire(t *testing.T) {
	pair := vethPair(t, 9000)
	la := open(t, Config{Addrs: []netip.Addr{pair.a4}})
	pair.enterPeer(t)
	htons := func(v uint16) uint16 { return v<<8 | v>>8 }
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(htons(unix.ETH_P_IP)))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	pair.noOffload(t) // so that segments are made by the kernel before they are seen
	path := roce.Path{Src: pair.a4, Dst: pair.b4, SrcPort: roce.Port, TTL: 64}
	sendAll(t, la, batch(path, 1, append(repeat(10, 4116), 64)...))
	sendAll(t, la, batch(path, 1, append(repeat(3, 1040), 64)...))
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	buf := make([]byte, 65536)
	var idents []int
	for len(idents) < 15 {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatalf("after %v: %v", idents, err)
		}
		ip := buf[:n]
		if n < 28 || ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[22:]) != roce.Port {
			continue
		}
		ident := binary.BigEndian.Uint16(ip[4:])
		idents = append(idents, int(ident))
		if flags := binary.BigEndian.Uint16(ip[6:]); flags != 0x4000 {
			t.Errorf("flags and fragment offset %#x, want DF", flags)
		}
		if !roce.VerifyIdent(&path, ident, ip[28:]) {
			t.Errorf("packet %d: ICRC does not match identification %d in the IP header", len(idents)-1, ident)
		}
	}
	if want := "[0 1 2 3 4 5 6 7 8 9 10 0 1 2 3]"; fmt.Sprint(idents) != want {
		t.Errorf("identifications %v, want %v", idents, want)
	}
}

// Both ways through a device pair with IPv4 and IPv6.
func TestOverDevices(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			pair := vethPair(t, mtu)
			la := open(t, Config{})
			pair.enterPeer(t)
			lb := open(t, Config{})
			size := 1040
			if mtu > 4200 {
				size = 4116
			}
			for _, p := range []roce.Path{{Src: pair.a4, Dst: pair.b4, TOS: 0x02}, {Src: pair.a6, Dst: pair.b6, TOS: 0x01}} {
				pkts := batch(p, 1, append(repeat(30, size), 64)...)
				sendAll(t, la, pkts)
				same(t, pkts, receive(t, lb, len(pkts)))
				back := p
				back.Src, back.Dst = p.Dst, p.Src
				pkts = batch(back, 2, repeat(10, size)...)
				sendAll(t, lb, pkts)
				same(t, pkts, receive(t, la, len(pkts)))
			}
			if s := lb.Stats(); s.BadICRC != 0 || s.Malformed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestSecondNICOnOneAddress(t *testing.T) {
	a, _ := ownLoopback()
	open(t, Config{Addrs: []netip.Addr{a}})
	_, err := Open(Config{Addrs: []netip.Addr{a}})
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Fatalf("error %v, want EADDRINUSE", err)
	}
	me := fmt.Sprintf("process %d (%s", os.Getpid(), filepath.Base(os.Args[0])[:3])
	if !strings.Contains(err.Error(), me) || !strings.Contains(err.Error(), a.String()+":4791") {
		t.Errorf("error %q names neither %q nor the address", err, me)
	}
}

func TestAddressOfAnotherMachine(t *testing.T) {
	_, err := Open(Config{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.77")}})
	if !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "192.0.2.77") {
		t.Fatalf("error %v, want EADDRNOTAVAIL and the address", err)
	}
}

func TestCloseTwiceAndUseAfter(t *testing.T) {
	a, b := ownLoopback()
	l := open(t, Config{Addrs: []netip.Addr{a}})
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Send(batch(roce.Path{Src: a, Dst: b}, 1, 64)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
	if _, err := l.Recv(make([]link.Packet, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after Close: %v", err)
	}
	l.Stats() // must not use descriptors that may be another's by now
}

// A receive queue that overflows is counted; what is received stays whole.
func TestSocketDropsAreCounted(t *testing.T) {
	a, b := ownLoopback()
	la := open(t, Config{Addrs: []netip.Addr{a}})
	lb := open(t, Config{Addrs: []netip.Addr{b}, KeepSocketBuffers: true})
	switch size := lb.ReceiveBuffer(); {
	case size <= 0:
		t.Fatalf("ReceiveBuffer = %d", size)
	case size > 8<<20:
		t.Skipf("net.core.rmem_default of %d is too large to overflow", size)
	}
	const n = 4000
	pkts := batch(roce.Path{Src: a, Dst: b}, 1, repeat(n/40, 4116)...)
	for range 40 {
		sendAll(t, la, pkts)
	}
	got := uint64(0)
	in := make([]link.Packet, 64)
	for readable(lb, 50*time.Millisecond) {
		k, err := lb.Recv(in)
		if err != nil {
			t.Fatal(err)
		}
		got += uint64(k)
	}
	for { // the rest of the last datagram
		k, _ := lb.Recv(in)
		if k == 0 {
			break
		}
		got += uint64(k)
	}
	if s := lb.Stats(); s.SocketDrops == 0 || got == 0 || got >= n || s.Received != got {
		t.Errorf("%d of %d received, stats %+v: want some received and some drops", got, n, s)
	}
}
