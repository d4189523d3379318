package ring

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// truncatedQueue is a queue in a file that the program has cut to nothing under the mapping.
func truncatedQueue(t *testing.T, g Geometry) *Queue {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "queue"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(int64(g.Size())); err != nil {
		t.Fatal(err)
	}
	buf, err := unix.Mmap(int(f.Fd()), 0, g.Size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(buf) })
	q, err := Format(buf, g)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	return q
}

// A program that truncates the file of its queues gets errors for its own queues; the NIC goes on.
func TestTruncatedQueue(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	q := truncatedQueue(t, Geometry{Slots: 8, ElemLog2: 10})
	if q.Pending() != 0 || q.PendingFrom(3) != 0 || q.Free() != 0 {
		t.Errorf("%d pending, %d from 3, %d free, want none", q.Pending(), q.PendingFrom(3), q.Free())
	}
	_, send := q.LoadSend(1, new(SendWQE), false)
	_, recv := q.LoadRecv(1, new(RecvWQE))
	for name, err := range map[string]error{"load send": send, "load receive": recv, "consume": q.Consume(), "consume all": q.ConsumeAll(),
		"publish": q.Publish(), "store completion": q.StoreCQE(1, &CQE{})} {
		if !errors.Is(err, ErrFault) {
			t.Errorf("%s: got %v, want ErrFault", name, err)
		}
	}
}

// Another panic is not taken for a fault.
func TestOtherPanicsPass(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a panic of the program was swallowed")
		}
	}()
	q := queueOf(t, 1, 720)
	_, _ = q.LoadSend(0, nil, false)
}
