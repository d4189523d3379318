package reported

import (
	"bytes"
	"errors"
	"testing"

	"rnic/verbs"
)

// A good WRITE, then several with a bad key, all posted before the first is polled: the first bad one fails, those behind are flushed, each
// completes once, and polling never blocks.
func TestWritesBehindABadKeyAreFlushedOneByOne(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{})
	a.post(a.write(1, b, 0, 64))
	a.want(1, nil)
	for id := uint64(2); id < 6; id++ {
		wr := a.write(id, b, 0, 64)
		wr.RKey ^= 0x5500
		a.post(wr)
	}
	a.want(2, verbs.ErrRemoteAccess)
	for id := uint64(3); id < 6; id++ {
		a.want(id, verbs.ErrFlushed)
	}
	for range 1000 {
		a.none()
	}
	a.post(a.write(9, b, 0, 64)) // in the error state: flushed too (vol. 1, 10.3.1.5)
	a.want(9, verbs.ErrFlushed)
}

// A WRITE to a region that was deregistered, or registered again, is refused by a NAK at once: no retry is spent, no timer waited for.
func TestWriteToADeregisteredRegionIsRefusedAtOnce(t *testing.T) {
	for _, again := range []bool{false, true} {
		a, b := pair(t, verbs.ConnectOptions{Timeout: -1}) // without a timer: only a NAK ends it
		old := a.write(1, b, 0, 64)
		mem := b.MR.Bytes()
		copy(a.MR.Bytes(), "this must not arrive")
		var err error
		if again {
			access := all
			err = b.MR.Rereg(verbs.Rereg{Access: &access})
		} else {
			err = b.MR.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		a.post(old)
		a.want(1, verbs.ErrRemoteAccess)
		if s := b.Ctx.Device().Stats(); s.AccessNAKsSent != 1 {
			t.Errorf("%d remote access NAKs were sent", s.AccessNAKsSent)
		}
		if again && mem[0] != 0 {
			t.Error("the region was written")
		}
	}
}

// The key of a region for local use only is no key for others, and can be used here.
func TestRegionForLocalUseOnly(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{})
	local, err := a.PD.AllocMR(4096, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	b.recv(7, 64)
	a.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: local.Slice(0, 64)})
	a.want(1, nil)
	b.want(7, nil)
	b.post(&verbs.SendWR{ID: 2, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: b.MR.Slice(0, 8), RemoteAddr: local.Addr(0), RKey: local.RKey()})
	b.want(2, verbs.ErrRemoteAccess)
}

// A window's key is invalidated locally though its region gives peers nothing; the key is of no use after that.
func TestLocalInvalidateOfAWindow(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{})
	region, err1 := b.PD.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind)
	mw, err2 := b.PD.AllocMW(verbs.MWType2)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	key := verbs.NextRKey(mw.RKey())
	b.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpBindMW, Flags: verbs.Signaled, Bind: &verbs.Bind{MW: mw, MR: region, Addr: region.Addr(0), Length: 4096,
		Access: verbs.AccessRemoteWrite, RKey: key}})
	b.want(1, nil)
	wr := &verbs.SendWR{ID: 2, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: a.MR.Slice(0, 8), RemoteAddr: region.Addr(0), RKey: key}
	a.post(wr)
	a.want(2, nil)
	b.post(&verbs.SendWR{ID: 3, Opcode: verbs.OpLocalInv, Flags: verbs.Signaled, InvRKey: key})
	b.want(3, nil)
	a.post(wr)
	a.want(2, verbs.ErrRemoteAccess)
}

// A message of the size that the device tells of is taken; one byte more is refused when it is posted.
func TestLargestMessageAndOneByteMore(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{})
	most := int(a.Ctx.Device().Limits().MaxMsgSize)
	const parts = 32 // the same bytes many times: no memory of that size is needed
	large := most / parts
	e := newEnd(t, a.Ctx.Device(), verbs.QPConfig{MaxSendSGE: parts})
	f := newEnd(t, b.Ctx.Device(), verbs.QPConfig{})
	connect(e, f, verbs.ConnectOptions{})
	m, err := e.PD.AllocMR(large+1, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	sge := make([]verbs.SGE, parts)
	for i := range sge {
		sge[i] = m.SGE(0, large)
	}
	wr := &verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: sge, RemoteAddr: f.MR.Addr(0), RKey: f.MR.RKey()}
	sge[0].Length++
	if _, err := e.QP.PostSend(wr); !errors.Is(err, verbs.ErrLocalLength) {
		t.Fatalf("%d bytes: %v", most+1, err)
	}
	sge[0].Length--
	e.post(wr) // the peer's region is smaller: it is the peer that refuses
	e.want(1, verbs.ErrRemoteAccess)
}

// A datagram that is larger than the receive for it is dropped; the queue pair lives, and the next one arrives.
func TestDatagramLargerThanItsReceive(t *testing.T) {
	a, b := newEnd(t, nic(t, nil), verbs.QPConfig{Type: verbs.UD}), newEnd(t, nic(t, nil), verbs.QPConfig{Type: verbs.UD})
	const qkey = 0x1234
	if err := errors.Join(a.QP.Activate(qkey), b.QP.Activate(qkey)); err != nil {
		t.Fatal(err)
	}
	ah, err := a.PD.AHTo(b.Ctx.Device().GIDs()[0].GID, 0)
	if err != nil {
		t.Fatal(err)
	}
	send := func(id uint64, length int) {
		a.post(&verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: a.MR.Slice(0, length), AH: ah, RemoteQPN: b.QP.Num(), RemoteQKey: qkey})
		a.want(id, nil)
	}
	const grh = 40
	b.recv(1, grh+100)
	b.recv(2, grh+100)
	send(1, 101)
	until(t, "the datagram was not counted as dropped", func() bool { return b.Ctx.Device().Stats().UDDropped == 1 })
	send(2, 100)
	if wc := b.want(1, nil); wc.ByteLen != grh+100 {
		t.Errorf("%d bytes", wc.ByteLen)
	}
	if attr, err := b.QP.Query(); err != nil || attr.State != verbs.StateRTS {
		t.Errorf("state %v, %v", attr.State, err)
	}
}

// When a connection ends, both sides get every flushed request, and one event for a waiter on the queue.
func TestEverythingIsFlushedOnBothSides(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{})
	for _, e := range []*end{a, b} {
		for id := range uint64(20) {
			e.recv(id, 64)
		}
		if err := e.QP.Modify(&verbs.Attr{State: verbs.StateError}, verbs.AttrState); err != nil {
			t.Fatal(err)
		}
		for id := range uint64(20) {
			e.want(id, verbs.ErrFlushed)
		}
		e.none()
	}
}

// A queue pair has the inline size that it says, and what was asked for at least; or it is refused.
func TestInlineSizeIsWhatIsGranted(t *testing.T) {
	d, peer := nic(t, nil), nic(t, nil)
	for _, asked := range []int{0, 1, 36, 220, 511, 512, 513, 1 << 20} {
		e := newEnd(t, d, verbs.QPConfig{})
		qp, err := e.PD.CreateQP(verbs.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, MaxInline: asked})
		if asked > int(d.Limits().MaxInline) {
			if err == nil {
				t.Errorf("%d bytes inline: not refused", asked)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := qp.Info()
		if err != nil || int(info.Cap.MaxInline) < asked {
			t.Errorf("asked for %d, granted %d, %v", asked, info.Cap.MaxInline, err)
		}
		e.QP = qp
		f := newEnd(t, peer, verbs.QPConfig{})
		connect(e, f, verbs.ConnectOptions{})
		data := bytes.Repeat([]byte{0xa5}, int(info.Cap.MaxInline))
		e.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, Flags: verbs.Signaled, Inline: data, RemoteAddr: f.MR.Addr(0), RKey: f.MR.RKey()})
		e.want(1, nil)
		if !bytes.Equal(f.MR.Bytes()[:len(data)], data) {
			t.Errorf("%d bytes inline did not arrive", len(data))
		}
	}
}

// Atomics are of 8 bytes: a buffer of 4 completes with an error of its own, and the connection's partner is not touched.
func TestAtomicOfFourBytes(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{})
	a.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpFetchAdd, Flags: verbs.Signaled, SGE: a.MR.Slice(0, 4), RemoteAddr: b.MR.Addr(0), RKey: b.MR.RKey(), CompareAdd: 1})
	if wc := a.Next(); wc.Err() == nil {
		t.Error("an atomic into 4 bytes has succeeded")
	}
	if b.MR.Bytes()[0] != 0 {
		t.Error("and was performed")
	}
}
