package nic

import (
	"testing"
)

// Vol. 1, 10.6.3.3: a key that was invalidated must not be valid soon again; keys are not guessable
// from one another.
func TestMRKeysAreFresh(t *testing.T) {
	n := objectsNIC(Config{Seed: 1})
	pd, mem := mustPD(t, n), memory(0x1000, 64)
	seen := map[uint32]bool{}
	var live []*MR
	sequential := 0
	for i := range 50000 {
		m, err := n.RegMR(pd, mem, 0x1000, 64, 0x1000, 0)
		if err != nil {
			t.Fatal(err)
		}
		if m.LKey() == 0 || m.LKey() != m.RKey() || seen[m.LKey()] {
			t.Fatalf("region %d: key %#x is 0, of two values or not fresh", i, m.LKey())
		}
		seen[m.LKey()] = true
		if len(live) > 0 && m.key>>8 == live[len(live)-1].key>>8+1 {
			sequential++
		}
		if live = append(live, m); len(live) > 100 {
			old := live[0]
			live = live[1:]
			if err := old.Dereg(); err != nil {
				t.Fatal(err)
			}
			if n.lookupMR(old.key) != nil {
				t.Fatalf("key %#x of a deregistered region is still valid", old.key)
			}
		}
		if n.lookupMR(m.key) != m || n.lookupMR(m.key^1) != nil {
			t.Fatalf("key %#x does not name its region, or another key does", m.key)
		}
	}
	if sequential > 5 {
		t.Errorf("%d of 50000 keys follow their predecessor", sequential)
	}
}

// When all indices have been used, an index comes back with another key part, and live ones are
// left out.
func TestMRKeyNeverTwiceInARowAtAnIndex(t *testing.T) {
	n := objectsNIC(Config{Seed: 2})
	pd, mem := mustPD(t, n), memory(0x1000, 64)
	reg := func() *MR {
		m, err := n.RegMR(pd, mem, 0x1000, 64, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	byIndex := map[uint32]uint32{}
	for range 100 {
		m := reg()
		byIndex[m.key>>8] = m.key
		if err := m.Dereg(); err != nil {
			t.Fatal(err)
		}
	}
	kept := reg()
	n.mrKeys.next, n.mrKeys.cycle = 0, 1 // 2^24 registrations later
	for range 100 {
		m := reg()
		old, same := byIndex[m.key>>8]
		if !same {
			t.Fatalf("key %#x is of an index that was not next", m.key)
		}
		if m.key == old {
			t.Errorf("key %#x given twice in a row at its index", m.key)
		}
	}
	if m := reg(); m.key>>8 == kept.key>>8 {
		t.Errorf("key %#x shares its index with the live key %#x", m.key, kept.key)
	}
}

// The permutation has no two counters with one number: it can be undone.
func TestKeySpaceIsAPermutation(t *testing.T) {
	s := New(Config{Seed: 3}).qpNums
	undo := func(x uint32) uint32 {
		l, r := x>>halfBits, x&halfMask
		for i := len(s.round) - 1; i >= 0; i-- {
			l, r = r^uint32(mix64(uint64(l)^s.round[i]))&halfMask, l
		}
		return l<<halfBits | r
	}
	for x := uint32(0); x <= numberMask; x += 61 {
		if got := undo(s.permute(x)); got != x || s.permute(x) > numberMask {
			t.Fatalf("%#x becomes %#x, which comes of %#x too", x, s.permute(x), got)
		}
	}
	s.next = numberMask
	last, cycle := s.take()
	if _, next := s.take(); cycle != 0 || next != 1 {
		t.Errorf("the number %#x behind the last one is of cycle %d, want 1", last, next)
	}
}

// Vol. 1, 3.5.3 and 9.2: queue pair numbers have 24 bits; 0, 1 and 0xffffff mean something else.
func TestQueuePairNumbers(t *testing.T) {
	n := objectsNIC(Config{Seed: 4})
	seen, sequential, last := map[uint32]bool{}, 0, uint32(0)
	for i := range 200000 {
		num := n.newQPN()
		if num < 1<<8 || num > 1<<24-2 || seen[num] {
			t.Fatalf("queue pair %d has number %#x: out of range or not new", i, num)
		}
		seen[num] = true
		if num == last+1 {
			sequential++
		}
		last = num
	}
	if sequential > 5 {
		t.Errorf("%d of 200000 numbers follow their predecessor", sequential)
	}
	q := someQP(t, n, RC)
	if n.lookupQP(q.Num()) != q {
		t.Errorf("%v is not found by its number", q)
	}
	n.qpNums.next = 0 // the numbers come again
	for range 200001 {
		if n.newQPN() == q.num {
			t.Fatalf("the number of the live %v was handed out again", q)
		}
	}
}

// Same seed, same inputs: the same keys and numbers; another seed, others.
func TestNumbersFollowTheSeed(t *testing.T) {
	numbers := func(seed uint64) [3]uint32 {
		n := objectsNIC(Config{Seed: seed})
		pd := mustPD(t, n)
		m, err := n.RegMR(pd, memory(0, 8), 0, 8, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return [3]uint32{m.key, someQP(t, n, RC).Num(), someQP(t, n, UD).Num()}
	}
	if a, b := numbers(7), numbers(7); a != b {
		t.Errorf("seed 7 gives %x, then %x", a, b)
	}
	a, b := numbers(7), numbers(8)
	if a[0] == b[0] || a[1] == b[1] || a[2] == b[2] {
		t.Errorf("seeds 7 and 8 give %x and %x", a, b)
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	n := objectsNIC(Config{})
	q := someQP(t, n, RC)
	m, err := n.RegMR(q.pd, memory(0, 8), 0, 8, 0, AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if allocs := testing.AllocsPerRun(100, func() {
		if n.lookupQP(q.num) != q || n.lookupMR(m.key) != m || !m.check(q.pd, 0, 8, AccessLocalWrite) || n.lookupAH(9) != nil {
			t.Error("a lookup failed")
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
