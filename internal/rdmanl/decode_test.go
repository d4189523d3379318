package rdmanl

import (
	"strings"
	"testing"
)

// decoded is a message as a client reads it.
type decoded struct {
	typ, flags  uint16
	seq, portID uint32
	body        []byte // behind the header
}

// decode reads a datagram strictly: everything must fit, and padding is zero.
func decode(t testing.TB, datagram []byte) decoded {
	t.Helper()
	if len(datagram) < 16 || len(datagram)%4 != 0 || int(le.Uint32(datagram)) != len(datagram) || len(datagram) > 4096 {
		t.Fatalf("a datagram of %d bytes: %x", len(datagram), datagram)
	}
	return decoded{le.Uint16(datagram[4:]), le.Uint16(datagram[6:]), le.Uint32(datagram[8:]), le.Uint32(datagram[12:]), datagram[16:]}
}

// nlattr is one attribute.
type nlattr struct {
	typ uint16
	b   []byte
}

func attrsOf(t testing.TB, b []byte) (list []nlattr) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 4 || int(le.Uint16(b)) < 4 || int(le.Uint16(b)) > len(b) {
			t.Fatalf("attributes do not end well: %x", b)
		}
		n := int(le.Uint16(b))
		list = append(list, nlattr{le.Uint16(b[2:]) & attrTypeMask, b[4:n]})
		b = b[min(len(b), (n+3)/4*4):]
	}
	return list
}

// get is the payload of the only attribute of a type.
func get(t testing.TB, list []nlattr, typ uint16) []byte {
	t.Helper()
	var found []byte
	for _, a := range list {
		if a.typ == typ {
			if found != nil {
				t.Fatalf("attribute %d twice", typ)
			}
			found = a.b
		}
	}
	if found == nil {
		t.Fatalf("no attribute %d in %v", typ, list)
	}
	return found
}

func has(list []nlattr, typ uint16) bool {
	for _, a := range list {
		if a.typ == typ {
			return true
		}
	}
	return false
}

func number(t testing.TB, list []nlattr, typ uint16) uint64 {
	t.Helper()
	switch b := get(t, list, typ); len(b) {
	case 1:
		return uint64(b[0])
	case 4:
		return uint64(le.Uint32(b))
	case 8:
		return le.Uint64(b)
	default:
		t.Fatalf("attribute %d has %d bytes", typ, len(b))
		return 0
	}
}

func text(t testing.TB, list []nlattr, typ uint16) string {
	t.Helper()
	s, ok := strings.CutSuffix(string(get(t, list, typ)), "\x00")
	if !ok {
		t.Fatalf("attribute %d does not end in zero", typ)
	}
	return s
}

// ask builds a request.
func ask(op, flags uint16, attrs ...nlattr) []byte {
	m := newMessage(clientNLDEV<<10|op, flags|flagRequest, 77, 0)
	for _, a := range attrs {
		m.bytes(a.typ, a.b)
	}
	return m.finish()
}

func u32(typ uint16, v uint32) nlattr      { return nlattr{typ, le.AppendUint32(nil, v)} }
func str(typ uint16, s string) nlattr      { return nlattr{typ, append([]byte(s), 0)} }
func errorOf(t testing.TB, b []byte) errno { return errno(-int32(le.Uint32(decode(t, b).body))) }
