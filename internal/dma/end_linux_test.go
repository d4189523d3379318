package dma

import (
	"errors"
	"os"
	"testing"

	"rnic/internal/hostmem"
)

func TestEnd(t *testing.T) {
	c := startChild(t)
	segs := []hostmem.Segment{c.segment(0, 8)}
	if n, err := c.ReadV(segs); n != 1 || err != nil {
		t.Fatalf("ReadV = %d, %v", n, err)
	}
	c.End() // although it lives: its number could be another's
	_, read := c.ReadV(segs)
	_, write := c.WriteV(segs)
	_, atomic := c.Atomic(c.base, hostmem.FetchAdd, 1, 0)
	for _, err := range []error{read, write, atomic} {
		if !errors.Is(err, hostmem.ErrGone) {
			t.Errorf("%v, want ErrGone", err)
		}
	}
}

func TestExited(t *testing.T) {
	c := startChild(t)
	if Exited(os.Getpid()) || Exited(c.PID()) {
		t.Error("a process that lives has exited")
	}
	c.end()
	if !Exited(c.PID()) {
		t.Error("a process that was killed has not exited")
	}
}
