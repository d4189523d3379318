package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"rnic/internal/dma"
	"rnic/internal/nic"
	"rnic/internal/sandbox"
	"rnic/internal/shm"
)

// call is one command of a program, however it came: its input, copied and of a checked length, and
// its answers, which are written when it has succeeded. The driver's lock is held while it runs.
type call struct {
	drv *Driver
	ctx *verbsContext
	sys sandbox.Call

	// A command, written or wrapped.
	req, uhw            []byte // the core's and the provider's part of the request
	resp, uhwResp       span
	respAttr, uhwRespAt *attr // where they are attributes

	// An ioctl.
	method *method
	base   uint64 // address of its header
	raw    []byte // its attributes, as they are written back
	dirty  bool   // raw has changed
	attrs  []attr

	answers []answer
	after   func() error // what is left to do when the driver's lock is not held any more: it may wait
	undo    func()       // takes back what an unwritable answer makes useless
	trace   *traceEntry

	command *command // that was written
	teller  teller
	rec     *record // nil: it is not told
	why     string  // why the command failed, if it is told
}

// answer is one piece of output.
type answer struct {
	addr uint64
	data []byte
	attr *attr // gets the valid-output flag
}

// has tells whether the client sent an attribute.
func (c *call) has(id uint16) bool { return find(c.attrs, id) != nil }

// uint is the value of an input attribute or descriptor or handle, 0 without one.
func (c *call) uint(id uint16) uint64 {
	a := find(c.attrs, id)
	switch {
	case a == nil:
		return 0
	case a.spec.kind == attrIn:
		return a.uint()
	}
	return a.data
}

// flags is the value of a set of flags; EINVAL if there are more than those allowed.
func (c *call) flags(id uint16, allowed uint64) (uint32, syscall.Errno) {
	v := c.uint(id)
	if a := find(c.attrs, id); a != nil && a.len != 4 && a.len != 8 || v&^allowed != 0 {
		return 0, syscall.EINVAL
	}
	return uint32(v), 0
}

// bytes is the content of an input attribute.
func (c *call) bytes(id uint16) []byte {
	if a := find(c.attrs, id); a != nil {
		return a.value
	}
	return nil
}

// put answers in an output attribute, if the client wants it: cut to its length, or filled up with
// zeros.
func (c *call) put(id uint16, b []byte) {
	if a := find(c.attrs, id); a != nil {
		c.putSpan(span{a.data, int(a.len)}, a, b, true)
	}
}

// putNumber answers with a new handle or descriptor, in the attribute itself.
func (c *call) putNumber(id uint16, v uint64) {
	if a := find(c.attrs, id); a != nil {
		le.PutUint64(c.raw[a.index*sizeIoctlAttr+8:], v)
		c.dirty = true
		c.trace.number(a, v)
	}
}

// respond answers a command: the core's part.
func (c *call) respond(b []byte) { c.putSpan(c.resp, c.respAttr, b, true) }

// respondUHW answers with the provider's part, as much of it as the client has room for.
func (c *call) respondUHW(b []byte) { c.putSpan(c.uhwResp, c.uhwRespAt, b, false) }

func (c *call) putSpan(s span, a *attr, b []byte, fill bool) {
	if s.len <= 0 || s.addr == 0 {
		return
	}
	if len(b) > s.len {
		b = b[:s.len]
	}
	if fill && len(b) < s.len {
		b = append(make([]byte, 0, s.len), b...)[:s.len]
	}
	c.answers = append(c.answers, answer{s.addr, b, a})
}

// answerable tells whether the answers of a command can be written: asked before what cannot be taken back, which is a
// queue that the program must map anew, new keys, or a descriptor that it gets. Then the command has changed nothing.
func (c *call) answerable() syscall.Errno {
	for _, s := range [...]span{c.resp, c.uhwResp} {
		if s.addr != 0 && s.len > 0 && c.sys.WriteMem(s.addr, make([]byte, s.len)) != nil {
			return syscall.EFAULT
		}
	}
	if c.base != 0 && c.sys.WriteMem(c.base+sizeIoctlHdr, c.raw) != nil {
		return syscall.EFAULT
	}
	return 0
}

// finish writes the answers. EFAULT if that is not possible, EINTR if the caller was killed meanwhile, and
// its number may be another thread's: then what the command created is gone.
func (c *call) finish() syscall.Errno {
	if (len(c.answers) > 0 || c.dirty) && !c.sys.Valid() {
		_ = c.fault()
		return syscall.EINTR
	}
	for i := range c.answers {
		w := &c.answers[i]
		if err := c.sys.WriteMem(w.addr, w.data); err != nil {
			return c.fault()
		}
		if w.attr != nil {
			flags := c.raw[w.attr.index*sizeIoctlAttr+4:]
			le.PutUint16(flags, w.attr.flags|flagValidOutput)
			c.dirty = true
			c.trace.output(w.attr, w.data)
		}
	}
	if c.dirty {
		if err := c.sys.WriteMem(c.base+sizeIoctlHdr, c.raw); err != nil {
			return c.fault()
		}
	}
	return 0
}

func (c *call) fault() syscall.Errno {
	if c.undo != nil {
		c.undo()
	}
	return syscall.EFAULT
}

// errnoOf is the kernel's error number for an error of the layers below.
func errnoOf(err error) syscall.Errno {
	var e nic.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, dma.ErrRefused):
		return syscall.EPERM
	case errors.As(err, &e):
		return syscall.Errno(e)
	case errors.Is(err, shm.ErrNoRoom):
		return syscall.ENOMEM
	case errors.Is(err, shm.ErrGone):
		return syscall.EFAULT
	}
	var s syscall.Errno
	if errors.As(err, &s) {
		return s
	}
	return syscall.EINVAL
}

// refused is failed with EINVAL.
func (c *call) refused(op, format string, a ...any) syscall.Errno {
	return c.failed(&nic.Error{Op: op, Reason: fmt.Sprintf(format, a...), Errno: nic.EINVAL})
}

// failed notes why a command failed, for whoever asked to be told, and returns its number.
func (c *call) failed(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if c.rec != nil {
		c.why = reasonOf(err)
	}
	return c.drv.report(c.sys.PID(), err)
}
