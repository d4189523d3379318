//go:build !linux

package udp

import "net/netip"

// OnlyPlain tells that Plain is the only Link here, so that a NIC of all addresses names them.
const OnlyPlain = true

// Link and Group are the plain ones here.
type (
	Link  = Plain
	Group = PlainGroup
)

// Open is OpenPlain with one link.
func Open(cfg Config) (*Link, error) {
	g, err := OpenPlain(cfg, 1)
	if err != nil {
		return nil, err
	}
	return g.Links()[0], nil
}

// OpenGroup is OpenPlain.
func OpenGroup(cfg Config, n int) (*Group, error) { return OpenPlain(cfg, n) }

// bell is nothing: Notify tells.
type bell struct{}

func newBell() (bell, error) { return bell{}, nil }
func (bell) ring()           {}
func (bell) clear()          {}
func (bell) fds() []int      { return nil }
func (bell) close()          {}

// portHolder says what to do when a UDP port is taken.
func portHolder(netip.Addr, uint16) string {
	return "another NIC or program has it: stop it, or give each NIC its own address"
}
