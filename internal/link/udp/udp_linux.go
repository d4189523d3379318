package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
)

// OnlyPlain tells that Plain is the only Link here.
const OnlyPlain = false

// Link is a link.Link over one or several UDP sockets.
type Link struct {
	name    string
	port    uint16
	sockets []*socket
	fds     []int
	segment bool // send with UDP_SEGMENT
	mmsg    bool

	send sender
	recv receiver

	cfg       Config
	groups    map[netip.Addr]*membership
	groupPoll int // an epoll of groupSockets

	counters counters
	refuser

	mu           sync.Mutex
	closed       bool      // guards the descriptors against Stats
	groupSockets []*socket // likewise
}

var _ link.Link = (*Link)(nil)

// Open opens the sockets. Errors: a *link.Error; errors.Is finds
// syscall.EADDRINUSE when somebody else has the port, and
// syscall.EADDRNOTAVAIL for an address that is not this machine's.
func Open(cfg Config) (*Link, error) {
	l := &Link{port: cfg.port(), segment: !cfg.NoSegment, mmsg: !cfg.NoMmsg, cfg: cfg, groupPoll: -1}
	err := l.openSockets(&cfg)
	if err == nil {
		l.groupPoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		err = os.NewSyscallError("epoll_create1", err)
	}
	if err != nil {
		l.Close()
		var e *link.Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, &link.Error{Op: "open", Link: "udp", Err: err}
	}
	fd := l.sockets[0].fd
	l.name = "udp " + netip.AddrPortFrom(l.sockets[0].addr, l.port).String()
	l.segment = l.segment && unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil
	l.mmsg = l.mmsg && haveMmsg(fd)
	for _, s := range l.sockets {
		l.fds = append(l.fds, s.fd)
	}
	l.fds = append(l.fds, l.groupPoll)
	l.send.init()
	l.recv.init()
	return l, nil
}

func (l *Link) openSockets(cfg *Config) error {
	if len(cfg.Addrs) == 0 {
		return l.openWildcards(cfg)
	}
	for _, a := range cfg.Addrs {
		s, err := openSocket(a.Unmap().WithZone(""), cfg)
		if err != nil {
			return err
		}
		l.sockets = append(l.sockets, s)
	}
	return nil
}

// openWildcards opens one socket for each protocol that the system has.
func (l *Link) openWildcards(cfg *Config) error {
	var missing error
	for _, a := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		s, err := openSocket(a, cfg)
		switch {
		case err == nil:
			l.sockets = append(l.sockets, s)
		case errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL):
			missing = err
		default:
			return err
		}
	}
	if len(l.sockets) == 0 {
		return missing
	}
	return nil
}

// ReceiveBuffer is the size of the smallest receive buffer that the system
// granted, in bytes as SO_RCVBUF counts them: twice what was asked for,
// bookkeeping included.
func (l *Link) ReceiveBuffer() int {
	least := l.sockets[0].recvBuf
	for _, s := range l.sockets[1:] {
		least = min(least, s.recvBuf)
	}
	return least
}

// Features tells what is in use now. It belongs to the goroutine of Send.
func (l *Link) Features() Features {
	f := Features{Segment: l.segment && l.send.singly == 0, GRO: true, Mmsg: l.mmsg}
	for _, s := range l.sockets {
		f.GRO = f.GRO && s.gro
	}
	return f
}

// FDs returns the sockets.
func (l *Link) FDs() []int { return l.fds }

// NextDelayed is 0: nothing is delayed here.
func (l *Link) NextDelayed() int64 { return 0 }

// SetNow does nothing: no clock is needed here.
func (l *Link) SetNow(int64) {}

// Stats returns the counters. SocketDrops are those of the open sockets.
func (l *Link) Stats() link.Stats {
	s := l.counters.stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		for _, k := range l.sockets {
			s.SocketDrops += socketDrops(k.fd)
		}
		for _, k := range l.groupSockets {
			s.SocketDrops += socketDrops(k.fd)
		}
	}
	return s
}

// Close closes the sockets; Send and Recv then fail with net.ErrClosed.
func (l *Link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var first error
	if l.groupPoll >= 0 {
		first = unix.Close(l.groupPoll)
	}
	for _, s := range l.groupSockets {
		_ = unix.Close(s.fd)
	}
	for _, s := range l.sockets {
		if err := unix.Close(s.fd); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// fail is the error of a link that cannot go on.
func (l *Link) fail(op string, err error) error {
	if _, ok := err.(unix.Errno); ok {
		err = os.NewSyscallError(op, err)
	}
	return &link.Error{Op: op, Link: l.name, Err: err}
}

func (l *Link) usable(op string) error {
	if l.closed { // written by the goroutine of Send and Recv only
		return l.fail(op, net.ErrClosed)
	}
	return nil
}

// socketFor returns the socket that sends from src, nil if there is none.
func (l *Link) socketFor(src netip.Addr) *socket {
	var any *socket
	for _, s := range l.sockets {
		if s.addr == src {
			return s
		}
		if s.addr.IsUnspecified() && s.addr.Is4() == src.Is4() {
			any = s
		}
	}
	return any
}
