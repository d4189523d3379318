package nic

import (
	"math"
	"math/big"
	"testing"

	"rnic/internal/hostmem"

	"pgregory.net/rapid"
)

// anywhere is memory that allows everything.
type anywhere struct{ hostmem.Bytes }

func (*anywhere) Check(addr, length uint64, write bool) error { return nil }

// readOnly is memory that cannot be written.
type readOnly struct{ hostmem.Bytes }

func (*readOnly) Check(addr, length uint64, write bool) error {
	if write {
		return hostmem.ErrFault
	}
	return nil
}

// Vol. 1, 11.2, Register Memory Region.
func TestRegMRArguments(t *testing.T) {
	const top = math.MaxUint64
	n := objectsNIC(Config{})
	pd, other := mustPD(t, n), mustPD(t, objectsNIC(Config{}))
	for _, c := range []struct {
		name                string
		pd                  *PD
		space               hostmem.Space
		start, length, iova uint64
		access              Access
		want                Errno
	}{
		{"plain", pd, &anywhere{}, 0x1000, 0x1000, 0x1000, AccessLocalWrite, 0},
		{"any iova with any start", pd, &anywhere{}, 0x1001, 5, 0xfffffffffffff000, 0, 0},
		{"empty", pd, &anywhere{}, 0x1000, 0, 0x1000, 0, 0},
		{"up to the last byte but one", pd, &anywhere{}, 1, top - 1, 1, 0, 0},
		{"start wraps", pd, &anywhere{}, 1, top, 0, 0, EINVAL},
		{"start wraps by far", pd, &anywhere{}, top - 10, 100, 0, 0, EINVAL},
		{"iova wraps", pd, &anywhere{}, 0, 0x1000, top - 0xfff, 0, EINVAL},
		{"remote write without local write", pd, &anywhere{}, 0, 8, 0, AccessRemoteWrite, EINVAL},
		{"atomic without local write", pd, &anywhere{}, 0, 8, 0, AccessRemoteAtomic | AccessRemoteRead, EINVAL},
		{"remote read without local write", pd, &anywhere{}, 0, 8, 0, AccessRemoteRead, 0},
		{"all rights", pd, &anywhere{}, 0, 8, 0, AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind, 0},
		{"huge pages are a hint", pd, &anywhere{}, 0, 8, 0, AccessHugeTLB, 0},
		{"optional bits are ignored", pd, &anywhere{}, 0, 8, 0, AccessOptional, 0},
		{"unknown bit", pd, &anywhere{}, 0, 8, 0, 1 << 10, EINVAL},
		{"unknown bit above the optional ones", pd, &anywhere{}, 0, 8, 0, 1 << 30, EINVAL},
		{"on demand, not mapped", pd, memory(0x1000, 64), 0x1000, 65, 0, AccessOnDemand, 0},
		{"the whole address space", pd, memory(0x1000, 64), 0, ImplicitLength, 0, AccessOnDemand | AccessLocalWrite, 0},
		{"the whole address space, not on demand", pd, memory(0x1000, 64), 0, ImplicitLength, 0, 0, EFAULT},
		{"the whole address space by other addresses", pd, memory(0x1000, 64), 0, ImplicitLength, 0x1000, AccessOnDemand, EINVAL},
		{"on demand, start wraps", pd, &anywhere{}, top - 10, 100, 0, AccessOnDemand, EINVAL},
		{"flush", pd, &anywhere{}, 0, 8, 0, AccessFlushGlobal, 0},
		{"flush to memory that outlives a loss of power", pd, &anywhere{}, 0, 8, 0, AccessFlushPersist, EOPNOTSUPP},
		{"not mapped", pd, memory(0x1000, 64), 0x1000, 65, 0, 0, EFAULT},
		{"read-only memory for reading", pd, &readOnly{}, 0, 8, 0, AccessRemoteRead, 0},
		{"read-only memory for writing", pd, &readOnly{}, 0, 8, 0, AccessLocalWrite, EFAULT},
		{"domain of another NIC", other, &anywhere{}, 0, 8, 0, 0, EINVAL},
		{"no domain", nil, &anywhere{}, 0, 8, 0, 0, EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			live, refs := len(n.mrs), pd.refs
			m, err := n.RegMR(c.pd, c.space, c.start, c.length, c.iova, c.access)
			wantErrno(t, err, c.want)
			if err != nil && (m != nil || len(n.mrs) != live || pd.refs != refs) {
				t.Error("a refused registration left something behind")
			}
		})
	}
}

// 11.2, Deregister Memory Region: a region ends once, and makes room for another.
func TestRegMRLimitAndDereg(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxMR: 2}})
	pd := mustPD(t, n)
	reg := func() (*MR, error) { return n.RegMR(pd, &anywhere{}, 0, 8, 0, 0) }
	a, _ := reg()
	_, _ = reg()
	_, err := reg()
	wantErrno(t, err, ENOMEM)
	wantErrno(t, a.Dereg(), 0)
	wantErrno(t, a.Dereg(), ENOENT)
	_, err = reg()
	wantErrno(t, err, 0)
}

// IBV_ACCESS_ZERO_BASED: addresses are offsets into the region.
func TestZeroBasedRegion(t *testing.T) {
	n := objectsNIC(Config{})
	pd := mustPD(t, n)
	m, err := n.RegMR(pd, &anywhere{}, 0x7000, 16, 0x7000, AccessZeroBased)
	if err != nil {
		t.Fatal(err)
	}
	if !m.check(pd, 0, 16, 0) || m.check(pd, 0x7000, 1, 0) || m.hostAddr(3) != 0x7003 {
		t.Error("the region is not addressed from 0")
	}
}

func nearEdges(label string) *rapid.Generator[uint64] {
	edges := []uint64{0, 1, 1 << 12, 1 << 31, 1 << 32, 1 << 63, math.MaxUint64}
	return rapid.Custom(func(t *rapid.T) uint64 {
		if rapid.Bool().Draw(t, label+" anywhere") {
			return rapid.Uint64().Draw(t, label)
		}
		return rapid.SampledFrom(edges).Draw(t, label+" edge") + uint64(rapid.Int64Range(-9, 9).Draw(t, label+" off"))
	})
}

// 10.6.3.1: an access is allowed exactly where every byte of it lies in the region, with sums that
// do not wrap.
func TestMRBounds(t *testing.T) {
	n := objectsNIC(Config{})
	pd, stranger := mustPD(t, n), mustPD(t, n)
	rapid.Check(t, func(t *rapid.T) {
		start, iova, length := nearEdges("start").Draw(t, "start"), nearEdges("iova").Draw(t, "iova"), nearEdges("length").Draw(t, "length")
		fits := func(a uint64) bool { return sum(a, length).IsUint64() }
		m, err := n.RegMR(pd, &anywhere{}, start, length, iova, AccessLocalWrite|AccessRemoteWrite)
		if (err == nil) != (fits(start) && fits(iova)) {
			t.Fatalf("register %#x+%#x at %#x: %v", start, length, iova, err)
		}
		if err != nil {
			return
		}
		defer func() { _ = m.Dereg() }()
		addr := nearEdges("addr").Draw(t, "addr")
		if rapid.Bool().Draw(t, "near") {
			addr = iova + nearEdges("offset").Draw(t, "offset")
		}
		size := nearEdges("size").Draw(t, "size")
		if rapid.Bool().Draw(t, "to the end") {
			size = iova + length - addr + uint64(rapid.Int64Range(-2, 2).Draw(t, "beyond"))
		}
		inside := addr >= iova && sum(addr, size).Cmp(sum(iova, length)) <= 0
		if got := m.check(pd, addr, size, AccessRemoteWrite); got != inside {
			t.Fatalf("[%#x, +%#x) in region [%#x, +%#x): %v, want %v", addr, size, iova, length, got, inside)
		}
		if m.check(pd, addr, size, AccessRemoteRead) || m.check(stranger, addr, size, 0) {
			t.Fatalf("allowed without the right, or from another protection domain")
		}
		if inside {
			if want := new(big.Int).Add(sum(start, addr), new(big.Int).Neg(sum(iova, 0))); m.hostAddr(addr) != want.Uint64() {
				t.Fatalf("address %#x is %#x in the program, want %#x", addr, m.hostAddr(addr), want)
			}
		}
	})
}

func sum(a, b uint64) *big.Int {
	return new(big.Int).Add(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
}

// The planted faults of this file do what their names say, else the simulator proves nothing.
func TestPlantedMRFaults(t *testing.T) {
	n := objectsNIC(Config{Planted: PlantedBoundsWrap})
	pd := mustPD(t, n)
	m, err := n.RegMR(pd, &anywhere{}, 0, 64, 0x1000, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !m.check(pd, 0x2000, math.MaxUint64-0xfff, 0) {
		t.Error("bounds wrap: a length that wraps is refused all the same")
	}
	n = objectsNIC(Config{Planted: PlantedStaleKey})
	pd = mustPD(t, n)
	if m, err = n.RegMR(pd, &anywhere{}, 0, 64, 0, 0); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, m.Dereg(), 0)
	if n.lookupMR(m.key) != m {
		t.Error("stale key: it is refused all the same")
	}
}
