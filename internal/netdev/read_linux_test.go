package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rnic/internal/testnet"
)

// Every GID of this machine works: a datagram goes from each to each of the
// same family that is on this machine, by the address alone.
func TestEveryGIDWorks(t *testing.T) {
	table, err := Read(Selection{})
	if errors.Is(err, ErrNoAddress) {
		t.Skipf("this machine has no network: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkAll(t, table)
}

func checkAll(t *testing.T, table *Table) {
	t.Helper()
	for _, dst := range table.Entries {
		server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst.Addr, 0)))
		if err != nil {
			t.Errorf("%v: %v", dst.Addr, err)
			continue
		}
		to := server.LocalAddr().(*net.UDPAddr)
		for _, src := range table.Entries {
			if src.Addr.Is4() != dst.Addr.Is4() {
				continue
			}
			if err := exchange(server, src.Addr, to); err != nil {
				t.Errorf("%v to %v: %v", src.Addr, dst.Addr, err)
			}
		}
		server.Close()
	}
}

func exchange(server *net.UDPConn, src netip.Addr, to *net.UDPAddr) error {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), to)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	server.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, from, err := server.ReadFromUDPAddrPort(make([]byte, 8))
	if err == nil && from.Addr().Unmap() != src {
		err = fmt.Errorf("came from %v", from)
	}
	return err
}

// ownNetwork moves the test to an empty network namespace, which ends with it.
func ownNetwork(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: no network namespace can be made")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made: unshare: %v", err)
	}
}

// device adds a dummy device that is up, with addresses.
func device(t *testing.T, name string, mtu int, mac string, addrs ...string) netlink.Link {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	d := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, HardwareAddr: hw}}
	if err := netlink.LinkAdd(d); err != nil {
		t.Skipf("no dummy device: %v", err)
	}
	for _, a := range addrs {
		na, err := netlink.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		if na.IP.To4() == nil {
			na.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(d, na); err != nil {
			t.Fatalf("%s: %v", a, err)
		}
	}
	if err := netlink.LinkSetUp(d); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		waitLocal(t, netip.MustParsePrefix(a).Addr())
	}
	return d
}

// waitLocal waits until the kernel has made addr an address of this machine:
// IPv6 does so in the background.
func waitLocal(t *testing.T, addr netip.Addr) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if r, err := netlink.RouteGet(addr.AsSlice()); err == nil && len(r) > 0 && r[0].Type == unix.RTN_LOCAL {
			return
		}
	}
	t.Fatalf("%v does not become an address of this machine", addr)
}

func loUp(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

func addrLine(t *testing.T, sel Selection) string {
	t.Helper()
	table, err := Read(sel)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(addrsOf(table), " ")
}

func TestReadNamespace(t *testing.T) {
	ownNetwork(t)
	if _, err := Read(Selection{}); !errors.Is(err, ErrNoAddress) {
		t.Fatalf("empty namespace: %v, want ErrNoAddress", err)
	}
	loUp(t)
	device(t, "net0", 1500, "02:00:00:00:00:01", "10.1.0.1/24", "10.1.0.2/24", "fd00:1::1/64")
	up := device(t, "net1", 9000, "02:00:00:00:00:02", "10.2.0.1/24", "fd00:2::1/64")
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: all, Gw: net.ParseIP("10.2.0.9")}); err != nil {
		t.Fatal(err)
	}
	want := "10.2.0.1 fd00:2::1 10.1.0.1 10.1.0.2 fd00:1::1 127.0.0.1 ::1"
	if got := addrLine(t, Selection{}); got != want {
		t.Fatalf("addresses %s, want %s", got, want)
	}
	table, err := Read(Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if e := table.Entries[0]; e.IfName != "net1" || e.PathMTU != 4096 || e.MTU != 9000 || e.IfIndex != up.Attrs().Index {
		t.Errorf("first entry %+v", e)
	}
	if table.NodeGUID != 0x000000fffe000002 {
		t.Errorf("node GUID %016x", table.NodeGUID)
	}
	checkAll(t, table)
	plain, err := readPlain()
	if err != nil {
		t.Fatal(err)
	}
	other, err := build(plain, Selection{Interfaces: []string{"net1"}})
	if err != nil || !slices.Equal(other.Entries, table.Entries[:2]) {
		t.Errorf("the standard library gives %v, %v", other, err)
	}
}

func TestNoIPv6AndNoIPv4(t *testing.T) {
	ownNetwork(t)
	loUp(t)
	d := device(t, "net0", 1500, "02:00:00:00:00:01", "10.1.0.1/24", "fd00:1::1/64")
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
		t.Skipf("IPv6 cannot be disabled here: %v", err)
	}
	if got := addrLine(t, Selection{}); got != "10.1.0.1 127.0.0.1" {
		t.Errorf("IPv6 disabled: %s", got)
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	for _, l := range []string{"net0", "lo"} {
		link, _ := netlink.LinkByName(l)
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if err := netlink.AddrDel(link, &a); err != nil {
				t.Fatal(err)
			}
		}
	}
	na, _ := netlink.ParseAddr("fd00:1::9/64")
	na.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrAdd(d, na); err != nil {
		t.Fatal(err)
	}
	if got := addrLine(t, Selection{}); got != "fd00:1::9 ::1" {
		t.Errorf("no IPv4: %s", got)
	}
}

// A deprecated address is a GID, behind the others of its IP version: programs and routers have it for addresses of services that nothing is to
// be sent from unasked (keepalived), and connections outlive the preference for a temporary address.
func TestDeprecatedAddress(t *testing.T) {
	ownNetwork(t)
	lo := linkNamed(t, "lo")
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"fd00::1/128", "fd00::2/128", "10.9.8.1/32"} {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		if s != "fd00::2/128" {
			a.ValidLft = 10_000 // and never preferred
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(lo, a); err != nil {
			t.Fatal(err)
		}
		ip, _ := netip.AddrFromSlice(a.IP)
		testnet.WaitLocal(t, ip.Unmap())
	}
	table, err := Read(Selection{})
	if err != nil {
		t.Fatal(err)
	}
	got := addrsOf(table)
	if want := []string{"127.0.0.1", "10.9.8.1", "::1", "fd00::2", "fd00::1"}; !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
	checkAll(t, table)
	if _, err := Read(Selection{Addrs: []netip.Addr{netip.MustParseAddr("fd00::1")}}); err != nil {
		t.Errorf("a deprecated address that is asked for: %v", err)
	}
}
