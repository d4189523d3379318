// Package dma is hostmem for real: the memory of the NIC's own process (Slice), and of another
// process (Process, Linux).
package dma

import (
	"rnic/internal/hostmem"
)

// Slice is a Space over memory of the NIC's own process: one byte slice, which the caller keeps
// pinned and mapped for as long as a region uses it. An access to a part that was unmapped
// meanwhile is ErrFault, provided that the calling goroutine has called debug.SetPanicOnFault(true).
type Slice struct {
	base uint64
	mem  []byte
}

// NewSlice returns the Space of b. Addresses are those of the process.
func NewSlice(b []byte) *Slice { return &Slice{base: addressOf(b), mem: b} }

// Base is the address of the first byte.
func (s *Slice) Base() uint64 { return s.base }

func (s *Slice) span(addr uint64, n int) ([]byte, bool) {
	off := addr - s.base
	if addr < s.base || off > uint64(len(s.mem)) || uint64(n) > uint64(len(s.mem))-off {
		return nil, false
	}
	return s.mem[off : off+uint64(n)], true
}

// ReadV implements hostmem.Space.
func (s *Slice) ReadV(segs []hostmem.Segment) (n int, err error) {
	defer catchFault(&err)
	for i := range segs {
		m, ok := s.span(segs[i].Addr, len(segs[i].Buf))
		if !ok {
			return n, hostmem.ErrFault
		}
		copy(segs[i].Buf, m)
		n++
	}
	return n, nil
}

// WriteV implements hostmem.Space.
func (s *Slice) WriteV(segs []hostmem.Segment) (n int, err error) {
	defer catchFault(&err)
	for i := range segs {
		m, ok := s.span(segs[i].Addr, len(segs[i].Buf))
		if !ok {
			return n, hostmem.ErrFault
		}
		copyLastWordLast(m, segs[i].Buf)
		n++
	}
	return n, nil
}

// Atomic implements hostmem.Space. It is atomic towards the program's own atomic instructions too.
func (s *Slice) Atomic(addr uint64, op hostmem.AtomicOp, operand, compare uint64) (old uint64, err error) {
	defer catchFault(&err)
	m, ok := s.span(addr, 8)
	if !ok || addr&7 != 0 {
		return 0, hostmem.ErrFault
	}
	return atomicWord(m, op, operand, compare), nil
}

// Check implements hostmem.Space.
func (s *Slice) Check(addr, length uint64, write bool) error {
	if length == 0 {
		return nil
	}
	if length > uint64(len(s.mem)) {
		return hostmem.ErrFault
	}
	if _, ok := s.span(addr, int(length)); !ok {
		return hostmem.ErrFault
	}
	return nil
}

// catchFault turns a memory fault into ErrFault and lets every other panic pass.
func catchFault(err *error) {
	if r := recover(); r != nil {
		if _, ok := r.(interface{ Addr() uintptr }); !ok {
			panic(r)
		}
		*err = hostmem.ErrFault
	}
}
