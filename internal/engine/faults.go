package engine

import "runtime/debug"

// faultsPanic makes a memory fault of this goroutine a panic that can be caught, and returns what
// undoes it. A program may truncate a file that the NIC has mapped.
func faultsPanic() func() {
	if debug.SetPanicOnFault(true) {
		return func() {}
	}
	return func() { debug.SetPanicOnFault(false) }
}
