package cm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"rnic/internal/cma"
	"rnic/verbs"
)

// ListenConfig says how a listener is made.
type ListenConfig struct {
	Backlog   int  // requests that wait for an answer; others are rejected. 0: 1024
	Datagrams bool // requests of UD, not of RC and UC: these have ports of their own
}

// Listener takes requests for connections.
type Listener struct {
	m    *Manager
	id   *cma.ID
	done chan struct{}
	wake chan struct{} // holds one token while requests wait
	once sync.Once

	mu   sync.Mutex
	reqs []*Request
}

// Listen takes requests for an address and port, on any of the NIC's addresses if it is unspecified; port 0 takes a free one.
// syscall.EADDRINUSE, syscall.EADDRNOTAVAIL.
func (m *Manager) Listen(addr netip.AddrPort, cfg ListenConfig) (*Listener, error) {
	l, err := m.listen(addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cm: listen at %v: %w", addr, err)
	}
	return l, nil
}

func (m *Manager) listen(addr netip.AddrPort, cfg ListenConfig) (*Listener, error) {
	typ := verbs.RC
	if cfg.Datagrams {
		typ = verbs.UD
	}
	id, err := m.cma.NewID(space(typ), typ, m.sink)
	if err != nil {
		return nil, err
	}
	l := &Listener{m: m, id: id, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	if err = m.register(id, l, l); err == nil {
		if err = id.Bind(addr); err == nil {
			err = id.Listen(cfg.Backlog)
		}
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Addr is the address and port.
func (l *Listener) Addr() netip.AddrPort { return l.id.Info().Src }

// Close stops it. Requests that wait are rejected; Accept returns ErrClosed. Connections stay.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.m.forget(l.id, l)
		l.mu.Lock()
		close(l.done)
		reqs := l.reqs
		l.reqs = nil
		l.mu.Unlock()
		for _, r := range reqs {
			_ = r.c.Close() // which rejects it
		}
	})
	return nil
}

func (l *Listener) closed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// event takes a request. Its own later events go to its connection.
func (l *Listener) event(e cma.Event) {
	if e.Type != cma.ConnectRequest {
		return
	}
	c := l.m.newConn(e.ID.Info().Type)
	c.id = e.ID
	c.private = e.Conn.Private
	r := &Request{c: c, peer: e.Conn}
	c.gone = func() { l.drop(r) }
	if l.m.register(e.ID, c, c) != nil {
		e.ID.Destroy()
		return
	}
	l.mu.Lock()
	refused := l.closed()
	if !refused {
		l.reqs = append(l.reqs, r)
		l.signal()
	}
	l.mu.Unlock()
	if refused {
		_ = c.Close()
	}
}

func (l *Listener) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// drop forgets a request that its sender has given up, if nobody has taken it.
func (l *Listener) drop(r *Request) {
	l.mu.Lock()
	i := slices.Index(l.reqs, r)
	if i >= 0 {
		l.reqs = slices.Delete(l.reqs, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		l.m.forget(r.c.id, r.c) // not Close, which may be what has led here
	}
}

// Accept takes the next request, which must be answered. ErrClosed; the error of ctx.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	for {
		l.mu.Lock()
		if len(l.reqs) > 0 {
			r := l.reqs[0]
			l.reqs = l.reqs[1:]
			if len(l.reqs) > 0 {
				l.signal()
			}
			l.mu.Unlock()
			return r, nil
		}
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-l.done:
			return nil, fmt.Errorf("cm: accept: listener: %w", ErrClosed)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Request is a request for a connection. Accept or Reject it, once: what comes second is ErrInvalid of package verbs.
type Request struct {
	c        *Conn
	peer     cma.ConnParam
	answered atomic.Bool
}

// answer is called by whoever answers the request.
func (r *Request) answer(op string) error {
	if r.answered.Swap(true) {
		return fmt.Errorf("cm: %s: the request has been answered before: %w", op, verbs.ErrInvalid)
	}
	return nil
}

// Type is the transport: RC, UC or UD.
func (r *Request) Type() verbs.QPType { return r.c.typ }

// PrivateData is what the peer gave Dial: 56 bytes, 180 of UD; what lies behind its data is 0.
func (r *Request) PrivateData() []byte { return r.c.private }

// LocalAddr and RemoteAddr are the addresses of the two sides.
func (r *Request) LocalAddr() netip.AddrPort  { return r.c.LocalAddr() }
func (r *Request) RemoteAddr() netip.AddrPort { return r.c.RemoteAddr() }

// Accept makes the connection, and waits until the peer has done so too. cfg.QP.Type counts for nothing: see Type.
func (r *Request) Accept(ctx context.Context, cfg Config) (*Conn, error) {
	if err := r.answer("accept connection"); err != nil {
		return nil, err
	}
	if err := r.accept(ctx, &cfg); err != nil {
		from := r.RemoteAddr()
		_ = r.c.Close()
		return nil, fmt.Errorf("cm: accept connection from %v: %w", from, err)
	}
	return r.c, nil
}

// accept is the passive side's part (InfiniBand vol. 1, 12.9.7.2).
func (r *Request) accept(ctx context.Context, cfg *Config) error {
	c := r.c
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return err
	}
	if err := c.create(cfg); err != nil {
		return err
	}
	p := cfg.param(c.qp.Num())
	// No more than the peer has asked for and is able to answer (vol. 1, 12.7.29 and 12.7.30).
	p.ResponderResources = min(p.ResponderResources, r.peer.ResponderResources)
	p.InitiatorDepth = min(p.InitiatorDepth, r.peer.InitiatorDepth)
	if err := c.ready(cfg, &p); err != nil {
		return err
	}
	if err := c.id.Accept(&p); err != nil {
		return err
	}
	if c.typ == verbs.UD {
		return nil
	}
	_, err := c.await(ctx, cma.Established)
	return err
}

// Reject refuses the connection; the peer's Dial fails with a RejectError of the reason (0: ReasonConsumer) and the private data, 148 bytes at
// most.
func (r *Request) Reject(reason Reason, private []byte) error {
	if err := r.answer("reject"); err != nil {
		return err
	}
	err := r.c.id.Reject(private, reason)
	if gone := r.c.Err(); err != nil && gone != nil {
		err = gone
	}
	_ = r.c.Close()
	if err != nil {
		return fmt.Errorf("cm: reject: %w", err)
	}
	return nil
}
