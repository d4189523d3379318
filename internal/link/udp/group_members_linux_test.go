package udp

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/roce"
	"rnic/internal/testnet"
)

// sharedSocket is a socket of another program that asks for SO_REUSEPORT, or does not.
func sharedSocket(t *testing.T, user int, share bool) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Fchown(fd, user, user); err != nil { // the user that Linux compares
		t.Fatal(err)
	}
	if share {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// Other users' sockets cannot join, nor those that do not ask; one of the same user that does gets nothing.
func TestForeignSocketsAndGroup(t *testing.T) {
	ownNetwork(t)
	g := openGroup(t, Config{Addrs: []netip.Addr{a4}}, 2)
	at := &unix.SockaddrInet4{Port: roce.Port, Addr: a4.As4()}
	everywhere := &unix.SockaddrInet4{Port: roce.Port}
	for _, c := range []struct {
		what  string
		user  int
		share bool
		at    *unix.SockaddrInet4
	}{
		{"another user's", 12345, true, at}, {"another user's, all addresses,", 12345, true, everywhere},
		{"the same user's, exclusive,", os.Getuid(), false, at}, {"the same user's, exclusive, all addresses,", os.Getuid(), false, everywhere},
	} {
		if err := unix.Bind(sharedSocket(t, c.user, c.share), c.at); err != unix.EADDRINUSE {
			t.Errorf("%s socket: bind: %v, want EADDRINUSE", c.what, err)
		}
	}
	if _, err := Open(Config{}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a NIC of all addresses beside the group: %v, want EADDRINUSE", err)
	}
	stranger := sharedSocket(t, os.Getuid(), true)
	if err := unix.Bind(stranger, at); err != nil {
		t.Fatal(err)
	}
	numbers := make([]uint32, 64)
	for i := range numbers {
		numbers[i] = rand.Uint32N(multicastQPN)
	}
	from := open(t, Config{Addrs: []netip.Addr{b4}})
	for _, p := range to(roce.Path{Src: b4, Dst: a4, TTL: 64}, numbers...) {
		sendAll(t, from, []link.Packet{p})
	}
	for num, at := range arrivals(t, g, len(numbers)) {
		if at != int(num%2) {
			t.Errorf("packet for QP %#x at link %d beside a stranger", num, at)
		}
	}
	if n, _, err := unix.Recvfrom(stranger, make([]byte, 100), 0); err != unix.EAGAIN {
		t.Errorf("the stranger received %d bytes, %v", n, err)
	}
}

// The members keep their places when an address is taken away and comes back.
func TestGroupOutlivesAnAddress(t *testing.T) {
	ownNetwork(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ addr, from netip.Addr }{{netip.MustParseAddr("10.47.91.1"), b4}, {netip.MustParseAddr("fd00:4791::7"), b6}} {
		address, _ := netlink.ParseAddr(netip.PrefixFrom(c.addr, c.addr.BitLen()).String())
		if c.addr.Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(lo, address); err != nil {
			t.Fatal(err)
		}
		testnet.WaitLocal(t, c.addr)
		g := openGroup(t, Config{Addrs: []netip.Addr{c.addr, a4}}, 3)
		from := open(t, Config{Addrs: []netip.Addr{c.from}})
		if err := netlink.AddrDel(lo, address); err != nil {
			t.Fatal(err)
		}
		if err := g.Steer(map[uint32]int{0x30: 2}); err != nil { // meanwhile
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(lo, address); err != nil {
			t.Fatal(err)
		}
		testnet.WaitLocal(t, c.addr)
		want := map[uint32]int{0x30: 2, 0x31: 1, 0x32: 2, 0x33: 0}
		for num := range want {
			sendAll(t, from, to(roce.Path{Src: c.from, Dst: c.addr, TTL: 64}, num))
		}
		got := arrivals(t, g, len(want))
		for num, at := range want {
			if where, ok := got[num]; !ok || where != at {
				t.Errorf("packet for QP %#x to %v at link %d (%v), want %d", num, c.addr, where, ok, at)
			}
		}
		g.close()
		from.Close()
	}
}

// The first packet of a segmented message decides where all of them arrive, and none is lost.
func TestFirstOfMergedPacketsDecides(t *testing.T) {
	ownNetwork(t)
	for _, c := range []struct{ src, dst netip.Addr }{{b4, a4}, {b6, a6}} {
		g := openGroup(t, Config{Addrs: []netip.Addr{c.dst}}, 4)
		from := open(t, Config{Addrs: []netip.Addr{c.src}})
		if !from.Features().Segment {
			t.Skip("this kernel has no UDP_SEGMENT")
		}
		sendAll(t, from, to(roce.Path{Src: c.src, Dst: c.dst, TTL: 64}, 0x22, 0x21, 0x20, 0x23))
		sendAll(t, from, to(roce.Path{Src: c.src, Dst: c.dst, TTL: 64}, 0x33, 0x30))
		got := arrivals(t, g, 6)
		for _, num := range []uint32{0x20, 0x21, 0x22, 0x23, 0x30, 0x33} {
			want := 2
			if num >= 0x30 {
				want = 3
			}
			if at, ok := got[num]; !ok || at != want {
				t.Errorf("packet for QP %#x to %v at link %d (%v), want %d", num, c.dst, at, ok, want)
			}
		}
		g.close()
		from.Close()
	}
}

// runSteering interprets a steering program as the kernel does.
func runSteering(t *testing.T, p []unix.SockFilter, num uint32) int {
	t.Helper()
	a := num | 0x80000000 // BECN stands in front of it
	for pc := 1; pc < len(p); pc++ {
		i := p[pc]
		switch i.Code {
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= i.K
		case unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K:
			a %= i.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			if a != i.K {
				pc += int(i.Jf)
			}
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			if a < i.K {
				pc += int(i.Jf)
			}
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(i.K)
		case unix.BPF_RET | unix.BPF_K:
			return int(i.K)
		case unix.BPF_RET | unix.BPF_A:
			return int(a)
		default:
			t.Fatalf("instruction %d: %+v", pc, i)
		}
	}
	t.Fatal("the program does not end")
	return 0
}

// Programs of every length steer every queue pair right, and the kernel takes them, also with the memory that older ones give.
func TestSteeringPrograms(t *testing.T) {
	ownNetwork(t)
	const n = 7
	g := openGroup(t, Config{Addrs: []netip.Addr{a4}}, n)
	r := rand.New(rand.NewPCG(4791, 1))
	for _, size := range []int{0, 1, 3, 4, 5, 8, 9, 63, 300, maxExceptions, maxExceptions + 1, 4000} {
		moved := map[uint32]int{}
		for len(moved) < size {
			num := r.Uint32N(multicastQPN)
			moved[num] = (int(num%n) + 1 + r.IntN(n-1)) % n
		}
		nums := make([]uint32, 0, size)
		for num := range moved {
			nums = append(nums, num)
		}
		slices.Sort(nums)
		program := steering(n, effective(n, moved))
		for i, num := range nums {
			want := moved[num]
			if i >= maxExceptions {
				want = int(num % n)
			}
			if got := runSteering(t, program, num); got != want {
				t.Errorf("%d exceptions: QP %#x to link %d, want %d", size, num, got, want)
			}
			for _, near := range []uint32{num - 1, num + 1} {
				if _, also := moved[near]; !also && near < multicastQPN && runSteering(t, program, near) != int(near%n) {
					t.Errorf("%d exceptions: QP %#x to link %d, want %d", size, near, runSteering(t, program, near), near%n)
				}
			}
		}
		if got := runSteering(t, program, multicastQPN); got != 0 {
			t.Errorf("multicast datagrams to link %d", got)
		}
		if err := g.Links()[0].sockets[0].attach(program); err != nil {
			t.Errorf("%d exceptions, %d instructions: %v", size, len(program), err)
		}
	}
	if err := os.WriteFile("/proc/sys/net/core/optmem_max", []byte("4096"), 0); err != nil {
		t.Logf("less memory for programs cannot be tried: %v", err)
		return
	}
	many := map[uint32]int{}
	for i := range uint32(1000) {
		many[i*n] = 3
	}
	if err := g.Steer(many); err != nil {
		t.Errorf("with little memory for programs: %v", err)
	}
}

// The message names who is in the way, not another NIC at another address.
func TestHolderIsOfTheAddress(t *testing.T) {
	for _, c := range []struct {
		local string
		addr  string
		want  bool
	}{
		{"0100007F:12B7", "127.0.0.1", true}, {"0200007F:12B7", "127.0.0.1", false}, {"0100007F:12B8", "127.0.0.1", false},
		{"00000000:12B7", "127.0.0.1", true}, {"0200007F:12B7", "0.0.0.0", true},
		{"000000FD000000000000000001000000:12B7", "fd00::1", true}, {"000000FD000000000000000002000000:12B7", "fd00::1", false},
		{"00000000000000000000000000000000:12B7", "127.0.0.1", true}, {"", "fd00::1", false},
	} {
		if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
			t.Skip("the table is written here as little-endian machines do")
		}
		if got := conflicts(c.local, netip.MustParseAddr(c.addr), roce.Port); got != c.want {
			t.Errorf("%s in the way of %s: %v", c.local, c.addr, got)
		}
	}
}
