package dma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"rnic/internal/hostmem"
)

// randomSegments are many segments of the child's first pages: neighbours, gaps and empty ones.
func randomSegments(c *child, r *rand.Rand, n int) []hostmem.Segment {
	segs := make([]hostmem.Segment, 0, n)
	off := uint64(0)
	for len(segs) < n {
		length := uint64(r.IntN(40))
		if r.IntN(8) == 0 {
			length = 0
		}
		segs = append(segs, c.segment(off, length))
		off += length
		if r.IntN(2) == 0 {
			off += uint64(r.IntN(20))
		}
	}
	return segs
}

func TestReadsManySegments(t *testing.T) {
	c := startChild(t)
	for _, limit := range []int{1, 7, 511} {
		p := reach(t, c.PID(), limit)
		segs := randomSegments(c, rand.New(rand.NewPCG(1, uint64(limit))), 1500)
		if n, err := p.ReadV(segs); n != len(segs) || err != nil {
			t.Fatalf("limit %d: read %d of %d: %v", limit, n, len(segs), err)
		}
		for i, s := range segs {
			for k, b := range s.Buf {
				if want := childByte(s.Addr - c.base + uint64(k)); b != want {
					t.Fatalf("limit %d: segment %d byte %d is %#x, not %#x", limit, i, k, b, want)
				}
			}
		}
	}
}

func TestWritesManySegments(t *testing.T) {
	c := startChild(t)
	want := c.dump(c.base, childPages*pageSize)
	r := rand.New(rand.NewPCG(2, 2))
	for _, limit := range []int{1, 7, 511} {
		p := reach(t, c.PID(), limit)
		segs := randomSegments(c, r, 1500)
		for _, s := range segs {
			for i := range s.Buf {
				s.Buf[i] = byte(r.Uint32())
			}
			copy(want[s.Addr-c.base:], s.Buf)
		}
		if n, err := p.WriteV(segs); n != len(segs) || err != nil {
			t.Fatalf("limit %d: wrote %d of %d: %v", limit, n, len(segs), err)
		}
		if !bytes.Equal(c.dump(c.base, uint64(len(want))), want) {
			t.Fatalf("limit %d: the program's memory does not hold what was written, or a neighbour was touched", limit)
		}
	}
}

// Neighbours are one piece for the kernel: otherwise a page is pinned once for each of its packets.
func TestNeighboursAreOneRemoteVector(t *testing.T) {
	var v vectors
	segs := make([]hostmem.Segment, 16)
	for i := range segs {
		segs[i] = hostmem.Segment{Addr: 0x10000 + uint64(i)*4096, Buf: make([]byte, 4096)}
	}
	if n := v.fill(segs, false); n != 16*4096 || len(v.remote) != 1 || len(v.local) != 16 {
		t.Errorf("reading: %d bytes, %d remote vectors, %d local ones; want 65536, 1, 16", n, len(v.remote), len(v.local))
	}
	if v.fill(segs, true); len(v.remote) != 2 || v.remote[1].Len != 8 {
		t.Errorf("writing: remote vectors %v; want the run, and its last word", v.remote)
	}
	segs[8].Addr += 4096 * 100
	if v.fill(segs, false); len(v.remote) != 3 {
		t.Errorf("with one segment elsewhere: %d remote vectors, want 3", len(v.remote))
	}
}

// A fault in the middle names exactly its segment; what is before is done, what is behind is not.
func TestFaultNamesItsSegment(t *testing.T) {
	prots := []string{"unmap", "none", "readonly"}
	if throughFiles { // which do not obey protections: Check does
		prots = prots[:1]
	}
	for _, prot := range prots {
		t.Run(prot, func(t *testing.T) {
			c := startChild(t)
			const hole = 5
			c.do(prot, c.base+hole*pageSize, pageSize)
			for _, size := range []uint64{64, 1024, pageSize, 3 * pageSize / 2} {
				for _, limit := range []int{1, 3, 511} {
					testFault(t, c, prot, reach(t, c.PID(), limit), size, hole)
				}
			}
		})
	}
}

// testFault writes and reads the segments of size bytes that begin in the pages before the hole and
// in it, last of all one behind it.
func testFault(t *testing.T, c *child, prot string, p *Process, size, hole uint64) {
	t.Helper()
	var segs []hostmem.Segment
	fails := -1
	for off := uint64(0); off < (hole+1)*pageSize; off += size {
		if fails < 0 && off+size > hole*pageSize {
			fails = len(segs)
		}
		segs = append(segs, c.segment(off, size))
	}
	segs = append(segs, c.segment((hole+3)*pageSize, 8))
	behind := segs[len(segs)-1]

	if prot != "readonly" {
		n, err := p.ReadV(segs)
		if n != fails || !errors.Is(err, hostmem.ErrFault) {
			t.Fatalf("size %d, limit %d: ReadV = %d, %v; segment %d is the one that faults", size, p.limit, n, err, fails)
		}
		for i, s := range segs[:n] {
			if s.Buf[size-1] != c.at(s.Addr-c.base+size-1) {
				t.Fatalf("size %d, limit %d: segment %d before the fault was not read", size, p.limit, i)
			}
		}
	}
	for _, s := range segs {
		for i := range s.Buf {
			s.Buf[i] ^= 0xff
		}
	}
	before := c.dump(behind.Addr, 8)
	copy(behind.Buf, "overrun!")
	n, err := p.WriteV(segs)
	if n != fails || !errors.Is(err, hostmem.ErrFault) {
		t.Fatalf("size %d, limit %d: WriteV = %d, %v; segment %d is the one that faults", size, p.limit, n, err, fails)
	}
	for i, s := range segs[:n] {
		if !bytes.Equal(c.dump(s.Addr, size), s.Buf) {
			t.Fatalf("size %d, limit %d: segment %d before the fault was not written", size, p.limit, i)
		}
	}
	if !bytes.Equal(c.dump(behind.Addr, 8), before) {
		t.Fatalf("size %d, limit %d: the segment behind the fault was written", size, p.limit)
	}
}

// at is one byte of the program's memory.
func (c *child) at(off uint64) byte { return c.dump(c.base+off, 1)[0] }

// Programs poll the last byte of an RDMA WRITE.
func TestLastByteOfAWriteLandsLast(t *testing.T) {
	c := startChild(t)
	const rounds = 2000
	c.tell("poll", c.base, rounds)
	verdict := make(chan string, 1)
	go func() {
		line, err := c.out.ReadString('\n')
		verdict <- strings.TrimSpace(line) + fmt.Sprintf(" %v", err)
	}()
	buf := make([]byte, 4*4096)
	seen := []hostmem.Segment{c.segment(0, 8)}
	for r := 1; r <= rounds; r++ {
		for {
			if _, err := c.ReadV(seen); err != nil {
				t.Fatal(err)
			}
			if binary.NativeEndian.Uint64(seen[0].Buf) == uint64(r-1) {
				break
			}
			select {
			case v := <-verdict:
				t.Fatal(v)
			default:
				runtime.Gosched()
			}
		}
		n := roundLength(r)
		msg := buf[:n]
		for i := range msg {
			msg[i] = byte(r)
		}
		// As packets of a message: several segments, neighbours of each other.
		var segs []hostmem.Segment
		for off := 0; off < n; off += 1024 {
			segs = append(segs, hostmem.Segment{Addr: c.base + 64 + uint64(off), Buf: msg[off:min(n, off+1024)]})
		}
		if k, err := c.WriteV(segs); k != len(segs) || err != nil {
			t.Fatal(k, err)
		}
	}
	if v := <-verdict; v != "ok <nil>" {
		t.Fatal(v)
	}
}

func TestProcessAtomics(t *testing.T) {
	c := startChild(t)
	word := func() uint64 { return binary.NativeEndian.Uint64(c.dump(c.base+64, 8)) }
	first := word()
	if old, err := c.Atomic(c.base+64, hostmem.FetchAdd, math.MaxUint64, 0); err != nil || old != first || word() != first-1 {
		t.Errorf("fetch and add of -1 to %#x: old %#x, now %#x, %v", first, old, word(), err)
	}
	if old, err := c.Atomic(c.base+64, hostmem.CompareSwap, 42, first); err != nil || old != first-1 || word() != first-1 {
		t.Errorf("compare and swap that does not match: old %#x, now %#x, %v", old, word(), err)
	}
	if old, err := c.Atomic(c.base+64, hostmem.CompareSwap, 42, first-1); err != nil || old != first-1 || word() != 42 {
		t.Errorf("compare and swap that matches: old %#x, now %#x, %v", old, word(), err)
	}
	if throughFiles {
		return
	}
	c.do("readonly", c.base, pageSize)
	// Also where nothing would change: the program does not allow it.
	if _, err := c.Atomic(c.base+64, hostmem.CompareSwap, 1, 2); !errors.Is(err, hostmem.ErrFault) {
		t.Errorf("atomic on a read-only page: %v, want ErrFault", err)
	}
	if word() != 42 {
		t.Errorf("a refused atomic changed the word to %d", word())
	}
	c.do("unmap", c.base, pageSize)
	if _, err := c.Atomic(c.base+64, hostmem.FetchAdd, 1, 0); !errors.Is(err, hostmem.ErrFault) {
		t.Errorf("atomic on an unmapped page: %v, want ErrFault", err)
	}
}

func TestProcessGone(t *testing.T) {
	c := startChild(t)
	c.end()
	segs := []hostmem.Segment{c.segment(0, 0), c.segment(0, 8), c.segment(8, 8)}
	if n, err := c.ReadV(segs); n != 1 || !errors.Is(err, hostmem.ErrGone) {
		t.Errorf("ReadV = %d, %v; want 1 (the empty segment), ErrGone", n, err)
	}
	if n, err := c.WriteV(segs); n != 1 || !errors.Is(err, hostmem.ErrGone) {
		t.Errorf("WriteV = %d, %v; want 1, ErrGone", n, err)
	}
	if _, err := c.Atomic(c.base, hostmem.FetchAdd, 1, 0); !errors.Is(err, hostmem.ErrGone) {
		t.Errorf("Atomic: %v, want ErrGone", err)
	}
	if err := c.Check(c.base, 8, false); !errors.Is(err, hostmem.ErrGone) {
		t.Errorf("Check: %v, want ErrGone", err)
	}
}

func TestProcessCheck(t *testing.T) {
	c := startChild(t)
	c.do("unmap", c.base+4*pageSize, pageSize)
	c.do("readonly", c.base+8*pageSize, pageSize)
	c.do("none", c.base+12*pageSize, pageSize)
	fault := hostmem.ErrFault
	for _, k := range []struct {
		what         string
		addr, length uint64
		write        bool
		want         error
	}{
		{"whole pages", c.base, 4 * pageSize, true, nil},
		{"a few bytes across pages", c.base + pageSize - 3, 6, true, nil},
		{"up to the hole", c.base + 1, 4*pageSize - 1, true, nil},
		{"one byte into the hole", c.base, 4*pageSize + 1, false, fault},
		{"in the hole", c.base + 4*pageSize + 8, 8, false, fault},
		{"over the hole", c.base, 8 * pageSize, false, fault},
		{"reading a read-only page", c.base + 8*pageSize, pageSize, false, nil},
		{"reading across a read-only page", c.base + 7*pageSize, 3 * pageSize, false, nil},
		{"writing a read-only page", c.base + 8*pageSize, 1, true, fault},
		{"writing across a read-only page", c.base + 7*pageSize, 3 * pageSize, true, fault},
		{"a page without permissions", c.base + 12*pageSize, 1, false, fault},
		{"length 0 in the hole", c.base + 4*pageSize, 0, true, nil},
		{"length 0 at the end of everything", math.MaxUint64, 0, true, nil},
		{"a sum that wraps", c.base, -c.base + 8, false, fault},
		{"a sum of 2^64", c.base, -c.base, false, fault},
		{"the highest address", math.MaxUint64, 1, false, fault},
		{"everything", 0, math.MaxUint64, false, fault},
		{"page 0", 0, 8, false, fault},
	} {
		if err := c.Check(k.addr, k.length, k.write); !errors.Is(err, k.want) {
			t.Errorf("%s: %v, want %v", k.what, err, k.want)
		}
	}
}

// Transfers at addresses that no program has are faults of that segment, not of the NIC.
func TestAddressesOutsideOfUserSpace(t *testing.T) {
	c := startChild(t)
	for _, addr := range []uint64{0, 8, 1 << 47, 0xffff_8000_0000_0000, math.MaxUint64 - 7, math.MaxUint64} {
		segs := []hostmem.Segment{c.segment(0, 8), {Addr: addr, Buf: make([]byte, 16)}}
		if n, err := c.ReadV(segs); n != 1 || !errors.Is(err, hostmem.ErrFault) {
			t.Errorf("ReadV at %#x = %d, %v; want 1, ErrFault", addr, n, err)
		}
		if n, err := c.WriteV(segs); n != 1 || !errors.Is(err, hostmem.ErrFault) {
			t.Errorf("WriteV at %#x = %d, %v; want 1, ErrFault", addr, n, err)
		}
	}
}

func TestProcessDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector sync.Pool drops what it holds at random")
	}
	c := startChild(t)
	segs := make([]hostmem.Segment, 64)
	for i := range segs {
		segs[i] = c.segment(uint64(i)*1024, 1024)
	}
	if n := testing.AllocsPerRun(200, func() { _, _ = c.ReadV(segs); _, _ = c.WriteV(segs) }); n != 0 {
		t.Errorf("%v allocations a transfer", n)
	}
	if n := testing.AllocsPerRun(200, func() { _, _ = c.Atomic(c.base, hostmem.FetchAdd, 1, 0) }); n != 0 {
		t.Errorf("%v allocations an atomic", n)
	}
}
