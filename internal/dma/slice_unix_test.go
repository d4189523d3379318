//go:build unix

package dma

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/hostmem"
)

func mmap(t *testing.T, pages int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, pages*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// The program took a page of a region away, or its write permission.
func TestSliceUnmappedPage(t *testing.T) {
	faultsPanic(t)
	page := os.Getpagesize()
	for _, prot := range []int{unix.PROT_NONE, unix.PROT_READ} {
		mem := mmap(t, 3)
		if err := unix.Mprotect(mem[page:2*page], prot); err != nil {
			t.Fatal(err)
		}
		s := NewSlice(mem)
		segs := []hostmem.Segment{
			{Addr: s.Base(), Buf: []byte("before")},
			{Addr: s.Base() + uint64(page) - 3, Buf: []byte("across")},
			{Addr: s.Base() + uint64(2*page), Buf: []byte("behind")},
		}
		if n, err := s.WriteV(segs); n != 1 || !errors.Is(err, hostmem.ErrFault) {
			t.Errorf("WriteV = %d, %v; want 1, ErrFault", n, err)
		}
		if string(mem[:6]) != "before" || mem[2*page] != 0 {
			t.Errorf("before the fault: %q, behind it: %q", mem[:6], mem[2*page:2*page+6])
		}
		if raceEnabled && prot == unix.PROT_READ {
			t.Log("atomic on a read-only page: not under the race detector, whose own code would fault")
		} else if _, err := s.Atomic(s.Base()+uint64(page), hostmem.FetchAdd, 1, 0); !errors.Is(err, hostmem.ErrFault) {
			t.Errorf("Atomic: %v, want ErrFault", err)
		}
		n, err := s.ReadV(segs)
		if prot == unix.PROT_NONE && (n != 1 || !errors.Is(err, hostmem.ErrFault)) || prot == unix.PROT_READ && (n != 3 || err != nil) {
			t.Errorf("ReadV = %d, %v", n, err)
		}
	}
}

// Programs poll the last byte of an RDMA WRITE. The memory is not the Go heap's: the race
// detector does not look at it, as it could not understand what is meant.
func TestSliceLastByteLandsLast(t *testing.T) {
	mem := mmap(t, 4)
	s := NewSlice(mem)
	const rounds = 3000
	var seen atomic.Int64
	verdict := make(chan string, 1)
	message := func(r int) []byte { return mem[64+r%8 : 64+r%8+sliceRound(r)] }
	go func() {
		for r := 1; r <= rounds; r++ {
			msg := message(r)
			for i := range msg {
				msg[i] = ^byte(r)
			}
			seen.Store(int64(r))
			for loadByte(&msg[len(msg)-1]) != byte(r) {
				runtime.Gosched()
			}
			for i := range msg {
				if msg[i] != byte(r) {
					verdict <- fmt.Sprintf("round %d: the last of %d bytes is there, byte %d is not", r, len(msg), i)
					return
				}
			}
		}
		verdict <- ""
	}()
	buf := make([]byte, len(mem))
	for r := 1; r <= rounds; r++ {
		for seen.Load() != int64(r) {
			select {
			case v := <-verdict:
				t.Fatal(v)
			default:
				runtime.Gosched()
			}
		}
		msg := buf[:sliceRound(r)]
		for i := range msg {
			msg[i] = byte(r)
		}
		if _, err := s.WriteV([]hostmem.Segment{{Addr: s.Base() + 64 + uint64(r%8), Buf: msg}}); err != nil {
			t.Fatal(err)
		}
	}
	if v := <-verdict; v != "" {
		t.Fatal(v)
	}
}

func sliceRound(r int) int { return 1 + (r*131)%9000 }

// loadByte loads a byte by an atomic load of its word.
func loadByte(p *byte) byte {
	off := uintptr(unsafe.Pointer(p)) & 7
	w := atomic.LoadUint64((*uint64)(unsafe.Add(unsafe.Pointer(p), -int(off))))
	return (*[8]byte)(unsafe.Pointer(&w))[off]
}
