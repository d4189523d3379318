package engine

import (
	"testing"
	"time"

	"rnic/internal/link"
	linkfault "rnic/internal/link/fault"
	"rnic/internal/link/pipe"
)

// telling is a link that tells when something comes.
type telling struct {
	link.Link
	tell func()
}

func (l *telling) Notify(f func()) bool { l.tell = f; return true }

// A link wakes the thread, through a decorator too; also when it told before the thread went to sleep. A nap, while
// others drive the unit, it does not end, nor is it forgotten then.
func TestPlainWaiterHearsTheLink(t *testing.T) {
	const long = int64(time.Minute)
	l := &telling{Link: pipe.Loop(pipe.Config{})}
	w := newPlainWaiter(linkfault.New(l, linkfault.Config{}))
	if l.tell == nil {
		t.Fatal("the link was not asked to tell")
	}
	l.tell()
	l.tell() // is one
	w.nap(1)
	if !w.wait(long) {
		t.Error("woken, but not for the network")
	}
	if w.wait(1) {
		t.Error("what was heard once is heard again")
	}
	go l.tell()
	if !w.wait(long) {
		t.Error("woken, but not for the network")
	}
	w.wake()
	if w.wait(long) {
		t.Error("a command counts as something from the network")
	}
	w.wake()
	w.nap(long)
	// A link that does not tell is looked at often.
	if w = newPlainWaiter(pipe.Loop(pipe.Config{})); !w.wait(long) {
		t.Error("a link that cannot tell is not looked at")
	}
	// Without a network only commands count.
	w = newPlainWaiter(nil)
	w.wake()
	if w.wait(long) {
		t.Error("something from a network that there is not")
	}
}
