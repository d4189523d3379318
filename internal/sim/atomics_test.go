package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// checkedWord runs checkWord on a word with these operations and this value at the end, and returns
// what it complains about.
func checkedWord(init, final uint64, ops ...*work) (complaint string) {
	a := &arena{space: hostmem.Bytes{Mem: make([]byte, 8)}, want: make([]byte, 8)}
	h := &host{mem: a}
	w := &world{}
	q := &qpair{h: h}
	for i, x := range ops {
		if x.id = workBase + uint64(i); x.q == nil {
			x.q = q
		}
		x.q.h, x.q.qp = h, new(nic.QP)
		x.op = ring.OpFetchAdd
		if x.swap != 0 {
			x.op = ring.OpCompareSwap
		}
		x.why = "."
	}
	binary.LittleEndian.PutUint64(a.space.Mem, final)
	defer func() {
		if v, ok := recover().(*Violation); ok {
			complaint = v.What
		}
	}()
	d := &word{h: h, at: seg{off: 0, n: 8}, init: init, ops: ops}
	w.checkWord(d)
	return ""
}

// The old values that atomics on one word return form one order (9.4.5).
func TestChainOfAtomics(t *testing.T) {
	add := func(old, n uint64) *work { return &work{success: true, old: old, add: n} }
	lost := func(n uint64) *work { return &work{add: n} }
	swap := func(old, compare, to uint64) *work { return &work{success: true, old: old, compare: compare, swap: to} }
	for _, x := range []struct {
		name        string
		init, final uint64
		ops         []*work
		good        bool
	}{
		{"none", 5, 5, nil, true},
		{"nobody changed it", 5, 6, nil, false},
		{"in order", 0, 111, []*work{add(0, 1), add(1, 10), add(11, 100)}, true},
		{"executed twice", 0, 2, []*work{add(0, 1)}, false},
		{"not executed", 0, 0, []*work{add(0, 1)}, false},
		{"two found the same", 0, 10, []*work{add(0, 1), add(0, 10)}, false},
		{"against the order of their queue pair", 0, 11, []*work{add(10, 1), add(0, 10)}, false},
		{"of unknown fate, executed", 0, 11, []*work{lost(10), add(10, 1)}, true},
		{"of unknown fate, not executed", 0, 1, []*work{lost(10), add(0, 1)}, true},
		{"of unknown fate, executed twice", 0, 21, []*work{lost(10), add(20, 1)}, false},
		{"swaps, one of them in vain", 7, 9, []*work{swap(7, 7, 8), swap(8, 7, 50), swap(8, 8, 9)}, true},
		{"swapped against its comparison", 7, 8, []*work{swap(7, 6, 8)}, false},
	} {
		complaint := checkedWord(x.init, x.final, x.ops...)
		if (complaint == "") != x.good {
			t.Errorf("%s: %q", x.name, complaint)
		}
		if complaint != "" && !strings.Contains(complaint, "form no order") {
			t.Errorf("%s: %s", x.name, complaint)
		}
	}
}

// An order of the old values that contradicts the times of the operations is none: what was complete before
// another was posted came before it.
func TestAtomicsAreLinearizable(t *testing.T) {
	a, b := &qpair{}, &qpair{}
	add := func(q *qpair, from, to int64, old, n uint64) *work {
		return &work{q: q, success: true, old: old, add: n, postedAt: from, endedAt: to}
	}
	vain := func(q *qpair, from, to int64, old uint64) *work {
		return &work{q: q, success: true, old: old, compare: old + 1, swap: 77, postedAt: from, endedAt: to}
	}
	lost := func(from int64, n uint64) *work { return &work{q: b, add: n, postedAt: from} }
	for _, x := range []struct {
		name  string
		final uint64
		ops   []*work
		good  bool
	}{
		{"one after the other", 11, []*work{add(a, 1, 2, 0, 1), add(b, 3, 4, 1, 10)}, true},
		{"at the same time, either order", 11, []*work{add(a, 1, 5, 10, 1), add(b, 2, 4, 0, 10)}, true},
		{"one after the other, the wrong order", 11, []*work{add(a, 1, 2, 10, 1), add(b, 3, 4, 0, 10)}, false},
		{"through a third that overlaps both", 111, []*work{add(a, 1, 2, 110, 1), add(b, 1, 9, 10, 100), add(&qpair{}, 3, 4, 0, 10)}, false},
		{"a vain comparison found what was gone", 11, []*work{add(a, 1, 2, 0, 1), add(a, 3, 4, 1, 10), vain(b, 5, 6, 1)}, false},
		{"a vain comparison found it while it was there", 11, []*work{add(a, 1, 2, 0, 1), add(a, 5, 6, 1, 10), vain(b, 3, 9, 1)}, true},
		{"a vain comparison found what was not there yet", 1, []*work{vain(b, 1, 2, 1), add(a, 3, 4, 0, 1)}, false},
		{"of unknown fate, performed late", 11, []*work{lost(1, 10), add(a, 5, 6, 0, 1)}, true},
		{"of unknown fate, performed before it was posted", 11, []*work{add(a, 1, 2, 10, 1), lost(3, 10)}, false},
	} {
		complaint := checkedWord(0, x.final, x.ops...)
		if (complaint == "") != x.good || !x.good && !strings.Contains(complaint, "after its completion") {
			t.Errorf("%s: %q", x.name, complaint)
		}
	}
}

// The checker agrees with trying every order there is.
func TestLinearizableAsBruteForceSays(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var verdicts [2]int
	for n := range 20_000 {
		init := rng.Uint64()
		final, ops := randomHistory(rng, init)
		want := bruteForce(ops, make([]bool, len(ops)), init, final, -1000)
		complaint := checkedWord(init, final, ops...)
		if (complaint == "") != want {
			for _, x := range ops {
				t.Logf("%p %v: old %x, add %x, compare %x, swap %x, success %v, from %d to %d", x.q, x.op, x.old, x.add, x.compare, x.swap, x.success, x.postedAt, x.endedAt)
			}
			t.Fatalf("history %d: brute force says %v, the checker %q", n, want, complaint)
		}
		if want {
			verdicts[1]++
		} else {
			verdicts[0]++
		}
	}
	if verdicts[0] < 2000 || verdicts[1] < 2000 {
		t.Errorf("%d histories were bad and %d good: too few of one kind", verdicts[0], verdicts[1])
	}
}

// randomHistory is what a few operations of three queue pairs find that are performed in some order, posted and
// complete at times that may fit.
func randomHistory(rng *rand.Rand, v uint64) (final uint64, ops []*work) {
	qs := []*qpair{{}, {}, {}}
	n := 1 + rng.IntN(6)
	for i := range n {
		x := &work{q: qs[rng.IntN(3)], op: ring.OpFetchAdd, add: rng.Uint64(), old: v, success: rng.IntN(5) > 0}
		if rng.IntN(2) == 0 {
			x.op, x.swap, x.compare = ring.OpCompareSwap, rng.Uint64(), v
			if rng.IntN(2) == 0 {
				x.compare++
			}
		}
		x.postedAt = int64(4*i - rng.IntN(8))
		x.endedAt = x.postedAt + int64(rng.IntN(12))
		if x.success || rng.IntN(2) == 0 {
			v = x.apply(v)
		}
		ops = append(ops, x)
	}
	if rng.IntN(4) == 0 {
		rng.Shuffle(n, func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	}
	latest := make(map[*qpair]*work)
	for _, x := range ops { // a queue pair's are posted in order, and complete in order
		if y := latest[x.q]; y != nil {
			x.postedAt, x.endedAt = max(x.postedAt, y.postedAt), max(x.endedAt, y.endedAt)
		}
		x.endedAt = max(x.endedAt, x.postedAt)
		latest[x.q] = x
	}
	return v, ops
}

// bruteForce tells whether some order of the operations that are not done leads from v to final, with now the
// earliest moment for the next.
func bruteForce(ops []*work, done []bool, v, final uint64, now int64) bool {
	missing := false
	for i, x := range ops {
		if missing = missing || x.success && !done[i]; done[i] || x.success && x.old != v {
			continue
		}
		at := max(now, x.postedAt)
		if x.success && (at > x.endedAt || !inTurn(ops, done, i)) {
			continue
		}
		done[i] = true
		ok := bruteForce(ops, done, x.apply(v), final, at)
		done[i] = false
		if ok {
			return true
		}
	}
	return !missing && v == final
}

// inTurn tells whether all that succeeded before ops[i] at its queue pair are done.
func inTurn(ops []*work, done []bool, i int) bool {
	for j := range i {
		if ops[j].q == ops[i].q && ops[j].success && !done[j] {
			return false
		}
	}
	return true
}
