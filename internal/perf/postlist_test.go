package perf

import (
	"context"
	"testing"

	"rnic/verbs"
)

// What a list gathers is posted in order, with one call when it is full, and the rest when it ends.
func TestPostList(t *testing.T) {
	dev, err := verbs.NewDevice(verbs.DeviceConfig{Local: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err1 := dev.Open().AllocPD()
	cq, err2 := pd.Context().CreateCQ(64)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	q, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	local, err := q.Local(0, 1)
	if err == nil {
		err = q.Connect(local, verbs.ConnectOptions{PSN: 1}) // to itself
	}
	if err != nil {
		t.Fatal(err)
	}
	l := newPostList(3)
	l.open = true
	for id := range uint64(7) {
		wr, _ := l.next()
		*wr = verbs.SendWR{ID: id, Opcode: verbs.OpWrite, Flags: verbs.Signaled}
		if !l.full() {
			continue
		}
		if err := l.postNow(q); err != nil {
			t.Fatal(err)
		}
	}
	if l.n != 1 {
		t.Errorf("%d of 7 are left in a list of 3", l.n)
	}
	if err := l.post(q); err != nil || l.n != 0 || l.open {
		t.Errorf("%v: %+v", err, l)
	}
	var wc [1]verbs.WC
	for id := range uint64(7) {
		if _, err := cq.Next(context.Background(), wc[:]); err != nil || wc[0].ID != id || wc[0].Err() != nil {
			t.Fatalf("completion %d: %v, %+v", id, err, wc[0])
		}
	}
}
