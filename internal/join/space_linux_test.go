package join

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/dma"
	"rnic/internal/hostmem"
)

// A memory that is reached by the number of a process is not used when that process has ended, whoever has the number now: here it
// is this one's. One that is closed before that is let go of.
func TestMemoryEndsWithItsProcess(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Skip("sleep is missing: ", err)
	}
	var b, into [8]byte
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&b)
	read := func(s *space) error {
		_, err := s.memory.ReadV([]hostmem.Segment{{Addr: uint64(uintptr(unsafe.Pointer(&b))), Buf: into[:]}})
		return err
	}
	ends, stays := &space{memory: dma.NewProcess(os.Getpid())}, &space{memory: dma.NewProcess(os.Getpid())}
	for _, s := range []*space{ends, stays} {
		if err := s.watchEnd(child.Process.Pid); err != nil {
			t.Skip("no pidfd here: ", err)
		}
		if err := read(s); err != nil {
			t.Fatal(err)
		}
	}
	stays.close()
	_ = child.Process.Kill()
	_ = child.Wait()
	for begin := time.Now(); !errors.Is(read(ends), hostmem.ErrGone); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the memory is still used")
		}
	}
	ends.close()
	if err := read(stays); err != nil {
		t.Error(err)
	}
	gone := &space{memory: dma.NewProcess(os.Getpid())}
	if err := gone.watchEnd(child.Process.Pid); err != unix.ESRCH {
		t.Errorf("watching a process that is gone: %v", err)
	}
	gone.close()
}
