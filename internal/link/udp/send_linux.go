package udp

import (
	"golang.org/x/sys/unix"

	"rnic/internal/link"
	"rnic/internal/roce"
)

const (
	sendMessages = 64
	maxDatagram  = 65507 // of IPv4: 65,535 less IP and UDP headers
)

// sender is the state of Send: messages built and not sent yet.
type sender struct {
	msgs    *messages
	groups  [sendMessages]group
	path    roce.Path // scratch: as it goes to the wire
	corrupt bool      // a packet of this batch has Corrupt
	singly  int       // so many packets go unsegmented, as a segmented message was refused
}

// retrySegments is how many packets go unsegmented before segmentation is tried again: so many that a try in vain costs nothing to speak of.
const retrySegments = 1 << 16

// group is a run of packets that goes out as one message.
type group struct {
	first, count int // in the pkts of Send
	bytes        int
}

// init allocates; the last slot is for packets sent singly.
func (s *sender) init() { s.msgs = newMessages(sendMessages + 1) }

// Send implements link.Link.
func (l *Link) Send(pkts []link.Packet) (int, error) {
	if err := l.usable("send"); err != nil {
		return 0, err
	}
	done := 0
	for done < len(pkts) {
		sock, n := l.build(pkts, done)
		if n == 0 { // the packet at done has no way out
			l.counters.sendErrors.Add(1)
			done++
			continue
		}
		next, full, err := l.sendGroups(sock, pkts, n)
		l.restore(pkts, n)
		done = next
		if err != nil || full {
			return done, err
		}
	}
	return done, nil
}

// build makes messages of pkts[from:], all for one socket, up to the first
// packet that cannot be sent. It returns the number of messages.
func (l *Link) build(pkts []link.Packet, from int) (sock *socket, n int) {
	s := &l.send
	s.corrupt = false
	for n < sendMessages && from < len(pkts) {
		p := &pkts[from]
		k := l.route(p)
		if k == nil || n > 0 && k != sock {
			break
		}
		sock = k
		g := &s.groups[n]
		g.first = from
		g.count, g.bytes = l.run(pkts[from:])
		l.complete(n, pkts[from:from+g.count], sock, g.bytes)
		from += g.count
		n++
	}
	return sock, n
}

// route returns the socket for p, nil if p cannot be sent at all.
func (l *Link) route(p *link.Packet) *socket {
	if len(p.Data) < minPacket || len(p.Data) > maxDatagram ||
		!p.Path.Src.IsValid() || !p.Path.Dst.IsValid() ||
		p.Path.Src.Is4() != p.Path.Dst.Is4() {
		return nil
	}
	return l.socketFor(p.Path.Src)
}

// run returns how many packets from the front go out as one message, and
// their bytes: contiguous, one path, one length except that the last may be
// shorter.
func (l *Link) run(pkts []link.Packet) (count, bytes int) {
	first := &pkts[0]
	size := len(first.Data)
	count, bytes = 1, size
	if !l.segment || l.send.singly > 0 {
		return count, bytes
	}
	for count < len(pkts) && count < maxSegments {
		p := &pkts[count]
		n := len(p.Data)
		if n > size || n < minPacket || bytes+n > maxSendBytes || p.Path != first.Path ||
			!link.Contiguous(pkts[count-1].Data, p.Data) || cap(first.Data) < bytes+n {
			break
		}
		bytes += n
		count++
		if n < size {
			break
		}
	}
	return count, bytes
}

// complete makes message i of a run of packets: their ICRCs, where segment k
// of a message carries identification k, addresses and control data.
func (l *Link) complete(i int, run []link.Packet, sock *socket, bytes int) {
	s := &l.send
	s.path = run[0].Path
	s.path.SrcPort = l.port
	for k := range run {
		p := &run[k]
		roce.PutICRC(&s.path, uint16(k), p.Data)
		if p.Corrupt != 0 {
			invert(p)
			s.corrupt = true
		}
	}
	segment := 0
	if len(run) > 1 {
		segment = len(run[0].Data)
	}
	s.msgs.setData(i, run[0].Data[:bytes])
	s.msgs.setDestination(i, s.path.Dst, roce.Port)
	source, leave := sock.addr.IsUnspecified(), 0
	if s.path.Dst.Is6() && s.path.Dst.IsMulticast() {
		source, leave = true, l.cfg.Interfaces[s.path.Src]
	}
	s.msgs.setControl(i, &s.path, source, leave, segment)
}

// sendGroups sends the n messages built. next is the first packet that was
// not accepted; full, that the socket takes no more for now.
func (l *Link) sendGroups(sock *socket, pkts []link.Packet, n int) (next int, full bool, err error) {
	s := &l.send
	for i := 0; i < n; {
		g := &s.groups[i]
		sent, errno := s.msgs.send(sock.fd, i, n, l.mmsg)
		switch {
		case errno == 0:
			for _, g := range s.groups[i : i+sent] {
				l.sent(g.count, g.bytes)
			}
			i += sent
		case errno == unix.EAGAIN:
			return g.first, true, nil
		case errno == unix.ENOSYS && l.mmsg:
			l.mmsg = false
		case errno == unix.EBADF || errno == unix.ENOTSOCK:
			return g.first, false, l.fail("send", errno)
		case g.count > 1 && (errno == unix.EIO || errno == unix.EINVAL || errno == unix.EOPNOTSUPP || errno == unix.EMSGSIZE):
			// What follows is built anew: this may turn segmentation off for a while.
			l.restore(pkts, n)
			done, full := l.sendSingly(sock, pkts[g.first:g.first+g.count])
			return g.first + done, full, nil
		default:
			l.counters.sendErrors.Add(uint64(g.count))
			i++
		}
	}
	last := &s.groups[n-1]
	return last.first + last.count, false, nil
}

// restore takes the injected corruption out of the caller's data again, of
// the n messages built.
func (l *Link) restore(pkts []link.Packet, n int) {
	s := &l.send
	if !s.corrupt {
		return
	}
	for _, g := range s.groups[:n] {
		for i := g.first; i < g.first+g.count; i++ {
			if pkts[i].Corrupt != 0 {
				invert(&pkts[i])
			}
		}
	}
	s.corrupt = false
}

// sendSingly sends the packets of a message that the kernel refused one by
// one, with the identification of an unsegmented packet. If the first, which is
// as long as any, goes where the segmented message did not, segmentation is off
// for the next packets: a device without checksum offload refuses it, and so
// does IPsec (EIO). Not for good: others of the NIC's peers may be elsewhere, and
// routes change. If it is too long for the path, a last shorter one may go and
// says nothing of segmentation.
// Preconditions: the data is as the caller gave it.
func (l *Link) sendSingly(sock *socket, run []link.Packet) (done int, full bool) {
	s := &l.send
	defer func() { s.corrupt = false }()
	for i := range run {
		p := &run[i]
		l.complete(sendMessages, run[i:i+1], sock, len(p.Data))
		_, errno := s.msgs.send(sock.fd, sendMessages, sendMessages+1, l.mmsg)
		if p.Corrupt != 0 {
			invert(p)
		}
		switch errno {
		case 0:
			if i == 0 {
				s.singly = retrySegments
			}
			l.sent(1, len(p.Data))
		case unix.EAGAIN:
			return i, true
		default:
			l.counters.sendErrors.Add(1)
		}
	}
	return len(run), false
}

func (l *Link) sent(packets, bytes int) {
	l.send.singly = max(0, l.send.singly-packets)
	l.counters.sent.Add(uint64(packets))
	l.counters.sentBytes.Add(uint64(bytes))
}
