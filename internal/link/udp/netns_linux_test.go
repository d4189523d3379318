package udp

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"rnic/internal/testnet"
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
	testnet.Own(t)
	testnet.Up(t, "lo", b6.String()+"/128")
	testnet.WaitLocal(t, b6)
}

// ownLoopback returns two loopback addresses that no other process will
// think of, for tests that need no root.
func ownLoopback() (a, b netip.Addr) {
	pid := os.Getpid()
	p := fmt.Sprintf("127.%d.%d.", 64+pid>>8&127, pid&255)
	return netip.MustParseAddr(p + "1"), netip.MustParseAddr(p + "2")
}
