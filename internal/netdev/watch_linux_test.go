package netdev

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A watch tells of carrier, administrative state and addresses, in the namespace that it was made in.
func TestWatch(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made: unshare: %v", err)
	}
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

func linkNamed(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
