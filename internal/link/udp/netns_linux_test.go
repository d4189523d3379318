package udp

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the tests' own network namespace.
var (
	a4 = netip.MustParseAddr("127.0.0.1")
	b4 = netip.MustParseAddr("127.0.0.2")
	a6 = netip.MustParseAddr("::1")
	b6 = netip.MustParseAddr("fd00:4791::2")
)

// ownNetwork moves the test into a network namespace of its own, in which lo
// is up and has a4, b4, a6 and b6: port 4791 is free there. The namespace
// goes away with the thread and the sockets. Sockets must be opened by the
// test's own goroutine, so in no subtest.
func ownNetwork(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: no network namespace can be made")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made: unshare: %v", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	addr, _ := netlink.ParseAddr(b6.String() + "/128")
	addr.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatalf("add %v to lo: %v", addr, err)
	}
	waitLocal(t, b6)
}

// waitLocal waits until the kernel has made addr, added a moment ago, an
// address of this machine: IPv6 does so in the background.
func waitLocal(t testing.TB, addr netip.Addr) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if r, err := netlink.RouteGet(addr.AsSlice()); err == nil && len(r) > 0 && r[0].Type == unix.RTN_LOCAL {
			return
		}
	}
	t.Fatalf("%v does not become an address of this machine", addr)
}

// ownLoopback returns two loopback addresses that no other process will
// think of, for tests that need no root.
func ownLoopback() (a, b netip.Addr) {
	pid := os.Getpid()
	p := fmt.Sprintf("127.%d.%d.", 64+pid>>8&127, pid&255)
	return netip.MustParseAddr(p + "1"), netip.MustParseAddr(p + "2")
}
