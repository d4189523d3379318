package uverbs

import (
	"io"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/sandbox"
)

// hostileCall is a call whose caller's memory is what the fuzzer says, wherever it is read.
type hostileCall struct {
	*fakeCall
	mem []byte
}

func (c *hostileCall) ReadMem(addr uint64, p []byte) error {
	if addr%7 == 6 {
		return syscall.EFAULT
	}
	for i := range p {
		p[i] = 0
		if n := uint64(len(c.mem)); n > 0 {
			p[i] = c.mem[(addr+uint64(i))%n]
		}
	}
	return nil
}

func (c *hostileCall) WriteMem(addr uint64, _ []byte) error {
	if addr%5 == 4 {
		return syscall.EFAULT
	}
	return nil
}

// ioctlCall additionally serves the ioctl itself.
type ioctlCall struct {
	hostileCall
	ioctl []byte
}

const ioctlAt = 1 << 60

func (c *ioctlCall) ReadMem(addr uint64, p []byte) error {
	if addr >= ioctlAt && addr-ioctlAt <= uint64(len(c.ioctl)) {
		if copy(p, c.ioctl[addr-ioctlAt:]) < len(p) {
			return syscall.EFAULT
		}
		return nil
	}
	return c.hostileCall.ReadMem(addr, p)
}

// Whatever a program sends, the NIC answers, and answers once; nothing is left when the program has
// closed the device.
func FuzzCommands(f *testing.F) {
	f.Add([]byte{0, 0, 3, 2, 8, 1, 9, 0, 40, 1, 1, 1, 12, 1})
	f.Add([]byte{3, 0, 6, 0, 0, 1, 1, 1, 4, 1, 10, 2, 8, 1, 4})
	f.Add([]byte{4, 0, 9, 2, 0, 1, 1})
	dev, err := device.New(device.Config{Local: true, Seed: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { dev.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &program{t: t, pid: unix.Getpid(), files: map[int]*sandbox.File{}}
		if p.drv, err = New(dev, p, Config{Watch: Watch{Text: io.Discard, JSON: io.Discard, Commands: true, Pedantic: true}}); err != nil {
			t.Fatal(err)
		}
		defer p.drv.Close()
		fd, _ := p.context()
		pd := p.pd(fd)
		cq, _ := p.cq(fd, p.compChannel(fd), 1)
		p.qp(fd, pd, cq, uint64(nic.RC))
		for rest := b; len(rest) > 2; {
			var ioctl []byte
			ioctl, rest = hostileIoctl(rest)
			c := &ioctlCall{hostileCall{&fakeCall{p: p}, b}, ioctl}
			p.drv.Ioctl(c, p.files[fd], ioctlAt)
			if !c.await() {
				t.Fatal("an ioctl was not answered")
			}
		}
		c := &hostileCall{&fakeCall{p: p}, b}
		p.drv.Write(c, p.files[fd], 0, uint64(len(b)))
		if !c.answered {
			t.Fatal("a write was not answered")
		}
		for n := range p.files {
			p.close(n)
		}
		if n, o := p.drv.Contexts(); n != 0 || o != 0 {
			t.Errorf("%d contexts with %d objects are left", n, o)
		}
	})
}

// hostileIoctl makes an ioctl of a fuzzer's bytes: object, method, attributes of id, length, flags and
// one byte of data each. Commands are sent more often than anything else.
func hostileIoctl(b []byte) (ioctl, rest []byte) {
	object, meth, n := uint16(b[0]%18), uint16(b[1]%8), int(b[2]%14)
	b = b[3:]
	var attrs []attr
	for ; n > 0 && len(b) >= 4; n-- {
		a := attr{id: uint16(b[0] & 0x0f), len: uint16(b[1]), flags: uint16(b[2] & 3), data: uint64(b[3])}
		if b[0]&0x80 != 0 {
			a.id |= attrUHWIn
		}
		if b[0]&0x40 != 0 {
			a.data |= commandExtended
		}
		attrs = append(attrs, a)
		b = b[4:]
	}
	return ioctlBytes(object, meth, attrs...), b
}
