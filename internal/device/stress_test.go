package device_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/verbs"
)

// Six programs on two NICs (or one) do anything at once, through faults: every byte, length and
// immediate arrives, and the atomics of all make one sum.
func TestEverythingAtOnce(t *testing.T) {
	spec, err := fault.Parse("drop=0.5%,dup=0.5%,reorder=0.5%:4,corrupt=0.5%,delay=0.5%:200us,seed=11")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct {
		local, faulty bool
		units         int
	}{{false, false, 1}, {false, true, 1}, {true, false, 1}, {true, true, 1}, {true, false, 3}, {true, true, 3}, {false, false, 2}, {false, true, 3}} {
		local, faulty := at.local, at.faulty
		t.Run(fmt.Sprintf("local=%v,faulty=%v,units=%d", local, faulty, at.units), func(t *testing.T) {
			change := func(c *device.Config) {
				c.Units = at.units
				if faulty {
					c.SendFault, c.RecvFault = &spec, &spec
				}
			}
			var a, b *device.Device
			if local {
				cfg := device.Config{Local: true}
				change(&cfg)
				a = open(t, cfg)
				b = a
			} else {
				a, b = twoDevices(t, change)
			}
			everything(t, a, b)
		})
	}
}

const programs, operations = 6, 120

func everything(t *testing.T, a, b *device.Device) {
	ctx := verbs.Wrap(b).Open()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	// All add to its first word. A region and the queue pairs that reach it are in one protection domain.
	shared, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range programs {
		p := &prog{t: t, random: rand.New(rand.NewPCG(uint64(i), 1)), a: newBusyEnd(t, a, nil), b: newBusyEnd(t, b, pd)}
		connect(t, p.a, p.b, 0, 0)
		all.Go(func() {
			for k := range operations {
				if !p.operation(uint64(k), shared) {
					return
				}
			}
		})
	}
	all.Wait()
	if got := binary.NativeEndian.Uint64(shared.Bytes()); got != programs*operations {
		t.Errorf("%d programs added 1 %d times each, and the sum is %d", programs, operations, got)
	}
}

// newBusyEnd is newEnd with all that a queue pair can have, in pd if there is one.
func newBusyEnd(t *testing.T, d *device.Device, pd *verbs.PD) *end {
	t.Helper()
	e := &end{}
	ctx := verbs.Wrap(d).Open()
	var err error
	if pd == nil {
		if pd, err = ctx.AllocPD(); err != nil {
			t.Fatal(err)
		}
	} else {
		ctx = pd.Context()
	}
	if e.cq, err = ctx.CreateCQ(512); err != nil {
		t.Fatal(err)
	}
	if e.mr, err = pd.AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic); err != nil {
		t.Fatal(err)
	}
	if e.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendSGE: 8, MaxRecvSGE: 8, MaxInline: 256}); err != nil {
		t.Fatal(err)
	}
	return e
}

type prog struct {
	t      *testing.T
	random *rand.Rand
	a, b   *end
}

// pieces cuts [off, off+n) of a region into up to 8 entries.
func (p *prog) pieces(mr *verbs.MR, off, n int) (sge []verbs.SGE) {
	for n > 0 && len(sge) < 7 && p.random.IntN(3) > 0 {
		k := p.random.IntN(n + 1)
		sge = append(sge, mr.SGE(off, k))
		off, n = off+k, n-k
	}
	return append(sge, mr.SGE(off, n))
}

// operation does one operation and one FETCH & ADD behind it, and verifies.
func (p *prog) operation(k uint64, shared *verbs.MR) bool {
	size := p.random.IntN(1 << (1 + p.random.IntN(17)))
	from, to := p.random.IntN(1<<17), 1<<18+p.random.IntN(1<<17)
	src, dst := p.a.mr.Bytes()[from:from+size], p.b.mr.Bytes()[to:to+size]
	for i := range src {
		src[i] = byte(p.random.Uint32())
	}
	imm := p.random.Uint32()
	wr := &verbs.SendWR{ID: k, SGE: p.pieces(p.a.mr, from, size), RemoteAddr: p.b.mr.Addr(to), RKey: p.b.mr.RKey(), Imm: imm}
	received := false
	switch p.random.IntN(5) {
	case 0:
		wr.Opcode = verbs.OpWrite
	case 1:
		wr.Opcode, received = verbs.OpWriteImm, true
	case 2:
		wr.Opcode, received = verbs.OpSend, true
	case 3:
		wr.Opcode, received = verbs.OpSendImm, true
	case 4:
		wr.Opcode = verbs.OpRead
		copy(dst, src)
		clear(src)
	}
	if wr.Opcode != verbs.OpRead && size <= 256 && size > 0 && p.random.IntN(2) == 0 {
		wr.SGE, wr.Inline = nil, bytes.Clone(src)
	}
	if received {
		recv := &verbs.RecvWR{ID: k, SGE: p.pieces(p.b.mr, to, size)}
		if _, err := p.b.qp.PostRecv(recv); err != nil {
			p.t.Error(err)
			return false
		}
	}
	add := &verbs.SendWR{ID: k, Opcode: verbs.OpFetchAdd, Flags: verbs.Signaled, SGE: p.a.mr.Slice(1<<19, 8), RemoteAddr: shared.Addr(0),
		RKey: shared.RKey(), CompareAdd: 1}
	if _, err := p.a.qp.PostSend(wr, add); err != nil {
		p.t.Error(err)
		return false
	}
	if wc := p.a.complete(p.t); wc.ID != k || wc.Opcode != verbs.WCFetchAdd {
		p.t.Errorf("completion %d of operation %d, the atomic of %d was due", wc.ID, wc.Opcode, k)
		return false
	}
	if received {
		wc := p.b.complete(p.t)
		withImm := wr.Opcode != verbs.OpSend
		if wc.ID != k || wc.ByteLen != size || wc.HasImm != withImm || withImm && wc.Imm != imm {
			p.t.Errorf("receive %+v, of message %d with %d bytes and immediate %#x, operation %d", wc, k, size, imm, wr.Opcode)
			return false
		}
	}
	if !bytes.Equal(src, dst) {
		p.t.Errorf("message %d, operation %d, %d bytes from %d to %d: wrong bytes", k, wr.Opcode, size, from, to)
		return false
	}
	return true
}
