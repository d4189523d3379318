package sim

import (
	"encoding/binary"
	"strings"
	"testing"

	"rnic/internal/hostmem"
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
		x.q, x.id = q, workBase+uint64(i)
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
