package reported

import (
	"bytes"
	"testing"

	"rnic/verbs"
)

// A remote address whose end wraps around: refused with a remote access NAK, and no byte outside of the region is touched.
func TestRemoteAddressThatWraps(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap} {
		for _, at := range []uint64{1<<64 - 8, 1<<64 - 16, 1<<64 - 1, 0} {
			a, b := pair(t, verbs.ConnectOptions{})
			outer := bytes.Repeat([]byte{0x5a}, 3*4096)
			inner, err := b.PD.RegMR(outer[4096:8192], all)
			if err != nil {
				t.Fatal(err)
			}
			length := 16
			if op == verbs.OpFetchAdd || op == verbs.OpCompareSwap {
				length = 8
				at &^= 7
			}
			a.post(&verbs.SendWR{ID: 1, Opcode: op, Flags: verbs.Signaled, SGE: a.MR.Slice(0, length), RemoteAddr: at, RKey: inner.RKey(), CompareAdd: 1, Swap: 2})
			a.want(1, verbs.ErrRemoteAccess)
			if s := b.Ctx.Device().Stats(); s.AccessNAKsSent != 1 {
				t.Errorf("opcode %d at %#x: %d remote access NAKs", op, at, s.AccessNAKsSent)
			}
			if !bytes.Equal(outer, bytes.Repeat([]byte{0x5a}, len(outer))) {
				t.Errorf("opcode %d at %#x has changed memory", op, at)
			}
		}
	}
}
