package rdmanl

// header is struct nlmsghdr.
type header struct {
	length      uint32
	typ, flags  uint16
	seq, portID uint32
}

// cut takes the first message off a datagram. Where lengths do not fit, the rest is nothing, as for the kernel
// (netlink_rcv_skb).
func cut(b []byte) (h header, msg, rest []byte, ok bool) {
	if len(b) < sizeHeader {
		return h, nil, nil, false
	}
	h = header{le.Uint32(b), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint32(b[8:]), le.Uint32(b[12:])}
	if h.length < sizeHeader || uint64(h.length) > uint64(len(b)) {
		return h, nil, nil, false
	}
	n := int(h.length)
	return h, b[:n], b[min(align(n), len(b)):], true
}

// attributes are the payloads of those that this package knows the type of, by type.
type attributes [attrMax][]byte

// lengths are the least payloads of attributes that requests are understood by: a shorter one makes the request
// invalid.
var lengths = [attrMax]int{attrDevIndex: 4, attrPortIndex: 4, attrResLQPN: 4, attrResPDN: 4, attrResCQN: 4, attrResMRN: 4,
	attrResCMN: 4, attrResCTXN: 4, attrResSRQN: 4, attrStatRes: 4, attrStatMode: 4, attrStatCounterID: 4, attrChardevType: 1}

// parse reads the attributes that follow a header. The last of a type counts; types that are not known, and bytes
// behind the last that is whole, mean nothing (NL_VALIDATE_LIBERAL).
func parse(b []byte) (a attributes, ok bool) {
	for len(b) >= sizeAttr {
		n, typ := int(le.Uint16(b)), le.Uint16(b[2:])&attrTypeMask
		if n < sizeAttr || n > len(b) {
			break
		}
		if typ < attrMax {
			if n-sizeAttr < lengths[typ] {
				return a, false
			}
			a[typ] = b[sizeAttr:n]
		}
		b = b[min(align(n), len(b)):]
	}
	return a, true
}

// u32 is an attribute of four bytes.
func (a *attributes) u32(attr uint16) (v uint32, ok bool) {
	if len(a[attr]) < 4 {
		return 0, false
	}
	return le.Uint32(a[attr]), true
}

// text is a string, which ends at its first zero.
func (a *attributes) text(attr uint16) (s string, ok bool) {
	for i, c := range a[attr] {
		if c == 0 {
			return string(a[attr][:i]), true
		}
	}
	return "", false
}
