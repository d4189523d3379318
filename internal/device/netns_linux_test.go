package device_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"rnic/internal/device"
)

// A17.4.1.1: two machines on one cable, each with all addresses that an interface can have: every GID that one
// advertises reaches the other from its GID of the same kind, and its own NIC.
func TestEveryAdvertisedGIDWorks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: no network namespace can be made")
	}
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made: unshare: %v", err)
	}
	near, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := netns.New() // enters it
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	enter(t, near)
	name := fmt.Sprintf("rn%d", os.Getpid())
	err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 9000}, PeerName: "peer", PeerMTU: 9000, PeerNamespace: netlink.NsFd(far)})
	if err != nil {
		t.Skipf("no veth devices: %v", err)
	}
	bringUp(t, name, 1)
	enter(t, far)
	bringUp(t, "peer", 2)
	waitReady(t, "peer")
	b := open(t, device.Config{Name: "far"})
	enter(t, near)
	waitReady(t, name)
	a := open(t, device.Config{Name: "near"})
	if got := len(a.GIDs()); got < 5 || len(b.GIDs()) != got { // two on lo, three and more on veth
		t.Fatalf("GIDs of one side %+v, of the other %+v", a.GIDs(), b.GIDs())
	}
	for i, g := range a.GIDs() {
		// Between queue pairs of one NIC.
		ea, eb := newEnd(t, a), newEnd(t, a)
		connect(t, ea, eb, g.Index, g.Index)
		exchange(t, ea, eb, 1)
		// Over the cable. The GIDs of both sides stand in the same order.
		if g.IfName == "lo" {
			continue
		}
		ea, eb = newEnd(t, a), newEnd(t, b)
		connect(t, ea, eb, g.Index, b.GIDs()[i].Index)
		exchange(t, ea, eb, 2)
	}
	if net, _ := a.LinkStats(); net.Sent == 0 || net.Received == 0 {
		t.Errorf("nothing went over the cable: %+v", net)
	}
}

func enter(t *testing.T, ns netns.NsHandle) {
	t.Helper()
	if err := netns.Set(ns); err != nil {
		t.Fatal(err)
	}
}

// bringUp gives lo and an interface of the current namespace their addresses.
func bringUp(t *testing.T, name string, host int) {
	t.Helper()
	for _, n := range []string{"lo", name} {
		l, err := netlink.LinkByName(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"10.47.9%d.%d/24", "10.47.8%d.%d/24", "fd00:%d::%d/64"} {
		addr, err := netlink.ParseAddr(fmt.Sprintf(a, 1, host))
		if err != nil {
			t.Fatal(err)
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			t.Fatal(err)
		}
	}
}

// waitReady waits until an interface has its link-local address: duplicate address detection takes a
// second or two, once both ends of the cable are up.
func waitReady(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		list, err := netlink.AddrList(l, unix.AF_INET6)
		if err != nil {
			t.Fatal(err)
		}
		ready := len(list) >= 2
		for _, a := range list {
			ready = ready && a.Flags&unix.IFA_F_TENTATIVE == 0
		}
		if ready {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s has no link-local address", name)
}
