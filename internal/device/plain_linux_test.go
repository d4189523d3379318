package device_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"rnic/internal/device"
	"rnic/internal/engine"
	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/internal/testnet"
	"rnic/verbs"
)

// A NIC on plain sockets, which other systems have, and one on Linux's do everything together, in both directions.
func TestPlainSockets(t *testing.T) {
	spec, err := fault.Parse("drop=0.5%,dup=0.5%,reorder=0.5%:4,corrupt=0.5%,seed=12")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct {
		plain [2]bool
		units int
		fault *fault.Spec
	}{{[2]bool{true, false}, 1, nil}, {[2]bool{false, true}, 1, &spec}, {[2]bool{true, true}, 1, &spec}, {[2]bool{true, false}, 2, nil}} {
		t.Run(fmt.Sprintf("%v,units=%d,faulty=%v", at.plain, at.units, at.fault != nil), func(t *testing.T) {
			n := 0
			a, b := twoDevices(t, func(c *device.Config) {
				c.PlainSockets, c.Units, c.SendFault, c.RecvFault = at.plain[n], at.units, at.fault, at.fault
				c.Waking = engine.Waking{SpinNanos: -1} // packets have to wake the threads
				n++
			})
			everything(t, a, b)
			for i, d := range []*device.Device{a, b} {
				if s, _ := d.LinkStats(); s.Received == 0 || at.fault == nil && s.BadICRC+s.Malformed+s.SendErrors != 0 {
					t.Errorf("NIC %d: %+v", i, s)
				}
			}
		})
	}
}

// Over IPv6 likewise.
func TestPlainSocketsIPv6(t *testing.T) {
	addrs := ownNamespace(t)
	var d [2]*device.Device
	for i, a := range addrs {
		d[i] = open(t, device.Config{Name: fmt.Sprint("nic", i), Addrs: []netip.Addr{a}, PlainSockets: i == 0})
	}
	everything(t, d[0], d[1])
}

// A NIC of all addresses on plain sockets has a socket for each.
func TestPlainSocketsOfAllAddresses(t *testing.T) {
	addrs := ownNamespace(t)
	d := open(t, device.Config{PlainSockets: true})
	have := map[netip.Addr]bool{}
	for _, g := range d.GIDs() {
		have[g.GID.Addr()] = true
	}
	for _, a := range addrs {
		if !have[a] {
			t.Errorf("%v is no GID of %v", a, d.GIDs())
		}
	}
	ctx := verbs.Wrap(d).Open()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := ctx.CreateCQ(4)
	if err != nil {
		t.Fatal(err)
	}
	ud, err := pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	if err := ud.AttachMulticast(verbs.GIDOf(netip.MustParseAddr("ff05::4791"))); !errors.Is(err, nic.EOPNOTSUPP) {
		t.Errorf("attach to a multicast group: %v, want EOPNOTSUPP", err)
	}
	if _, err := device.New(device.Config{Addrs: addrs[:1]}); err == nil {
		t.Errorf("another NIC got %v too", addrs[0])
	}
}

// ownNamespace moves the test into a network namespace of its own and gives its lo two IPv6 addresses.
func ownNamespace(t *testing.T) (addrs []netip.Addr) {
	t.Helper()
	testnet.Own(t)
	testnet.Up(t, "lo", "fd00:4791::1/128", "fd00:4791::2/128")
	addrs = []netip.Addr{netip.MustParseAddr("fd00:4791::1"), netip.MustParseAddr("fd00:4791::2")}
	for _, a := range addrs {
		testnet.WaitLocal(t, a)
	}
	return addrs
}
