package cma

import (
	"net/netip"
	"syscall"

	"rnic/internal/device"
	"rnic/internal/ibcm"
	"rnic/internal/roce"
)

// Addresses of InfiniBand (AF_IB): a GID and a service. On Ethernet a GID says no interface, so that no connection comes about with them; but ids
// may have them, as in the kernel, and some libraries ask whether they may.

// IBAddr is struct sockaddr_ib (rdma/ib.h of the kernel), in this machine's byte order.
type IBAddr struct {
	PKey          uint16
	FlowInfo      uint32
	GID           roce.GID // zero: any
	Service, Mask uint64   // the bits of Service that count
	Scope         uint64
}

// port is the port in the service, 0 if it is not said.
func (a *IBAddr) port() uint16 { return uint16(a.Service & a.Mask) }

// ibAddresses are the addresses of an id that is not of IP.
type ibAddresses struct{ src, dst IBAddr }

const spaceMask = 0xffff_ffff_ffff_0000

// serviceSpace is the port space that a service of an id stands for: its own, or for SpaceIB any, if the bits that count agree.
func (i *ID) serviceSpace(a *IBAddr) (PortSpace, bool) {
	mask := a.Mask & spaceMask
	for _, s := range []PortSpace{SpaceIB, SpaceTCP, SpaceUDP} {
		if (i.space == s || i.space == SpaceIB) && a.Service&mask == ibcm.ServiceID(uint16(s), 0)&mask {
			return s, true
		}
	}
	return 0, false
}

// BindIB is Bind for an address of InfiniBand: any address with a service. ENODEV: no NIC is found by a GID. EPROTONOSUPPORT: the service is none of
// the id's port space.
func (i *ID) BindIB(a IBAddr) error {
	defer i.lock()()
	return i.bindIB(a)
}

func (i *ID) bindIB(a IBAddr) error {
	if i.state != stateIdle {
		return refuse(syscall.EINVAL, "bind", "the id is %v", i.state)
	}
	if a.GID != (roce.GID{}) {
		return refuse(syscall.ENODEV, "bind", "on Ethernet no NIC is found by the GID %v: bind to its IP address", a.GID)
	}
	space, ok := i.serviceSpace(&a)
	if !ok {
		return refuse(syscall.EPROTONOSUPPORT, "bind", "service %#x is none of port space %#x", a.Service, uint16(i.space))
	}
	was := i.space
	i.space = space
	i.src = netip.AddrPortFrom(netip.IPv6Unspecified(), a.port())
	if err := i.m.takePort(i, a.port()); err != nil {
		i.src, i.space = netip.AddrPort{}, was
		return err
	}
	a.Service, a.Mask = ibcm.ServiceID(uint16(space), i.src.Port()), ^uint64(0)
	i.ib = &ibAddresses{src: a}
	i.state = stateBound
	return nil
}

// ResolveIB is Resolve for addresses of InfiniBand: AddrResolved follows. The own GID is that of the peer, or one of its subnet. src may be nil. ENODEV:
// there is none. No route is found afterwards.
func (i *ID) ResolveIB(src *IBAddr, dst IBAddr) error {
	defer i.lock()()
	if i.state == stateIdle {
		if src == nil {
			src = &IBAddr{PKey: dst.PKey}
		}
		if err := i.bindIB(*src); err != nil {
			return err
		}
	}
	if i.state != stateBound || i.ib == nil {
		return refuse(syscall.EINVAL, "resolve address", "the id is %v, of another family", i.state)
	}
	p, own := i.m.ibSource(&dst, i.Scope)
	if p == nil {
		return refuse(syscall.ENODEV, "resolve address", "no NIC is of the subnet of %v", dst.GID)
	}
	i.ib.dst, i.ib.src.GID = dst, own.GID
	i.port, i.gid = p, own.Index
	i.src = netip.AddrPortFrom(addrOf(own.GID), i.src.Port())
	if dst.GID == (roce.GID{}) { // this machine
		i.ib.src.GID = roce.GID(netip.IPv6Loopback().As16())
	}
	i.state = stateAddrResolved
	i.emit(Event{Type: AddrResolved})
	return nil
}

// defaultPKey is the one entry of a port's table of partition keys; the highest bit does not count when keys are compared (vol. 1, 10.9.3).
const defaultPKey = 0xffff

// ibSource finds the NIC of a scope and the own GID from which a GID is reached: the same, or else one of its subnet; any is reached from the first.
func (m *Manager) ibSource(dst *IBAddr, s *Scope) (best *port, own device.GIDEntry) {
	for _, p := range m.ports {
		if p.dev.Removed() || !s.has(p.dev) {
			continue
		}
		for _, e := range p.dev.GIDs() {
			switch {
			case dst.GID == (roce.GID{}), e.GID == dst.GID && samePartition(dst.PKey):
				return p, e
			case best == nil && [8]byte(e.GID[:8]) == [8]byte(dst.GID[:8]) && samePartition(dst.PKey):
				best, own = p, e
			}
		}
	}
	return best, own
}

func samePartition(pkey uint16) bool { return pkey&0x7fff == defaultPKey&0x7fff }
