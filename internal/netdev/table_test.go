package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func plain(addrs ...string) (list []addr) {
	for _, a := range addrs {
		list = append(list, addr{ip: ip(a)})
	}
	return list
}

// machine has what a server has, in no good order.
func machine() []iface {
	mac := func(last byte) net.HardwareAddr { return net.HardwareAddr{0x52, 0x54, 0, 1, 2, last} }
	return []iface{
		{name: "lo", index: 1, mtu: 65536, up: true, loopback: true, metric: noDefault, mac: make(net.HardwareAddr, 6), addrs: plain("127.0.0.1", "::1")},
		{name: "br0", index: 2, mtu: 9000, up: true, metric: noDefault, mac: mac(2), addrs: plain("172.17.0.1")},
		{name: "down0", index: 3, mtu: 1500, metric: noDefault, mac: mac(3), addrs: plain("198.51.100.1")},
		{name: "small0", index: 4, mtu: 300, up: true, metric: noDefault, addrs: plain("198.51.100.9")},
		{name: "wan7", index: 5, mtu: 1500, up: true, metric: 100, mac: mac(5), addrs: append(
			plain("fe80::1", "2001:db8::5", "192.0.2.7", "fd00::5"),
			addr{ip: ip("192.0.2.6"), secondary: true},
			addr{ip: ip("2001:db8::4"), secondary: true},
			addr{ip: ip("2001:db8::2"), deprecated: true},
			addr{ip: ip("192.0.2.5"), deprecated: true},
			addr{ip: ip("2001:db8::bad"), unusable: true})},
	}
}

func addrsOf(t *Table) (list []string) {
	for i := range t.Entries {
		list = append(list, t.Entries[i].Addr.String())
	}
	return list
}

func TestDefaultSelection(t *testing.T) {
	table, err := build(machine(), Selection{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"192.0.2.7", "192.0.2.6", "192.0.2.5", "2001:db8::5", "fd00::5", "2001:db8::4", "2001:db8::2", "172.17.0.1", "127.0.0.1", "::1"}
	if got := addrsOf(table); !slices.Equal(got, want) {
		t.Fatalf("addresses %v, want %v", got, want)
	}
	for i, e := range table.Entries {
		if e.Index != i || netip.AddrFrom16(e.GID).Unmap() != e.Addr || e.IfIndex == 0 || e.IfName == "" {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
	if e := table.Lookup(ip("::ffff:172.17.0.1")); e == nil || e.Index != 7 || e.PathMTU != 4096 || e.IfName != "br0" {
		t.Errorf("entry of 172.17.0.1: %+v", e)
	}
	if table.Lookup(ip("fe80::1")) != nil {
		t.Error("a link-local address is in the table")
	}
	if got := table.PathMTU(); got != 1024 {
		t.Errorf("PathMTU = %d, want that of the interface with MTU 1500", got)
	}
	// The order does not follow the system's.
	other := machine()
	slices.Reverse(other)
	for i := range other {
		slices.Reverse(other[i].addrs)
	}
	again, err := build(other, Selection{})
	if err != nil || !slices.Equal(again.Entries, table.Entries) || again.NodeGUID != table.NodeGUID {
		t.Errorf("another order of the system's lists gives %v, %v", addrsOf(again), err)
	}
}

func TestSelection(t *testing.T) {
	cases := []struct {
		sel  Selection
		want string
	}{
		{Selection{Interfaces: []string{"lo"}}, "127.0.0.1 ::1"},
		{Selection{Interfaces: []string{"lo", "br0"}}, "127.0.0.1 ::1 172.17.0.1"},
		{Selection{Addrs: []netip.Addr{ip("::1"), ip("192.0.2.6"), ip("::1")}}, "::1 192.0.2.6"},
		{Selection{Addrs: []netip.Addr{ip("::ffff:127.0.0.1")}}, "127.0.0.1"},
	}
	for _, c := range cases {
		table, err := build(machine(), c.sel)
		if err != nil || strings.Join(addrsOf(table), " ") != c.want {
			t.Errorf("%+v: %v, %v, want %s", c.sel, table, err, c.want)
		}
	}
}

func TestSelectionErrors(t *testing.T) {
	cases := []struct {
		sel  Selection
		want error
		text string
	}{
		{Selection{Interfaces: []string{"eth9"}}, ErrNoInterface, "lo, br0"},
		{Selection{Interfaces: []string{"down0"}}, ErrDown, "ip link set down0 up"},
		{Selection{Interfaces: []string{"small0"}}, ErrNoAddress, "300"},
		{Selection{Addrs: []netip.Addr{ip("203.0.113.1")}}, ErrNoAddress, "203.0.113.1"},
		{Selection{Addrs: []netip.Addr{ip("198.51.100.1")}}, ErrNoAddress, "198.51.100.1"},
		{Selection{Addrs: []netip.Addr{ip("fe80::1%wan7")}}, ErrNoAddress, "fe80::1"},
	}
	for _, c := range cases {
		_, err := build(machine(), c.sel)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: error %v, want %v that mentions %q", c.sel, err, c.want, c.text)
		}
	}
	if _, err := build(nil, Selection{}); !errors.Is(err, ErrNoAddress) {
		t.Errorf("no interfaces: %v", err)
	}
	if _, err := build(machine(), Selection{Interfaces: []string{"lo"}, Addrs: []netip.Addr{ip("::1")}}); err == nil {
		t.Error("interfaces and addresses at once are accepted")
	}
}

// Annex A17: the path MTU counts payload only. Most around it has the RDMA WRITE with immediate of XRC (annex A14).
func TestPathMTU(t *testing.T) {
	for mtu, want := range map[int]int{0: 0, 343: 0, 344: 256, 576: 256, 1280: 1024, 1400: 1024, 1500: 1024,
		2135: 1024, 2136: 2048, 4096: 2048, 4183: 2048, 4184: 4096, 9000: 4096, 65536: 4096} {
		if got := pathMTU(mtu); got != want {
			t.Errorf("interface MTU %d: path MTU %d, want %d", mtu, got, want)
		}
	}
}

func TestNodeGUID(t *testing.T) {
	guid := func(sel Selection) uint64 {
		t.Helper()
		table, err := build(machine(), sel)
		if err != nil {
			t.Fatal(err)
		}
		return table.NodeGUID
	}
	// RFC 4291, appendix A: 52:54:00:01:02:05, the local bit inverted.
	if got := guid(Selection{}); got != 0x505400fffe010205 {
		t.Errorf("node GUID %016x, want 505400fffe010205", got)
	}
	lo := guid(Selection{Interfaces: []string{"lo"}})
	if lo == 0 || lo != guid(Selection{Interfaces: []string{"lo"}}) {
		t.Errorf("node GUID of lo %016x: want it non-zero and the same each time", lo)
	}
	if other := guid(Selection{Addrs: []netip.Addr{ip("::1")}}); other == lo {
		t.Error("two addresses of lo have one node GUID")
	}
	if lo>>56&2 != 0 {
		t.Errorf("node GUID %016x claims to be universally administered", lo)
	}
}

func TestTableIsBounded(t *testing.T) {
	f := iface{name: "many0", index: 1, mtu: 1500, up: true, metric: noDefault}
	for i := range 1000 {
		f.addrs = append(f.addrs, addr{ip: ip(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250))})
	}
	table, err := build([]iface{f}, Selection{})
	if err != nil || len(table.Entries) != MaxEntries {
		t.Errorf("%d entries, %v, want %d", len(table.Entries), err, MaxEntries)
	}
}
