package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rnic/verbs"
)

// pooled are n clients, each connected to a queue pair of one server, which share their receives.
func pooled(dev *verbs.Device, n, receives int) (clients []*side, server *side, srq *verbs.SRQ, qps []*verbs.QP) {
	server = newSide(dev, verbs.QPConfig{})
	srq = get(server.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: receives}))
	for range n {
		c := newSide(dev, verbs.QPConfig{})
		qp := get(server.pd.CreateQP(verbs.QPConfig{SendCQ: server.cq, RecvCQ: server.cq, SRQ: srq}))
		connect(c, &side{qp: qp})
		clients, qps = append(clients, c), append(qps, qp)
	}
	return clients, server, srq, qps
}

// Receives that serve many peers: what each sends takes the next one.
func ExamplePD_CreateSRQ() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	clients, server, srq, qps := pooled(dev, 3, 64)
	for id := range uint64(3) {
		get(srq.PostRecv(&verbs.RecvWR{ID: id, SGE: server.mr.Slice(int(id)*64, 64)}))
	}
	for _, i := range []int{2, 0, 1} {
		n := copy(clients[i].mr.Bytes(), fmt.Sprintf("from client %d", i))
		clients[i].post(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: clients[i].mr.Slice(0, n)})
		wc := server.next()
		fmt.Printf("receive %d: %s, %v\n", wc.ID, server.mr.Bytes()[wc.ID*64:int(wc.ID)*64+wc.ByteLen], wc.QPN == qps[i].Num())
	}
	fmt.Println("busy:", errors.Is(srq.Close(), verbs.ErrBusy))
	for _, q := range qps {
		check(q.Close())
	}
	fmt.Println(srq.Close())
	// Output:
	// receive 0: from client 2, true
	// receive 1: from client 0, true
	// receive 2: from client 1, true
	// busy: true
	// <nil>
}

func ExampleSRQ_PostRecv() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	_, server, srq, qps := pooled(dev, 1, 2)
	wr := &verbs.RecvWR{SGE: server.mr.Slice(0, 64)}
	posted, err := srq.PostRecv(wr, wr, wr, wr)
	fmt.Println(posted, errors.Is(err, verbs.ErrQueueFull))
	_, err = qps[0].PostRecv(wr) // not there
	fmt.Println("invalid:", errors.Is(err, verbs.ErrInvalid))
	// Output:
	// 3 true
	// invalid: true
}

// An event says when to post more receives.
func ExampleSRQ_Arm() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	clients, server, srq, _ := pooled(dev, 1, 16)
	for range 4 {
		get(srq.PostRecv(&verbs.RecvWR{SGE: server.mr.Slice(0, 64)}))
	}
	check(srq.Arm(3)) // when fewer than three are left
	for range 2 {
		clients[0].post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: clients[0].mr.Slice(0, 8)})
		server.next()
	}
	for ev := range server.ctx.Events() {
		if ev.Type == verbs.EventSRQLimit {
			fmt.Println("few receives are left:", ev.SRQ == srq)
			break
		}
	}
	fmt.Println("armed:", get(srq.Query()).Limit)
	// Output:
	// few receives are left: true
	// armed: 0
}

func ExampleSRQ_Resize() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	clients, server, srq, _ := pooled(dev, 1, 3)
	wr := &verbs.RecvWR{ID: 5, SGE: server.mr.Slice(0, 64)}
	get(srq.PostRecv(wr, wr, wr))
	check(srq.Resize(15))
	get(srq.PostRecv(wr))
	for range 4 {
		clients[0].post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: clients[0].mr.Slice(0, 8)})
		printWC("server", server.next())
	}
	// Output:
	// server: work request 5: success
	// server: work request 5: success
	// server: work request 5: success
	// server: work request 5: success
}

func ExampleSRQ_Query() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	pd := get(dev.Open().AllocPD())
	srq := get(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 100, MaxRecvSGE: 2}))
	check(srq.Arm(20))
	a := get(srq.Query())
	fmt.Println(a.MaxWR >= 100, a.MaxSGE, a.Limit)
	// Output: true 2 20
}

// A queue pair that shares its receives is taken down without losing one: to the error state, then the
// event says that no receive completes with it any more.
func ExampleContext_Events_lastWQE() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	_, server, _, qps := pooled(dev, 1, 16)
	check(qps[0].Modify(&verbs.Attr{State: verbs.StateError}, verbs.AttrState))
	for ev := range server.ctx.Events() {
		if ev.Type == verbs.EventLastWQE {
			fmt.Println("poll what is left, then close it:", ev.QP == qps[0])
			break
		}
	}
	check(qps[0].Close())
	// Output: poll what is left, then close it: true
}

// What was not polled moves along.
func ExampleCQ_Resize() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	for id := range uint64(3) {
		server.receive(id, 0, 64)
		client.post(&verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8)})
		client.next()
	}
	check(server.cq.Wait(context.Background()))
	fmt.Println("too many:", errors.Is(server.cq.Resize(1<<20), verbs.ErrInvalid))
	check(server.cq.Resize(1000))
	fmt.Println(server.cq.Cap() >= 1000)
	for range 3 {
		printWC("server", server.next())
	}
	// Output:
	// too many: true
	// true
	// server: work request 0: success
	// server: work request 1: success
	// server: work request 2: success
}

// One wake-up for up to 16 completions; the last ones wait two milliseconds at most.
func ExampleCQ_Moderate() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	check(server.cq.Moderate(16, 2*time.Millisecond))
	for id := range uint64(16) {
		server.receive(id, 0, 64)
		client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 8)})
	}
	wc, n := make([]verbs.WC, 64), 0
	for n < 16 {
		n += get(server.cq.Next(context.Background(), wc))
	}
	count, period, err := server.cq.Moderation()
	fmt.Println(n, "completions;", count, period, err)
	// Output: 16 completions; 16 2ms <nil>
}

// Completions say when the NIC made them.
func ExampleWC_time() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	client, server := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
	connect(client, server)
	server.receive(1, 0, 64)
	before := dev.Now()
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8)})
	sent, received := client.next(), server.next()
	fmt.Println(before <= received.Time, received.Time <= sent.Time, sent.Time <= dev.Now())
	// Output: true true true
}

// A region that changes has new keys, and the old ones are refused.
func ExampleMR_Rereg() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	write := &verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 5),
		RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()}
	stale := *write

	other := make([]byte, 64)
	check(server.mr.Rereg(verbs.Rereg{Memory: other}))
	copy(client.mr.Bytes(), "there")
	write.RemoteAddr, write.RKey = server.mr.Addr(0), server.mr.RKey()
	client.post(write)
	fmt.Println(client.next().Status, string(other[:5]))

	client.post(&stale)
	fmt.Println(client.next().Status)
	// Output:
	// success there
	// remote access error
}

func ExampleQP_Info() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	s := newSide(dev, verbs.QPConfig{Type: verbs.UD, MaxSend: 100, MaxInline: 64, SignalAll: true})
	i := get(s.qp.Info())
	fmt.Println(i.Type == verbs.UD, i.Cap.MaxSendWR >= 100, i.Cap.MaxInline >= 64, i.SigAll)
	// Output: true true true true
}
