//go:build !race

package verbs_test

import (
	"bytes"
	"errors"
	"testing"

	"rnic/verbs"
)

// The longest message, 1 GiB, as 32 times the same 32 MiB into 32 times the same others; and a longer one, which
// is refused (InfiniBand vol. 1, 9.7.7). Not with the race detector, with which it takes ten seconds.
func TestLargestMessage(t *testing.T) {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	ctx := dev.Open()
	pd := get(ctx.AllocPD())
	sends, recvs := get(ctx.CreateCQ(4)), get(ctx.CreateCQ(4))
	const size = 32 << 20
	mr := get(pd.AllocMR(2*size, verbs.AccessLocalWrite))
	cfg := verbs.QPConfig{SendCQ: sends, RecvCQ: recvs, MaxSendSGE: 32, MaxRecvSGE: 32}
	a, b := get(pd.CreateQP(cfg)), get(pd.CreateQP(cfg))
	ea, eb := get(a.Local(0, 1)), get(b.Local(0, 2))
	check(a.Connect(eb, verbs.ConnectOptions{PSN: 1}))
	check(b.Connect(ea, verbs.ConnectOptions{PSN: 2}))
	for i := range size {
		mr.Bytes()[i] = byte(i * 11)
	}
	recv := &verbs.RecvWR{}
	var from []verbs.SGE
	for range 32 {
		from, recv.SGE = append(from, mr.SGE(0, size)), append(recv.SGE, mr.SGE(size, size))
	}
	get(b.PostRecv(recv))
	get(a.PostSend(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: from}))
	waitFor(t, sends, 1)
	if wc := waitFor(t, recvs, 1); wc.ByteLen != 1<<30 {
		t.Errorf("%d bytes were received, want 1 GiB", wc.ByteLen)
	}
	if !bytes.Equal(mr.Bytes()[:size], mr.Bytes()[size:]) {
		t.Error("the message is wrong")
	}
	from[0] = mr.SGE(0, size+1) // one byte more
	if _, err := a.PostSend(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: from}); !errors.Is(err, verbs.ErrLocalLength) {
		t.Errorf("a message of more than 1 GiB is posted: %v", err)
	}
}
