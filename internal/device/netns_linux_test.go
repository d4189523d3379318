package device_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"rnic/internal/device"
	"rnic/internal/testnet"
)

// A17.4.1.1: two machines on one cable, each with all addresses that an interface can have: every GID that one
// advertises reaches the other from its GID of the same kind, and its own NIC.
func TestEveryAdvertisedGIDWorks(t *testing.T) {
	near := testnet.Own(t)
	far := testnet.Another(t)
	testnet.Cable(t, netlink.LinkAttrs{Name: "near", MTU: 9000}, far, "peer")
	bringUp(t, "near", 1)
	far.Enter(t)
	bringUp(t, "peer", 2)
	testnet.WaitLinkLocal(t, "peer")
	b := open(t, device.Config{Name: "far"})
	near.Enter(t)
	testnet.WaitLinkLocal(t, "near")
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

// bringUp brings lo and an interface of the current namespace up, and gives that its addresses.
func bringUp(t *testing.T, name string, host int) {
	t.Helper()
	testnet.Up(t, "lo")
	testnet.Up(t, name, fmt.Sprintf("10.47.91.%d/24", host), fmt.Sprintf("10.47.81.%d/24", host), fmt.Sprintf("fd00:1::%d/64", host))
}
