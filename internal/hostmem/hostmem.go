// Package hostmem says what the NIC needs of a program's memory: an address space that is read
// and written in batches of segments, and an 8-byte atomic. It is pure: the implementations
// (own process, another process, shared mappings) are in package dma, the simulator has its own.
package hostmem

import "errors"

// ErrFault is the answer of a Space to an access that the program's own memory does not allow:
// the page is not mapped, or is read-only. It never means a fault of the NIC.
var ErrFault = errors.New("hostmem: address not accessible in the program's memory")

// ErrGone is the answer of a Space whose program has ended.
var ErrGone = errors.New("hostmem: the program is gone")

// A Segment is one contiguous piece of a transfer: len(Buf) bytes at address Addr of Space. Buf is
// the NIC's side. Lane is the queue pair that the piece belongs to, Tag the packet (or whatever the
// caller counts); no Space looks at them.
type Segment struct {
	Space Space
	Addr  uint64
	Buf   []byte
	Lane  uint32
	Tag   uint32
}

// A Space is the memory of one program. Calls are made by one goroutine at a time per NIC, but
// several NICs may use one Space at once.
type Space interface {
	// ReadV fills Buf of every segment from the program's memory, in order. All segments belong to
	// this Space. It returns how many segments were filled completely; when n < len(segs), segs[n]
	// failed, for the reason in err, and nothing was read for those behind it.
	ReadV(segs []Segment) (n int, err error)

	// WriteV stores Buf of every segment into the program's memory, in order, with the same
	// results as ReadV. Within a segment the last aligned word lands last, by one store: programs
	// poll the last bytes of an RDMA WRITE.
	WriteV(segs []Segment) (n int, err error)

	// Atomic replaces the 64-bit word, in the host's byte order, at the 8-byte aligned addr by op
	// applied to it, and returns the word found there.
	Atomic(addr uint64, op AtomicOp, operand, compare uint64) (old uint64, err error)

	// Check tells whether [addr, addr+length) can be read, and written where write is set. A
	// length of 0 is always fine. It is used at registration only.
	Check(addr, length uint64, write bool) error
}

// AtomicOp names the two atomics of InfiniBand (vol. 1, 9.4.5), and the store of its ATOMIC WRITE (annex A19).
type AtomicOp uint8

const (
	FetchAdd    AtomicOp = iota // old + operand
	CompareSwap                 // operand if old == compare, else old
	Store                       // operand
)

// Apply returns what the word becomes.
func (op AtomicOp) Apply(old, operand, compare uint64) uint64 {
	switch {
	case op == FetchAdd:
		return old + operand
	case op == Store || old == compare:
		return operand
	}
	return old
}

// Bytes is a Space over a byte slice that begins at address Base: for tests and the simulator.
// Holes lists address ranges that fault.
type Bytes struct {
	Base  uint64
	Mem   []byte
	Holes []Range
}

// A Range is [Addr, Addr+Len).
type Range struct{ Addr, Len uint64 }

func (b *Bytes) span(addr, length uint64) ([]byte, error) {
	off := addr - b.Base
	if addr < b.Base || off > uint64(len(b.Mem)) || length > uint64(len(b.Mem))-off {
		return nil, ErrFault
	}
	for _, h := range b.Holes {
		// Both lengths are below len(Mem) or given by the test: no sum here can wrap.
		if length > 0 && addr < h.Addr+h.Len && h.Addr < addr+length {
			return nil, ErrFault
		}
	}
	return b.Mem[off : off+length], nil
}

func (b *Bytes) ReadV(segs []Segment) (int, error) {
	for i := range segs {
		m, err := b.span(segs[i].Addr, uint64(len(segs[i].Buf)))
		if err != nil {
			return i, err
		}
		copy(segs[i].Buf, m)
	}
	return len(segs), nil
}

func (b *Bytes) WriteV(segs []Segment) (int, error) {
	for i := range segs {
		m, err := b.span(segs[i].Addr, uint64(len(segs[i].Buf)))
		if err != nil {
			return i, err
		}
		copy(m, segs[i].Buf)
	}
	return len(segs), nil
}

func (b *Bytes) Atomic(addr uint64, op AtomicOp, operand, compare uint64) (uint64, error) {
	m, err := b.span(addr, 8)
	if err != nil {
		return 0, err
	}
	old := le64(m)
	put64(m, op.Apply(old, operand, compare))
	return old, nil
}

func (b *Bytes) Check(addr, length uint64, write bool) error {
	if length == 0 {
		return nil
	}
	_, err := b.span(addr, length)
	return err
}

func le64(b []byte) uint64 {
	_ = b[7]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

func put64(b []byte, v uint64) {
	_ = b[7]
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}
