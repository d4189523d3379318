package uverbs

import (
	"bytes"
	"fmt"
	"os"
	"sync/atomic"

	"rnic/internal/dma"
	"rnic/internal/hostmem"
)

// processSpace is the memory of a process until that has exited. Then its number may be another's: nothing is reached any
// more, and queue pairs that would need it fall silent, as those of a host that is gone, until their context is closed.
type processSpace struct {
	*dma.Process
	ended atomic.Bool
}

func newProcessSpace(pid int) *processSpace { return &processSpace{Process: dma.NewProcess(pid)} }

// ReadV implements hostmem.Space.
func (s *processSpace) ReadV(segs []hostmem.Segment) (int, error) {
	if s.ended.Load() {
		return 0, hostmem.ErrGone
	}
	return s.Process.ReadV(segs)
}

// WriteV implements hostmem.Space.
func (s *processSpace) WriteV(segs []hostmem.Segment) (int, error) {
	if s.ended.Load() {
		return 0, hostmem.ErrGone
	}
	return s.Process.WriteV(segs)
}

// Atomic implements hostmem.Space.
func (s *processSpace) Atomic(addr uint64, op hostmem.AtomicOp, operand, compare uint64) (uint64, error) {
	if s.ended.Load() {
		return 0, hostmem.ErrGone
	}
	return s.Process.Atomic(addr, op, operand, compare)
}

// exited tells whether a process is no more, but for its number: it is a zombie, or has been waited for.
func exited(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// "pid (name) state ...": a name may hold anything.
	i := bytes.LastIndexByte(b, ')')
	return i < 0 || len(b) < i+3 || b[i+2] == 'Z' || b[i+2] == 'X'
}
