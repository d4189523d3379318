package uverbs

import "runtime"

// libibverbs counts in each of its objects the events that the program has acknowledged, and waits in destroying one until they are as many as
// the command answers (ibv_cmd_destroy_cq, ibv_destroy_cq(3)). A program that a signal has kept from acknowledging one, because a command that no
// kernel's driver lets be interrupted has failed with EINTR, would wait for ever: so where nobody is left who could acknowledge, it is told what it
// has acknowledged. The objects are part of the library's ABI (infiniband/verbs.h) and their addresses are the handles that it gives them.

// libraryObject is where in an object of the library its handle is, in bytes, and its counts, which stand behind a mutex and a condition variable.
type libraryObject struct{ handle, mutex uint64 }

var (
	libraryCQ  = libraryObject{handle: 24, mutex: 32} // struct ibv_cq: comp_events_completed, async_events_completed
	librarySRQ = libraryObject{handle: 24, mutex: 32} // struct ibv_srq: events_completed
	libraryQP  = libraryObject{handle: 48, mutex: 64} // struct ibv_qp: events_completed
)

// Sizes of pthread_mutex_t in bytes: 40, but for glibc on arm64; and of pthread_cond_t.
const (
	mutexSize      = 40
	mutexSizeArm64 = 48
	condSize       = 48
)

// counts is where an object's counts are, with a mutex of a size.
func (l libraryObject) counts(mutex uint64) uint64 { return l.mutex + mutex + condSize }

// mutexSizes are those that a C library may have here, that of glibc first.
func mutexSizes() []uint64 {
	if runtime.GOARCH == "arm64" {
		return []uint64{mutexSizeArm64, mutexSize}
	}
	return []uint64{mutexSize}
}

// reported is the answer of destroying an object: how many events of each kind the program has read, or acknowledged where it is stranded.
func (c *call) reported(l libraryObject, userHandle uint64, handle uint32, given ...uint32) []byte {
	answer := words(given...)
	if sum(given) == 0 || !c.sys.Stranded() {
		return answer
	}
	sizes := mutexSizes()
	var acknowledged []byte
	for i, size := range sizes {
		b := make([]byte, int(l.counts(size))+len(answer))
		if c.sys.ReadMem(userHandle, b) != nil || le.Uint32(b[l.handle:]) != handle {
			return answer
		}
		b = b[l.counts(size):]
		if string(b) == string(answer) { // nothing to wait for
			return answer
		}
		if i == 0 {
			acknowledged = b
		}
	}
	for i := range given {
		if n := le.Uint32(acknowledged[4*i:]); n > given[i] { // it is something else
			return answer
		}
	}
	c.drv.logf("process %d: destroys an object with events that it never acknowledged, as a signal ended a command of the run; it need not wait for them", c.sys.PID())
	return acknowledged
}

func sum(counts []uint32) (n uint64) {
	for _, c := range counts {
		n += uint64(c)
	}
	return n
}
