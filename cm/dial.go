package cm

import (
	"context"
	"fmt"
	"net/netip"

	"rnic/internal/cma"
	"rnic/verbs"
)

func space(typ verbs.QPType) cma.PortSpace {
	if typ == verbs.UD {
		return cma.SpaceUDP
	}
	return cma.SpaceTCP
}

// Dial connects to a listener. The queue pair of the connection is in state RTS. When ctx ends, the attempt does; the peer is told. Without a
// deadline, a peer that does not answer is given up after some 70 seconds.
//
// Errors: *RejectError, ErrUnreachable, the error of ctx; syscall.EADDRINUSE or syscall.EADDRNOTAVAIL of cfg.Source; ErrInvalid of package verbs, for
// private data that is too long for instance; those of cfg.Prepare.
func (m *Manager) Dial(ctx context.Context, addr netip.AddrPort, cfg Config) (*Conn, error) {
	typ := cfg.QP.Type
	if typ == 0 {
		typ = verbs.RC
	}
	c, err := m.dial(ctx, addr, &cfg, typ)
	if err != nil {
		return nil, fmt.Errorf("cm: dial %v: %w", addr, err)
	}
	return c, nil
}

func (m *Manager) dial(ctx context.Context, addr netip.AddrPort, cfg *Config, typ verbs.QPType) (*Conn, error) {
	if typ != verbs.RC && typ != verbs.UC && typ != verbs.UD {
		return nil, fmt.Errorf("RC, UC and UD can be connected: %w", verbs.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := m.newConn(typ)
	id, err := m.cma.NewID(space(typ), typ, m.sink)
	if err != nil {
		return nil, err
	}
	c.id = id
	if err := m.register(id, c, c); err != nil {
		id.Destroy()
		return nil, err
	}
	if err := c.connect(ctx, addr, cfg); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// connect is the active side's part (InfiniBand vol. 1, 12.9.7.1).
func (c *Conn) connect(ctx context.Context, addr netip.AddrPort, cfg *Config) error {
	if err := c.id.Resolve(cfg.Source, addr); err != nil {
		return err
	}
	if _, err := c.await(ctx, cma.AddrResolved); err != nil {
		return err
	}
	c.id.SetTOS(cfg.TOS)
	if err := c.id.ResolveRoute(); err != nil {
		return err
	}
	if _, err := c.await(ctx, cma.RouteResolved); err != nil {
		return err
	}
	if err := c.create(cfg); err != nil {
		return err
	}
	if err := c.id.Connect(cfg.param(c.qp.Num())); err != nil {
		return err
	}
	if c.typ == verbs.UD {
		return c.connectDatagrams(ctx, cfg)
	}
	e, err := c.await(ctx, cma.ConnectResponse)
	if err != nil {
		return err
	}
	c.private = e.Conn.Private
	if err := c.ready(cfg, nil); err != nil {
		return err
	}
	return c.id.Accept(nil)
}

func (c *Conn) connectDatagrams(ctx context.Context, cfg *Config) error {
	e, err := c.await(ctx, cma.Established)
	if err != nil {
		return err
	}
	ah, err := cfg.PD.CreateAH(e.UD.AH)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if err = c.err; err == nil {
		c.ah = ah // from now on Close closes it
	}
	c.mu.Unlock()
	if err != nil {
		_ = ah.Close()
		return err
	}
	c.private, c.qpn, c.qkey = e.UD.Private, e.UD.QPN, e.UD.QKey
	return c.ready(cfg, nil)
}
