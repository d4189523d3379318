package cm

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"rnic/verbs"
)

// streams is what all streams of a manager share, from the first on.
type streams struct {
	mu     sync.Mutex
	closed bool
	ctx    *verbs.Context
	pd     *verbs.PD
	idle   time.Duration // silence after which peers are asked
}

func (t *streams) domain(dev *verbs.Device) (*verbs.PD, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if t.pd != nil {
		return t.pd, nil
	}
	ctx := dev.Open()
	pd, err := ctx.AllocPD()
	if err != nil {
		_ = ctx.Close()
		return nil, err
	}
	t.ctx, t.pd = ctx, pd
	return pd, nil
}

func (t *streams) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.ctx != nil {
		_ = t.ctx.Close()
	}
}

// hello is the private data of streams' requests and answers: a magic word with a version, the credits (16 bits, most significant byte
// first) and the bytes of a buffer (32 bits).
const (
	helloMagic = "rnic stream 1\n"
	helloSize  = len(helloMagic) + 6
)

func encodeHello() []byte {
	b := binary.BigEndian.AppendUint16([]byte(helloMagic), streamCredits)
	return binary.BigEndian.AppendUint32(b, streamBuffer)
}

func decodeHello(b []byte) (credits, size int, err error) {
	if len(b) < helloSize || string(b[:len(helloMagic)]) != helloMagic {
		return 0, 0, errNotStream
	}
	b = b[len(helloMagic):]
	credits, size = int(binary.BigEndian.Uint16(b)), int(min(binary.BigEndian.Uint32(b[2:]), streamBuffer))
	if credits == 0 || size == 0 {
		return 0, 0, errNotStream
	}
	return credits, size, nil
}

// newStream makes what a stream needs before it is connected.
func (m *Manager) newStream() (*Stream, Config, error) {
	pd, err := m.streams.domain(m.dev)
	if err != nil {
		return nil, Config{}, err
	}
	s := &Stream{m: m, mem: make([]byte, (streamCredits+streamSpare+streamSlots)*streamBuffer), alive: alive{idle: m.streams.idle}}
	s.rcond.L, s.wcond.L = &s.mu, &s.mu
	const receives = streamCredits + streamSpare
	s.rcq, err = pd.Context().CreateCQ(receives + 1)
	if err == nil {
		s.scq, err = pd.Context().CreateCQ(streamSlots + streamControl + 3) // and the FIN, and a probe; and one
	}
	if err == nil {
		s.mr, err = pd.RegMR(s.mem, verbs.AccessLocalWrite)
	}
	if err != nil {
		s.discard()
		return nil, Config{}, err
	}
	for i := range streamSlots {
		s.free = append(s.free, i)
	}
	return s, Config{PD: pd, Private: encodeHello(), RDAtomic: -1,
		QP: verbs.QPConfig{SendCQ: s.scq, RecvCQ: s.rcq, MaxSend: streamSlots + streamControl + 2, MaxRecv: receives},
		Prepare: func(qp *verbs.QP) error {
			for i := range receives {
				if err := s.postRecv(qp, i); err != nil {
					return err
				}
			}
			return nil
		}}, nil
}

// discard closes the objects.
func (s *Stream) discard() {
	if s.rcq != nil {
		_ = s.rcq.Close()
	}
	if s.scq != nil {
		_ = s.scq.Close()
	}
	if s.mr != nil {
		_ = s.mr.Close()
	}
}

// begin makes a stream of a connection.
func (s *Stream) begin(c *Conn, private []byte) (err error) {
	s.c, s.src, s.dst = c, Addr(c.LocalAddr()), Addr(c.RemoteAddr())
	if s.window, s.most, err = decodeHello(private); err != nil {
		return err
	}
	s.credits = s.window
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.mu.Lock()
	s.timer = time.AfterFunc(s.idle, s.look)
	s.mu.Unlock()
	if !s.m.adopt(c, s) {
		s.mu.Lock()
		s.closed = true // a look under way is the last
		s.timer.Stop()
		s.mu.Unlock()
		s.stop()
		return ErrClosed
	}
	return nil
}

// adopt makes the manager close s in place of c, and starts s; false: the manager is closed.
func (m *Manager) adopt(c *Conn, s *Stream) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	delete(m.open, c)
	m.open[s] = struct{}{}
	m.work.Go(s.run)
	return true
}

func (m *Manager) disown(s *Stream) {
	m.mu.Lock()
	delete(m.open, s)
	m.mu.Unlock()
}

// resolve finds the addresses that a host and port mean.
func resolve(ctx context.Context, network, address string) ([]netip.AddrPort, error) {
	family := map[string]string{"rdma": "ip", "tcp": "ip", "": "ip", "rdma4": "ip4", "tcp4": "ip4", "rdma6": "ip6", "tcp6": "ip6"}[network]
	if family == "" {
		return nil, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		if family == "ip4" {
			return []netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port))}, nil
		}
		return []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, family, host)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, a := range ips {
		list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return list, nil
}

// DialStream connects to a ListenStream: net.Dialer.DialContext over RDMA, for http.Transport.DialContext and the like. network is "rdma" or "tcp",
// with 4 or 6 behind it for one family; address is a host and a port. If the host has several addresses, they are tried one after the other, each
// with its part of the time until ctx's deadline. The net.Conn is a *Stream; errors are *net.OpError. Without a deadline, a peer that does not
// answer is given up after some 70 seconds (ErrUnreachable).
func (m *Manager) DialStream(ctx context.Context, network, address string) (net.Conn, error) {
	addrs, err := resolve(ctx, network, address)
	if err != nil {
		return nil, opError("dial", nil, err)
	}
	return m.dialStreams(ctx, addrs)
}

// dialStreams tries addresses. The error is that of the first, as net.Dialer has it, or the end of ctx.
func (m *Manager) dialStreams(ctx context.Context, addrs []netip.AddrPort) (net.Conn, error) {
	var first error
	for i, a := range addrs {
		s, err := m.dialStream(ctx, a, len(addrs)-i)
		if err == nil {
			return s, nil
		}
		err = opError("dial", Addr(a), err)
		if ctx.Err() != nil {
			return nil, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// part is a context for the first of several attempts: each has an equal part of the time that is left, but two seconds if there are so many.
func part(ctx context.Context, attempts int) (context.Context, context.CancelFunc) {
	end, limited := ctx.Deadline()
	if !limited || attempts == 1 {
		return ctx, func() {}
	}
	left := time.Until(end)
	return context.WithTimeout(ctx, max(left/time.Duration(attempts), min(left, 2*time.Second)))
}

// opError is an error of making streams. addr is nil where it is not known.
func opError(op string, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Addr: addr, Err: cause{err}}
}

// cause is the reason in a net.OpError, which asks it whether time ran out.
type cause struct{ error }

func (c cause) Unwrap() error { return c.error }

func (c cause) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(c.error, &t) && t.Timeout()
}

func (m *Manager) dialStream(ctx context.Context, a netip.AddrPort, attempts int) (*Stream, error) {
	ctx, cancel := part(ctx, attempts)
	defer cancel()
	s, cfg, err := m.newStream()
	if err != nil {
		return nil, err
	}
	c, err := m.dial(ctx, a, &cfg, verbs.RC)
	if err == nil {
		if err = s.begin(c, c.PrivateData()); err != nil {
			_ = c.Close()
		}
	}
	if err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}

// Bounds of a stream listener: connections that are being made or wait for Accept, and how long the making may take.
const (
	streamsWaiting = 128
	streamAccept   = 30 * time.Second
)

type streamListener struct {
	l     *Listener
	m     *Manager
	ready chan *Stream
}

// ListenStream is net.Listen over RDMA: network is as in DialStream, address a host and a port, each of which may be empty or 0. Of
// a host with several addresses it takes the first that is one of the NIC's. The net.Listener accepts *Stream; up to 128 connections are made before
// Accept asks for them, and up to 1024 requests wait.
func (m *Manager) ListenStream(network, address string) (net.Listener, error) {
	addrs, err := resolve(context.Background(), network, address)
	if err != nil {
		return nil, opError("listen", nil, err)
	}
	return m.listenStreams(addrs)
}

func (m *Manager) listenStreams(addrs []netip.AddrPort) (net.Listener, error) {
	var first error
	for _, a := range addrs {
		l, err := m.listen(a, ListenConfig{})
		if err == nil {
			sl := &streamListener{l, m, make(chan *Stream)}
			if m.start(sl.run) {
				return sl, nil
			}
			_ = l.Close()
			err = ErrClosed
		}
		if first == nil {
			first = opError("listen", Addr(a), err)
		}
	}
	return nil, first
}

func (l *streamListener) Addr() net.Addr { return Addr(l.l.Addr()) }
func (l *streamListener) Close() error   { return l.l.Close() }

func (l *streamListener) Accept() (net.Conn, error) {
	if l.l.closed() {
		return nil, opError("accept", l.Addr(), ErrClosed)
	}
	select {
	case s := <-l.ready:
		return s, nil
	case <-l.l.done:
		return nil, opError("accept", l.Addr(), ErrClosed)
	}
}

// run makes the connections, several at a time: a peer that is slow, or silent, holds up no other.
func (l *streamListener) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	room := make(chan struct{}, streamsWaiting)
	var making sync.WaitGroup
	for {
		r, err := l.l.Accept(ctx)
		if err != nil {
			break
		}
		select {
		case room <- struct{}{}:
		case <-l.l.done:
			_ = r.Reject(0, nil)
			continue
		}
		making.Go(func() {
			defer func() { <-room }()
			if s, err := l.m.acceptStream(ctx, r); err == nil {
				select {
				case l.ready <- s:
				case <-l.l.done:
					_ = s.Close()
				}
			}
		})
	}
	cancel()
	making.Wait()
}

func (m *Manager) acceptStream(ctx context.Context, r *Request) (*Stream, error) {
	if _, _, err := decodeHello(r.PrivateData()); err != nil || r.Type() != verbs.RC {
		_ = r.Reject(0, []byte(helloMagic))
		return nil, errors.Join(err, errNotStream)
	}
	s, cfg, err := m.newStream()
	if err != nil {
		_ = r.Reject(ReasonNoResources, nil)
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, streamAccept)
	defer cancel()
	c, err := r.Accept(ctx, cfg)
	if err == nil {
		if err = s.begin(c, c.PrivateData()); err != nil {
			_ = c.Close()
		}
	}
	if err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}
