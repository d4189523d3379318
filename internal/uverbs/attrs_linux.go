package uverbs

import "syscall"

// attrKind says what an attribute of a method is.
type attrKind uint8

const (
	attrIn        attrKind = iota // data to the kernel, inline up to 8 bytes
	attrOut                       // data from the kernel, at an address
	attrObject                    // handle of an existing object
	attrNewObject                 // handle of the object that the method creates
	attrFD                        // descriptor of an existing file
	attrNewFD                     // descriptor of the file that the method creates
)

// attrSpec describes one attribute of a method.
type attrSpec struct {
	id       uint16
	name     string
	kind     attrKind
	min, max int // length in bytes, of attrIn and attrOut
	required bool
}

// anyLength is the max of attributes of no fixed length.
const anyLength = 0xffff

// Specs of the common kinds. A constant or set of flags comes as 32 or 64 bits.
func in(id uint16, name string, size int) attrSpec {
	return attrSpec{id, name, attrIn, size, size, true}
}
func out(id uint16, name string, size int) attrSpec {
	return attrSpec{id, name, attrOut, size, size, true}
}
func outStruct(id uint16, name string, size int) attrSpec {
	return attrSpec{id, name, attrOut, size, anyLength, true}
}
func inFlags(id uint16, name string) attrSpec { return attrSpec{id, name, attrIn, 4, 8, false} }
func object(id uint16, name string) attrSpec  { return attrSpec{id, name, attrObject, 0, 0, true} }
func newObject(id uint16, name string) attrSpec {
	return attrSpec{id, name, attrNewObject, 0, 0, true}
}
func fd(id uint16, name string) attrSpec    { return attrSpec{id, name, attrFD, 0, 0, true} }
func newFD(id uint16, name string) attrSpec { return attrSpec{id, name, attrNewFD, 0, 0, true} }
func optional(a attrSpec) attrSpec {
	a.required = false
	return a
}

// providerPart are the attributes that belong to the provider, in every method that has such a part.
var providerPart = []attrSpec{
	{attrUHWIn, "UHW_IN", attrIn, 0, anyLength, false},
	{attrUHWOut, "UHW_OUT", attrOut, 0, anyLength, false},
}

// ioctlHeader is struct ib_uverbs_ioctl_hdr.
type ioctlHeader struct {
	Length, Object, Method, Attrs uint16
	Driver                        uint32
}

// maxIoctl bounds an ioctl in bytes: a page, as in the kernel.
const maxIoctl = 4096

// decodeIoctlHeader reads and checks the header. Precondition: len(b) >= sizeIoctlHdr.
func decodeIoctlHeader(b []byte) (h ioctlHeader, errno syscall.Errno) {
	_ = b[sizeIoctlHdr-1]
	h = ioctlHeader{Length: le.Uint16(b[0:]), Object: le.Uint16(b[2:]), Method: le.Uint16(b[4:]), Attrs: le.Uint16(b[6:]),
		Driver: le.Uint32(b[16:])}
	if h.Length > maxIoctl || int(h.Length) != sizeIoctlHdr+int(h.Attrs)*sizeIoctlAttr {
		return h, syscall.EINVAL
	}
	if le.Uint64(b[8:]) != 0 || le.Uint32(b[20:]) != 0 {
		return h, syscall.EPROTONOSUPPORT
	}
	return h, 0
}

// attr is one attribute as the client sent it.
type attr struct {
	spec  *attrSpec // nil: unknown to the method, and not mandatory
	index int       // place in the client's array
	id    uint16
	len   uint16
	flags uint16
	enum  uint16 // enum value, or reserved
	data  uint64
	value []byte // of attrIn: a copy of what it holds, once fetched
}

// decodeAttrs takes the client's array of attributes apart and checks it against the method's. It
// does not read what they point to.
func decodeAttrs(b []byte, m *method) ([]attr, syscall.Errno) {
	attrs := make([]attr, 0, len(b)/sizeIoctlAttr)
	for i := 0; len(b) >= sizeIoctlAttr; i, b = i+1, b[sizeIoctlAttr:] {
		a := attr{index: i, id: le.Uint16(b[0:]), len: le.Uint16(b[2:]), flags: le.Uint16(b[4:]), enum: le.Uint16(b[6:]), data: le.Uint64(b[8:])}
		a.spec = m.attr(a.id)
		if a.spec == nil {
			if a.flags&flagMandatory != 0 {
				return attrs, syscall.EPROTONOSUPPORT
			}
			attrs = append(attrs, a)
			continue
		}
		for j := range attrs {
			if attrs[j].id == a.id {
				return attrs, syscall.EINVAL
			}
		}
		if errno := a.check(); errno != 0 {
			return attrs, errno
		}
		attrs = append(attrs, a)
	}
	for i := range m.attrs {
		if m.attrs[i].required && find(attrs, m.attrs[i].id) == nil {
			return attrs, syscall.EINVAL
		}
	}
	return attrs, 0
}

// check looks at an attribute's own fields.
func (a *attr) check() syscall.Errno {
	if a.enum != 0 {
		return syscall.EINVAL
	}
	switch a.spec.kind {
	case attrIn, attrOut:
		if int(a.len) < a.spec.min || int(a.len) > a.spec.max {
			return syscall.EINVAL
		}
	case attrObject, attrFD, attrNewObject, attrNewFD:
		if a.len != 0 {
			return syscall.EINVAL
		}
	}
	return 0
}

// fetch copies what input attributes hold: once, so that what is checked is what is used.
func fetch(attrs []attr, read func(addr uint64, p []byte) error) syscall.Errno {
	for i := range attrs {
		a := &attrs[i]
		if a.spec == nil || a.spec.kind != attrIn {
			continue
		}
		if a.len <= inlineLimit {
			a.value = le.AppendUint64(nil, a.data)[:a.len]
			continue
		}
		a.value = make([]byte, a.len)
		if err := read(a.data, a.value); err != nil {
			return syscall.EFAULT
		}
	}
	return 0
}

func find(attrs []attr, id uint16) *attr {
	for i := range attrs {
		if attrs[i].id == id && attrs[i].spec != nil {
			return &attrs[i]
		}
	}
	return nil
}

// uint is the value of an input attribute of up to 8 bytes.
func (a *attr) uint() uint64 {
	var b [8]byte
	copy(b[:], a.value)
	return le.Uint64(b[:])
}
