//go:build linux && (amd64 || arm64)

package sandbox

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// replay stands in for SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV on Linux before 5.19. There any
// signal aborts a call that waits for us and, after the handler, the kernel issues it again with
// the same arguments (SA_RESTART), though a device has carried it out already. The second one gets
// the first one's result.
//
// Two gaps stay. A handler without SA_RESTART makes the program see EINTR and an object that it
// does not know of. And an answer that the kernel takes at the very moment when a signal ends the
// wait is lost although it was taken (seccomp_do_user_notification looks at the error of the wait
// before the state); answer holds it back when it can see the signal coming, which leaves some
// microseconds.
type replay struct {
	mu   sync.Mutex
	open map[uint32]*call  // by thread, handed to a device and not answered yet
	lost map[uint32]result // by thread, answered when nobody waited any more
}

type result struct {
	c *call
	r notifResp
}

func newReplay() *replay {
	return &replay{open: map[uint32]*call{}, lost: map[uint32]result{}}
}

// same reports that b is a issued again.
func same(a, b *call) bool {
	return a.n.nr == b.n.nr && a.n.args == b.n.args && a.head == b.head
}

// begin is told of every call before its device. It reports that the device must not see it: it
// is answered, or the first one's answer will go to it.
func (p *replay) begin(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.open[c.n.tid]; old != nil && same(old, c) {
		old.id.Store(c.n.id)
		return true
	}
	if old, ok := p.lost[c.n.tid]; ok {
		delete(p.lost, c.n.tid)
		if same(old.c, c) {
			r := old.r
			r.id = c.n.id
			if c.s.send(&r) == unix.ENOENT { // aborted again
				p.lost[c.n.tid] = old
			}
			return true
		}
	}
	p.open[c.n.tid] = c
	return false
}

func (p *replay) answer(c *call, r notifResp) {
	holdBack(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[c.n.tid] == c {
		delete(p.open, c.n.tid)
	}
	r.id = c.id.Load()
	if c.s.send(&r) == unix.ENOENT && r.flags == 0 && !c.void.Load() {
		if len(p.lost) >= 4096 { // of threads that died: forget them all
			clear(p.lost)
		}
		p.lost[c.n.tid] = result{c, r}
	}
}

// holdBack waits, when a signal is on its way to the caller, until the caller has noticed: then the
// answer is known to be lost.
func holdBack(c *call) {
	for i := 0; i < 1000 && signalPending(c.TID()) && c.s.l.valid(c.id.Load()); i++ {
		time.Sleep(10 * time.Microsecond)
	}
}
