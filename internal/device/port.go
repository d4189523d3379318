package device

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"rnic/internal/engine"
	"rnic/internal/fault"
	"rnic/internal/link"
	linkfault "rnic/internal/link/fault"
	"rnic/internal/link/pipe"
	"rnic/internal/link/udp"
	"rnic/internal/netdev"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// port is what a device has of the network: its links and its addresses.
type port struct {
	links []engine.Links // of each unit; without Net if the device is local
	udp   socketLink     // the first unit's, which joins multicast groups
	group socketGroup
	taps  *taps
	// faults decide what goes wrong on all links; cores are the units' NICs, for them.
	faults *fault.Set
	cores  []*nic.NIC
	gids   []GIDEntry
	// entries are the same with their interfaces' state, as they were at the beginning; none of a local device.
	entries []netdev.Entry
	guid    [8]byte
	mtu     int
}

// socketLink is a link over UDP sockets.
type socketLink interface {
	link.Link
	Join(group netip.Addr, interfaces []int) error
	Leave(group netip.Addr)
	ReceiveBuffer() int
}

// socketGroup is the links of the units together.
type socketGroup interface {
	Steer(moved map[uint32]int) error
}

// badConfig is an error about what the configuration asks for: EINVAL too.
type badConfig struct{ error }

func (e badConfig) Unwrap() []error { return []error{e.error, nic.EINVAL} }

// localGID is the address of a device without a network: a unique local one that means nothing outside.
var localGID = roce.GID{0: 0xfd, 15: 1}

const maxPathMTU = 4096

func (p *port) open(cfg *Config) (err error) {
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	if err = p.addresses(cfg); err != nil {
		return err
	}
	if cfg.MTU != 0 {
		if roce.MTUCode(cfg.MTU) == 0 {
			return badConfig{fmt.Errorf("path MTU %d: 256, 512, 1024, 2048 or 4096 are possible", cfg.MTU)}
		}
		if cfg.MTU > p.mtu {
			return badConfig{fmt.Errorf("path MTU %d: the interfaces chosen carry %d at most, and packets are not fragmented: raise their MTU, or choose others",
				cfg.MTU, p.mtu)}
		}
		p.mtu = cfg.MTU
	}
	if !cfg.Local {
		if err = p.openSockets(cfg); err != nil {
			return err
		}
	}
	for i := range cfg.Units {
		if i == len(p.links) {
			p.links = append(p.links, engine.Links{})
		}
		p.links[i].Loop = p.decorate(pipe.Loop(pipe.Config{Reference: true}), i)
	}
	return nil
}

// openSockets opens a link over UDP sockets for each unit.
func (p *port) openSockets(cfg *Config) error {
	chosen := len(cfg.Addrs) > 0 || cfg.Interface != ""
	c := udp.Config{Interfaces: map[netip.Addr]int{}, Optional: !chosen,
		KeepSocketBuffers: cfg.SocketBuffer != 0 && cfg.SocketBuffer <= udp.DefaultSocketBuffer}
	for _, g := range p.gids {
		c.Interfaces[g.GID.Addr()] = g.IfIndex
		if chosen || cfg.plain() {
			c.Addrs = append(c.Addrs, g.GID.Addr())
		}
	}
	if cfg.plain() {
		g, err := udp.OpenPlain(c, cfg.Units)
		if err != nil {
			return err
		}
		addLinks(p, cfg, g, g.Links())
		return nil
	}
	g, err := udp.OpenGroup(c, cfg.Units)
	if err != nil {
		return err
	}
	addLinks(p, cfg, g, g.Links())
	return nil
}

func addLinks[L socketLink](p *port, cfg *Config, group socketGroup, links []L) {
	p.group, p.udp = group, links[0]
	for i, l := range links {
		link.OnRefused(l, p.refused)
		p.links = append(p.links, engine.Links{Net: p.decorate(l, i)})
	}
}

// plain tells whether the sockets are plain ones, of which each has one address.
func (c *Config) plain() bool { return c.PlainSockets || udp.OnlyPlain }

// decorate puts faults around a unit's link.
func (p *port) decorate(l link.Link, unit int) link.Link {
	return linkfault.New(l, linkfault.Config{Set: p.faults, Front: func(qp uint32) (fault.Front, bool) { return p.front(unit, qp) }})
}

// steer has the sockets steer by the numbers of queue pairs, but for those that have moved.
func (p *port) steer(moved map[uint32]int) {
	if p.group != nil {
		// Without, packets arrive where the numbers say, and are handed over.
		_ = p.group.Steer(moved)
	}
}

// addresses makes the GID table.
func (p *port) addresses(cfg *Config) error {
	if cfg.Local {
		p.gids = []GIDEntry{{GID: localGID, IfName: "lo", IfIndex: 1}}
		p.guid, p.mtu = [8]byte{2, 0, 0, 0xff, 0xfe, 0, 0, 1}, maxPathMTU
		return nil
	}
	t, err := netdev.Read(cfg.selection())
	for _, bad := range []error{netdev.ErrNoInterface, netdev.ErrDown, netdev.ErrNoAddress, netdev.ErrBoth} {
		if errors.Is(err, bad) {
			return badConfig{err}
		}
	}
	if err != nil {
		return err
	}
	for _, e := range t.Entries {
		p.gids = append(p.gids, GIDEntry{Index: e.Index, GID: e.GID, IfIndex: e.IfIndex, IfName: e.IfName})
	}
	p.entries = t.Entries
	binary.BigEndian.PutUint64(p.guid[:], t.NodeGUID)
	p.mtu = t.PathMTU()
	return nil
}

// selection is which addresses the device has.
func (c *Config) selection() netdev.Selection {
	sel := netdev.Selection{Addrs: c.Addrs}
	if c.Interface != "" {
		sel.Interfaces = []string{c.Interface}
	}
	return sel
}

// buffer is the size of the receive socket.
func (p *port) buffer() int {
	if p.udp == nil {
		return 0
	}
	return p.udp.ReceiveBuffer()
}

func (p *port) close() error {
	var err error
	for _, u := range p.links {
		for _, l := range []link.Link{u.Net, u.Loop} {
			if l != nil {
				if e := l.Close(); err == nil {
					err = e
				}
			}
		}
	}
	return err
}

// seedOf is the seed asked for, or one of the system.
func seedOf(seed uint64) uint64 {
	if seed != 0 {
		return seed
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
