package nic

import (
	"testing"

	"rnic/internal/roce"
)

// Vol. 1, 11.2.5.3, with what Linux' rxe answers after creation of the queue pair of ibv_rc_pingpong.
func TestQueryAfterCreate(t *testing.T) {
	n := objectsNIC(Config{})
	cq := mustCQ(t, n, 4)
	for _, typ := range []QPType{RC, UC, UD} {
		i := qpInit(t, n, typ, mustPD(t, n), cq, cq, Cap{MaxSendWR: 1, MaxRecvWR: 500, MaxSendSGE: 1, MaxRecvSGE: 1})
		i.SigAll = true
		q, err := n.CreateQP(i)
		if err != nil {
			t.Fatal(err)
		}
		c := Cap{MaxSendWR: 1, MaxRecvWR: 511, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}
		global := AHAttr{IsGlobal: true}
		want := Attr{State: Reset, CurState: Reset, PathMTU: 1, AH: global, AltAH: global, Cap: c}
		got, info := q.Query()
		if got != want {
			t.Errorf("type %d: got %+v, want %+v", typ, got, want)
		}
		if info != (InitInfo{Cap: c, SigAll: true, Type: typ}) {
			t.Errorf("type %d: got %+v", typ, info)
		}
	}
}

// 11.2.5.3: query gives back what modify set.
func TestQueryGivesWhatModifySet(t *testing.T) {
	n := objectsNIC(Config{})
	q := someQP(t, n, RC)
	bring(t, q, RTS)
	want := goodAttr(RTS)
	want.CurState, want.QKey, want.Cap, want.AltAH, want.AltPort = RTS, 0, q.cap, AHAttr{IsGlobal: true}, 0
	if got, _ := q.Query(); got != want {
		t.Errorf("RC: got %+v, want %+v", got, want)
	}
	q = someQP(t, n, UD)
	bring(t, q, RTS)
	global := AHAttr{IsGlobal: true}
	want = Attr{State: RTS, CurState: RTS, PathMTU: 1, QKey: 0x11111111, SQPSN: 0x654321, Port: 1, Cap: q.cap, AH: global, AltAH: global}
	if got, _ := q.Query(); got != want {
		t.Errorf("UD: got %+v, want %+v", got, want)
	}
}

// However large messages are to be, the packets of one are fewer than half the PSNs: more would seem to be acknowledged before they are sent.
func TestLongestMessage(t *testing.T) {
	l := New(Config{Limits: Limits{MaxMsgSize: 1<<32 - 1}}).Limits()
	if packets := l.MaxMsgSize / uint32(roce.MTUBytes(1)); packets >= 1<<23 {
		t.Errorf("%d bytes are %d packets", l.MaxMsgSize, packets)
	}
}
