package hostmem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

// InfiniBand vol. 1, 9.4.5: FETCH & ADD adds modulo 2^64, COMPARE & SWAP stores only on a match.
func TestAtomicOps(t *testing.T) {
	for _, c := range []struct {
		op                          AtomicOp
		old, operand, compare, want uint64
	}{
		{FetchAdd, 5, 3, 99, 8},
		{FetchAdd, math.MaxUint64, 2, 0, 1},
		{CompareSwap, 5, 3, 5, 3},
		{CompareSwap, 5, 3, 4, 5},
		{CompareSwap, 0, 0, 0, 0},
	} {
		if got := c.op.Apply(c.old, c.operand, c.compare); got != c.want {
			t.Errorf("op %d of %d with %d, %d: got %d, want %d", c.op, c.old, c.operand, c.compare, got, c.want)
		}
		b := &Bytes{Base: 0x1000, Mem: make([]byte, 24)}
		binary.LittleEndian.PutUint64(b.Mem[8:], c.old)
		old, err := b.Atomic(0x1008, c.op, c.operand, c.compare)
		if err != nil || old != c.old || binary.LittleEndian.Uint64(b.Mem[8:]) != c.want || !zero(b.Mem[:8]) || !zero(b.Mem[16:]) {
			t.Errorf("op %d in memory: got %d, %v, memory % x", c.op, old, err, b.Mem)
		}
	}
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// The bounds of Bytes, at both ends, with a hole, and where sums would wrap.
func TestBytesBounds(t *testing.T) {
	b := &Bytes{Base: 0x1000, Mem: make([]byte, 0x100), Holes: []Range{{0x1040, 0x10}}}
	for _, c := range []struct {
		addr, length uint64
		ok           bool
	}{
		{0x1000, 0x40, true},
		{0x1050, 0xb0, true},
		{0x10ff, 1, true},
		{0x1100, 0, true},
		{0x1048, 0, true},
		{0xfff, 1, false},
		{0x10ff, 2, false},
		{0x1100, 1, false},
		{0x103f, 2, false},
		{0x104f, 1, false},
		{0x1000, 0x100, false},
		{0x1000, math.MaxUint64, false},
		{math.MaxUint64, 1, false},
		{math.MaxUint64, 2, false},
		{0, 8, false},
	} {
		if err := b.Check(c.addr, c.length, true); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrFault) {
			t.Errorf("check %#x+%#x: %v, want allowed %v", c.addr, c.length, err, c.ok)
		}
		if c.length > 0x100 {
			continue
		}
		seg := []Segment{{Addr: c.addr, Buf: make([]byte, c.length)}}
		n, err := b.ReadV(seg)
		m, err2 := b.WriteV(seg)
		if (err == nil) != c.ok || (err2 == nil) != c.ok || n != m || (n == 1) != c.ok {
			t.Errorf("transfer of %#x+%#x: read %d, %v, write %d, %v, want allowed %v", c.addr, c.length, n, err, m, err2, c.ok)
		}
	}
	if b.Check(0x5000, 0, false) != nil {
		t.Error("a length of 0 is always fine")
	}
	if _, err := b.Atomic(0x10fc, FetchAdd, 1, 0); !errors.Is(err, ErrFault) {
		t.Errorf("atomic across the end: %v", err)
	}
}

// A batch stops at its first bad segment: those before it are done, those behind it are not.
func TestBytesStopsAtTheFirstFault(t *testing.T) {
	b := &Bytes{Base: 0, Mem: make([]byte, 16)}
	segs := []Segment{{Addr: 0, Buf: []byte{1}}, {Addr: 16, Buf: []byte{2}}, {Addr: 2, Buf: []byte{3}}}
	if n, err := b.WriteV(segs); n != 1 || !errors.Is(err, ErrFault) || b.Mem[0] != 1 || b.Mem[2] != 0 {
		t.Errorf("wrote %d, %v, memory % x", n, err, b.Mem)
	}
	b.Mem[2] = 9
	segs[0].Buf[0] = 0
	if n, err := b.ReadV(segs); n != 1 || !errors.Is(err, ErrFault) || segs[0].Buf[0] != 1 || segs[2].Buf[0] != 3 {
		t.Errorf("read %d, %v", n, err)
	}
}
