package ring

import (
	"sync/atomic"
	"unsafe"
)

// The indices are shared with another process: they are read and written by atomic accesses,
// which on every architecture of Go order the element's bytes before the index. The slicing checks
// bounds without touching a byte, which would be a second, plain access.

func load32(b []byte) uint32 {
	b = b[:4]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[0])))
}

func store32(b []byte, v uint32) {
	b = b[:4]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[0])), v)
}

func aligned8(b []byte) bool {
	return len(b) == 0 || uintptr(unsafe.Pointer(&b[0]))&7 == 0
}
