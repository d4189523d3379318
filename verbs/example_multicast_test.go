package verbs_test

import (
	"fmt"
	"net/netip"

	"rnic/verbs"
)

// Multicast: one message reaches every UD queue pair that is attached to the group, here two of one NIC.
func ExampleQP_AttachMulticast() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	const qkey = 0x1234
	group := verbs.GIDOf(netip.MustParseAddr("ff0e::4791"))
	var members []*side
	for range 2 {
		m := newSide(dev, verbs.QPConfig{Type: verbs.UD})
		check(m.qp.Activate(qkey))
		check(m.qp.AttachMulticast(group))
		m.receive(7, 0, 40+64) // 40 bytes of GRH come first
		members = append(members, m)
	}

	sender := newSide(dev, verbs.QPConfig{Type: verbs.UD})
	check(sender.qp.Activate(qkey))
	ah := get(sender.pd.AHTo(group, 0))
	n := copy(sender.mr.Bytes(), "to all of you")
	sender.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: sender.mr.Slice(0, n),
		AH: ah, RemoteQPN: verbs.MulticastQPN, RemoteQKey: qkey})
	printWC("sender", sender.next())
	for i, m := range members {
		wc := m.next()
		fmt.Printf("member %d: %q, from the sender: %v\n", i, m.mr.Bytes()[40:wc.ByteLen], wc.SrcQP == sender.qp.Num())
		check(m.qp.DetachMulticast(group))
		check(m.qp.Close())
	}
	// Output:
	// sender: work request 1: success
	// member 0: "to all of you", from the sender: true
	// member 1: "to all of you", from the sender: true
}
