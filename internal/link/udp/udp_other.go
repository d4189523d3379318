//go:build !linux

package udp

import (
	"errors"
	"net/netip"
	"runtime"

	"rnic/internal/link"
)

// Link exists here so that the tree compiles; Open makes none. What other
// systems put into the IPv4 identification, which the ICRC covers, has to be
// found out first.
type Link struct{}

var _ link.Link = (*Link)(nil)

// Open fails with an error that is errors.ErrUnsupported.
func Open(Config) (*Link, error) {
	return nil, &link.Error{Op: "open", Link: "udp", Err: errors.ErrUnsupported,
		Hint: "UDP sockets carry RoCEv2 on Linux only, this is " + runtime.GOOS}
}

// Group is a Link for each unit.
type Group struct{}

// OpenGroup fails like Open.
func OpenGroup(cfg Config, _ int) (*Group, error) {
	_, err := Open(cfg)
	return nil, err
}

func (*Group) Links() []*Link             { return nil }
func (*Group) Steer(map[uint32]int) error { return errors.ErrUnsupported }

// Join and Leave are for links that exist.
func (*Link) Join(netip.Addr, []int) error    { return errors.ErrUnsupported }
func (*Link) Leave(netip.Addr)                {}
func (*Link) ReceiveBuffer() int              { return 0 }
func (*Link) Features() Features              { return Features{} }
func (*Link) Send([]link.Packet) (int, error) { return 0, errors.ErrUnsupported }
func (*Link) Recv([]link.Packet) (int, error) { return 0, errors.ErrUnsupported }
func (*Link) FDs() []int                      { return nil }
func (*Link) NextDelayed() int64              { return 0 }
func (*Link) SetNow(int64)                    {}
func (*Link) Stats() link.Stats               { return link.Stats{} }
func (*Link) Close() error                    { return nil }
