package verbs_test

import (
	"errors"
	"testing"

	"rnic/verbs"
)

// What the objects of XRC are not for is refused, and changes nothing.
func TestXRCMisuse(t *testing.T) {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	ctx := dev.Open()
	pd, cq, d := get(ctx.AllocPD()), get(ctx.CreateCQ(8)), get(ctx.AllocXRCD())
	target := get(d.CreateTarget())
	for what, err := range map[string]error{
		"send on a target":    get1(target.PostSend(&verbs.SendWR{Opcode: verbs.OpSend})),
		"receive on a target": get1(target.PostRecv(&verbs.RecvWR{})),
		"target by CreateQP":  get1(pd.CreateQP(verbs.QPConfig{Type: verbs.XRCTGT, SendCQ: cq, RecvCQ: cq})),
		"SRQ without CQ":      get1(pd.CreateSRQ(verbs.SRQConfig{XRCD: d})),
		"SRQ without domain":  get1(pd.CreateSRQ(verbs.SRQConfig{CQ: cq})),
		"initiator without":   get1(pd.CreateQP(verbs.QPConfig{Type: verbs.XRCINI})),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	srq := get(pd.CreateSRQ(verbs.SRQConfig{XRCD: d, CQ: cq}))
	if srq.Num() == 0 {
		t.Error("a queue without a number")
	}
	if _, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, SRQ: srq}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an RC queue pair with a queue of XRC: %v", err)
	}
	for what, err := range map[string]error{"domain": d.Close(), "completion queue": cq.Close()} {
		if !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("%s in use: %v", what, err)
		}
	}
	for what, err := range map[string]error{"target": target.Close(), "queue": srq.Close()} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(d.Close(), cq.Close(), pd.Close()); err != nil {
		t.Error(err)
	}
}

func get1[T any](_ T, err error) error { return err }
