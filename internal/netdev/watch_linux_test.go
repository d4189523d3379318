package netdev

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rnic/internal/testnet"
)

// A watch tells of carrier, administrative state and addresses, in the namespace that it was made in.
func TestWatch(t *testing.T) {
	testnet.Own(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "w1"}); err != nil {
		t.Skipf("no veth devices: %v", err)
	}
	near, far := linkNamed(t, "w0"), linkNamed(t, "w1")
	address, _ := netlink.ParseAddr("10.9.8.7/24")
	for _, l := range []netlink.Link{near, far} {
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(chan []Entry, 100)
	w, err := Watch(Selection{Interfaces: []string{"w0"}}, func(e []Entry) { seen <- e })
	if err != nil {
		t.Fatal(err)
	}
	ip := netip.MustParseAddr("10.9.8.7")
	for _, step := range []struct {
		what             string
		do               func() error
		there, up, ready bool
	}{
		{"new address", func() error { return netlink.AddrAdd(near, address) }, true, true, true},
		{"no carrier", func() error { return netlink.LinkSetDown(far) }, true, true, false},
		{"carrier", func() error { return netlink.LinkSetUp(far) }, true, true, true},
		{"link down", func() error { return netlink.LinkSetDown(near) }, true, false, false},
		{"link up", func() error { return netlink.LinkSetUp(near) }, true, true, true},
		{"no address", func() error { return netlink.AddrDel(near, address) }, false, false, false},
	} {
		if err := step.do(); err != nil {
			t.Fatal(step.what, err)
		}
		for deadline := time.After(20 * time.Second); ; {
			var got []Entry
			select {
			case got = <-seen:
			case <-deadline:
				t.Fatalf("%s: never seen", step.what)
			}
			i := slices.IndexFunc(got, func(e Entry) bool { return e.Addr == ip })
			if (i >= 0) == step.there && (i < 0 || got[i].Up == step.up && got[i].Running == step.ready) {
				break
			}
		}
	}
	w.Close()
	for len(seen) > 0 {
		<-seen
	}
	_ = netlink.AddrAdd(near, address)
	if len(seen) > 0 {
		t.Error("told of a change after Close")
	}
}

// An address that the watch tells of can be used: also if a message about another one makes the watch look before the kernel
// has made it an address of this machine.
func TestWatchTellsOfUsableAddresses(t *testing.T) {
	near, far := testnet.Own(t), testnet.Another(t)
	testnet.Up(t, "lo")
	testnet.Cable(t, netlink.LinkAttrs{Name: "w0"}, far, "w1")
	link := testnet.Up(t, "w0")
	far.Enter(t)
	testnet.Up(t, "w1")
	near.Enter(t)
	testnet.WaitLinkLocal(t, "w0")
	routes, err := netlink.NewHandleAt(near.NsHandle)
	if err != nil {
		t.Fatal(err)
	}
	defer routes.Close()
	const count = 100
	address := func(i int) string { return fmt.Sprintf("fd00:1::%x", i+1) }
	last := netip.MustParseAddr(address(count - 1))
	told, done, all := map[netip.Addr]bool{}, false, make(chan struct{})
	w, err := Watch(Selection{Interfaces: []string{"w0"}}, func(entries []Entry) {
		for _, e := range entries {
			if told[e.Addr] || e.Addr.Is4() {
				continue
			}
			told[e.Addr] = true
			if r, err := routes.RouteGet(e.Addr.AsSlice()); err != nil || len(r) == 0 || r[0].Type != unix.RTN_LOCAL {
				t.Errorf("packets to %v do not arrive: %v %v", e.Addr, r, err)
			}
		}
		if told[last] && !done {
			done = true
			close(all)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range count {
		if err := netlink.AddrAdd(link, testnet.Address(t, address(i)+"/64")); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		t.Error("the last address is never told of")
	}
}

func linkNamed(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
