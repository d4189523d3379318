package sim

import "encoding/binary"

// word is a 64-bit word that atomics of many queue pairs contend for.
type word struct {
	h    *host
	at   seg
	init uint64
	last uint64 // the value that the programs saw last
	ops  []*work
}

func (w *world) addWord(h *host) {
	s, ok := w.take(h.mem.regions[regionPlain], 8, 8)
	if !ok {
		w.fail("simulator: no room for a word")
	}
	v := binary.LittleEndian.Uint64(h.mem.space.Mem[s.off:])
	h.words = append(h.words, &word{h: h, at: s, init: v, last: v})
}

// apply is what the word becomes by the operation of x.
func (x *work) apply(old uint64) uint64 {
	if x.compareSwap() {
		if old == x.compare {
			return x.swap
		}
		return old
	}
	return old + x.add
}

// checkWord checks that the atomics on a word are linearizable (Herlihy and Wing, TOPLAS 1990): that there is one
// order in which they could have been performed, each at a moment between its posting and its completion, and
// those of a queue pair as they were posted. Every value is random, so that each operation that changed the word
// has its place: its old value is what the one before it left. Operations whose result nobody learned may have
// been performed once, at any time after their posting, or not.
func (w *world) checkWord(d *word) {
	final := binary.LittleEndian.Uint64(d.h.mem.space.Mem[d.at.off:])
	s := chain{byOld: make(map[uint64][]*work), final: final, last: make(map[*qpair]int)}
	known := 0
	for _, x := range d.ops {
		if x.success {
			s.byOld[x.old] = append(s.byOld[x.old], x)
			known++
		} else {
			s.unknown = append(s.unknown, x)
		}
	}
	s.used = make([]bool, len(s.unknown))
	chained := s.follow(d.init, known, nil)
	if s.clock, s.steps = true, 0; chained {
		s.undo(0)
		clear(s.used)
		if s.follow(d.init, known, nil) {
			copy(d.h.mem.want[d.at.off:d.at.off+8], d.h.mem.space.Mem[d.at.off:])
			return
		}
	}
	w.note(d.h, "word %#x: from %x to %x", d.h.mem.va(d.at.off), d.init, final)
	for _, x := range d.ops {
		w.note(d.h, "%s: success %v old %x add %x compare %x swap %x, posted at %s, complete at %s", x, x.success, x.old, x.add,
			x.compare, x.swap, clock(x.postedAt-startNanos), clock(x.endedAt-startNanos))
	}
	if chained {
		w.fail("host %d: the old values of the atomics on the word at %#x say that %s was performed after %s, which was posted %s after its completion",
			d.h.index, d.h.mem.va(d.at.off), s.early, s.late, clock(s.late.postedAt-s.early.endedAt))
	}
	w.fail("host %d: the old values of %d atomics on the word at %#x form no order that leads from %#x to %#x",
		d.h.index, len(d.ops), d.h.mem.va(d.at.off), d.init, final)
}

// chain is the search for the order of a word's atomics.
type chain struct {
	byOld   map[uint64][]*work
	unknown []*work
	used    []bool
	final   uint64
	last    map[*qpair]int // ids, in the order of each queue pair
	trail   []turn         // what last was before
	steps   int

	clock       bool  // times count, too
	early, late *work // with clock: that one is complete before this one, its predecessor, was posted
}

// turn is the id that the latest operation of a queue pair had.
type turn struct {
	q  *qpair
	id int
}

// follow tells whether the operations that are left can be performed from value v on. Of those performed, newest
// is the one that was posted last: none that follows can have been performed earlier.
func (c *chain) follow(v uint64, left int, newest *work) bool {
	if c.steps++; c.steps > 100_000 {
		return true // too many whose fate is unknown: nothing can be said
	}
	began := len(c.trail)
	if c.visit(v, left, newest) {
		return true
	}
	c.undo(began)
	return false
}

// visit performs everything that found v, and follows what comes of it.
func (c *chain) visit(v uint64, left int, newest *work) bool {
	var changing *work
	before := newest
	for _, x := range c.byOld[v] {
		switch {
		case x.apply(v) == v: // a comparison that failed changes nothing
			if !c.take(x, before) {
				return false
			}
			newest = newer(newest, x)
			left--
		case changing != nil:
			return false // two that found the same value
		default:
			changing = x
		}
	}
	if left == 0 && v == c.final {
		return true
	}
	if changing != nil {
		return c.take(changing, newest) && c.follow(changing.apply(v), left-1, newer(newest, changing))
	}
	for i, x := range c.unknown {
		if next := x.apply(v); !c.used[i] && next != v {
			c.used[i] = true
			if c.follow(next, left, newer(newest, x)) {
				return true
			}
			c.used[i] = false
		}
	}
	return false
}

// take performs x, if it is its turn in its queue pair, and its time.
func (c *chain) take(x, newest *work) bool {
	id := int(x.id - workBase)
	if id < c.last[x.q] {
		return false
	}
	if c.clock && newest != nil && newest.postedAt > x.endedAt {
		c.early, c.late = x, newest
		return false
	}
	c.trail = append(c.trail, turn{x.q, c.last[x.q]})
	c.last[x.q] = id
	return true
}

// undo takes back what was performed since the trail was so long.
func (c *chain) undo(began int) {
	for i := len(c.trail) - 1; i >= began; i-- {
		c.last[c.trail[i].q] = c.trail[i].id
	}
	c.trail = c.trail[:began]
}

func newer(a, b *work) *work {
	if a == nil || b.postedAt > a.postedAt {
		return b
	}
	return a
}
