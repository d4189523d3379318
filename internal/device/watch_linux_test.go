package device_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rnic/internal/device"
	"rnic/internal/roce"
	"rnic/internal/testnet"
	"rnic/verbs"
)

// cable is two NICs in namespaces of their own, on one veth pair; the test's thread is in the near one.
type cable struct {
	near, far *device.Device
	link      netlink.Link // the near end
	events    [2]*verbs.Context
}

func newCable(t *testing.T, chosen bool) *cable {
	t.Helper()
	near := testnet.Own(t)
	far := testnet.Another(t)
	testnet.Cable(t, netlink.LinkAttrs{Name: "near"}, far, "peer")
	c := &cable{}
	var cfg device.Config
	bringUp(t, "near", 1)
	far.Enter(t)
	bringUp(t, "peer", 2)
	testnet.WaitLinkLocal(t, "peer")
	if chosen {
		cfg.Interface = "peer"
	}
	c.far = open(t, cfg)
	near.Enter(t)
	testnet.WaitLinkLocal(t, "near")
	if chosen {
		cfg.Interface = "near"
	}
	c.near = open(t, cfg)
	var err error
	if c.link, err = netlink.LinkByName("near"); err != nil {
		t.Fatal(err)
	}
	c.events = [2]*verbs.Context{verbs.Wrap(c.near).Open(), verbs.Wrap(c.far).Open()}
	return c
}

// set sets the near end's state, and waits until both NICs have told of the port's.
func (c *cable) set(t *testing.T, up bool) {
	t.Helper()
	change, want := netlink.LinkSetDown, verbs.EventPortError
	if up {
		change, want = netlink.LinkSetUp, verbs.EventPortActive
	}
	if err := change(c.link); err != nil {
		t.Fatal(err)
	}
	for _, ctx := range c.events { // the far end loses its carrier
		expectEvent(t, ctx, want)
		if got := ctx.Device().PortActive(); got != up {
			t.Errorf("active: %v after the event, want %v", got, up)
		}
	}
}

// expectEvent waits for an event of port 1; what else comes before it is left out.
func expectEvent(t *testing.T, ctx *verbs.Context, want verbs.EventType) {
	t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case e := <-ctx.Events():
			if e.Type == want && e.Port == 1 {
				return
			}
		case <-deadline:
			t.Fatalf("no event %d", want)
		}
	}
}

// A link goes down in mid-transfer: both sides' programs are told, and the transfer goes on once it is up
// again, without an error (InfiniBand vol. 1, 9.7.8: transport retries; 11.6.3: port events).
func TestTransferOutlivesALinkThatComesBack(t *testing.T) {
	for _, chosen := range []bool{false, true} {
		t.Run(fmt.Sprintf("chosen=%v", chosen), func(t *testing.T) {
			t.Parallel() // most of the time is duplicate address detection
			c := newCable(t, chosen)
			a, b := newEnd(t, c.near), newEnd(t, c.far)
			index := slices.IndexFunc(c.near.GIDs(), func(g device.GIDEntry) bool { return g.GID.Addr().Is4() && g.IfName != "lo" })
			g := c.near.GIDs()[index].Index
			local, err := a.qp.Local(g, 1)
			peer, err2 := b.qp.Local(g, 2)
			const timeout = 18 // 1.07 s, seven times again
			err = errors.Join(err, err2, a.qp.Connect(peer, verbs.ConnectOptions{PSN: 1, GIDIndex: g, Timeout: timeout}),
				b.qp.Connect(local, verbs.ConnectOptions{PSN: 2, GIDIndex: g, Timeout: timeout}))
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, a, b, 3)
			for i := range a.mr.Bytes() {
				a.mr.Bytes()[i] = byte(i * 7)
			}
			const writes = 32
			post := &verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: a.mr.Slice(0, 1<<20), RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()}
			for i := range writes {
				if i == writes-1 { // most are under way, and one has not begun
					c.set(t, false)
				}
				if _, err := a.qp.PostSend(post); err != nil {
					t.Fatal(err)
				}
			}
			c.set(t, true)
			for range writes {
				a.complete(t)
			}
			if !slices.Equal(a.mr.Bytes(), b.mr.Bytes()) {
				t.Error("the peer's memory is not what was written")
			}
			exchange(t, a, b, 3)
		})
	}
}

// A link that stays down: the request completes with the retry error, status 12, after its retries, and
// everything can be destroyed.
func TestLinkThatStaysDown(t *testing.T) {
	t.Parallel()
	c := newCable(t, true)
	a, b := newEnd(t, c.near), newEnd(t, c.far)
	local, err := a.qp.Local(0, 1)
	peer, err2 := b.qp.Local(0, 2)
	err = errors.Join(err, err2, a.qp.Connect(peer, verbs.ConnectOptions{PSN: 1, Timeout: 12, RetryCount: 3}),
		b.qp.Connect(local, verbs.ConnectOptions{PSN: 2}))
	if err != nil {
		t.Fatal(err)
	}
	c.set(t, false)
	if _, err := a.qp.PostSend(&verbs.SendWR{Flags: verbs.Signaled, SGE: a.mr.Slice(0, 100)}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := a.cq.Next(limit, wc[:]); err != nil || !errors.Is(wc[0].Err(), verbs.ErrRetryExceeded) || wc[0].Status != 12 {
		t.Fatalf("%v, completed with %v", err, wc[0].Err())
	}
	t.Logf("failed after %v: 4 times 16.8 ms are 67 ms", time.Since(began))
	began = time.Now()
	defer func() { t.Logf("everything was closed after %v", time.Since(began)) }()
	if err := errors.Join(a.qp.Close(), a.cq.Close(), a.mr.Close()); err != nil {
		t.Error(err)
	}
}

// The GID table follows the addresses: what is new works, and what comes back is found where it was. The event is that of
// infiniband/verbs.h, IBV_EVENT_GID_CHANGE.
func TestGIDsFollowTheAddresses(t *testing.T) {
	t.Parallel()
	c := newCable(t, false)
	before := c.near.GIDs()
	address, _ := netlink.ParseAddr("10.47.91.77/24")
	gid := roce.GIDFromAddr(netip.MustParseAddr("10.47.91.77"))
	find := func() int {
		return slices.IndexFunc(c.near.GIDs(), func(g device.GIDEntry) bool { return g.GID == gid })
	}
	index := -1
	for range 2 {
		if err := netlink.AddrAdd(c.link, address); err != nil {
			t.Fatal(err)
		}
		expectEvent(t, c.events[0], verbs.EventGIDChange)
		i := find()
		if i < 0 {
			t.Fatalf("no new address in %+v", c.near.GIDs())
		}
		if now := c.near.GIDs()[i].Index; index < 0 {
			index = now
		} else if now != index {
			t.Errorf("at index %d, was at %d", now, index)
		}
		a, b := newEnd(t, c.near), newEnd(t, c.far)
		same := slices.IndexFunc(c.far.GIDs(), func(g device.GIDEntry) bool { return g.GID.Addr().String() == "10.47.91.2" })
		connect(t, a, b, index, c.far.GIDs()[same].Index)
		exchange(t, a, b, 2)
		if err := netlink.AddrDel(c.link, address); err != nil {
			t.Fatal(err)
		}
		expectEvent(t, c.events[0], verbs.EventGIDChange)
		if find() >= 0 || !slices.Equal(before, c.near.GIDs()) {
			t.Errorf("the table is %+v, was %+v", c.near.GIDs(), before)
		}
		if _, err := a.qp.Local(index, 1); err == nil {
			t.Error("an address that is gone can be used")
		}
		if !c.near.PortActive() {
			t.Error("the port is down")
		}
	}
}

// Where each address has a socket of its own, one that is lost and comes back works again, at its old index.
func TestChosenAddressComesBack(t *testing.T) {
	t.Parallel()
	c := newCable(t, true)
	before := c.near.GIDs()
	address := testnet.Address(t, "fd00:1::1/64")
	at := func(d *device.Device, ip string) int {
		return slices.IndexFunc(d.GIDs(), func(g device.GIDEntry) bool { return g.GID.Addr().String() == ip })
	}
	for _, change := range []func(netlink.Link, *netlink.Addr) error{netlink.AddrDel, netlink.AddrAdd} {
		if err := change(c.link, address); err != nil {
			t.Fatal(err)
		}
		expectEvent(t, c.events[0], verbs.EventGIDChange)
	}
	if !slices.Equal(before, c.near.GIDs()) {
		t.Fatalf("the table is %+v, was %+v", c.near.GIDs(), before)
	}
	a, b := newEnd(t, c.near), newEnd(t, c.far)
	connect(t, a, b, c.near.GIDs()[at(c.near, "fd00:1::1")].Index, c.far.GIDs()[at(c.far, "fd00:1::2")].Index)
	exchange(t, a, b, 2)
}

// Programs come and go while addresses and the port do: none gets an event after its end, and the NIC can be closed at
// any moment.
func TestPortEventsWhileContextsClose(t *testing.T) {
	t.Parallel()
	c := newCable(t, false)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		d := verbs.Wrap(c.near)
		for {
			select {
			case <-stop:
				return
			default:
				_ = d.Open().Close() // an event to a closed channel would panic
				runtime.Gosched()
			}
		}
	}()
	address, _ := netlink.ParseAddr("10.47.91.77/24")
	for range 30 {
		for _, change := range []func(netlink.Link, *netlink.Addr) error{netlink.AddrAdd, netlink.AddrDel} {
			if err := change(c.link, address); err != nil {
				t.Fatal(err)
			}
			expectEvent(t, c.events[0], verbs.EventGIDChange)
		}
	}
	if err := netlink.LinkSetDown(c.link); err != nil {
		t.Fatal(err)
	}
	if err := c.near.Close(); err != nil { // the event may be under way
		t.Error(err)
	}
	close(stop)
	<-done
}
