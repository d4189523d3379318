package verbs_test

import (
	"fmt"
	"net/netip"

	"rnic/verbs"
)

// Automatic path migration: two NICs with two addresses each. The queue pairs go over to the second pair when
// the first fails, or, as here, when a program says so.
func ExampleQP_Modify_migration() {
	var ends []*side
	for n := range byte(2) {
		dev := get(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{address(2 * n), address(2*n + 1)}}))
		defer dev.Close()
		ends = append(ends, newSide(dev, verbs.QPConfig{}))
	}
	client, server := ends[0], ends[1]
	connect(client, server) // by the addresses of index 0
	for _, s := range []struct{ of, to *side }{{client, server}, {server, client}} {
		second := s.to.ctx.Device().GIDs()[1].GID
		check(s.of.qp.Modify(&verbs.Attr{PathMigState: verbs.MigRearm, AltPort: 1, AltTimeout: 14,
			AltAH: verbs.AHAttr{DGID: second, SGIDIndex: 1, IsGlobal: true, Port: 1, HopLimit: 64}}, verbs.AttrAltPath|verbs.AttrPathMigState))
	}
	write := func(id uint64) {
		client.post(&verbs.SendWR{ID: id, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8),
			RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()})
		printWC("client", client.next())
	}
	write(1) // the first message arms both ends
	fmt.Println("armed:", get(client.qp.Query()).PathMigState == verbs.MigArmed)
	check(client.qp.Modify(&verbs.Attr{PathMigState: verbs.MigMigrated}, verbs.AttrPathMigState))
	write(2)
	for _, s := range ends { // the server has followed
		e := <-s.ctx.Events()
		fmt.Println("migrated:", e.Type == verbs.EventPathMigrated, "to address", get(s.qp.Query()).AH.SGIDIndex)
	}
	// Output:
	// client: work request 1: success
	// armed: true
	// client: work request 2: success
	// migrated: true to address 1
	// migrated: true to address 1
}
