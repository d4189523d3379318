package device_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rnic/internal/device"
	"rnic/verbs"
)

// An address is taken away in mid-transfer: the connection goes on by its alternate path, of another IP version, and
// both programs are told (InfiniBand vol. 1, 17.2.8, 11.6.3).
func TestTransferMigratesWhenItsAddressGoes(t *testing.T) {
	t.Parallel()
	c := newCable(t, true)
	a, b := newEnd(t, c.near), newEnd(t, c.far)
	at := func(d *device.Device, ip string) verbs.GIDEntry {
		i := slices.IndexFunc(d.GIDs(), func(g device.GIDEntry) bool { return g.GID.Addr().String() == ip })
		if i < 0 {
			t.Fatalf("no %s in %+v", ip, d.GIDs())
		}
		return d.GIDs()[i]
	}
	ga, gb := at(c.near, "10.47.91.1").Index, at(c.far, "10.47.91.2").Index
	local, err := a.qp.Local(ga, 1)
	peer, err2 := b.qp.Local(gb, 2)
	// Without a local ACK timeout nothing but the address tells that the path has failed.
	err = errors.Join(err, err2, a.qp.Connect(peer, verbs.ConnectOptions{PSN: 1, GIDIndex: ga, Timeout: -1}),
		b.qp.Connect(local, verbs.ConnectOptions{PSN: 2, GIDIndex: gb, Timeout: -1}))
	if err != nil {
		t.Fatal(err)
	}
	arm := func(e *end, source, dst verbs.GIDEntry) error {
		return e.qp.Modify(&verbs.Attr{PathMigState: verbs.MigRearm, AltPort: 1, AltTimeout: 14,
			AltAH: verbs.AHAttr{DGID: dst.GID, SGIDIndex: uint8(source.Index), IsGlobal: true, Port: 1, HopLimit: 64}}, verbs.AttrAltPath|verbs.AttrPathMigState)
	}
	near6, far6 := at(c.near, "fd00:1::1"), at(c.far, "fd00:1::2")
	if err := errors.Join(arm(a, near6, far6), arm(b, far6, near6)); err != nil {
		t.Fatal(err)
	}
	exchange(t, a, b, 3)
	for i := range a.mr.Bytes() {
		a.mr.Bytes()[i] = byte(i * 7)
	}
	const writes = 32
	for i := range writes {
		if i == writes/2 {
			address, _ := netlink.ParseAddr("10.47.91.1/24")
			if err := netlink.AddrDel(c.link, address); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.qp.PostSend(&verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: a.mr.Slice(0, 1<<20),
			RemoteAddr: b.mr.Addr(0), RKey: b.mr.RKey()}); err != nil {
			t.Fatal(err)
		}
	}
	for range writes {
		a.complete(t)
	}
	if !slices.Equal(a.mr.Bytes(), b.mr.Bytes()) {
		t.Error("the peer's memory is not what was written")
	}
	exchange(t, a, b, 3)
	for _, e := range []*end{a, b} {
		expectMigration(t, e)
		q, err := e.qp.Query()
		if err != nil || q.PathMigState != verbs.MigMigrated || !q.AH.DGID.Addr().Is6() {
			t.Errorf("%v: %+v", err, q)
		}
	}
}

// expectMigration waits for the event that the end's queue pair has migrated.
func expectMigration(t *testing.T, e *end) {
	t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case ev := <-e.ctx.Events():
			switch {
			case ev.Type == verbs.EventPathMigrated && ev.QP == e.qp:
				return
			case ev.Type == verbs.EventPathMigError:
				t.Fatal("the alternate path cannot be used")
			}
		case <-deadline:
			t.Fatal("no event of migration")
		}
	}
}
