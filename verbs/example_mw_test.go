package verbs_test

import (
	"errors"
	"fmt"

	"rnic/verbs"
)

// bindable is a region of a side that windows may be bound to.
func (s *side) bindable(size int) *verbs.MR {
	return get(s.pd.AllocMR(size, verbs.AccessLocalWrite|verbs.AccessMWBind))
}

// put writes text through a key, and returns how that ended.
func (s *side) put(text string, addr uint64, key uint32) error {
	n := copy(s.mr.Bytes(), text)
	s.post(&verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: s.mr.Slice(0, n), RemoteAddr: addr, RKey: key})
	return s.next().Err()
}

// A window gives a peer the right to a few bytes for a while: the server binds one, and the client's message that
// says it is done takes the right away again.
func ExamplePD_AllocMW() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	mr := server.bindable(4096)
	mw := get(server.pd.AllocMW(verbs.MWType2))
	server.post(&verbs.SendWR{Opcode: verbs.OpBindMW, Flags: verbs.Signaled,
		Bind: &verbs.Bind{MW: mw, MR: mr, Addr: mr.Addr(100), Length: 16, Access: verbs.AccessRemoteWrite}})
	check(server.next().Err())
	key, addr := mw.RKey(), mr.Addr(100) // what the client is told

	fmt.Println(client.put("through a window", addr, key))
	server.receive(0, 0, 64)
	client.post(&verbs.SendWR{Opcode: verbs.OpSendInv, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 4), InvRKey: key})
	check(client.next().Err())
	wc := server.next()
	fmt.Println("invalidated:", wc.HasInv && wc.InvRKey == key)
	fmt.Printf("%s\n", mr.Bytes()[100:116])
	fmt.Println("refused:", errors.Is(client.put("too late", addr, key), verbs.ErrRemoteAccess))
	// Output:
	// <nil>
	// invalidated: true
	// through a window
	// refused: true
}

// A window of type 1 is moved by binding it again: the earlier key is of no use then.
func ExampleQP_BindMW() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	mr := server.bindable(4096)
	mw := get(server.pd.AllocMW(verbs.MWType1))
	bind := func(off int) uint32 {
		check(server.qp.BindMW(1, verbs.Signaled, verbs.Bind{MW: mw, MR: mr, Addr: mr.Addr(off), Length: 8, Access: verbs.AccessRemoteWrite}))
		check(server.next().Err())
		return mw.RKey()
	}
	first := bind(0)
	fmt.Println(client.put("one", mr.Addr(0), first))
	second := bind(8)
	fmt.Println(client.put("two", mr.Addr(8), second))
	fmt.Printf("%q\n", mr.Bytes()[:11])
	fmt.Println("busy:", errors.Is(mr.Close(), verbs.ErrBusy))
	fmt.Println("refused:", errors.Is(client.put("one", mr.Addr(0), first), verbs.ErrRemoteAccess))
	fmt.Println(mw.Close(), mr.Close())
	// Output:
	// <nil>
	// <nil>
	// "one\x00\x00\x00\x00\x00two"
	// busy: true
	// refused: true
	// <nil> <nil>
}

// The program that bound a window takes the right away itself.
func ExampleNextRKey() {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	mr := server.bindable(4096)
	mw := get(server.pd.AllocMW(verbs.MWType2))
	key := verbs.NextRKey(mw.RKey())
	bind := verbs.Bind{MW: mw, MR: mr, Addr: mr.Addr(0), Length: 8, Access: verbs.AccessRemoteRead, RKey: key}
	get(server.qp.PostSend(&verbs.SendWR{Opcode: verbs.OpBindMW, Bind: &bind},
		&verbs.SendWR{Opcode: verbs.OpLocalInv, Flags: verbs.Signaled, InvRKey: key}))
	check(server.next().Err())
	fmt.Println("the window's key:", mw.RKey() == key)
	fmt.Println("refused:", errors.Is(client.put("x", mr.Addr(0), key), verbs.ErrRemoteAccess))
	// Output:
	// the window's key: true
	// refused: true
}

// A flag that a reader polls is stored at once, behind the data that it stands for, and the flush says that
// all of it is where everything on the peer's machine sees it.
func ExampleFlush() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	client, server := newSide(dev, verbs.QPConfig{MaxInline: 8}), newSide(dev, verbs.QPConfig{})
	ea, eb := get(client.qp.Local(0, 0)), get(server.qp.Local(0, 0))
	check(client.qp.Connect(eb, verbs.ConnectOptions{}))
	check(server.qp.Connect(ea, verbs.ConnectOptions{Access: verbs.AccessRemoteWrite | verbs.AccessFlushGlobal}))
	mr := get(server.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessFlushGlobal))

	n := copy(client.mr.Bytes(), "a record")
	get(client.qp.PostSend(
		&verbs.SendWR{Opcode: verbs.OpWrite, SGE: client.mr.Slice(0, n), RemoteAddr: mr.Addr(0), RKey: mr.RKey()},
		&verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: []byte("it's set"), RemoteAddr: mr.Addr(64), RKey: mr.RKey()},
		&verbs.SendWR{Opcode: verbs.OpFlush, Flags: verbs.Signaled, Flush: verbs.Flush{Length: 72}, RemoteAddr: mr.Addr(0), RKey: mr.RKey()}))
	wc := client.next()
	fmt.Println(wc.Err(), wc.Opcode == verbs.WCFlush)
	fmt.Printf("%s, %s\n", mr.Bytes()[:n], mr.Bytes()[64:72])
	// Output:
	// <nil> true
	// a record, it's set
}
