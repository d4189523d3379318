package perf

import (
	"context"
	"net/netip"

	"rnic/cm"
	"rnic/verbs"
)

// checkCM is the part of Validate that is about --cm.
func (o *Options) checkCM() error {
	switch {
	case !o.CM:
		return nil
	case !o.qpTypeIsRC():
		return usage("--cm goes with RC")
	case o.Loopback:
		return usage("--cm goes with a client and a server: --loopback connects its queue pairs itself")
	case o.MTU != 0:
		return usage("--cm and --mtu exclude each other: the connection manager takes the MTU of the NICs")
	case o.Resend == ResendSelective:
		return usage("--cm and --resend=selective exclude each other: the connection manager knows nothing of it")
	}
	return nil
}

// managed is an endpoint whose queue pairs the RDMA connection manager connects.
type managed struct {
	e   *endpoint
	mgr *cm.Manager
	l   *cm.Listener // of the server
}

// manage starts the connection manager of an endpoint's NIC. Its close ends the connections.
func (e *endpoint) manage() (*managed, error) {
	mgr, err := cm.New(e.dev)
	if err != nil {
		return nil, err
	}
	return &managed{e: e, mgr: mgr}, nil
}

func (m *managed) close() {
	if m != nil {
		_ = m.mgr.Close()
	}
}

// listen makes the server listen; the answer is for the client.
func (m *managed) listen() (netip.AddrPort, error) {
	a, err := m.e.ownAddress()
	if err != nil {
		return netip.AddrPort{}, err
	}
	m.l, err = m.mgr.Listen(netip.AddrPortFrom(a, 0), cm.ListenConfig{})
	if err != nil {
		return netip.AddrPort{}, err
	}
	return m.l.Addr(), nil
}

// config makes the next queue pair, with its receives posted.
func (m *managed) config() cm.Config {
	e := m.e
	return cm.Config{PD: e.pd, QP: e.qpConfig(), Prepare: func(qp *verbs.QP) error {
		e.addQP(qp)
		if e.srq != nil {
			e.from[qp.Num()] = len(e.qps) - 1
		}
		if !e.o.receives() || e.srq != nil {
			return nil
		}
		for s := range e.o.recvSlots() {
			if err := e.postRecv(len(e.qps)-1, s); err != nil {
				return err
			}
		}
		return nil
	}}
}

// dial makes the client's connections, one after the other: so queue pairs have the same numbers on both sides.
func (m *managed) dial(server netip.AddrPort) error {
	a, err := m.e.ownAddress()
	if err != nil {
		return err
	}
	if err := m.e.postShared(); err != nil {
		return err
	}
	for range m.e.o.QueuePairs {
		cfg := m.config()
		cfg.Source = netip.AddrPortFrom(a, 0)
		if _, err := m.mgr.Dial(m.e.o.ctx, server, cfg); err != nil {
			return err
		}
	}
	return nil
}

// accept makes the server's.
func (m *managed) accept(ctx context.Context) error {
	if err := m.e.postShared(); err != nil {
		return err
	}
	for range m.e.o.QueuePairs {
		r, err := m.l.Accept(ctx)
		if err != nil {
			return err
		}
		if _, err := r.Accept(ctx, m.config()); err != nil {
			return err
		}
	}
	return nil
}
