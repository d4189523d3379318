package testnet

import (
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Net is a network namespace.
type Net struct{ netns.NsHandle }

// Own moves the test into a namespace of its own, in which nothing is up.
func Own(t testing.TB) Net {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: no network namespace can be made")
	}
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made: unshare: %v", err)
	}
	return current(t)
}

func current(t testing.TB) Net {
	t.Helper()
	ns, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return Net{ns}
}

// Another makes one more namespace, and leaves the test where it is. Precondition: Own.
func Another(t testing.TB) Net {
	t.Helper()
	here := current(t)
	ns, err := netns.New() // enters it
	if err != nil {
		t.Skipf("no network namespace can be made: %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	here.Enter(t)
	return Net{ns}
}

// Enter moves the test's thread into the namespace.
func (n Net) Enter(t testing.TB) {
	t.Helper()
	if err := netns.Set(n.NsHandle); err != nil {
		t.Fatal(err)
	}
}

// Cable is a pair of virtual Ethernet devices: one here, with these attributes, and peer, with the same MTU, in another namespace. Neither is up.
func Cable(t testing.TB, here netlink.LinkAttrs, far Net, peer string) {
	t.Helper()
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: here, PeerName: peer, PeerMTU: uint32(here.MTU), PeerNamespace: netlink.NsFd(far.NsHandle)})
	if err != nil {
		t.Skipf("no veth devices: %v", err)
	}
}

// Up brings a device of this namespace up, with addresses such as "10.0.0.1/24". They may be used at once: nobody else is asked for them.
func Up(t testing.TB, name string, addrs ...string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if err := netlink.AddrAdd(l, Address(t, a)); err != nil {
			t.Fatalf("%s: add %s: %v", name, a, err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	return l
}

// Address is an address as Up adds it.
func Address(t testing.TB, prefix string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// WaitLocal waits until the kernel has made addr, added a moment ago, an address of this namespace: IPv6 does so in
// the background, a little after it has told everybody of the address.
func WaitLocal(t testing.TB, addr netip.Addr) {
	t.Helper()
	wait(t, addr.String()+" does not become an address of this machine", func() bool {
		r, err := netlink.RouteGet(addr.AsSlice())
		return err == nil && len(r) > 0 && r[0].Type == unix.RTN_LOCAL
	})
}

// WaitCarrier waits until a device has a carrier: routes of IPv6 appear only then.
func WaitCarrier(t testing.TB, name string) {
	t.Helper()
	wait(t, name+" gets no carrier", func() bool {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().OperState == netlink.OperUp
	})
}

// WaitLinkLocal waits until a device has its link-local address: duplicate address detection takes a second or two, once
// both ends of the cable are up.
func WaitLinkLocal(t testing.TB, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, name+" gets no link-local address", func() bool {
		list, err := netlink.AddrList(l, unix.AF_INET6)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, a := range list {
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				return false
			}
			found = found || a.IP.IsLinkLocalUnicast()
		}
		return found
	})
}

func wait(t testing.TB, what string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ready() {
			return
		}
	}
	t.Fatal(what)
}
