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

// checkWord finds the one order in which the atomics on a word were performed. Every value is
// random, so that each operation that changed the word has its place: its old value is what the
// one before it left. Operations whose result nobody learned may have been performed once, or not.
func (w *world) checkWord(d *word) {
	final := binary.LittleEndian.Uint64(d.h.mem.space.Mem[d.at.off:])
	byOld := make(map[uint64][]*work)
	var unknown []*work
	known := 0
	for _, x := range d.ops {
		if x.success {
			byOld[x.old] = append(byOld[x.old], x)
			known++
		} else {
			unknown = append(unknown, x)
		}
	}
	s := chain{byOld: byOld, unknown: unknown, used: make([]bool, len(unknown)), final: final, last: make(map[*qpair]int)}
	if !s.follow(d.init, known) {
		w.note(d.h, "word %#x: from %x to %x", d.h.mem.va(d.at.off), d.init, final)
		for _, x := range d.ops {
			w.note(d.h, "%s: success %v old %x add %x compare %x swap %x", x, x.success, x.old, x.add, x.compare, x.swap)
		}
		w.fail("host %d: the old values of %d atomics on the word at %#x form no order that leads from %#x to %#x",
			d.h.index, len(d.ops), d.h.mem.va(d.at.off), d.init, final)
	}
	copy(d.h.mem.want[d.at.off:d.at.off+8], d.h.mem.space.Mem[d.at.off:])
}

// chain is the search for the order of a word's atomics.
type chain struct {
	byOld   map[uint64][]*work
	unknown []*work
	used    []bool
	final   uint64
	last    map[*qpair]int // ids, in the order of each queue pair
	steps   int
}

// follow tells whether the operations that are left can be performed from value v on.
func (c *chain) follow(v uint64, left int) bool {
	if c.steps++; c.steps > 100_000 {
		return true // too many whose fate is unknown: nothing can be said
	}
	var changing *work
	same := 0
	for _, x := range c.byOld[v] {
		if x.apply(v) == v {
			same++ // a comparison that failed changes nothing
		} else if changing != nil {
			return false // two that found the same value
		} else {
			changing = x
		}
	}
	left -= same
	if left == 0 && v == c.final {
		return true
	}
	if changing != nil {
		if int(changing.id-workBase) < c.last[changing.q] {
			return false
		}
		was := c.last[changing.q]
		c.last[changing.q] = int(changing.id - workBase)
		if c.follow(changing.apply(v), left-1) {
			return true
		}
		c.last[changing.q] = was
		return false
	}
	for i, x := range c.unknown {
		if next := x.apply(v); !c.used[i] && next != v {
			c.used[i] = true
			if c.follow(next, left) {
				return true
			}
			c.used[i] = false
		}
	}
	return false
}
