package verbs_test

import (
	"fmt"
	"net/netip"

	"rnic/verbs"
)

// Congestion: connections that send at a rate, which follows the marks of the network's switches. Without any
// they send at line rate, here 100 MB/s.
func ExampleDeviceConfig_congestion() {
	var ends []*side
	for n := range byte(2) {
		dev := get(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{address(n + 1)},
			Congestion: verbs.CongestionDCQCN, DCQCN: verbs.DCQCNPolicy{LineRate: 100_000_000}}))
		defer dev.Close()
		ends = append(ends, newSide(dev, verbs.QPConfig{}))
	}
	client, server := ends[0], ends[1]
	connect(client, server)
	client.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 1<<20),
		RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()})
	printWC("client", client.next())
	fmt.Println("notifications of congestion:", client.ctx.Device().Stats().CNPsReceived)
	// Output:
	// client: work request 1: success
	// notifications of congestion: 0
}
