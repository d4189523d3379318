package dma

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"rnic/internal/hostmem"
)

// leave ends the child's first thread, and waits until the others are alone.
func (c *child) leave() {
	c.t.Helper()
	c.do("leave", 0, 0)
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if state, _ := taskState(fmt.Sprintf("/proc/%d", c.PID())); state == 'Z' {
			return
		}
		if time.Since(begin) > time.Minute {
			c.t.Fatal("the child's first thread does not end")
		}
	}
}

// A program may go on without its first thread: its regions, those that it registers then too, are as reachable as before.
func TestFirstThreadEnds(t *testing.T) {
	for name, before := range map[string]bool{"used before": true, "not used before": false} {
		t.Run(name, func(t *testing.T) {
			c := startChild(t)
			segs := []hostmem.Segment{c.segment(0, 8), c.segment(3*pageSize-5, 4000), c.segment(9*pageSize, 3)}
			if before {
				if n, err := c.ReadV(segs); n != len(segs) || err != nil {
					t.Fatalf("ReadV = %d, %v", n, err)
				}
			}
			c.leave()
			if Exited(c.PID()) {
				t.Error("a process of which one thread has ended has exited")
			}
			if err := c.Check(c.base, childPages*pageSize, true); err != nil {
				t.Errorf("Check: %v", err)
			}
			if err := c.Touch(c.base); err != nil {
				t.Errorf("Touch: %v", err)
			}
			if n, err := c.ReadV(segs); n != len(segs) || err != nil {
				t.Fatalf("ReadV = %d, %v", n, err)
			}
			for i := range segs[1].Buf {
				if want := childByte(3*pageSize - 5 + uint64(i)); segs[1].Buf[i] != want {
					t.Fatalf("byte %d is %#x, want %#x", i, segs[1].Buf[i], want)
				}
			}
			copy(segs[0].Buf, "thread 2")
			if n, err := c.WriteV(segs[:1]); n != 1 || err != nil {
				t.Fatalf("WriteV = %d, %v", n, err)
			}
			if got := c.dump(c.base, 8); !bytes.Equal(got, []byte("thread 2")) {
				t.Errorf("the child has %q", got)
			}
			if _, err := c.Atomic(c.base+64, hostmem.FetchAdd, 1, 0); err != nil {
				t.Errorf("Atomic: %v", err)
			}
			// A hole is that segment's fault, and a process that has gone is gone.
			c.do("unmap", c.base+5*pageSize, pageSize)
			segs = []hostmem.Segment{c.segment(0, 8), c.segment(5*pageSize, 8), c.segment(64, 8)}
			if n, err := c.ReadV(segs); n != 1 || !errors.Is(err, hostmem.ErrFault) {
				t.Errorf("across a hole: ReadV = %d, %v; want 1, ErrFault", n, err)
			}
			files, err := OpenFiles(c.PID())
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			p := NewProcessFiles(c.PID(), files)
			if n, err := p.ReadV(segs[:1]); n != 1 || err != nil {
				t.Errorf("by files: ReadV = %d, %v", n, err)
			}
			if err := p.Check(c.base, pageSize, true); err != nil {
				t.Errorf("by files: Check: %v", err)
			}
			c.end()
			if !Exited(c.PID()) {
				t.Error("a process that was killed has not exited")
			}
			for _, p := range []*Process{c.Process, p, NewProcess(c.PID())} {
				if _, err := p.ReadV(segs[:1]); !errors.Is(err, hostmem.ErrGone) {
					t.Errorf("after its end: %v, want ErrGone", err)
				}
			}
		})
	}
}
