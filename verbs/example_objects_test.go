package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"rnic/verbs"
)

// A NIC, opened. Without Local it would take the machine's addresses and UDP port 4791.
func ExampleNewDevice() {
	dev, err := verbs.NewDevice(verbs.DeviceConfig{Local: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	ctx := dev.Open()
	defer ctx.Close()
	fmt.Println("path MTU", dev.MTU(), "bytes,", len(dev.GIDs()), "address")
	// Output: path MTU 4096 bytes, 1 address
}

// Two NICs talk RoCEv2 to each other, here over the loopback interface.
func ExampleNewDevice_network() {
	var sides [2]*side
	for i := range sides {
		dev := get(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{address(byte(i + 1))}}))
		defer dev.Close()
		sides[i] = newSide(dev, verbs.QPConfig{})
	}
	client, server := sides[0], sides[1]
	connect(client, server)

	server.receive(1, 0, 64)
	n := copy(client.mr.Bytes(), "over UDP")
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, n)})
	wc := server.next()
	fmt.Printf("%v: %s\n", wc.Status, server.mr.Bytes()[:wc.ByteLen])
	// Output: success: over UDP
}

// A protection domain can be closed when nothing is in it any more.
func ExampleContext_AllocPD() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	ctx := dev.Open()

	pd := get(ctx.AllocPD())
	fmt.Println("of the context:", pd.Context() == ctx)
	mr := get(pd.AllocMR(4096, verbs.AccessLocalWrite))
	fmt.Println("busy:", errors.Is(pd.Close(), verbs.ErrBusy))
	check(mr.Close())
	fmt.Println(pd.Close())
	// Output:
	// of the context: true
	// busy: true
	// <nil>
}

// A completion queue can be closed when no queue pair uses it any more; to close it again is no error.
func ExampleCQ_Close() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	ctx := dev.Open()
	cq := get(ctx.CreateCQ(16))
	qp := get(get(ctx.AllocPD()).CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq}))

	fmt.Println("busy:", errors.Is(cq.Close(), verbs.ErrBusy))
	check(qp.Close())
	fmt.Println(cq.Close(), cq.Close())
	_, err := cq.Poll(make([]verbs.WC, 1))
	fmt.Println("closed:", errors.Is(err, verbs.ErrClosed))
	// Output:
	// busy: true
	// <nil> <nil>
	// closed: true
}

// A slice of the program becomes memory that peers may read.
func ExamplePD_RegMR() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	pd := get(dev.Open().AllocPD())

	data := []byte("what peers may read")
	mr := get(pd.RegMR(data, verbs.AccessRemoteRead))
	fmt.Println(len(mr.Bytes()), "bytes; tell the peer mr.Addr(0) and mr.RKey()")
	check(mr.Close()) // unpins data

	_, err := pd.RegMR(data, verbs.AccessRemoteWrite) // without AccessLocalWrite
	fmt.Println("invalid:", errors.Is(err, verbs.ErrInvalid))
	// Output:
	// 19 bytes; tell the peer mr.Addr(0) and mr.RKey()
	// invalid: true
}

// Page-aligned memory outside of the Go heap, for big buffers.
func ExamplePD_AllocMR() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	pd := get(dev.Open().AllocPD())

	mr := get(pd.AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	defer mr.Close() // frees it
	fmt.Println(len(mr.Bytes()), "bytes, aligned:", mr.Addr(0)%4096 == 0)
	// Output: 1048576 bytes, aligned: true
}

// Polling gives the least latency: the goroutine drives the NIC itself.
func ExampleCQ_Poll() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	client.post(&verbs.SendWR{ID: 7, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 4096),
		RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()})

	wc := make([]verbs.WC, 16)
	for {
		n, err := client.cq.Poll(wc)
		check(err)
		if n > 0 {
			fmt.Println(wc[0].ID, wc[0].Status)
			break
		}
	}
	// Output: 7 success
}

// Waiting sleeps until a completion is there, or the context is done.
func ExampleCQ_Wait() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	server.receive(1, 0, 64)

	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	fmt.Println(server.cq.Wait(short))
	cancel()

	client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 8)})
	check(server.cq.Wait(context.Background()))
	wc := make([]verbs.WC, 1)
	n := get(server.cq.Poll(wc))
	fmt.Println(n, wc[0].Status, wc[0].ByteLen)
	// Output:
	// context deadline exceeded
	// 1 success 8
}

// The sender says which messages are worth waking up for.
func ExampleCQ_WaitSolicited() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	for id := range uint64(3) {
		server.receive(id, int(id)*64, 64)
	}
	woken := make(chan error)
	go func() { woken <- server.cq.WaitSolicited(context.Background()) }()

	client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 8)})
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 8)})
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Solicited, SGE: client.mr.Slice(0, 8)})
	fmt.Println(<-woken)
	for range 3 {
		printWC("server", server.next())
	}
	// Output:
	// <nil>
	// server: work request 0: success
	// server: work request 1: success
	// server: work request 2: success
}

// Two queue pairs are connected by what each tells the other: its address, queue pair number and first PSN.
func ExampleQP_Connect() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	a, b := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})

	endpointA := get(a.qp.Local(0, 100)) // GID index 0, first PSN 100
	endpointB := get(b.qp.Local(0, 200))
	check(a.qp.Connect(endpointB, verbs.ConnectOptions{PSN: 100}))
	check(b.qp.Connect(endpointA, verbs.ConnectOptions{PSN: 200, RetryCount: 3}))

	attr := get(a.qp.Query())
	fmt.Println(attr.State, attr.DestQPN == b.qp.Num())
	// Output: RTS true
}

// Attributes can be changed one by one. What the specification does not allow changes nothing.
func ExampleQP_Modify() {
	client, _, done := newPair(verbs.QPConfig{})
	defer done()
	check(client.qp.Modify(&verbs.Attr{MinRNRTimer: 20}, verbs.AttrMinRNRTimer))

	err := client.qp.Modify(&verbs.Attr{State: verbs.StateRTR}, verbs.AttrState) // not back from RTS
	fmt.Println("invalid:", errors.Is(err, verbs.ErrInvalid))

	check(client.qp.Modify(&verbs.Attr{State: verbs.StateError}, verbs.AttrState))
	attr := get(client.qp.Query())
	fmt.Println(attr.State, attr.MinRNRTimer)
	// Output:
	// invalid: true
	// ERR 20
}

func ExampleQP_Query() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	attr := get(client.qp.Query())
	fmt.Println(attr.State, "peer:", attr.DestQPN == server.qp.Num(), "timeout code:", attr.Timeout, "retries:", attr.RetryCnt)
	// Output: RTS peer: true timeout code: 14 retries: 7
}

// Asynchronous events: the peer of a queue pair has asked for what its rights do not allow.
func ExampleContext_Events() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	client.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, SGE: client.mr.Slice(0, 8), RemoteAddr: server.mr.Addr(0), RKey: 0xbad})
	printWC("client", client.next())
	ev := <-server.ctx.Events()
	fmt.Println("the server's queue pair:", ev.QP == server.qp, ev.Type == verbs.EventQPAccessError)
	// Output:
	// client: work request 1: remote access error
	// the server's queue pair: true true
}

// The status of a failed completion is an error; what was posted behind it is flushed.
func ExampleWC_Err() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	write := func(id uint64, addr uint64) *verbs.SendWR {
		return &verbs.SendWR{ID: id, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8),
			RemoteAddr: addr, RKey: server.mr.RKey()}
	}
	end := server.mr.Addr(len(server.mr.Bytes()))
	client.post(write(1, end-8))
	client.post(write(2, end-4)) // four bytes too far
	client.post(write(3, end-8))
	for range 3 {
		wc := client.next()
		switch err := wc.Err(); {
		case err == nil:
			fmt.Println(wc.ID, "done")
		case errors.Is(err, verbs.ErrRemoteAccess):
			fmt.Println(wc.ID, "the peer refuses the address")
		case errors.Is(err, verbs.ErrFlushed):
			fmt.Println(wc.ID, "not tried")
		}
	}
	// Output:
	// 1 done
	// 2 the peer refuses the address
	// 3 not tried
}

// A queue that is full says so: poll completions, then post again.
func ExampleQP_PostSend_queueFull() {
	client, server, done := newPair(verbs.QPConfig{MaxSend: 4})
	defer done()
	wr := &verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8),
		RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()}
	posted, err := client.qp.PostSend(wr, wr, wr, wr, wr, wr, wr, wr, wr)
	fmt.Println("full:", errors.Is(err, verbs.ErrQueueFull), "some were posted:", posted >= 4)
	for range posted {
		wc := client.next()
		check(wc.Err())
	}
	fmt.Println(client.qp.PostSend(wr))
	// Output:
	// full: true some were posted: true
	// 1 <nil>
}
