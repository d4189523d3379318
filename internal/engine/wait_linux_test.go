//go:build !plain

package engine

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Where descriptors run out, whichever of them is the last, that is an error, and what was opened before is closed again.
func TestWaiterWithoutDescriptors(t *testing.T) {
	var usual unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
		t.Fatal(err)
	}
	lowestFree(t) // the Go runtime opens descriptors of its own with the first file
	first := lowestFree(t)
	for few, done := 0, false; !done; few++ {
		limit := unix.Rlimit{Cur: uint64(first + few), Max: usual.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		w, err := newWaiter(nil)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
			t.Fatal(err)
		}
		if done = err == nil; done {
			w.close()
		}
		if done && few < 4 || !done && (few > 100 || !errors.Is(err, unix.EMFILE)) {
			t.Fatalf("%d descriptors: %v", few, err)
		}
		if now := lowestFree(t); now != first {
			t.Errorf("%d descriptors: the next is %d, and was %d", few, now, first)
		}
	}
}

// lowestFree is the number of the next descriptor that is opened.
func lowestFree(t *testing.T) int {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return int(f.Fd())
}
