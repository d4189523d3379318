package cm

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"rnic/internal/cma"
	"rnic/internal/nic"
	"rnic/verbs"
)

// Config says how one side of a connection is made. Zero fields mean the defaults in brackets; of numbers beyond what the protocol's field
// holds its largest value is taken.
type Config struct {
	PD *verbs.PD      // of the manager's NIC
	QP verbs.QPConfig // Type is RC, UC or UD [RC]. Its completion queues are needed

	// Prepare is called with the queue pair in state INIT, before the peer can send anything: the place to post receives.
	Prepare func(*verbs.QP) error

	Private    []byte         // for the peer: 56 bytes at most in Dial (180 with UD), 196 in Accept (136 with UD)
	Source     netip.AddrPort // own address and port, of Dial [chosen]
	TOS        uint8          // traffic class, of Dial
	RDAtomic   int            // RC: RDMA READs and atomics in flight, each way [16]; -1: none
	RetryCount int            // RC: of Dial, for both sides [7, the most]; -1: 0
	RNRRetry   int            // RC: that the peer is to make [7, for ever]; -1: 0
	RNRTimer   int            // RC: code of the RNR timer that the peer is told [12, 0.64 ms]; 31 at most. InfiniBand vol. 1, 9.7.5.2.8
}

func pick(v, def, most int) uint8 {
	switch {
	case v == 0:
		v = def
	case v < 0:
		v = 0
	}
	return uint8(min(v, most))
}

func (c *Config) param(qpn uint32) cma.ConnParam {
	n := pick(c.RDAtomic, 16, 255)
	return cma.ConnParam{Private: c.Private, QPN: qpn, ResponderResources: n, InitiatorDepth: n,
		RetryCount: pick(c.RetryCount, 7, 7), RNRRetryCount: pick(c.RNRRetry, 7, 7), SRQ: c.QP.SRQ != nil}
}

// EventType is enum rdma_cm_event_type.
type EventType = cma.EventType

// Events of a connection that has been made.
const (
	Disconnected  = cma.Disconnected  // by either side: the queue pair is in state ERR, unless it is of UD
	DeviceRemoval = cma.DeviceRemoval // the NIC is being closed
	AddrChange    = cma.AddrChange    // the own address is no longer one of the NIC's
	TimewaitExit  = cma.TimewaitExit  // nothing of the connection is left on the network
)

// Event is an event of a connection.
type Event struct {
	Type    EventType
	Private []byte // of Disconnected: the peer's
}

// Conn is a connection: a queue pair and what the two sides said of it. Of UD it is the knowledge where datagrams go, and its end does not
// change the queue pair's state.
type Conn struct {
	m    *Manager
	id   *cma.ID
	typ  verbs.QPType
	step chan cma.Event // what the side that makes the connection waits for
	done chan struct{}  // closed when the connection has ended
	evs  chan Event
	once sync.Once // of Close

	mu      sync.Mutex
	qp      *verbs.QP
	err     error
	private []byte
	gone    func() // of a listener: the request is nobody's any more
	ah      *verbs.AH
	qpn     uint32
	qkey    uint32
}

func (m *Manager) newConn(typ verbs.QPType) *Conn {
	return &Conn{m: m, typ: typ, step: make(chan cma.Event, 8), done: make(chan struct{}), evs: make(chan Event, 8)}
}

// QP is the queue pair, which is the connection's: Close closes it.
func (c *Conn) QP() *verbs.QP { return c.qp }

// PrivateData is what the peer gave Dial or Accept. It has the length of the message's field, 56 or 196 bytes for RC and UC: what lies
// behind the peer's data is 0.
func (c *Conn) PrivateData() []byte { return c.private }

// LocalAddr and RemoteAddr are the addresses of the two sides, with the ports of the connection manager.
func (c *Conn) LocalAddr() netip.AddrPort  { return c.id.Info().Src }
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.Info().Dst }

// Datagrams is where datagrams to the peer go: of the active side of a UD connection. The passive side learns that from the datagrams.
func (c *Conn) Datagrams() (ah *verbs.AH, qpn, qkey uint32) { return c.ah, c.qpn, c.qkey }

// Events are the events of the connection. It holds eight; further ones that nobody reads are dropped, but Done tells of the end anyway. The
// channel is never closed.
func (c *Conn) Events() <-chan Event { return c.evs }

// Done is closed when the connection has ended, by the peer, by Disconnect or by Close.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil before the end; then it says why.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Disconnect ends the connection on both sides. What was posted is flushed.
func (c *Conn) Disconnect() error {
	err := c.id.Disconnect()
	if err != nil && c.Err() != nil {
		err = nil // the peer was faster
	}
	c.fail(fmt.Errorf("disconnect: %w", ErrDisconnected))
	return err
}

// Close ends the connection and closes the queue pair. To close it again does nothing. ErrBusy of package verbs: the queue pair is a member of
// multicast groups; the connection has ended, and the queue pair is to be detached and closed by itself.
func (c *Conn) Close() (err error) {
	c.once.Do(func() {
		c.fail(fmt.Errorf("connection: %w", ErrClosed))
		c.m.forget(c.id, c)
		c.mu.Lock()
		qp, ah := c.qp, c.ah
		c.mu.Unlock()
		if ah != nil {
			_ = ah.Close()
		}
		if qp != nil {
			err = qp.Close()
		}
	})
	return err
}

// event takes what the connection manager tells.
func (c *Conn) event(e cma.Event) {
	switch e.Type {
	case cma.Rejected:
		c.fail(&RejectError{Reason: Reason(e.Status), Private: e.Conn.Private})
	case cma.AddrError:
		c.fail(fmt.Errorf("%w: no address of the NIC is on the way to it: %w", ErrUnreachable, syscall.Errno(-e.Status)))
	case cma.Unreachable, cma.ConnectError, cma.RouteError:
		if e.Status < 0 {
			c.fail(fmt.Errorf("%w: %w", ErrUnreachable, syscall.Errno(-e.Status)))
		} else {
			c.fail(fmt.Errorf("%w: status %d", ErrUnreachable, e.Status))
		}
	case cma.Disconnected, cma.DeviceRemoval, cma.AddrChange, cma.TimewaitExit:
		if e.Type == cma.Disconnected || e.Type == cma.DeviceRemoval {
			c.fail(ErrDisconnected)
		}
		select {
		case c.evs <- Event{e.Type, e.Conn.Private}:
		default:
		}
	default:
		select {
		case c.step <- e:
		default:
		}
	}
}

// fail ends the connection, once, and flushes the queue pair.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	close(c.done)
	qp, gone := c.qp, c.gone
	c.mu.Unlock()
	if qp != nil && c.typ != verbs.UD {
		_ = qp.Modify(&verbs.Attr{State: verbs.StateError}, verbs.AttrState)
	}
	if gone != nil {
		gone()
	}
}

// await waits for an event of a type.
func (c *Conn) await(ctx context.Context, want cma.EventType) (cma.Event, error) {
	for {
		select {
		case e := <-c.step:
			if e.Type == want {
				return e, nil
			}
		case <-c.done:
			return cma.Event{}, c.Err()
		case <-ctx.Done():
			return cma.Event{}, ctx.Err()
		}
	}
}

// create makes the queue pair, in INIT, and has the caller prepare it.
func (c *Conn) create(cfg *Config) error {
	if cfg.PD == nil || cfg.PD.Context().Device().Unwrap() != c.m.dev.Unwrap() {
		return fmt.Errorf("a protection domain of the manager's NIC is needed: %w", verbs.ErrInvalid)
	}
	qc := cfg.QP
	qc.Type = c.typ
	qp, err := cfg.PD.CreateQP(qc)
	if err != nil {
		return err
	}
	c.mu.Lock()
	err = c.err
	if err == nil {
		c.qp = qp // from now on Close closes it
	}
	c.mu.Unlock()
	if err != nil {
		_ = qp.Close()
		return err
	}
	if err := c.move(nic.Init, func(a *verbs.Attr) { // mask has no access for UD
		a.AccessFlags = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	}); err != nil {
		return err
	}
	if cfg.Prepare != nil {
		return cfg.Prepare(qp)
	}
	return nil
}

// move takes the queue pair to a state.
func (c *Conn) move(to verbs.State, change func(*verbs.Attr)) error {
	a, mask, err := c.id.Attr(to)
	if err != nil {
		return err
	}
	if change != nil {
		change(&a)
	}
	return c.qp.Modify(&a, mask)
}

// ready takes the queue pair from INIT to RTS. p has the depths of READs and atomics, of the passive side.
func (c *Conn) ready(cfg *Config, p *cma.ConnParam) error {
	err := c.move(nic.RTR, func(a *verbs.Attr) {
		a.MinRNRTimer = pick(cfg.RNRTimer, 12, 31)
		if p != nil {
			a.MaxDestRDAtomic = p.ResponderResources
		}
	})
	if err != nil {
		return err
	}
	return c.move(nic.RTS, func(a *verbs.Attr) {
		if p != nil {
			a.MaxRDAtomic = p.InitiatorDepth
		}
	})
}
