package engine

import (
	"time"

	"rnic/internal/link"
)

// plainWaiter is what a unit's thread sleeps on where there is no epoll: commands of this process wake it, and a link that tells
// that something has come (link.Notifier).
type plainWaiter struct {
	event   chan struct{}
	network chan struct{}
	poll    time.Duration // how often a link that does not tell is looked at; 0: never
	timer   *time.Timer
}

// networkPoll is how often a network that cannot wake the thread is looked at.
const networkPoll = 200 * time.Microsecond

func newPlainWaiter(net link.Link) *plainWaiter {
	w := &plainWaiter{event: make(chan struct{}, 1), network: make(chan struct{}, 1), timer: time.NewTimer(0)}
	if net != nil && !link.Notify(net, func() { tell(w.network) }) {
		w.poll = networkPoll
	}
	return w
}

// wait sleeps until something happens, for at most timeout nanoseconds. It tells whether the network has something, or may have.
func (w *plainWaiter) wait(timeout int64) (network bool) {
	d := time.Duration(timeout)
	if w.poll != 0 {
		d = min(d, w.poll)
	}
	w.timer.Reset(d)
	select {
	case <-w.event:
	case <-w.network:
		return true
	case <-w.timer.C:
	}
	return w.poll != 0
}

// nap sleeps until wake, for at most timeout nanoseconds.
func (w *plainWaiter) nap(timeout int64) {
	w.timer.Reset(time.Duration(timeout))
	select {
	case <-w.event:
	case <-w.timer.C:
	}
}

// wake ends a wait or nap.
func (w *plainWaiter) wake() { tell(w.event) }

// tell is seen once, now or at the next look.
func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
