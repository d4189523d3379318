//go:build !linux || plain

package engine

import (
	"runtime"

	"rnic/internal/link"
)

// waiter is a plainWaiter; also on Linux with the build tag plain, to try there what other systems do.
type waiter struct {
	*plainWaiter
	deaf bool // never: there is nothing to watch
}

func newWaiter(net link.Link) (*waiter, error) { return &waiter{plainWaiter: newPlainWaiter(net)}, nil }

func (w *waiter) close() {}

// Doorbell logs are Linux's: nothing is watched.
func (w *waiter) watch(Doorbells)   {}
func (w *waiter) unwatch(Doorbells) {}
func (w *waiter) arm([]*source)     {}

func yieldThread() { runtime.Gosched() }

func setUpThread() {}

// coreWatch does not know the machine's load here: no core counts as free.
type coreWatch struct{}

func (*coreWatch) free(int64) bool { return false }
