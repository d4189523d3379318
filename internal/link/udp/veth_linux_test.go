package udp

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"rnic/internal/testnet"
)

// veths is a pair of virtual Ethernet devices between two namespaces.
type veths struct {
	a4, a6, b4, b6 netip.Addr
	near, peer     testnet.Net
}

// vethPair makes two namespaces with one end of a pair in each, and leaves
// the test's thread in the first. All of it goes with the handles.
func vethPair(t *testing.T, mtu int) *veths {
	t.Helper()
	v := &veths{
		a4: netip.MustParseAddr("10.47.91.1"), b4: netip.MustParseAddr("10.47.91.2"),
		a6: netip.MustParseAddr("fd00:91::1"), b6: netip.MustParseAddr("fd00:91::2"),
	}
	v.near, v.peer = testnet.Own(t), testnet.Another(t)
	testnet.Up(t, "lo")
	testnet.Cable(t, netlink.LinkAttrs{Name: vethName, MTU: mtu}, v.peer, "peer")
	testnet.Up(t, vethName, v.a4.String()+"/24", v.a6.String()+"/64")
	v.peer.Enter(t)
	testnet.Up(t, "peer", v.b4.String()+"/24", v.b6.String()+"/64")
	testnet.WaitCarrier(t, "peer")
	testnet.WaitLocal(t, v.b6)
	v.near.Enter(t)
	testnet.WaitCarrier(t, vethName)
	testnet.WaitLocal(t, v.a6)
	return v
}

const vethName = "near"

func (v *veths) enterPeer(t *testing.T) { t.Helper(); v.peer.Enter(t) }

// noOffload makes the kernel segment before the sending device, and returns to
// where the test was: in the peer's namespace.
func (v *veths) noOffload(t *testing.T) {
	t.Helper()
	v.near.Enter(t)
	defer v.enterPeer(t)
	dev, err := netlink.LinkByName(vethName)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetGSOMaxSegs(dev, 1); err != nil {
		t.Fatal(err)
	}
}
