package sim

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"

	"rnic/internal/hostmem"
	"rnic/internal/nic"
)

// arenaBytes is the memory of one host's program. Every message has ranges of its own in it, so
// that what each byte must be is known at any time.
const (
	arenaBytes  = regionCount * regionBytes
	regionCount = 5
	regionBytes = 448 << 10
	pageBytes   = 4096
)

// arena is the memory of one host's program, and what the model wants it to be.
type arena struct {
	space   hostmem.Bytes
	want    []byte
	regions []*region
}

// region is a memory region and the part of the arena that it covers.
type region struct {
	a      *arena
	mr     *nic.MR
	off    int // in the arena
	size   int
	next   int // first byte not handed out yet, in the arena
	iova   uint64
	access nic.Access
	win    *window // what a window is bound to: no region of the NIC's, but a part of one
	key    uint32  // and its key
}

// seg is a piece of the arena, in a region.
type seg struct {
	r      *region
	off, n int
}

func (s seg) addr() uint64 { return s.r.iova + uint64(s.off-s.r.off) }

type buffers struct{ mem, want []byte }

var arenaPool = sync.Pool{New: func() any {
	return &buffers{make([]byte, arenaBytes), make([]byte, arenaBytes)}
}}

// noise is random bytes, the same in every run: filling memory anew would take longer than the run.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, arenaBytes)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b
})

// newArena returns memory full of noise that begins somewhere.
func (w *world) newArena() *arena {
	b := arenaPool.Get().(*buffers)
	at := w.rng.IntN(arenaBytes)
	n := copy(b.mem, noise()[at:])
	copy(b.mem[n:], noise())
	copy(b.want, b.mem)
	base := (1<<32 + w.rng.Uint64N(1<<46)) &^ (pageBytes - 1)
	return &arena{space: hostmem.Bytes{Base: base, Mem: b.mem}, want: b.want}
}

// release gives the memory back for another run.
func (w *world) release() {
	for _, h := range w.hosts {
		arenaPool.Put(&buffers{h.mem.space.Mem, h.mem.want})
		h.mem.space.Mem, h.mem.want = nil, nil
	}
}

func (a *arena) addRegion(access nic.Access) *region {
	r := &region{a: a, off: len(a.regions) * regionBytes, size: regionBytes, access: access}
	r.next = r.off
	a.regions = append(a.regions, r)
	return r
}

// va is the address in the program of an offset in the arena.
func (a *arena) va(off int) uint64 { return a.space.Base + uint64(off) }

// take hands out n bytes of r, aligned, with a gap before them that nobody may touch.
func (w *world) take(r *region, n, align int) (seg, bool) {
	off := r.next + w.rng.IntN(24)
	off = (off + align - 1) / align * align
	if off+n > r.off+r.size {
		return seg{}, false
	}
	r.next = off + n
	return seg{r, off, n}, true
}

// takeList hands out n bytes of regions in pieces, at most most of them.
func (w *world) takeList(regions []*region, n, most int) ([]seg, bool) {
	pieces := 1
	if most > 1 && w.chance(50) {
		pieces = w.between(1, most)
	}
	if n == 0 && w.chance(50) {
		return nil, true
	}
	list := make([]seg, 0, pieces)
	for i := range pieces {
		part := n
		if i < pieces-1 {
			part = w.rng.IntN(n/(pieces-i)*2 + 1)
			part = min(part, n)
		}
		s, ok := w.take(regions[w.rng.IntN(len(regions))], part, 1)
		if !ok {
			return nil, false
		}
		n -= part
		list = append(list, s)
	}
	return list, true
}

// collect returns the bytes of segs in mem, one after the other.
func collect(mem []byte, segs []seg) []byte {
	var out []byte
	for _, s := range segs {
		out = append(out, mem[s.off:s.off+s.n]...)
	}
	return out
}

// holds tells whether the first len(data) bytes of segs are data, and the rest is what the model
// wants; if not, where it differs first.
func (a *arena) holds(segs []seg, data []byte) (at int, ok bool) {
	at = 0
	for _, s := range segs {
		n := min(s.n, len(data))
		if mem := a.space.Mem[s.off : s.off+n]; !bytes.Equal(mem, data[:n]) {
			return at + firstDifference(mem, data[:n]), false
		}
		mem, want := a.space.Mem[s.off+n:s.off+s.n], a.want[s.off+n:s.off+s.n]
		if !bytes.Equal(mem, want) {
			return at + n + firstDifference(mem, want), false
		}
		at += s.n
		data = data[n:]
	}
	return 0, true
}

// accept makes what stands in segs now what the model wants.
func (a *arena) accept(segs []seg) {
	for _, s := range segs {
		copy(a.want[s.off:s.off+s.n], a.space.Mem[s.off:s.off+s.n])
	}
}

// mixes tells whether every byte of segs is the one from before or that of data: the state of a
// transfer that was cut short.
func (a *arena) mixes(segs []seg, data []byte) bool {
	for _, s := range segs {
		for i := range s.n {
			b := a.space.Mem[s.off+i]
			if b != a.want[s.off+i] && (i >= len(data) || b != data[i]) {
				return false
			}
		}
		data = data[min(s.n, len(data)):]
	}
	return true
}

// firstDifference is where a and b, of equal length, differ first; their length if they do not.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return len(a)
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
