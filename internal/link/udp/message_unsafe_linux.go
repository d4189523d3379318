package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/roce"
)

// mmsghdr is struct mmsghdr of <sys/socket.h>.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

const (
	sizeofName = unix.SizeofSockaddrInet6 // the longer of the two

	// controlWords is the room for control messages of one packet, in words of
	// 8 bytes: packet info (40 bytes), traffic class, hop limit, and segment
	// size (24 each) come to 112, and some more in case the kernel adds one.
	controlWords = 32
)

// control is aligned as struct cmsghdr must be.
type control [controlWords]uint64

func (c *control) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(c)), int(unsafe.Sizeof(*c)))
}

// messages are the arguments of sendmmsg and recvmmsg, allocated once.
type messages struct {
	hdrs     []mmsghdr
	iovs     []unix.Iovec
	names    [][sizeofName]byte
	controls []control
}

func newMessages(n int) *messages {
	m := &messages{
		hdrs:     make([]mmsghdr, n),
		iovs:     make([]unix.Iovec, n),
		names:    make([][sizeofName]byte, n),
		controls: make([]control, n),
	}
	for i := range m.hdrs {
		h := &m.hdrs[i].hdr
		h.Iov = &m.iovs[i]
		h.SetIovlen(1)
		h.Name = &m.names[i][0]
		h.Control = (*byte)(unsafe.Pointer(&m.controls[i]))
	}
	return m
}

// setData points message i at data. Preconditions: data is not empty.
func (m *messages) setData(i int, data []byte) {
	m.iovs[i].Base = unsafe.SliceData(data)
	m.iovs[i].SetLen(len(data))
}

// setDestination writes the socket address of message i.
func (m *messages) setDestination(i int, dst netip.Addr, port uint16) {
	name := &m.names[i]
	if dst.Is4() {
		a := dst.As4()
		binary.NativeEndian.PutUint16(name[0:], unix.AF_INET)
		binary.BigEndian.PutUint16(name[2:], port)
		copy(name[4:8], a[:])
		m.hdrs[i].hdr.Namelen = unix.SizeofSockaddrInet4
		return
	}
	a := dst.As16()
	binary.NativeEndian.PutUint16(name[0:], unix.AF_INET6)
	binary.BigEndian.PutUint16(name[2:], port)
	clear(name[4:8]) // flow label
	copy(name[8:24], a[:])
	clear(name[24:28]) // scope
	m.hdrs[i].hdr.Namelen = unix.SizeofSockaddrInet6
}

// setControl writes the control messages of message i: what of path is not
// the socket's default, the interface to leave by unless 0 (IPv6, and with source only), and the segment size unless 0.
func (m *messages) setControl(i int, path *roce.Path, source bool, leave, segment int) {
	b := m.controls[i].bytes()
	n := 0
	if path.Src.Is4() {
		if source {
			data, next := putControl(b, n, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
			a := path.Src.As4()
			clear(data)
			copy(data[4:8], a[:]) // ipi_spec_dst
			n = next
		}
		n = putControlInt(b, n, unix.IPPROTO_IP, unix.IP_TOS, int(path.TOS), path.TOS != 0)
		n = putControlInt(b, n, unix.IPPROTO_IP, unix.IP_TTL, int(path.TTL), path.TTL != 0 && path.TTL != defaultTTL)
	} else {
		if source {
			data, next := putControl(b, n, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
			a := path.Src.As16()
			copy(data[0:16], a[:])                                  // ipi6_addr
			binary.NativeEndian.PutUint32(data[16:], uint32(leave)) // ipi6_ifindex
			n = next
		}
		n = putControlInt(b, n, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(path.TOS), path.TOS != 0)
		n = putControlInt(b, n, unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, int(path.TTL), path.TTL != 0 && path.TTL != defaultTTL)
	}
	if segment != 0 {
		data, next := putControl(b, n, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
		binary.NativeEndian.PutUint16(data, uint16(segment))
		n = next
	}
	h := &m.hdrs[i].hdr
	h.SetControllen(n)
	h.Control = nil
	if n != 0 {
		h.Control = (*byte)(unsafe.Pointer(&m.controls[i]))
	}
}

// putControl writes the header of a control message at b[n:] and returns its
// data and where the next begins.
func putControl(b []byte, n int, level, typ int32, size int) (data []byte, next int) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[n]))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(size))
	start := n + unix.CmsgLen(0)
	return b[start : start+size], n + unix.CmsgSpace(size)
}

func putControlInt(b []byte, n int, level, typ int32, value int, want bool) int {
	if !want {
		return n
	}
	data, next := putControl(b, n, level, typ, 4)
	binary.NativeEndian.PutUint32(data, uint32(value))
	return next
}

// prepareReceive resets what a receive has overwritten of message i.
func (m *messages) prepareReceive(i int) {
	h := &m.hdrs[i].hdr
	h.Namelen = sizeofName
	h.SetControllen(int(unsafe.Sizeof(control{})))
	h.Flags = 0
}

// received is what the kernel says of one received datagram, which holds
// several packets when it was merged.
type received struct {
	path    roce.Path // Dst is invalid if the kernel did not say
	len     int
	segment int // 0: not merged
	cut     bool
}

// parse reads the result for message i.
func (m *messages) parse(i int, r *received) {
	h := &m.hdrs[i].hdr
	*r = received{len: int(m.hdrs[i].len), cut: h.Flags&unix.MSG_TRUNC != 0}
	name := &m.names[i]
	switch binary.NativeEndian.Uint16(name[:]) {
	case unix.AF_INET:
		r.path.Src = netip.AddrFrom4([4]byte(name[4:8]))
	case unix.AF_INET6:
		r.path.Src = netip.AddrFrom16([16]byte(name[8:24]))
	}
	r.path.SrcPort = binary.BigEndian.Uint16(name[2:])

	b := m.controls[i].bytes()
	n := min(int(h.Controllen), len(b))
	for off := 0; off+unix.CmsgLen(0) <= n; {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&b[off]))
		size := int(c.Len)
		if size < unix.CmsgLen(0) || size > n-off {
			break
		}
		r.control(c.Level, c.Type, b[off+unix.CmsgLen(0):off+size])
		off += unix.CmsgSpace(size - unix.CmsgLen(0))
	}
}

func (r *received) control(level, typ int32, data []byte) {
	switch {
	case level == unix.IPPROTO_IP && typ == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		r.path.Dst = netip.AddrFrom4([4]byte(data[8:12])) // ipi_addr, as in the header
	case level == unix.IPPROTO_IPV6 && typ == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		r.path.Dst = netip.AddrFrom16([16]byte(data[0:16]))
	case level == unix.IPPROTO_IP && typ == unix.IP_TOS && len(data) >= 1:
		r.path.TOS = data[0] // one byte here, an int in all the others
	case level == unix.IPPROTO_IPV6 && typ == unix.IPV6_TCLASS && len(data) >= 4:
		r.path.TOS = uint8(binary.NativeEndian.Uint32(data))
	case (level == unix.IPPROTO_IP && typ == unix.IP_TTL ||
		level == unix.IPPROTO_IPV6 && typ == unix.IPV6_HOPLIMIT) && len(data) >= 4:
		r.path.TTL = uint8(binary.NativeEndian.Uint32(data))
	case level == unix.IPPROTO_UDP && typ == unix.UDP_GRO && len(data) >= 4:
		if s := int32(binary.NativeEndian.Uint32(data)); s > 0 {
			r.segment = int(s)
		}
	}
}

// The calls go around the Go scheduler (RawSyscall): the sockets never block,
// and the hand-over costs more than a small packet.

// send sends messages [from, to) and returns how many the kernel took.
func (m *messages) send(fd, from, to int, mmsg bool) (int, unix.Errno) {
	for {
		var n uintptr
		var errno unix.Errno
		if mmsg {
			n, _, errno = unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
				uintptr(unsafe.Pointer(&m.hdrs[from])), uintptr(to-from), unix.MSG_DONTWAIT, 0, 0)
		} else {
			n = 1
			_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd),
				uintptr(unsafe.Pointer(&m.hdrs[from].hdr)), unix.MSG_DONTWAIT)
		}
		switch errno {
		case 0:
			return int(n), 0
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}

// receive receives up to n messages.
func (m *messages) receive(fd, n int, mmsg bool) (int, unix.Errno) {
	for {
		var got uintptr
		var errno unix.Errno
		if mmsg {
			got, _, errno = unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd),
				uintptr(unsafe.Pointer(&m.hdrs[0])), uintptr(n), unix.MSG_DONTWAIT, 0, 0)
		} else {
			var size uintptr
			got = 1
			size, _, errno = unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd),
				uintptr(unsafe.Pointer(&m.hdrs[0].hdr)), unix.MSG_DONTWAIT)
			m.hdrs[0].len = uint32(size)
		}
		switch errno {
		case 0:
			return int(got), 0
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}

// haveMmsg asks the kernel for both calls, with nothing to do.
func haveMmsg(fd int) bool {
	var h mmsghdr
	for _, trap := range [...]uintptr{unix.SYS_SENDMMSG, unix.SYS_RECVMMSG} {
		_, _, errno := unix.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&h)), 0, unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.ENOSYS || errno == unix.EPERM {
			return false
		}
	}
	return true
}

// socketDrops reads how many datagrams the kernel dropped at the socket.
func socketDrops(fd int) uint64 {
	const skMeminfoDrops, skMeminfoVars = 8, 9 // <linux/sock_diag.h>
	var info [skMeminfoVars]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || uintptr(size) < unsafe.Sizeof(info) {
		return 0
	}
	return uint64(info[skMeminfoDrops])
}
