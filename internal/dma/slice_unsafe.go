package dma

import (
	"sync/atomic"
	"unsafe"

	"rnic/internal/hostmem"
)

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// copyLastWordLast copies src to dst, which are of equal length, so that the last bytes land last:
// programs poll them, and neither memmove nor the processor's string moves promise an order. Where
// dst ends on a word boundary, and has a whole word, the last word is one store; else the last byte is
// stored alone.
func copyLastWordLast(dst, src []byte) {
	n := len(dst)
	if n == 0 {
		return
	}
	end := addressOf(dst) + uint64(n)
	if end&7 == 0 && n >= 8 {
		copy(dst[:n-8], src)
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&dst[n-8])), *(*uint64)(unsafe.Pointer(&src[n-8])))
		return
	}
	tail := int(end & 7)
	if tail == 0 {
		tail = 8
	}
	tail = min(n, tail)
	copy(dst[:n-tail], src)
	// The last byte shares a 32-bit word with bytes of ours or of the program: it is stored alone,
	// behind a barrier (an atomic operation on a word of our own).
	copy(dst[n-tail:n-1], src[n-tail:n-1])
	var barrier atomic.Uint32
	barrier.Store(1)
	dst[n-1] = src[n-1]
}

func atomicWord(m []byte, op hostmem.AtomicOp, operand, compare uint64) uint64 {
	p := (*uint64)(unsafe.Pointer(&m[0]))
	for {
		old := atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, op.Apply(old, operand, compare)) {
			return old
		}
	}
}
