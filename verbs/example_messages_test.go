package verbs_test

import (
	"encoding/binary"
	"fmt"

	"rnic/verbs"
)

// SEND and RECV: the receiver says beforehand where messages go.
func ExampleQP_PostSend() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	server.receive(1, 0, 64)

	n := copy(client.mr.Bytes(), "hello")
	_, err := client.qp.PostSend(&verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, n)})
	check(err)

	wc := server.next()
	fmt.Printf("received %d bytes: %s\n", wc.ByteLen, server.mr.Bytes()[:wc.ByteLen])
	printWC("client", client.next())
	// Output:
	// received 5 bytes: hello
	// client: work request 2: success
}

// Receives complete in the order in which they were posted.
func ExampleQP_PostRecv() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	_, err := server.qp.PostRecv(
		&verbs.RecvWR{ID: 1, SGE: server.mr.Slice(0, 64)},
		&verbs.RecvWR{ID: 2, SGE: server.mr.Slice(64, 64)})
	check(err)
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 10)})
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 20)})
	for range 2 {
		wc := server.next()
		fmt.Println(wc.ID, wc.ByteLen)
	}
	// Output:
	// 1 10
	// 2 20
}

// Four bytes of immediate data arrive in the completion.
func ExampleQP_PostSend_sendWithImmediate() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	server.receive(1, 0, 64)
	client.post(&verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 0x01020304, SGE: client.mr.Slice(0, 8)})
	wc := server.next()
	fmt.Printf("%d bytes, immediate %v %#08x\n", wc.ByteLen, wc.HasImm, wc.Imm)
	// Output: 8 bytes, immediate true 0x01020304
}

// RDMA WRITE: the peer's program does nothing, and learns nothing.
func ExampleQP_PostSend_write() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	n := copy(client.mr.Bytes(), "written")
	client.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, n),
		RemoteAddr: server.mr.Addr(100), RKey: server.mr.RKey()})
	printWC("client", client.next())
	fmt.Printf("%s\n", server.mr.Bytes()[100:100+n])
	// Output:
	// client: work request 1: success
	// written
}

// RDMA WRITE with immediate tells the peer, who must have posted a receive.
func ExampleQP_PostSend_writeWithImmediate() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	check(get0(server.qp.PostRecv(&verbs.RecvWR{ID: 9}))) // no buffer: only its completion counts

	n := copy(client.mr.Bytes(), "written")
	client.post(&verbs.SendWR{Opcode: verbs.OpWriteImm, Imm: 42, SGE: client.mr.Slice(0, n),
		RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()})
	wc := server.next()
	fmt.Printf("receive %d: immediate %d, %d bytes: %s\n", wc.ID, wc.Imm, wc.ByteLen, server.mr.Bytes()[:wc.ByteLen])
	// Output: receive 9: immediate 42, 7 bytes: written
}

// RDMA READ.
func ExampleQP_PostSend_read() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	n := copy(server.mr.Bytes()[4096:], "the server's data")
	client.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpRead, Flags: verbs.Signaled, SGE: client.mr.Slice(0, n),
		RemoteAddr: server.mr.Addr(4096), RKey: server.mr.RKey()})
	printWC("client", client.next())
	fmt.Printf("%s\n", client.mr.Bytes()[:n])
	// Output:
	// client: work request 1: success
	// the server's data
}

// COMPARE & SWAP of a 64-bit word in the host's byte order; the word found there comes back.
func ExampleQP_PostSend_compareAndSwap() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	word := server.mr.Bytes()[:8]
	binary.NativeEndian.PutUint64(word, 10)
	for _, compare := range []uint64{11, 10} {
		client.post(&verbs.SendWR{Opcode: verbs.OpCompareSwap, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8),
			RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey(), CompareAdd: compare, Swap: 99})
		client.next()
		fmt.Println("found", binary.NativeEndian.Uint64(client.mr.Bytes()), "now", binary.NativeEndian.Uint64(word))
	}
	// Output:
	// found 10 now 10
	// found 10 now 99
}

// FETCH & ADD of a 64-bit word; the word before the addition comes back.
func ExampleQP_PostSend_fetchAndAdd() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	word := server.mr.Bytes()[:8]
	binary.NativeEndian.PutUint64(word, 40)
	client.post(&verbs.SendWR{Opcode: verbs.OpFetchAdd, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8),
		RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey(), CompareAdd: 2})
	client.next()
	fmt.Println("found", binary.NativeEndian.Uint64(client.mr.Bytes()), "now", binary.NativeEndian.Uint64(word))
	// Output: found 40 now 42
}

// Inline data needs no memory region: it is copied when it is posted.
func ExampleQP_PostSend_inline() {
	client, server, done := newPair(verbs.QPConfig{MaxInline: 64})
	defer done()
	server.receive(1, 0, 64)
	message := []byte("inline")
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, Inline: message})
	clear(message) // may be used again at once
	wc := server.next()
	fmt.Printf("%s\n", server.mr.Bytes()[:wc.ByteLen])
	// Output: inline
}

// A message is gathered from several places, and scattered over several.
func ExampleQP_PostSend_scatterGather() {
	client, server, done := newPair(verbs.QPConfig{MaxSendSGE: 3, MaxRecvSGE: 2})
	defer done()
	get(server.qp.PostRecv(&verbs.RecvWR{ID: 1, SGE: []verbs.SGE{server.mr.SGE(0, 4), server.mr.SGE(100, 60)}}))

	b := client.mr.Bytes()
	copy(b[0:], "one ")
	copy(b[50:], "two ")
	copy(b[99:], "three")
	client.post(&verbs.SendWR{Opcode: verbs.OpSend,
		SGE: []verbs.SGE{client.mr.SGE(99, 5), client.mr.SGE(50, 4), client.mr.SGE(0, 4)}})
	wc := server.next()
	fmt.Printf("%q %q\n", server.mr.Bytes()[:4], server.mr.Bytes()[100:100+wc.ByteLen-4])
	// Output: "thre" "etwo one "
}

// A fence holds a request back until the READs and atomics before it are done: here what was read
// is sent on.
func ExampleQP_PostSend_fence() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	copy(server.mr.Bytes(), "there and back")
	server.receive(1, 4096, 64)
	client.post(&verbs.SendWR{Opcode: verbs.OpRead, SGE: client.mr.Slice(0, 14), RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()})
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Fence, SGE: client.mr.Slice(0, 14)})
	wc := server.next()
	fmt.Printf("%s\n", server.mr.Bytes()[4096:4096+wc.ByteLen])
	// Output: there and back
}

// UD: one queue pair sends to many. The receiver gets 40 bytes of GRH in front of each message.
func ExamplePD_CreateAH() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	const qkey = 0x1234
	client, server := newSide(dev, verbs.QPConfig{Type: verbs.UD}), newSide(dev, verbs.QPConfig{Type: verbs.UD})
	check(client.qp.Activate(qkey))
	check(server.qp.Activate(qkey))
	server.receive(1, 0, 40+64)

	peer := get(server.qp.Local(0, 0)) // what the server tells: its address and queue pair number
	ah := get(client.pd.CreateAH(verbs.AHAttr{DGID: peer.GID, SGIDIndex: 0, HopLimit: 64, IsGlobal: true, Port: 1}))
	defer ah.Close()
	n := copy(client.mr.Bytes(), "datagram")
	client.post(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: client.mr.Slice(0, n),
		AH: ah, RemoteQPN: peer.QPN, RemoteQKey: qkey})
	wc := server.next()
	fmt.Printf("%d bytes, GRH %v, from the client's queue pair: %v: %s\n", wc.ByteLen, wc.HasGRH, wc.SrcQP == client.qp.Num(),
		server.mr.Bytes()[40:wc.ByteLen])
	printWC("client", client.next())
	// Output:
	// 48 bytes, GRH true, from the client's queue pair: true: datagram
	// client: work request 0: success
}

// get0 is the error of a function that returns a count too.
func get0(_ int, err error) error { return err }
