package shm

import "runtime/debug"

// Guard runs f, which touches shared memory, and turns a memory fault in it, which is the program's
// doing, into ErrGone.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverFault(&err)
	f()
	return nil
}

// recoverFault is deferred by a function that touches shared memory on a goroutine with
// debug.SetPanicOnFault(true).
func recoverFault(err *error) {
	if r := recover(); r != nil {
		if !isFault(r) {
			panic(r)
		}
		*err = ErrGone
	}
}

// isFault tells a memory fault from other panics.
func isFault(r any) bool {
	_, fault := r.(interface{ Addr() uintptr })
	return fault
}
