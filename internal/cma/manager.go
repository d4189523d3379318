package cma

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"rnic/internal/device"
	"rnic/internal/ibcm"
	"rnic/internal/roce"
)

// Manager is the connection manager of the NICs of a process.
type Manager struct {
	start time.Time

	mu        sync.Mutex
	ports     []*port
	bound     map[service][]*ID
	closed    bool
	ids       map[*ID]struct{} // that are not destroyed
	lastID    uint32
	listeners map[uint64]*serviceListener
}

// service is a port of a port space.
type service struct {
	space PortSpace
	port  uint16
}

// serviceListener is a service id that the protocol listens to on every NIC, for the ids that listen there.
type serviceListener struct {
	per []*ibcm.Listener // of each port
	ids []*ID
}

// New makes the connection manager of NICs, which stay the caller's.
func New(devs ...*device.Device) (*Manager, error) {
	m := &Manager{start: time.Now(), bound: map[service][]*ID{}, ids: map[*ID]struct{}{}, listeners: map[uint64]*serviceListener{}}
	for _, d := range devs {
		p, err := m.open(d)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.ports = append(m.ports, p)
	}
	for _, p := range m.ports {
		p.noHook = p.dev.OnPortChange(p.changed)
	}
	return m, nil
}

// Close stops it. Ids get no events any more.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	ports := m.ports
	m.mu.Unlock()
	m.Settle()
	for _, p := range ports {
		p.close()
	}
	return nil
}

// Until Settle has ended a peer is told so often of a disconnection that it has not answered: at five percent of loss one of 64
// million misses it.
const (
	lastWords      = 5
	lastWordsPause = 20 * time.Millisecond
)

// Settle is for who is about to close a NIC: it returns when peers have answered what they were told of disconnections, after 80 ms at most.
func (m *Manager) Settle() {
	for k := range lastWords {
		if k > 0 {
			time.Sleep(lastWordsPause)
		}
		waiting := 0
		m.mu.Lock()
		for _, p := range m.ports {
			if !p.dev.Removed() {
				waiting += p.cm.LastWords(m.now())
				p.work()
			}
		}
		m.mu.Unlock()
		if waiting == 0 {
			return
		}
	}
}

// IDs is the number of ids that are not destroyed.
func (m *Manager) IDs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ids)
}

func (m *Manager) now() int64 { return int64(time.Since(m.start)) }

// Ephemeral ports, as the kernel takes them by default (net.ipv4.ip_local_port_range).
const (
	firstEphemeral = 32768
	ephemerals     = 28232
)

// overlap tells whether two bound addresses are one to a peer. A wildcard of IPv6 takes IPv4 too, unless an id says not.
func overlap(a, b *ID) bool {
	x, y := a.src.Addr(), b.src.Addr()
	switch {
	case !unspecified(x) && !unspecified(y):
		return x == y
	case x.Is4() == y.Is4():
		return true
	}
	six := a
	if y.Is6() {
		six = b
	}
	// Of two families: only a wildcard of IPv6 that is not for IPv6 alone reaches over.
	return unspecified(six.src.Addr()) && !six.afOnly
}

// takePort gives an id its port: the one asked, or a free one.
func (m *Manager) takePort(i *ID, want uint16) error {
	free := func(port uint16) bool {
		for _, o := range m.bound[service{i.space, port}] {
			if overlap(i, o) && !(i.reuse && o.reuse && o.state != stateListen) {
				return false
			}
		}
		return true
	}
	if want == 0 {
		first := rand.IntN(ephemerals)
		for n := range ephemerals {
			port := uint16(firstEphemeral + (first+n)%ephemerals)
			if len(m.bound[service{i.space, port}]) == 0 {
				want = port
				break
			}
		}
		if want == 0 {
			return refuse(syscall.EADDRNOTAVAIL, "bind", "every ephemeral port is in use")
		}
	} else if !free(want) {
		return refuse(syscall.EADDRINUSE, "bind", "port %d is in use", want)
	}
	i.src = netip.AddrPortFrom(i.src.Addr(), want)
	s := service{i.space, want}
	m.bound[s] = append(m.bound[s], i)
	i.holds = s
	return nil
}

// without is a list without one of its elements.
func without[T comparable](list []T, one T) []T {
	return slices.DeleteFunc(list, func(o T) bool { return o == one })
}

func (m *Manager) releasePort(i *ID) {
	if i.holds == (service{}) {
		return
	}
	list := without(m.bound[i.holds], i)
	if len(list) == 0 {
		delete(m.bound, i.holds)
	} else {
		m.bound[i.holds] = list
	}
	i.holds = service{}
}

// portOf finds the NIC that has an address.
func (m *Manager) portOf(a netip.Addr) (*port, int) {
	g := ibcm.GIDOf(a)
	for _, p := range m.ports {
		if p.dev.Removed() { // the NIC has ended before the others
			continue
		}
		if i := p.gidIndex(g); i >= 0 {
			return p, i
		}
	}
	return nil, -1
}

// sourceFor chooses the own address from which a destination is reached: the destination itself if it is one's own, what the
// system would take, or else one of the same family of a NIC.
func (m *Manager) sourceFor(dst netip.Addr) (netip.Addr, bool) {
	if p, _ := m.portOf(dst); p != nil {
		return dst, true
	}
	if c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, roce.Port))); err == nil {
		src := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
		c.Close()
		if p, _ := m.portOf(src); p != nil {
			return src, true
		}
	}
	for _, p := range m.ports {
		if p.dev.Removed() {
			continue
		}
		for _, e := range p.dev.GIDs() {
			if a := addrOf(e.GID); a.Is4() == dst.Is4() && a.IsLoopback() == dst.IsLoopback() && a.IsLinkLocalUnicast() == dst.IsLinkLocalUnicast() {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// addrOf is the IP address of a GID.
func addrOf(g roce.GID) netip.Addr { return netip.AddrFrom16(g).Unmap() }

// listen makes the protocol listen for an id's service.
func (m *Manager) listen(i *ID) error {
	sid := ibcm.ServiceID(uint16(i.space), i.src.Port())
	l := m.listeners[sid]
	if l == nil {
		l = &serviceListener{}
		for _, p := range m.ports {
			pl, err := p.cm.Listen(sid, 0, l)
			if err != nil {
				return refuse(syscall.EADDRINUSE, "listen", "%v", err)
			}
			l.per = append(l.per, pl)
		}
		m.listeners[sid] = l
	}
	l.ids = append(l.ids, i)
	return nil
}

func (m *Manager) unlisten(i *ID) {
	sid := ibcm.ServiceID(uint16(i.space), i.src.Port())
	l := m.listeners[sid]
	if l == nil {
		return
	}
	l.ids = without(l.ids, i)
	if len(l.ids) == 0 {
		for _, p := range l.per {
			p.Close()
		}
		delete(m.listeners, sid)
	}
}

// find chooses the id that a request for an address means: one bound to it before a wildcard, of its own family before the other.
func (l *serviceListener) find(dst netip.Addr) *ID {
	var best *ID
	rank := 0
	for _, i := range l.ids {
		r := 0
		switch a := i.src.Addr(); {
		case i.ib != nil: // its requests would have no IP addresses, and those of Ethernet have
		case a == dst:
			r = 3
		case !unspecified(a):
		case a.Is4() == dst.Is4():
			r = 2
		case a.Is6() && !i.afOnly:
			r = 1
		}
		if r > rank {
			best, rank = i, r
		}
	}
	return best
}
