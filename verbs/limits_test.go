package verbs_test

import (
	"bytes"
	"testing"

	"rnic/verbs"
)

// The device's limits, end to end: what they allow works, and one more is refused (InfiniBand vol. 1, 11.2.1.2).
func TestLimits(t *testing.T) {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	l := dev.Limits()
	if l.MaxInline != 512 || l.MaxSGE != 32 || l.MaxQPWR < 4096 || l.MaxCQE != 524287 || l.MaxMsgSize != 1<<30 {
		t.Fatalf("limits %+v", l)
	}
	ctx := dev.Open()
	pd := get(ctx.AllocPD())
	sends, recvs := get(ctx.CreateCQ(524287)), get(ctx.CreateCQ(524287))
	if _, err := ctx.CreateCQ(524288); err == nil {
		t.Error("a completion queue of 524288 entries can be made")
	}
	mr := get(pd.AllocMR(1<<20, verbs.AccessLocalWrite))
	cfg := verbs.QPConfig{SendCQ: sends, RecvCQ: recvs, MaxSend: 4096, MaxRecv: 4096, MaxSendSGE: 32, MaxRecvSGE: 32, MaxInline: 512}
	a, b := get(pd.CreateQP(cfg)), get(pd.CreateQP(cfg))
	for _, over := range []func(c *verbs.QPConfig){func(c *verbs.QPConfig) { c.MaxInline = 513 }, func(c *verbs.QPConfig) { c.MaxSendSGE = 33 },
		func(c *verbs.QPConfig) { c.MaxRecvSGE = 33 }, func(c *verbs.QPConfig) { c.MaxSend = int(l.MaxQPWR) + 1 }} {
		c := cfg
		over(&c)
		if _, err := pd.CreateQP(c); err == nil {
			t.Errorf("a queue pair beyond the limits can be made: %+v", c)
		}
	}
	ea, eb := get(a.Local(0, 1)), get(b.Local(0, 2))
	check(a.Connect(eb, verbs.ConnectOptions{PSN: 1}))
	check(b.Connect(ea, verbs.ConnectOptions{PSN: 2}))
	// 4,096 requests with 512 bytes inline each, into receives of 32 pieces.
	recv := &verbs.RecvWR{}
	for i := range 32 {
		recv.SGE = append(recv.SGE, mr.SGE(i*32, 16))
	}
	inline := make([]byte, 512)
	for i := range inline {
		inline[i] = byte(i * 7)
	}
	for i := range 4096 {
		recv.ID = uint64(i)
		get(b.PostRecv(recv))
	}
	if _, err := a.PostSend(&verbs.SendWR{Inline: make([]byte, 513)}); err == nil {
		t.Error("513 bytes can be posted inline")
	}
	for i := range 4096 {
		get(a.PostSend(&verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: inline}))
	}
	waitFor(t, sends, 4096)
	waitFor(t, recvs, 4096)
	for i := range 32 {
		if !bytes.Equal(mr.Bytes()[i*32:i*32+16], inline[i*16:i*16+16]) {
			t.Errorf("piece %d of the message is wrong", i)
		}
	}
}

// waitFor waits for n completions with the ids 0 to n-1 in order, and returns the last.
func waitFor(t *testing.T, cq *verbs.CQ, n int) (last verbs.WC) {
	t.Helper()
	s := &side{cq: cq}
	for i := range n {
		if last = s.next(); last.Status != 0 || last.ID != uint64(i) {
			t.Fatalf("completion %d is of work request %d: %v", i, last.ID, last.Status)
		}
	}
	return last
}
