package uverbs

import (
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/fuzzscript"
	"rnic/internal/sandbox"
)

// arenaCall is a call whose caller has no memory but an arena, parts of which may go at any moment.
type arenaCall struct {
	*fakeCall
	arena         []byte
	reads, writes int // how many succeed yet
}

const (
	arenaAt   = 1 << 40
	arenaSize = 1 << 14
)

func (c *arenaCall) at(addr uint64, n int, left *int) []byte {
	off := addr - arenaAt
	if *left--; *left < 0 || addr < arenaAt || off > uint64(len(c.arena)) || uint64(n) > uint64(len(c.arena))-off {
		return nil
	}
	return c.arena[off : off+uint64(n) : off+uint64(n)]
}

func (c *arenaCall) ReadMem(addr uint64, p []byte) error {
	m := c.at(addr, len(p), &c.reads)
	if m == nil && len(p) > 0 {
		return syscall.EFAULT
	}
	copy(p, m)
	return nil
}

func (c *arenaCall) WriteMem(addr uint64, p []byte) error {
	m := c.at(addr, len(p), &c.writes)
	if m == nil && len(p) > 0 {
		return syscall.EFAULT
	}
	copy(m, p)
	return nil
}

// attacker is a program that has an object of each kind, and sends commands that are right but for what a script of bytes says.
type attacker struct {
	*world
	script  fuzzscript.Script
	forms   map[uint32]form
	nums    []uint32
	meths   []uint32
	handles []uint32 // that it has been given, of objects that may be gone
	fds     []int    // contexts
	call    *arenaCall
	used    uint64
}

func newAttacker(t *testing.T, dev *device.Device, script []byte) *attacker {
	p := &program{t: t, pid: unix.Getpid(), files: map[int]*sandbox.File{}}
	var err error
	if p.drv, err = New(dev, p, Config{Watch: Watch{Text: io.Discard, JSON: io.Discard, Commands: true, Pedantic: true}}); err != nil {
		t.Fatal(err)
	}
	a := &attacker{world: newWorldOn(p), script: script}
	a.forms = a.world.forms()
	a.nums = slices.Sorted(maps.Keys(a.forms))
	a.meths = slices.Sorted(maps.Keys(methods))
	a.fds = []int{a.fd}
	w := a.world
	a.handles = []uint32{w.pd, w.cq, w.srq, w.mr, w.mw, w.ah, w.qp.handle, w.ud.handle, w.spareQP.handle, w.spare.pd, w.spare.cq, w.spare.srq, w.spare.mr, w.spare.mw, w.spare.ah}
	return a
}

func (a *attacker) byte() int { return a.script.Next() }

// value is a word as a program may put it anywhere.
func (a *attacker) value() uint64 {
	switch v := a.byte(); {
	case v < 64:
		return uint64(v)
	case v < 160:
		return uint64(a.handles[v%len(a.handles)])
	case v < 176:
		return 1 << (a.byte() & 63)
	case v < 184:
		return ^uint64(0) - uint64(a.byte())
	case v < 200:
		return uint64(a.channel)
	case v < 208:
		return uint64(slices.Sorted(maps.Keys(a.files))[v%len(a.files)])
	default:
		return uint64(a.byte()) | uint64(a.byte())<<8
	}
}

// alloc is room in the arena for b.
func (a *attacker) alloc(b []byte) uint64 {
	if a.used+uint64(len(b)) > arenaSize {
		return 0
	}
	at := a.used
	copy(a.call.arena[at:], b)
	a.used += (uint64(len(b)) + 15) &^ 15
	return arenaAt + at
}

// begin is the next call; it may find its memory gone, or its thread.
func (a *attacker) begin() *arenaCall {
	a.call = &arenaCall{&fakeCall{p: a.program}, make([]byte, arenaSize), 1 << 20, 1 << 20}
	a.used = 0
	switch v := a.byte(); v & 15 {
	case 13:
		a.call.reads = v >> 4
	case 14:
		a.call.writes = v >> 4 & 3
	case 15:
		a.call.dies = v>>4 + 1
	}
	return a.call
}

// attribute is an input or output of a length in the arena, or inline.
func (a *attacker) attribute(id uint16, b []byte, input bool) attr {
	x := attr{id: id, len: uint16(len(b)), flags: flagMandatory}
	if input && len(b) <= inlineLimit {
		x.data = le.Uint64(append(slices.Clone(b), make([]byte, 8)...))
		return x
	}
	x.data = a.alloc(b)
	return x
}

// command sends a command that works, with some words changed, by ioctl or by write.
func (a *attacker) command() {
	num := a.nums[a.byte()%len(a.nums)]
	f := a.forms[num]
	req, how := slices.Clone(f.req), a.byte()
	for range how & 3 {
		if at := a.byte() * 4; at+4 <= len(req) {
			le.PutUint32(req[at:], uint32(a.value()))
		}
	}
	if how&4 != 0 {
		req = append(req, make([]byte, a.byte()&31)...)[:max(0, len(req)-a.byte()&31)]
	}
	c := a.begin()
	resp := uint64(0)
	if how&8 == 0 {
		attrs := []attr{a.attribute(invokeCommand, le.AppendUint64(nil, uint64(num)), true), a.attribute(invokeCoreIn, req, true)}
		if f.resp > 0 {
			x := a.attribute(invokeCoreOut, make([]byte, f.resp), false)
			resp, attrs = x.data, append(attrs, x)
		}
		if f.uhwIn != nil {
			attrs = append(attrs, a.attribute(attrUHWIn, f.uhwIn, true))
		}
		if f.uhwOut != nil {
			attrs = append(attrs, a.attribute(attrUHWOut, f.uhwOut, false))
		}
		a.ioctl(c, ioctlBytes(objDevice, methodInvokeWrite, attrs...))
	} else {
		resp = a.written(c, num, req, f.resp)
	}
	if c.errno == 0 && f.resp > 0 && resp != 0 {
		a.learn(le.Uint32(c.arena[resp-arenaAt:]))
	}
}

// written writes a command; the words that say how long it is are right most of the time.
func (a *attacker) written(c *arenaCall, num uint32, req []byte, out int) (resp uint64) {
	resp = a.alloc(make([]byte, 512))
	b := make([]byte, sizeCmdHdr)
	le.PutUint32(b, num)
	if num&commandExtended != 0 {
		b = append(b, make([]byte, sizeExCmdHdr)...)
		le.PutUint16(b[4:], uint16(len(req)/8))
		le.PutUint16(b[6:], uint16((out+7)/8))
		le.PutUint64(b[8:], resp)
	} else {
		le.PutUint16(b[4:], uint16((sizeCmdHdr+len(req))/4))
		le.PutUint16(b[6:], uint16(out/4+8))
		if out > 0 && len(req) >= 8 {
			le.PutUint64(req, resp)
		}
	}
	if v := a.byte(); v >= 0xf0 {
		b[v&7] ^= byte(a.byte())
	}
	b = append(b, req...)
	a.drv.Write(c, a.context(), a.alloc(b), uint64(len(b)))
	return resp
}

func (a *attacker) context() *sandbox.File { return a.files[a.fds[0]] }

func (a *attacker) ioctl(c *arenaCall, b []byte) {
	if v := a.byte(); v >= 0xf8 {
		b[a.byte()%len(b)] ^= byte(v<<5) | 1
	}
	at := a.alloc(b)
	a.drv.Ioctl(c, a.context(), at)
	if c.errno != 0 {
		return
	}
	for i := sizeIoctlHdr; i+sizeIoctlAttr <= len(b); i += sizeIoctlAttr { // handles come back in the attributes
		a.learn(le.Uint32(c.arena[at-arenaAt+uint64(i)+8:]))
	}
}

func (a *attacker) learn(h uint32) {
	if len(a.handles) < 64 && h < 1<<20 {
		a.handles = append(a.handles, h)
	}
}

// method calls a method with what its description asks for.
func (a *attacker) method() {
	m := methods[a.meths[a.byte()%len(a.meths)]]
	c := a.begin()
	var attrs []attr
	for i := range m.attrs {
		s := &m.attrs[i]
		v := a.byte()
		if !s.required && v&1 != 0 || v == 255 {
			continue
		}
		n := s.min
		if v >= 0xe0 {
			n += v&15 - 4
		}
		b := make([]byte, max(0, n))
		for k := 0; k+4 <= len(b) && k < 32; k += 4 {
			le.PutUint32(b[k:], uint32(a.value()))
		}
		switch s.kind {
		case attrIn, attrOut:
			attrs = append(attrs, a.attribute(s.id, b, s.kind == attrIn))
		default:
			attrs = append(attrs, number(s.id, a.value()))
		}
	}
	a.ioctl(c, ioctlBytes(m.object, m.method, attrs...))
}

func (a *attacker) act() {
	switch op := a.byte(); op & 15 {
	case 0, 1, 2, 3, 4, 5, 6, 7:
		a.command()
	case 8, 9, 10, 11:
		a.method()
	case 12:
		if c := a.begin(); len(a.script) > 2 {
			var b []byte
			b, a.script = hostileIoctl(a.script)
			a.ioctl(c, b)
		} else {
			a.call = nil
		}
	case 13: // a native doorbell, of any handle and length
		b := make([]byte, 32)
		le.PutUint32(b, cmdPostSend)
		le.PutUint32(b[16:], uint32(a.value()))
		_, _ = unix.Write(a.fds[0], b[:min(32, op>>4*4)])
	case 14: // a file that is no context
		others := slices.DeleteFunc(slices.Sorted(maps.Keys(a.files)), func(fd int) bool { return slices.Contains(a.fds, fd) })
		if len(others) > 0 {
			a.close(others[op>>4%len(others)])
		}
	case 15:
		if len(a.fds) < 3 {
			fd, _ := a.world.context()
			a.fds = append(a.fds, fd)
		}
		a.fds = append(a.fds[1:], a.fds[0])
	}
	if a.call != nil && !a.call.answered {
		a.t.Fatal("a command was not answered")
	}
}

// end closes everything: nothing may be left, with the driver and with the device.
func (a *attacker) end() {
	for _, fd := range slices.Sorted(maps.Keys(a.files)) {
		a.close(fd)
	}
	if n, o := a.drv.Contexts(); n != 0 || o != 0 {
		a.t.Errorf("%d contexts with %d objects are left", n, o)
	}
	if r := a.drv.dev.Resources(); len(r.Contexts)+len(r.PDs)+len(r.CQs)+len(r.QPs)+len(r.MRs)+len(r.SRQs) > 0 {
		a.t.Errorf("left with the device: %d contexts, %d queue pairs, %d regions", len(r.Contexts), len(r.QPs), len(r.MRs))
	}
	a.drv.Close()
}

// Commands in any order, right and wrong, by ioctl and by write, of a program whose memory and threads go: each is answered once, and
// when it has closed its files nothing is left.
func FuzzSequences(f *testing.F) {
	rng := rand.New(rand.NewPCG(31, 32))
	for range 24 {
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	dev, err := device.New(device.Config{Local: true, Seed: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { dev.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		a := newAttacker(t, dev, b[:min(len(b), 1000)])
		for len(a.script) > 0 {
			a.act()
		}
		a.end()
	})
}
