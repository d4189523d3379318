package ring

import (
	"errors"
	"testing"
)

func formatted(t *testing.T, entries, elem uint32) (nic, program *Queue) {
	t.Helper()
	g, err := GeometryFor(entries, elem)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, g.Size())
	if nic, err = Format(b, g); err != nil {
		t.Fatal(err)
	}
	return nic, View(b, g)
}

// What waits in a queue is in the new one, in order, wherever its indices stood.
func TestResizeKeepsReceives(t *testing.T) {
	nic, program := formatted(t, 7, RecvWQESize)
	post := func(p *Queue, id uint64) {
		t.Helper()
		if p.Free() == 0 {
			t.Fatal("no room")
		}
		p.StoreRecv(p.Position(), &RecvWQE{WRID: id})
		if err := p.Publish(); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(5) {
		post(program, id)
		if err := nic.Consume(); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(6) {
		post(program, 10+id)
	}
	small, _ := formatted(t, 3, RecvWQESize)
	if err := nic.MoveReceives(small); !errors.Is(err, ErrFull) || small.Pending() != 0 || nic.Pending() != 6 {
		t.Fatalf("a queue that does not hold them: %v, %d there, %d left", err, small.Pending(), nic.Pending())
	}
	big, _ := formatted(t, 20, RecvWQESize)
	if err := nic.MoveReceives(big); err != nil {
		t.Fatal(err)
	}
	own := View(big.Bytes(), Geometry{Slots: 32, ElemLog2: 6})
	own.SetPosition(big.Pending()) // as the provider does: it takes the producer index from the queue
	post(own, 99)
	for _, want := range []uint64{10, 11, 12, 13, 14, 15, 99} {
		var w RecvWQE
		if _, err := big.LoadRecv(big.Position(), &w); err != nil || w.WRID != want {
			t.Fatalf("receive %d, want %d (%v)", w.WRID, want, err)
		}
		if err := big.Consume(); err != nil {
			t.Fatal(err)
		}
	}
	if big.Pending() != 0 {
		t.Errorf("%d left", big.Pending())
	}
}

func TestResizeKeepsCompletions(t *testing.T) {
	nic, program := formatted(t, 7, CQESize)
	push := func(q *Queue, id uint64) {
		t.Helper()
		if err := q.StoreCQE(q.Position(), &CQE{WRID: id, Time: id + 1000}); err != nil {
			t.Fatal(err)
		}
		if err := q.Publish(); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(6) {
		push(nic, id)
		if err := program.Consume(); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(4) {
		push(nic, 10+id)
	}
	to, own := formatted(t, 4, CQESize)
	if err := nic.MoveCompletions(to); err != nil {
		t.Fatal(err)
	}
	if err := own.Consume(); err != nil { // 10
		t.Fatal(err)
	}
	push(to, 14)
	for _, want := range []uint64{11, 12, 13, 14} {
		var e CQE
		own.LoadCQE(own.Position(), &e)
		if e.WRID != want || e.Time != want+1000 {
			t.Fatalf("completion %d at %d, want %d at %d", e.WRID, e.Time, want, want+1000)
		}
		if err := own.Consume(); err != nil {
			t.Fatal(err)
		}
	}
	if own.Pending() != 0 || to.Free() != to.Capacity() {
		t.Errorf("%d pending, %d free of %d", own.Pending(), to.Free(), to.Capacity())
	}
}
