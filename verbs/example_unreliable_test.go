package verbs_test

import (
	"errors"
	"fmt"

	"rnic/verbs"
)

// An unreliable connection: SEND and WRITE, with nothing acknowledged. A send completes when it has left; a
// message that finds no receive is lost, and nobody learns of it.
func ExampleQP_Connect_unreliable() {
	client, server, done := newPair(verbs.QPConfig{Type: verbs.UC})
	defer done()
	n := copy(client.mr.Bytes(), "lost, arrived")
	send := func(id uint64, off, n int) {
		client.post(&verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(off, n)})
		printWC("client", client.next())
	}
	send(1, 0, 4) // no receive is posted
	client.post(&verbs.SendWR{Opcode: verbs.OpWrite, SGE: client.mr.Slice(0, 8), RemoteAddr: server.mr.Addr(100), RKey: server.mr.RKey()})
	server.receive(1, 0, 64)
	send(2, 6, n-6)
	wc := server.next()
	fmt.Printf("received %s, written %s\n", server.mr.Bytes()[:wc.ByteLen], server.mr.Bytes()[100:104])
	// Output:
	// client: work request 1: success
	// client: work request 2: success
	// received arrived, written lost
}

// A send of a UC or UD queue pair that fails by itself takes the send queue out of service (state SQE):
// the receive queue goes on, and the program puts the send queue back into service.
func ExampleQP_Modify_sendQueueError() {
	client, server, done := newPair(verbs.QPConfig{Type: verbs.UC})
	defer done()
	wr := &verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 5)}
	bad := &verbs.SendWR{Opcode: verbs.OpSend, SGE: []verbs.SGE{{Addr: client.mr.Addr(0), Length: 5, LKey: 0xbad}}}
	get(client.qp.PostSend(bad, wr))
	bad1, flushed := client.next(), client.next()
	attr := get(client.qp.Query())
	fmt.Printf("%v; %v; %v\n", bad1.Status, errors.Is(flushed.Err(), verbs.ErrFlushed), attr.State)

	client.receive(1, 0, 64)
	server.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: server.mr.Slice(0, 3)})
	fmt.Println("still receives:", client.next().ByteLen)

	check(client.qp.Modify(&verbs.Attr{State: verbs.StateRTS}, verbs.AttrState))
	server.receive(2, 0, 64)
	client.post(wr)
	fmt.Println("sends again:", server.next().ByteLen)
	// Output:
	// local protection error; true; SQE
	// still receives: 3
	// sends again: 5
}

// The send queue is drained before an attribute changes that must not change under way (state SQD): what has
// begun completes, what is posted waits.
func ExampleQP_Modify_drain() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	check(client.qp.Modify(&verbs.Attr{State: verbs.StateSQD, EnSQDAsyncNotify: 1}, verbs.AttrState|verbs.AttrSQDAsyncNotify))
	ev := <-client.ctx.Events()
	fmt.Println("drained:", ev.Type == verbs.EventSendQueueDrained)

	server.receive(1, 0, 64)
	client.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 5)}) // waits
	check(client.qp.Modify(&verbs.Attr{Timeout: 18}, verbs.AttrTimeout))
	check(client.qp.Modify(&verbs.Attr{State: verbs.StateRTS}, verbs.AttrState))
	printWC("client", client.next())
	// Output:
	// drained: true
	// client: work request 1: success
}
