package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rnic/verbs"
)

// XRC: one connection to a peer reaches all of its receivers. Here two workers, each with a shared receive queue,
// a completion queue and a protection domain of its own, receive through one target queue pair.
func ExampleXRCD_CreateTarget() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	ctx := dev.Open()
	domain := get(ctx.AllocXRCD())
	type worker struct {
		cq  *verbs.CQ
		mr  *verbs.MR
		srq *verbs.SRQ
	}
	var workers [2]worker
	for i := range workers {
		pd := get(ctx.AllocPD())
		w := worker{cq: get(ctx.CreateCQ(16)), mr: get(pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))}
		w.srq = get(pd.CreateSRQ(verbs.SRQConfig{XRCD: domain, CQ: w.cq}))
		check(get0(w.srq.PostRecv(&verbs.RecvWR{ID: uint64(i), SGE: w.mr.Slice(0, 64)})))
		workers[i] = w
	}
	target := get(domain.CreateTarget())

	pd := get(ctx.AllocPD())
	cq := get(ctx.CreateCQ(16))
	mr := get(pd.AllocMR(4096, verbs.AccessLocalWrite))
	sender := get(pd.CreateQP(verbs.QPConfig{Type: verbs.XRCINI, SendCQ: cq}))
	check(sender.Connect(get(target.Local(0, 7)), verbs.ConnectOptions{PSN: 9}))
	check(target.Connect(get(sender.Local(0, 9)), verbs.ConnectOptions{PSN: 7}))

	for i, w := range workers {
		n := copy(mr.Bytes(), fmt.Sprintf("for worker %d", i))
		get(sender.PostSend(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: mr.Slice(0, n), RemoteSRQ: w.srq.Num()}))
		printWC("sender", nextOf(cq))
		wc := nextOf(w.cq)
		fmt.Printf("worker %d: %s\n", wc.ID, w.mr.Bytes()[:wc.ByteLen])
	}
	// A key counts in the protection domain of the queue that the request is for.
	get(sender.PostSend(&verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: mr.Slice(0, 8),
		RemoteSRQ: workers[0].srq.Num(), RemoteAddr: workers[1].mr.Addr(0), RKey: workers[1].mr.RKey()}))
	wc := nextOf(cq)
	fmt.Println("another worker's key:", wc.Status)
	fmt.Println("domain in use:", errors.Is(domain.Close(), verbs.ErrBusy))
	// Output:
	// sender: work request 0: success
	// worker 0: for worker 0
	// sender: work request 0: success
	// worker 1: for worker 1
	// another worker's key: remote access error
	// domain in use: true
}

func nextOf(cq *verbs.CQ) verbs.WC {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	get(cq.Next(ctx, wc[:]))
	return wc[0]
}
