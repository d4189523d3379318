package hostmem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// recorder is a Space that notes what is called, in order.
type recorder struct {
	Bytes
	name string
	log  *[]string
	lazy bool // says less than it was given, without a reason
}

func (r *recorder) ReadV(segs []Segment) (int, error) {
	*r.log = append(*r.log, fmt.Sprintf("%s reads %d", r.name, len(segs)))
	if r.lazy {
		return 0, nil
	}
	return r.Bytes.ReadV(segs)
}

func (r *recorder) WriteV(segs []Segment) (int, error) {
	*r.log = append(*r.log, fmt.Sprintf("%s writes %d", r.name, len(segs)))
	return r.Bytes.WriteV(segs)
}

func (r *recorder) Atomic(addr uint64, op AtomicOp, operand, compare uint64) (uint64, error) {
	*r.log = append(*r.log, fmt.Sprintf("%s atomic", r.name))
	return r.Bytes.Atomic(addr, op, operand, compare)
}

func space(name string, log *[]string) *recorder {
	return &recorder{Bytes: Bytes{Base: 0x1000, Mem: make([]byte, 256)}, name: name, log: log}
}

func seg(s Space, lane uint32, addr uint64, data ...byte) Segment {
	return Segment{Space: s, Addr: addr, Buf: data, Lane: lane}
}

func wantLog(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}

const nowhere = 0x9000

// Neighbours in one space go in one call, whatever their lanes.
func TestNeighboursGoInOneCall(t *testing.T) {
	var log []string
	a, b := space("a", &log), space("b", &log)
	var l List
	if !l.Empty() {
		t.Error("a new list is not empty")
	}
	for _, s := range []*recorder{a, a, b, a} {
		l.Add(seg(s, uint32(len(l.Segs)), 0x1000, byte(len(l.Segs)+1)))
	}
	l.Scatter()
	wantLog(t, log, "a writes 2", "b writes 1", "a writes 1")
	if len(l.Failed) != 0 || a.Mem[0] != 4 || b.Mem[0] != 3 {
		t.Errorf("failures %+v, memories %d, %d", l.Failed, a.Mem[0], b.Mem[0])
	}
	log = nil
	l.Gather()
	wantLog(t, log, "a reads 2", "b reads 1", "a reads 1")
	if l.Empty() || l.Segs[0].Buf[0] != 4 || l.Segs[2].Buf[0] != 3 {
		t.Errorf("read %d, %d", l.Segs[0].Buf[0], l.Segs[2].Buf[0])
	}
}

// A fault refuses the piece that it is in, and what follows of that lane; not the batch.
func TestFaultRefusesTheRestOfItsLane(t *testing.T) {
	var log []string
	a := space("a", &log)
	var l List
	l.Add(seg(a, 1, 0x1000, 1))
	l.Add(seg(a, 2, 0x1001, 2))
	l.Add(seg(a, 1, nowhere, 3))
	l.Add(seg(a, 2, 0x1003, 4))
	l.Add(seg(a, 1, 0x1004, 5))
	l.Add(seg(a, 2, 0x1005, 6))
	atomic := l.AddAtomic(Atomic{Space: a, Addr: 0x1008, Op: FetchAdd, Operand: 1, Lane: 1})
	l.AddAtomic(Atomic{Space: a, Addr: 0x1010, Op: FetchAdd, Operand: 7, Lane: 2})
	l.Scatter()
	if want := []byte{1, 2, 0, 4, 0, 6, 0, 0}; !bytes.Equal(a.Mem[:8], want) {
		t.Errorf("memory % x, want % x", a.Mem[:8], want)
	}
	if len(l.Failed) != 1 || l.Failed[0].Index != 2 || l.Failed[0].Lane != 1 || l.Failed[0].Atomic || !errors.Is(l.Failed[0].Err, ErrFault) {
		t.Errorf("failures %+v, want that of segment 2 of lane 1", l.Failed)
	}
	if x := l.Atomics[atomic]; x.Done || x.Err != nil || a.Mem[8] != 0 {
		t.Errorf("the atomic of the failed lane was performed: %+v", x)
	}
	if x := l.Atomics[1]; !x.Done || a.Mem[16] != 7 {
		t.Errorf("the atomic of the other lane was not performed: %+v", x)
	}
}

// Atomics happen between the segments where they were put: what comes before is in memory, what
// comes behind is not.
func TestAtomicsHappenInOrder(t *testing.T) {
	var log []string
	a := space("a", &log)
	var l List
	first := l.AddAtomic(Atomic{Space: a, Addr: 0x1000, Op: CompareSwap, Operand: 1, Compare: 0, Lane: 1})
	l.Add(seg(a, 1, 0x1000, 5, 0, 0, 0, 0, 0, 0, 0))
	second := l.AddAtomic(Atomic{Space: a, Addr: 0x1000, Op: FetchAdd, Operand: 10, Lane: 1})
	third := l.AddAtomic(Atomic{Space: a, Addr: 0x1000, Op: FetchAdd, Operand: 100, Lane: 2})
	l.Add(seg(a, 1, 0x1000, 9))
	l.Scatter()
	wantLog(t, log, "a atomic", "a writes 1", "a atomic", "a atomic", "a writes 1")
	for i, want := range map[int]uint64{first: 0, second: 5, third: 15} {
		if x := l.Atomics[i]; !x.Done || x.Old != want {
			t.Errorf("atomic %d found %d (done %v), want %d", i, x.Old, x.Done, want)
		}
	}
	if a.Mem[0] != 9 {
		t.Errorf("memory %d, want 9", a.Mem[0])
	}
}

// A failing atomic fails its lane as a segment does.
func TestFailingAtomic(t *testing.T) {
	var log []string
	a := space("a", &log)
	var l List
	i := l.AddAtomic(Atomic{Space: a, Addr: nowhere, Op: FetchAdd, Operand: 1, Lane: 1})
	l.Add(seg(a, 1, 0x1000, 1))
	l.Add(seg(a, 2, 0x1001, 2))
	l.Scatter()
	if len(l.Failed) != 1 || !l.Failed[0].Atomic || l.Failed[0].Index != i || l.Failed[0].Lane != 1 {
		t.Errorf("failures %+v", l.Failed)
	}
	if x := l.Atomics[i]; x.Done || !errors.Is(x.Err, ErrFault) || a.Mem[0] != 0 || a.Mem[1] != 2 {
		t.Errorf("atomic %+v, memory %v", x, a.Mem[:2])
	}
}

// A space that stops short without a reason does not make the list go round for ever.
func TestSpaceThatStopsShort(t *testing.T) {
	var log []string
	a := space("a", &log)
	a.lazy = true
	var l List
	l.Add(seg(a, 1, 0x1000, 1))
	l.Add(seg(a, 1, 0x1001, 1))
	l.Add(seg(a, 2, 0x1002, 1))
	l.Gather()
	if len(l.Failed) != 2 || !errors.Is(l.Failed[0].Err, ErrFault) || l.Failed[1].Index != 2 {
		t.Errorf("failures %+v", l.Failed)
	}
}

func TestResetKeepsNoReference(t *testing.T) {
	var log []string
	a := space("a", &log)
	var l List
	l.Add(seg(a, 1, nowhere, 1))
	l.AddAtomic(Atomic{Space: a, Addr: 0x1000, Lane: 2})
	l.Scatter()
	l.Reset()
	if !l.Empty() || len(l.Failed) != 0 {
		t.Errorf("%+v is not empty", l)
	}
	if s := l.Segs[:1][0]; s.Space != nil || s.Buf != nil {
		t.Error("a segment of the last batch is kept")
	}
	if l.Atomics[:1][0].Space != nil {
		t.Error("an atomic of the last batch is kept")
	}
	if l.Failed[:1][0].Err != nil {
		t.Error("a failure of the last batch is kept")
	}
}

// Against a model that does one piece after another: the same memory, the same failures.
func TestListAsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log []string
		spaces, models := [2]*recorder{}, [2]*Bytes{}
		for i := range spaces {
			hole := Range{0x1000 + rapid.Uint64Range(0, 60).Draw(t, "hole"), rapid.Uint64Range(1, 8).Draw(t, "hole size")}
			spaces[i] = space(fmt.Sprint(i), &log)
			spaces[i].Holes = []Range{hole}
			models[i] = &Bytes{Base: 0x1000, Mem: make([]byte, 256), Holes: spaces[i].Holes}
		}
		var l List
		var want []Failure
		failed := map[uint32]bool{}
		note := func(index int, atomic bool, lane uint32, err error) {
			if err != nil {
				failed[lane] = true
				want = append(want, Failure{Index: index, Atomic: atomic, Lane: lane, Err: err})
			}
		}
		var olds []uint64
		for i := range rapid.IntRange(0, 40).Draw(t, "pieces") {
			s, lane := rapid.IntRange(0, 1).Draw(t, "space"), rapid.Uint32Range(0, 4).Draw(t, "lane")
			addr := 0x1000 + rapid.Uint64Range(0, 64).Draw(t, "addr")
			if rapid.IntRange(0, 4).Draw(t, "atomic") == 0 {
				a := Atomic{Space: spaces[s], Addr: addr &^ 7, Op: AtomicOp(rapid.IntRange(0, 1).Draw(t, "op")), Operand: uint64(i), Lane: lane}
				index, old := l.AddAtomic(a), uint64(0)
				if !failed[lane] {
					var err error
					old, err = models[s].Atomic(a.Addr, a.Op, a.Operand, a.Compare)
					note(index, true, lane, err)
				}
				olds = append(olds, old)
				continue
			}
			data := bytes.Repeat([]byte{byte(i + 1)}, rapid.IntRange(0, 16).Draw(t, "length"))
			l.Add(Segment{Space: spaces[s], Addr: addr, Buf: data, Lane: lane})
			if !failed[lane] {
				_, err := models[s].WriteV([]Segment{{Addr: addr, Buf: data}})
				note(len(l.Segs)-1, false, lane, err)
			}
		}
		l.Scatter()
		for i := range spaces {
			if !bytes.Equal(spaces[i].Mem, models[i].Mem) {
				t.Fatalf("memory %d:\n% x, want\n% x", i, spaces[i].Mem[:96], models[i].Mem[:96])
			}
		}
		if !slices.Equal(l.Failed, want) {
			t.Fatalf("failures %+v, want %+v", l.Failed, want)
		}
		for i, a := range l.Atomics {
			if a.Old != olds[i] {
				t.Fatalf("atomic %d found %d, want %d", i, a.Old, olds[i])
			}
		}
	})
}

// Gather, run again on the memory, gives every lane what it asked for up to its first fault.
func TestGatherWithFailingLanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log []string
		a := space("a", &log)
		for i := range a.Mem {
			a.Mem[i] = byte(i)
		}
		var l List
		firstBad := map[uint32]int{}
		for i := range rapid.IntRange(1, 30).Draw(t, "segments") {
			lane, addr := rapid.Uint32Range(0, 5).Draw(t, "lane"), 0x1000+rapid.Uint64Range(0, 300).Draw(t, "addr")
			l.Add(Segment{Space: a, Addr: addr, Buf: make([]byte, 4), Lane: lane})
			if _, seen := firstBad[lane]; addr+4 > 0x1100 && !seen {
				firstBad[lane] = i
			}
		}
		l.Gather()
		if len(l.Failed) != len(firstBad) {
			t.Fatalf("failures %+v, want %v", l.Failed, firstBad)
		}
		for _, f := range l.Failed {
			if i, ok := firstBad[f.Lane]; !ok || i != f.Index {
				t.Fatalf("failure %+v, want %v", f, firstBad)
			}
		}
		for i, s := range l.Segs {
			want := make([]byte, 4)
			if bad, ok := firstBad[s.Lane]; !ok || i < bad {
				copy(want, a.Mem[s.Addr-0x1000:])
			}
			if !bytes.Equal(s.Buf, want) {
				t.Fatalf("segment %d is % x, want % x", i, s.Buf, want)
			}
		}
	})
}

func TestListDoesNotAllocate(t *testing.T) {
	b := &Bytes{Mem: make([]byte, 64)}
	buf := make([]byte, 8)
	binary.LittleEndian.PutUint64(buf, 1)
	var l List
	if allocs := testing.AllocsPerRun(100, func() {
		l.Reset()
		for range 10 {
			l.Add(Segment{Space: b, Buf: buf})
			l.AddAtomic(Atomic{Space: b, Addr: 8, Operand: 1})
		}
		l.Add(Segment{Space: b, Addr: 99, Buf: buf, Lane: 1})
		l.Scatter()
		l.Gather()
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
