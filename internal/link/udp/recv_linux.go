package udp

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/roce"
)

const (
	recvMessages = 32
	recvSize     = 64 << 10 // the longest datagram, merged or not
)

// receiver is the state of Recv. Datagrams that were received and did not fit
// into the caller's packets wait in their buffers.
type receiver struct {
	msgs    *messages
	buffers []byte
	idents  identifications

	current  int // socket to try first; one more than there are: those of groups
	from     *socket
	turns    int  // receives since another socket came first
	have     int  // messages received
	next     int  // message to take packets from
	opened   bool // message next has been parsed
	used     int  // messages that the kernel wrote to and that are to be reset
	datagram received
	offset   int    // in the datagram
	guess    uint16 // identification of the next segment
}

func (r *receiver) init() {
	r.msgs = newMessages(recvMessages)
	r.buffers = make([]byte, recvMessages*recvSize)
	for i := range recvMessages {
		r.msgs.setData(i, r.buffer(i))
		r.msgs.prepareReceive(i)
	}
}

func (r *receiver) buffer(i int) []byte { return r.buffers[i*recvSize : (i+1)*recvSize] }

// Recv implements link.Link.
func (l *Link) Recv(pkts []link.Packet) (int, error) {
	if err := l.usable("receive"); err != nil {
		return 0, err
	}
	if len(pkts) == 0 {
		return 0, nil
	}
	for {
		if n := l.take(pkts); n > 0 {
			return n, nil
		}
		// All buffers are free: what was handed out is valid only until this call.
		if got, err := l.fill(len(pkts)); got == 0 || err != nil {
			return 0, err
		}
	}
}

// fill receives up to want datagrams from the first socket that has any.
func (l *Link) fill(want int) (int, error) {
	const fairness = 16
	r := &l.recv
	if r.turns++; r.turns >= fairness {
		r.turns = 0
		r.current++
	}
	for range len(l.sockets) + 1 {
		if r.current > len(l.sockets) {
			r.current = 0
		}
		if r.from = l.socketToTry(r.current); r.from == nil {
			r.current++
			continue
		}
		fd := r.from.fd
		n, errno := l.receive(fd, min(want, recvMessages))
		if errno != 0 && errno != unix.EAGAIN {
			// An error of the network that the socket had kept: it is gone
			// with this call, and concerns no packet of ours.
			n, errno = l.receive(fd, min(want, recvMessages))
		}
		switch errno {
		case 0:
			r.have, r.next, r.opened = n, 0, false
			return n, nil
		case unix.EBADF, unix.ENOTSOCK:
			return 0, l.fail("receive", errno)
		}
		r.current++
	}
	return 0, nil
}

func (l *Link) socketToTry(i int) *socket {
	switch {
	case i < len(l.sockets):
		return l.sockets[i]
	case len(l.groupSockets) > 0:
		return l.readyGroup()
	}
	return nil
}

func (l *Link) receive(fd, want int) (int, unix.Errno) {
	r := &l.recv
	for i := range r.used {
		r.msgs.prepareReceive(i)
	}
	r.used = 0
	n, errno := r.msgs.receive(fd, want, l.mmsg)
	if errno == unix.ENOSYS && l.mmsg {
		l.mmsg = false
		n, errno = r.msgs.receive(fd, want, false)
	}
	r.used = min(n+1, recvMessages) // the one behind may have been begun
	return n, errno
}

// take moves good packets out of the datagrams received.
func (l *Link) take(pkts []link.Packet) int {
	r := &l.recv
	n, bytes := 0, 0
	var bad, malformed uint64
	for r.next < r.have && n < len(pkts) {
		if !r.opened {
			l.openDatagram()
		}
		d := &r.datagram
		data := r.segment()
		switch {
		case len(data) < minPacket || d.cut || !d.path.Dst.IsValid() || !d.path.Src.IsValid():
			malformed++
			l.refuse(&d.path, data, false)
		case !r.check(data):
			bad++
			l.refuse(&d.path, data, true)
		default:
			end := len(data) - roce.ICRCSize
			pkts[n] = link.Packet{Path: d.path, Data: data[:end:end]}
			n++
			bytes += len(data)
		}
		if r.offset >= d.len {
			r.next++
			r.opened = false
		}
	}
	c := &l.counters
	if n > 0 {
		c.received.Add(uint64(n))
		c.receivedBytes.Add(uint64(bytes))
	}
	if bad > 0 {
		c.badICRC.Add(bad)
	}
	if malformed > 0 {
		c.malformed.Add(malformed)
	}
	return n
}

// openDatagram reads what the kernel says of message next.
func (l *Link) openDatagram() {
	r := &l.recv
	r.msgs.parse(r.next, &r.datagram)
	d := &r.datagram
	d.len = min(d.len, recvSize)
	if !d.path.Dst.IsValid() { // no packet info: good enough if the socket has one address
		if a := r.from.addr; !a.IsUnspecified() {
			d.path.Dst = a
		}
	}
	if d.path.Dst.IsValid() && d.path.Src.Is4() != d.path.Dst.Is4() {
		d.path.Dst = netip.Addr{}
	}
	r.opened, r.offset, r.guess = true, 0, 0
}

// segment cuts the next packet off the datagram.
func (r *receiver) segment() []byte {
	d := &r.datagram
	end := d.len
	if d.segment > 0 && d.segment < end-r.offset {
		end = r.offset + d.segment
	}
	data := r.buffer(r.next)[r.offset:end]
	r.offset = end
	return data
}

// check verifies a packet of the current datagram.
func (r *receiver) check(data []byte) bool {
	d := &r.datagram
	if d.segment == 0 {
		return r.idents.verifyLone(&d.path, data)
	}
	ident, ok := r.idents.verify(&d.path, r.guess, data)
	if ok {
		r.guess = ident
	}
	r.guess++
	return ok
}
