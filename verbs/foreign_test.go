package verbs_test

import (
	"errors"
	"testing"

	"rnic/verbs"
)

// An address handle or a window of another context has a number that means something else here.
func TestForeignObjects(t *testing.T) {
	a, b := local(t), local(t)
	ud, other := newSide(a, verbs.QPConfig{Type: verbs.UD}), newSide(b, verbs.QPConfig{Type: verbs.UD})
	check(ud.qp.Activate(1))
	get(ud.pd.AHTo(a.GIDs()[0].GID, 0)) // of the same number as:
	foreign := get(other.pd.AHTo(b.GIDs()[0].GID, 0))
	_, err := ud.qp.PostSend(&verbs.SendWR{Opcode: verbs.OpSend, SGE: ud.mr.Slice(0, 8), AH: foreign, RemoteQPN: ud.qp.Num(), RemoteQKey: 1})
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("address handle of another NIC: %v", err)
	}
	own := get(ud.pd.AHTo(a.GIDs()[0].GID, 0))
	check(own.Close())
	_, err = ud.qp.PostSend(&verbs.SendWR{Opcode: verbs.OpSend, SGE: ud.mr.Slice(0, 8), AH: own, RemoteQPN: ud.qp.Num(), RemoteQKey: 1})
	if !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("address handle that is closed: %v", err)
	}
	client, server := newSide(a, verbs.QPConfig{}), newSide(a, verbs.QPConfig{})
	connect(client, server)
	window := get(other.pd.AllocMW(verbs.MWType1))
	for what, bind := range map[string]verbs.Bind{"window": {MW: window}, "region": {MW: get(client.pd.AllocMW(verbs.MWType1)), MR: other.mr, Addr: other.mr.Addr(0), Length: 8}} {
		if err := client.qp.BindMW(1, verbs.Signaled, bind); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("bind with a %s of another NIC: %v", what, err)
		}
	}
}
