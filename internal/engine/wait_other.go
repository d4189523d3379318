//go:build !linux

package engine

import (
	"runtime"
	"time"

	"rnic/internal/link"
)

// waiter is what the unit's thread sleeps on where there is no epoll: commands and doorbells of this
// process wake it, and the network is looked at every poll.
type waiter struct {
	event chan struct{}
	poll  time.Duration
	deaf  bool // never: there is nothing to watch
}

// networkPoll is how often a network that cannot wake the thread is looked at.
const networkPoll = 200 * time.Microsecond

func newWaiter(net link.Link) (*waiter, error) {
	w := &waiter{event: make(chan struct{}, 1)}
	if net != nil {
		w.poll = networkPoll
	}
	return w, nil
}

func (w *waiter) close() {}

// Doorbell logs are Linux's: nothing is watched.
func (w *waiter) watch(Doorbells)   {}
func (w *waiter) unwatch(Doorbells) {}
func (w *waiter) arm([]*source)     {}

// wait sleeps until wake, for at most timeout nanoseconds; the network may have something then.
func (w *waiter) wait(timeout int64) (network bool) {
	if d := time.Duration(timeout); w.poll == 0 || d < w.poll {
		w.nap(timeout)
	} else {
		w.nap(int64(w.poll))
	}
	return w.poll != 0
}

// nap sleeps until wake, for at most timeout nanoseconds.
func (w *waiter) nap(timeout int64) {
	t := time.NewTimer(time.Duration(timeout))
	defer t.Stop()
	select {
	case <-w.event:
	case <-t.C:
	}
}

func (w *waiter) wake() {
	select {
	case w.event <- struct{}{}:
	default:
	}
}

func yieldThread() { runtime.Gosched() }

func setUpThread() {}

// coreWatch does not know the machine's load here: no core counts as free.
type coreWatch struct{}

func (*coreWatch) free(int64) bool { return false }
