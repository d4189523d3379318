package link_test

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/fault"
	"rnic/internal/link"
	linkfault "rnic/internal/link/fault"
	"rnic/internal/link/udp"
	"rnic/internal/roce"
)

// The faults over real sockets: duplicates and reordered packets get ICRCs of
// their own, corrupt ones are dropped by the receiving socket.
func TestFaultsOverUDP(t *testing.T) {
	pid := os.Getpid()
	a := netip.AddrFrom4([4]byte{127, byte(32 + pid>>8&31), byte(pid), 1})
	b := a.Next()
	la, err := udp.Open(udp.Config{Addrs: []netip.Addr{a}})
	if err != nil {
		t.Fatal(err)
	}
	defer la.Close()
	lb, err := udp.Open(udp.Config{Addrs: []netip.Addr{b}})
	if err != nil {
		t.Fatal(err)
	}
	defer lb.Close()
	spec, err := fault.Parse("drop=5%,dup=10%,reorder=10%,corrupt=5%,seed=4")
	if err != nil {
		t.Fatal(err)
	}
	sender := linkfault.New(la, linkfault.Config{Send: spec})

	const batches, each = 50, 20
	var got []int
	in := make([]link.Packet, 32)
	receive := func(wait time.Duration) {
		for {
			n, err := lb.Recv(in)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 && !readable(lb, wait) {
				return
			}
			for _, p := range in[:n] {
				got = append(got, int(binary.BigEndian.Uint32(p.Data[12:])))
			}
		}
	}
	for k := range batches {
		sender.SetNow(int64(k) * 1000)
		if n, err := sender.Send(numbered(a, b, k*each, each)); n != each || err != nil {
			t.Fatalf("Send = %d, %v", n, err)
		}
		receive(0)
	}
	sender.SetNow(1 << 40)
	if _, err := sender.Send(nil); err != nil {
		t.Fatal(err)
	}
	receive(200 * time.Millisecond)

	injected, _ := sender.Injected()
	bad := int(lb.Stats().BadICRC)
	want := batches*each - int(injected.Dropped) + int(injected.Duplicated)
	if len(got)+bad != want || bad < int(injected.Corrupted) || injected.Corrupted == 0 || injected.Duplicated == 0 {
		t.Errorf("%d good and %d bad arrived, want %d together; injected %+v", len(got), bad, want, injected)
	}
	if slices.IsSorted(got) || injected.Reordered == 0 {
		t.Error("nothing was reordered")
	}
}

// numbered makes packets back to back, numbered behind the BTH.
func numbered(src, dst netip.Addr, first, n int) []link.Packet {
	const size = 12 + 4 + 20 + 4
	arena := make([]byte, n*size)
	pkts := make([]link.Packet, n)
	for i := range pkts {
		data := arena[i*size : (i+1)*size]
		roce.BTH(data).Encode(&roce.BTHFields{Opcode: roce.RCSendOnly, PKey: 0xffff, PSN: roce.PSN(first + i)})
		binary.BigEndian.PutUint32(data[12:], uint32(first+i))
		copy(data[16:], "payload of the test")
		pkts[i] = link.Packet{Path: roce.Path{Src: src, Dst: dst}, Data: data}
	}
	return pkts
}

func readable(l link.Link, wait time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(l.FDs()[0]), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds, int(wait.Milliseconds()))
	return n > 0
}
