package udp

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// veths is a pair of virtual Ethernet devices between two namespaces.
type veths struct {
	a4, a6, b4, b6 netip.Addr
	name           string
	near, peer     netns.NsHandle
}

var vethCount atomic.Int32

// vethPair makes two namespaces with one end of a pair in each, and leaves
// the test's thread in the first. All of it goes with the handles.
func vethPair(t *testing.T, mtu int) *veths {
	t.Helper()
	ownNetwork(t)
	v := &veths{
		a4: netip.MustParseAddr("10.47.91.1"), b4: netip.MustParseAddr("10.47.91.2"),
		a6: netip.MustParseAddr("fd00:91::1"), b6: netip.MustParseAddr("fd00:91::2"),
		name: fmt.Sprintf("rn%d.%d", os.Getpid()%100000, vethCount.Add(1)),
	}
	var err error
	if v.near, err = netns.Get(); err != nil {
		t.Fatal(err)
	}
	if v.peer, err = netns.New(); err != nil { // moves this thread
		t.Fatal(err)
	}
	t.Cleanup(func() { v.near.Close(); v.peer.Close() })
	v.enter(t, v.near)
	dev := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: v.name, MTU: mtu}, PeerName: "peer", PeerMTU: uint32(mtu),
		PeerNamespace: netlink.NsFd(v.peer)}
	if err := netlink.LinkAdd(dev); err != nil {
		t.Skipf("no veth devices: %v", err)
	}
	up(t, v.name, v.a4, v.a6)
	v.enterPeer(t)
	up(t, "peer", v.b4, v.b6)
	waitUp(t, "peer")
	waitLocal(t, v.b6)
	v.enter(t, v.near)
	waitUp(t, v.name)
	waitLocal(t, v.a6)
	return v
}

func (v *veths) enter(t *testing.T, ns netns.NsHandle) {
	t.Helper()
	runtime.LockOSThread()
	if err := netns.Set(ns); err != nil {
		t.Fatal(err)
	}
}

func (v *veths) enterPeer(t *testing.T) { t.Helper(); v.enter(t, v.peer) }

func up(t *testing.T, name string, addrs ...netip.Addr) {
	t.Helper()
	dev, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		na, _ := netlink.ParseAddr(fmt.Sprintf("%v/%d", a, bits))
		if a.Is6() {
			na.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(dev, na); err != nil {
			t.Fatalf("%s: add %v: %v", name, a, err)
		}
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		t.Fatal(err)
	}
}

// noOffload makes the kernel segment before the sending device, and returns to
// where the test was: in the peer's namespace.
func (v *veths) noOffload(t *testing.T) {
	t.Helper()
	v.enter(t, v.near)
	defer v.enterPeer(t)
	dev, err := netlink.LinkByName(v.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetGSOMaxSegs(dev, 1); err != nil {
		t.Fatal(err)
	}
}

// waitUp waits for the carrier: routes of IPv6 appear only then.
func waitUp(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		dev, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if dev.Attrs().OperState == netlink.OperUp {
			return
		}
	}
	t.Fatalf("%s: no carrier", name)
}
