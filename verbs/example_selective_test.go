package verbs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"rnic/verbs"
)

// Selective repeat: both sides offer it, and after a loss only what was lost is sent again.
func ExampleQPConfig_selectiveRepeat() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	client, server := newSide(dev, verbs.QPConfig{SelectiveRepeat: true}), newSide(dev, verbs.QPConfig{SelectiveRepeat: true})
	connect(client, server)
	client.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 8192),
		RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()})
	printWC("client", client.next())
	fmt.Println("selective repeat:", client.qp.SelectiveRepeat())
	// Output:
	// client: work request 1: success
	// selective repeat: true
}

// It is on if both sides offer it, whichever way their endpoints travel, and else off on both; only RC can offer it.
func TestSelectiveRepeatIsAgreedOn(t *testing.T) {
	dev := local(t)
	for _, c := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
		a, b := newSide(dev, verbs.QPConfig{SelectiveRepeat: c[0]}), newSide(dev, verbs.QPConfig{SelectiveRepeat: c[1]})
		travel := func(e verbs.Endpoint) (out verbs.Endpoint) {
			check(json.Unmarshal(get(json.Marshal(e)), &out))
			return out
		}
		check(a.qp.Connect(travel(get(b.qp.Local(0, 2))), verbs.ConnectOptions{PSN: 1}))
		check(b.qp.Connect(travel(get(a.qp.Local(0, 1))), verbs.ConnectOptions{PSN: 2}))
		if want := c[0] && c[1]; a.qp.SelectiveRepeat() != want || b.qp.SelectiveRepeat() != want {
			t.Errorf("offers %v: %v and %v", c, a.qp.SelectiveRepeat(), b.qp.SelectiveRepeat())
		}
		a.post(write(a, b, 1, 8192))
		if wc := a.next(); wc.Err() != nil {
			t.Errorf("offers %v: %v", c, wc.Err())
		}
	}
	ctx := dev.Open()
	defer ctx.Close()
	pd, cq := get(ctx.AllocPD()), get(ctx.CreateCQ(16))
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD, verbs.XRCINI} {
		if _, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: cq, RecvCQ: cq, SelectiveRepeat: true}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("type %v: %v", typ, err)
		}
	}
}
