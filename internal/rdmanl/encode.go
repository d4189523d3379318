package rdmanl

import (
	"encoding/binary"
	"net/netip"
)

// Netlink is in the byte order of the host; this NIC runs on hosts that are little-endian.
var le = binary.LittleEndian

// maxMessage is the length to which messages are filled. Clients receive with a page (libmnl), and the kernel fills
// dumps to a page less its own overhead (NLMSG_GOODSIZE).
const maxMessage = 3584

func align(n int) int { return (n + 3) &^ 3 }

// message is a netlink message, or a part of one, under construction.
type message struct{ b []byte }

// newMessage begins a message; finish sets its length.
func newMessage(typ, flags uint16, seq, port uint32) *message {
	m := &message{make([]byte, 0, 256)}
	m.b = le.AppendUint32(m.b, 0)
	m.b = le.AppendUint16(m.b, typ)
	m.b = le.AppendUint16(m.b, flags)
	m.b = le.AppendUint32(m.b, seq)
	m.b = le.AppendUint32(m.b, port)
	return m
}

func (m *message) finish() []byte {
	le.PutUint32(m.b, uint32(len(m.b)))
	return m.b
}

// bytes appends an attribute; lengths are those of this package's own making, far below 64 KiB.
func (m *message) bytes(attr uint16, v []byte) {
	m.b = le.AppendUint16(m.b, uint16(sizeAttr+len(v)))
	m.b = le.AppendUint16(m.b, attr)
	m.b = append(m.b, v...)
	m.pad()
}

// pad makes the length a multiple of four (NLMSG_ALIGNTO, NLA_ALIGNTO).
func (m *message) pad() {
	for len(m.b) != align(len(m.b)) {
		m.b = append(m.b, 0)
	}
}

func (m *message) u8(attr uint16, v uint8)   { m.bytes(attr, []byte{v}) }
func (m *message) u32(attr uint16, v uint32) { m.bytes(attr, le.AppendUint32(nil, v)) }
func (m *message) u64(attr uint16, v uint64) { m.bytes(attr, le.AppendUint64(nil, v)) }

// text appends a string of 255 bytes at most, with the zero that ends it.
func (m *message) text(attr uint16, s string) {
	m.bytes(attr, append([]byte(s[:min(len(s), 255)]), 0))
}

// nest begins an attribute of attributes, which end ends.
func (m *message) nest(attr uint16) (at int) {
	at = len(m.b)
	m.b = le.AppendUint32(m.b, uint32(attr)<<16)
	return at
}

func (m *message) end(at int) { le.PutUint16(m.b[at:], uint16(len(m.b)-at)) }

// handle appends what names a device.
func (m *message) handle(d *Device) {
	m.u32(attrDevIndex, d.Index)
	m.text(attrDevName, d.Name)
}

// pid appends the process that an object is of, or that it is the NIC's own: the kernel's name for those is that of its module.
func (m *message) pid(pid uint32) {
	if pid != 0 {
		m.u32(attrResPID, pid)
	} else {
		m.text(attrResKern, "ib_core")
	}
}

// sizeSockaddr is the size of struct __kernel_sockaddr_storage.
const sizeSockaddr = 128

// address appends a struct sockaddr_in or sockaddr_in6, unless there is none.
func (m *message) address(attr uint16, a netip.AddrPort) {
	const inet, inet6 = 2, 10
	if !a.IsValid() {
		return
	}
	var s [sizeSockaddr]byte
	binary.BigEndian.PutUint16(s[2:], a.Port())
	if ip := a.Addr(); ip.Is4() {
		le.PutUint16(s[:], inet)
		b := ip.As4()
		copy(s[4:], b[:])
	} else {
		le.PutUint16(s[:], inet6)
		b := ip.As16()
		copy(s[8:], b[:])
	}
	m.bytes(attr, s[:])
}
