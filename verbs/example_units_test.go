package verbs_test

import (
	"fmt"

	"rnic/verbs"
)

// Processing units: a queue pair is placed by its completion queue's vector, and may move while it works.
func ExampleQP_MoveTo() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true, Units: 2}))
	defer dev.Close()
	ctx := dev.Open()
	pd := get(ctx.AllocPD())
	cq := get(ctx.CreateCQOnVector(64, 1))
	qp := get(pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq}))
	fmt.Println(dev.Units(), "units, queue pair on", qp.Unit())
	check(qp.MoveTo(0))
	fmt.Println("now on", qp.Unit())
	// Output:
	// 2 units, queue pair on 1
	// now on 0
}

// A program that polls memory rather than a completion queue drives the NIC by Progress.
func ExampleDevice_Progress() {
	client, server, done := newPair(verbs.QPConfig{MaxInline: 8})
	defer done()
	dev := client.ctx.Device()
	fmt.Println("inline data:", dev.Limits().MaxInline, "bytes at most")
	client.mr.Bytes()[0] = 1
	client.post(&verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: server.mr.Addr(8), RKey: server.mr.RKey(),
		SGE: []verbs.SGE{{Addr: client.mr.Addr(0), Length: 1, LKey: client.mr.LKey()}}})
	for range 1000 { // an iteration is one look; a real program looks at the last byte of the message, atomically
		dev.Progress()
	}
	// A READ behind the WRITE says for sure that it has landed.
	client.post(&verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.Signaled, SGE: client.mr.Slice(16, 1), RemoteAddr: server.mr.Addr(8), RKey: server.mr.RKey()})
	fmt.Println(client.next().Status, client.mr.Bytes()[16])
	// Output:
	// inline data: 512 bytes at most
	// success 1
}

// Init alone lets receives be posted before the peer is known.
func ExampleQP_Init() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	s := newSide(dev, verbs.QPConfig{})
	check(s.qp.Init(verbs.AccessRemoteWrite))
	s.receive(1, 0, 64)
	fmt.Println(get(s.qp.Query()).State)
	// Output:
	// INIT
}
