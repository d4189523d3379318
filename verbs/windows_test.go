package verbs

import (
	"errors"
	"testing"
)

// What a bind or an atomic write lacks is found when it is posted, and nothing is posted then.
func TestPostingWindowsChecks(t *testing.T) {
	dev, err := NewDevice(DeviceConfig{Local: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ctx := dev.Open()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := ctx.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	mw, err := pd.AllocMW(MWType2)
	if err != nil {
		t.Fatal(err)
	}
	key := mw.RKey()
	for _, wr := range []*SendWR{{Opcode: OpBindMW}, {Opcode: OpBindMW, Bind: &Bind{}}, {Opcode: OpBindMW, Bind: &Bind{MW: mw, Length: 1}}, {Opcode: OpAtomicWrite}} {
		if n, err := qp.PostSend(wr); n != 0 || !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %d, %v, want ErrInvalid", wr, n, err)
		}
	}
	if mw.RKey() != key {
		t.Errorf("key %#x became %#x", key, mw.RKey())
	}
	if _, err := pd.AllocMW(3); !errors.Is(err, ErrInvalid) {
		t.Errorf("type 3: %v", err)
	}
	if err := mw.Close(); err != nil {
		t.Error(err)
	}
	if _, err := qp.PostSend(&SendWR{Opcode: OpBindMW, Bind: &Bind{MW: mw}}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed window: %v", err)
	}
}
