package udp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"rnic/internal/link"
)

// Plain is the Link over net.UDPConn: what every system has. It is slower than Link on Linux, with a system call for each
// packet and a goroutine that receives for each socket, and knows less: what is sent has the system's traffic class and hop
// limit, what is received says neither, and it joins no multicast groups.
//
// The ICRC covers the addresses, so each address has a socket of its own: none takes all of the machine. It covers
// the IPv4 identification too, and is computed with 0. That is what goes out, with DF set (RFC 6864, 4.1), on Linux
// (the socket is unconnected), darwin and FreeBSD (sysctl net.inet.ip.rfc6864, on by default), so there every peer finds it right.
// Windows counts: then another rnic, which finds out the identification that the ICRC was computed with, accepts the packets,
// but an adapter or the Linux kernel's Soft-RoCE, which see the header, drop them. IPv6 has no identification: it is right everywhere.
type Plain struct {
	shared *plainSockets
	index  int
	queue  plainQueue
	idents identifications
	// lent are the datagrams that Recv handed out last.
	lent     []*datagram
	counters counters
	refuser
	closed atomic.Bool
}

var _ link.Link = (*Plain)(nil)

// plainSockets are the sockets of one NIC: all its links send by them, and what they receive goes to the link that the
// destination queue pair says.
type plainSockets struct {
	name    string
	port    uint16
	sockets []*plainSocket
	links   []*Plain
	moved   atomic.Pointer[map[uint32]int]
	readers sync.WaitGroup
	open    atomic.Int32 // links that are not closed
}

type plainSocket struct {
	conn    *net.UDPConn
	addr    netip.Addr
	recvBuf int
	// deadline is until when writes may take, nanoseconds after epoch.
	deadline atomic.Int64
}

// PlainGroup is Plain links for the same addresses, one for each processing unit of a NIC.
type PlainGroup struct{ shared *plainSockets }

// OpenPlain opens n links with the sockets of cfg.Addrs, of which there must be one. Errors: as Open.
func OpenPlain(cfg Config, n int) (*PlainGroup, error) {
	g := &plainSockets{port: cfg.port(), name: "udp"}
	if err := g.openSockets(&cfg); err != nil {
		g.closeSockets()
		return nil, err
	}
	g.name = "udp " + netip.AddrPortFrom(g.sockets[0].addr, g.port).String()
	for i := range n {
		l := &Plain{shared: g, index: i}
		if err := l.queue.init(n == 1); err != nil {
			for _, o := range g.links {
				o.queue.close()
			}
			g.closeSockets()
			return nil, l.fail("open", err)
		}
		g.links = append(g.links, l)
	}
	g.open.Store(int32(n))
	for _, s := range g.sockets {
		g.readers.Go(func() { g.read(s) })
	}
	return &PlainGroup{g}, nil
}

func (g *plainSockets) openSockets(cfg *Config) error {
	var missing error
	for _, a := range cfg.Addrs {
		s, err := openPlain(a.Unmap().WithZone(""), cfg)
		switch {
		case err == nil:
			g.sockets = append(g.sockets, s)
		case cfg.Optional && errors.Is(err, syscall.EADDRNOTAVAIL):
			missing = err
		default:
			return err
		}
	}
	switch {
	case len(g.sockets) > 0:
		return nil
	case missing != nil:
		return missing
	}
	return &link.Error{Op: "open", Link: "udp", Err: syscall.EADDRNOTAVAIL, Hint: "name the addresses: there is no socket for all of the machine here"}
}

func openPlain(addr netip.Addr, cfg *Config) (*plainSocket, error) {
	network := "udp4"
	if addr.Is6() {
		network = "udp6"
	}
	at := netip.AddrPortFrom(addr, cfg.port())
	var optionErr error
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		err := c.Control(func(fd uintptr) { optionErr = dontFragment(fd, addr.Is4()) })
		if err == nil {
			err = optionErr
		}
		return err
	}}
	conn, err := lc.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		e := &link.Error{Op: "open", Link: "udp " + at.String(), Err: plainError(err)}
		switch {
		case errors.Is(e, syscall.EADDRINUSE):
			e.Hint = portHolder(addr, cfg.port())
		case errors.Is(e, syscall.EADDRNOTAVAIL):
			e.Hint = "no interface of this machine has the address"
			if addr.IsLoopback() && (runtime.GOOS == "darwin" || runtime.GOOS == "freebsd") {
				e.Hint = "lo0 does not have it: ifconfig lo0 alias " + addr.String()
			}
		}
		return nil, e
	}
	s := &plainSocket{conn: conn.(*net.UDPConn), addr: addr, recvBuf: DefaultSocketBuffer}
	if !cfg.KeepSocketBuffers {
		for size := wantedSocketBuffer; size > DefaultSocketBuffer; size /= 2 { // some systems refuse what is too much
			if s.conn.SetReadBuffer(size) == nil {
				s.recvBuf = size
				break
			}
		}
		_ = s.conn.SetWriteBuffer(1 << 20)
	}
	return s, nil
}

func (g *plainSockets) closeSockets() {
	for _, s := range g.sockets {
		_ = s.conn.Close()
	}
	g.readers.Wait()
}

// Links are the group's links: the queue pairs with number m modulo their number arrive at link m.
func (g *PlainGroup) Links() []*Plain { return g.shared.links }

// Steer makes exceptions: the links of the queue pairs whose numbers do not say it.
func (g *PlainGroup) Steer(exceptions map[uint32]int) error {
	moved := make(map[uint32]int, len(exceptions))
	for num, link := range exceptions {
		if link >= 0 && link < len(g.shared.links) && num < multicastQPN {
			moved[num] = link
		}
	}
	g.shared.moved.Store(&moved)
	return nil
}

// multicastQPN is the destination of datagrams to multicast groups (InfiniBand vol. 1, 10.5.2.1), and the mask of queue pair numbers.
const multicastQPN = 0xffffff

// Join is not done: errors.ErrUnsupported.
func (l *Plain) Join(group netip.Addr, _ []int) error {
	return &link.Error{Op: "join group " + group.String(), Link: l.shared.name, Err: errors.ErrUnsupported, Hint: "plain sockets join no multicast groups"}
}

// Leave does nothing.
func (*Plain) Leave(netip.Addr) {}

// ReceiveBuffer is the size of the smallest receive buffer in bytes, as asked for.
func (l *Plain) ReceiveBuffer() int {
	least := l.shared.sockets[0].recvBuf
	for _, s := range l.shared.sockets[1:] {
		least = min(least, s.recvBuf)
	}
	return least
}

// FDs is, on Linux, a descriptor that is readable while Recv has something; elsewhere there is none: see Notify.
func (l *Plain) FDs() []int { return l.queue.bell.fds() }

// Notify implements link.Notifier.
func (l *Plain) Notify(f func()) bool {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	l.queue.heard = f
	return true
}

// NextDelayed is 0: nothing is delayed here.
func (*Plain) NextDelayed() int64 { return 0 }

// SetNow does nothing.
func (*Plain) SetNow(int64) {}

// Stats returns the counters. SocketDrops are what found no room behind the sockets; what the system drops, it does not say.
func (l *Plain) Stats() link.Stats { return l.counters.stats() }

// Close closes the link; the last of a group closes the sockets. Send and Recv then fail with net.ErrClosed.
func (l *Plain) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.queue.close()
	if l.shared.open.Add(-1) == 0 {
		l.shared.closeSockets()
	}
	return nil
}

func (l *Plain) fail(op string, err error) error {
	return &link.Error{Op: op, Link: l.shared.name, Err: err}
}

func (l *Plain) usable(op string) error {
	if l.closed.Load() {
		return l.fail(op, net.ErrClosed)
	}
	return nil
}

var plainEpoch = time.Now()
