package pipewatch

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type told struct {
	item string
	gone bool
}

func watcher(t *testing.T) (*Watcher[string], chan told) {
	t.Helper()
	c := make(chan told, 100)
	var w *Watcher[string]
	w, err := New(func(id int32, item string, gone bool) {
		if gone {
			w.Remove(id)
		}
		c <- told{item, gone}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w, c
}

func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func next(t *testing.T, c chan told) told {
	t.Helper()
	select {
	case x := <-c:
		return x
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was told")
	}
	panic("not reached")
}

// The end of the last reader is told, that of another one is not; a pipe that was removed is not told of.
func TestGone(t *testing.T) {
	w, c := watcher(t)
	r1, w1 := pipe(t)
	r2, w2 := pipe(t)
	again, err := unix.Dup(r1)
	if err != nil {
		t.Fatal(err)
	}
	var id int32
	if err := w.Add(w1, "one", false, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(w2, "two", false, func(i int32) { id = i }); err != nil {
		t.Fatal(err)
	}
	if item, ok := w.Remove(id); !ok || item != "two" {
		t.Errorf("removed %q, %v", item, ok)
	}
	if _, ok := w.Remove(id); ok {
		t.Error("removed twice")
	}
	unix.Close(r2)
	unix.Close(r1)
	time.Sleep(20 * time.Millisecond)
	if len(c) > 0 {
		t.Errorf("told too early, or of what was removed: %v", <-c)
	}
	unix.Close(again)
	if x := next(t, c); x != (told{"one", true}) {
		t.Errorf("told %v", x)
	}
	if left := w.Items(); len(left) != 0 {
		t.Errorf("still watched: %v", left)
	}
}

// Room that a reader makes in a full pipe is told to those who asked.
func TestRoom(t *testing.T) {
	w, c := watcher(t)
	r, fd := pipe(t)
	defer unix.Close(r)
	for {
		if _, err := unix.Write(fd, make([]byte, 4096)); err != nil {
			break
		}
	}
	if err := w.Add(fd, "full", true, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if len(c) > 0 {
		t.Errorf("room in a full pipe: %v", <-c)
	}
	b := make([]byte, 1<<16)
	if _, err := unix.Read(r, b); err != nil {
		t.Fatal(err)
	}
	if x := next(t, c); x != (told{"full", false}) {
		t.Errorf("told %v", x)
	}
}
