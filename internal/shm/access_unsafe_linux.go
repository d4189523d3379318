package shm

import (
	"sync/atomic"
	"unsafe"
)

// load32 reads a word that another process may be writing. Precondition: b is aligned to 4 bytes.
func load32(b []byte) uint32 {
	_ = b[3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[0])))
}
