package dma

import (
	"bytes"
	"errors"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"rnic/internal/hostmem"
)

func bytesOf(w []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 8*len(w))
}

func TestSliceBounds(t *testing.T) {
	mem := make([]byte, 64)
	for i := range mem {
		mem[i] = byte(i)
	}
	s := NewSlice(mem[8:56])
	for _, k := range []struct {
		what   string
		addr   uint64
		length int
		ok     bool
	}{
		{"everything", s.Base(), 48, true},
		{"the last byte", s.Base() + 47, 1, true},
		{"nothing at the end", s.Base() + 48, 0, true},
		{"one byte too many", s.Base(), 49, false},
		{"behind the end", s.Base() + 48, 1, false},
		{"before the beginning", s.Base() - 1, 2, false},
		{"a sum that wraps", math.MaxUint64, 2, false},
		{"address 0", 0, 1, false},
	} {
		buf := make([]byte, k.length)
		good := hostmem.Segment{Addr: s.Base(), Buf: make([]byte, 4)}
		n, err := s.ReadV([]hostmem.Segment{good, {Addr: k.addr, Buf: buf}})
		if k.ok != (err == nil && n == 2) || !k.ok && (n != 1 || !errors.Is(err, hostmem.ErrFault)) {
			t.Errorf("%s: ReadV = %d, %v", k.what, n, err)
		}
		if k.ok && !bytes.Equal(buf, mem[k.addr-s.Base()+8:][:k.length]) {
			t.Errorf("%s: read %x", k.what, buf)
		}
		n, err = s.WriteV([]hostmem.Segment{good, {Addr: k.addr, Buf: buf}})
		if k.ok != (err == nil && n == 2) || !k.ok && (n != 1 || !errors.Is(err, hostmem.ErrFault)) {
			t.Errorf("%s: WriteV = %d, %v", k.what, n, err)
		}
		if err := s.Check(k.addr, uint64(k.length), true); k.ok != (err == nil) {
			t.Errorf("%s: Check: %v", k.what, err)
		}
	}
	for _, k := range []struct{ addr, length uint64 }{{s.Base(), math.MaxUint64}, {s.Base() + 8, -(s.Base() + 8)}, {s.Base(), 1 << 63}} {
		if err := s.Check(k.addr, k.length, false); !errors.Is(err, hostmem.ErrFault) {
			t.Errorf("Check(%#x, %#x): %v, want ErrFault", k.addr, k.length, err)
		}
	}
	if err := s.Check(0, 0, true); err != nil {
		t.Errorf("Check of no bytes: %v", err)
	}
}

func TestSliceAtomics(t *testing.T) {
	words := make([]uint64, 2)
	mem := bytesOf(words)
	s := NewSlice(mem)
	words[1] = 5
	if old, err := s.Atomic(s.Base()+8, hostmem.FetchAdd, 7, 0); old != 5 || err != nil || words[1] != 12 {
		t.Errorf("fetch and add: old %d, %v, now %d", old, err, words[1])
	}
	if old, err := s.Atomic(s.Base()+8, hostmem.CompareSwap, 1, 13); old != 12 || err != nil || words[1] != 12 {
		t.Errorf("compare and swap that does not match: old %d, %v, now %d", old, err, words[1])
	}
	if old, err := s.Atomic(s.Base()+8, hostmem.CompareSwap, 1, 12); old != 12 || err != nil || words[1] != 1 {
		t.Errorf("compare and swap that matches: old %d, %v, now %d", old, err, words[1])
	}
	for _, addr := range []uint64{s.Base() + 4, s.Base() + 16, s.Base() + 9, s.Base() - 8, math.MaxUint64 - 7} {
		if _, err := s.Atomic(addr, hostmem.FetchAdd, 1, 0); !errors.Is(err, hostmem.ErrFault) {
			t.Errorf("atomic at base%+d: %v, want ErrFault", int64(addr-s.Base()), err)
		}
	}
	if words[0] != 0 || words[1] != 1 {
		t.Errorf("refused atomics changed the memory: %d", words)
	}
}

// Atomics of peers and the program's own atomic instructions exclude each other.
func TestSliceAtomicsBesideTheProgram(t *testing.T) {
	words := make([]uint64, 1)
	s := NewSlice(bytesOf(words))
	const each = 20000
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		for range each {
			atomic.AddUint64(&words[0], 1)
		}
	}()
	go func() {
		defer wg.Done()
		for range each {
			_, _ = s.Atomic(s.Base(), hostmem.FetchAdd, 1, 0)
		}
	}()
	wg.Wait()
	if words[0] != 2*each {
		t.Errorf("counted to %d, not %d", words[0], 2*each)
	}
}

func TestCopyLastWordLastCopies(t *testing.T) {
	dst, src, want := make([]byte, 64), make([]byte, 64), make([]byte, 64)
	for i := range src {
		src[i] = byte(i + 100)
	}
	for n := range 41 {
		for d := range 9 {
			for s := range 9 {
				clear(dst)
				clear(want)
				copy(want[d:d+n], src[s:s+n])
				copyLastWordLast(dst[d:d+n], src[s:s+n])
				if !bytes.Equal(dst, want) {
					t.Fatalf("%d bytes from offset %d to offset %d: %x, want %x", n, s, d, dst, want)
				}
			}
		}
	}
}

func TestSliceDoesNotAllocate(t *testing.T) {
	s := NewSlice(make([]byte, 4096))
	segs := []hostmem.Segment{{Addr: s.Base(), Buf: make([]byte, 1024)}, {Addr: s.Base() + 100, Buf: make([]byte, 333)}}
	n := testing.AllocsPerRun(200, func() {
		_, _ = s.ReadV(segs)
		_, _ = s.WriteV(segs)
		_, _ = s.Atomic(s.Base(), hostmem.FetchAdd, 1, 0)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// faultsPanic is what the engine does for its goroutines.
func faultsPanic(t *testing.T) {
	old := debug.SetPanicOnFault(true)
	t.Cleanup(func() { debug.SetPanicOnFault(old) })
}

func TestOtherPanicsPass(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a panic that is no memory fault was swallowed")
		}
	}()
	var s *Slice
	_, _ = s.ReadV([]hostmem.Segment{{Buf: make([]byte, 1)}}) // nil dereference: a bug, not a program's fault
}
