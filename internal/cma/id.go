package cma

import (
	"math/rand/v2"
	"net/netip"
	"syscall"

	"rnic/internal/device"
	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// state is the state of an id, as the kernel's rdma_cm has them.
type state uint8

const (
	stateIdle state = iota
	stateBound
	stateAddrResolved
	stateRouteResolved
	stateConnect
	stateListen
	stateDisconnect
	stateDestroyed
)

var stateNames = [...]string{"idle", "bound", "address resolved", "route resolved", "connecting", "listening", "disconnected", "destroyed"}

func (s state) String() string { return stateNames[s] }

// ID is one end of a connection, a listener, or what joins multicast groups.
type ID struct {
	m     *Manager
	space PortSpace
	typ   nic.QPType // RC, UC or UD
	sink  Sink
	// Owner is the front end's.
	Owner any
	// PID is the process that made the id, for those who list them; set it before the id is used.
	PID int
	// Scope is of the NICs that the id may use; set it before the id is used.
	Scope *Scope
	num   uint32

	state state
	src   netip.AddrPort // address invalid: not bound
	dst   netip.AddrPort
	holds service      // the port that it has taken
	port  *port        // nil while it is of no NIC in particular
	gid   int          // index of src there
	ib    *ibAddresses // nil: the id is of IP addresses
	lost  bool         // src is no address of the NIC any more, and the owner knows
	gone  bool         // the NIC is, and the owner has been told: see Gone

	conn    *ibcm.Conn
	lookup  *ibcm.Lookup
	backlog int
	pending int // requests that have not been accepted, of a listener
	parent  *ID // the listener

	// What is known of the queue pairs.
	param      ConnParam // own
	active     bool
	peer       ibcm.Connection
	pathMTU    uint8 // code
	ackTimeout uint8
	retry      uint8
	rnrRetry   uint8
	hopLimit   uint8
	tos        uint8
	reuse      bool
	afOnly     bool
	psn        uint32 // at which the peer begins
	responder  uint8  // READs and atomics: answered, and in flight
	initiator  uint8
	members    []*Membership
}

// defaultAckTimeout is the local ACK timeout of connections where nobody says otherwise: 4.096 us * 2^17, half a second. The NIC repeats by
// the measured round trip long before.
const defaultAckTimeout = 17

// NewID makes an id. typ says what queue pairs it is for: RC, UC or UD.
func (m *Manager) NewID(space PortSpace, typ nic.QPType, sink Sink) (*ID, error) {
	switch space {
	case SpaceTCP, SpaceUDP, SpaceIB, SpaceIPoIB:
	default:
		return nil, refuse(syscall.EPROTONOSUPPORT, "create id", "port space %#x", uint16(space))
	}
	i := &ID{m: m, space: space, typ: typ, sink: sink, ackTimeout: defaultAckTimeout, psn: newPSN()}
	defer i.lock()()
	m.add(i)
	return i, nil
}

// newPSN is the first packet sequence number that an id's queue pair hears: drawn early, since owners move their queue pairs to RTS before they accept.
func newPSN() uint32 { return rand.Uint32() & 0xffffff }

// lock is the beginning of each command.
func (i *ID) lock() func() {
	i.m.mu.Lock()
	return i.m.mu.Unlock
}

// emit hands an event to the owner.
func (i *ID) emit(e Event) {
	if i.state != stateDestroyed && !i.gone && !i.m.closed && i.sink != nil {
		e.ID = i
		i.sink(e)
	}
}

// SetSink gives the id another receiver of events: those from now on.
func (i *ID) SetSink(s Sink) {
	defer i.lock()()
	i.sink = s
}

// datagrams tells whether the id is of unreliable datagrams, which have lookups in place of connections.
func (i *ID) datagrams() bool { return i.typ == nic.UD }

// Bind gives the id an own address and port; a port of 0 takes a free one. EADDRNOTAVAIL: no NIC has the address. EADDRINUSE.
func (i *ID) Bind(a netip.AddrPort) error {
	defer i.lock()()
	return i.bind(a)
}

func (i *ID) bind(a netip.AddrPort) error {
	if i.state != stateIdle {
		return refuse(syscall.EINVAL, "bind", "the id is %v", i.state)
	}
	addr := a.Addr().Unmap().WithZone("")
	if !addr.IsValid() {
		return refuse(syscall.EAFNOSUPPORT, "bind", "no IP address")
	}
	if !addr.IsUnspecified() {
		p, g := i.m.portOf(addr, i.Scope)
		if p == nil {
			return refuse(syscall.EADDRNOTAVAIL, "bind", "%v is not an address of a NIC", addr)
		}
		i.port, i.gid = p, g
	}
	i.src = netip.AddrPortFrom(addr, a.Port())
	if err := i.m.takePort(i, a.Port()); err != nil {
		i.src, i.port = netip.AddrPort{}, nil
		return err
	}
	i.state = stateBound
	return nil
}

// Resolve finds the own address and the NIC from which dst is reached: AddrResolved or AddrError follows. src may be invalid.
func (i *ID) Resolve(src, dst netip.AddrPort) error {
	d := netip.AddrPortFrom(dst.Addr().Unmap().WithZone(""), dst.Port())
	// Without the lock: it asks the system.
	own, found := i.m.sourceFor(d.Addr(), i.Scope)
	defer i.lock()()
	if i.state == stateIdle {
		if !src.Addr().IsValid() {
			src = netip.AddrPortFrom(anyOf(d.Addr()), src.Port())
		}
		if err := i.bind(src); err != nil {
			return err
		}
	}
	if i.state != stateBound {
		return refuse(syscall.EINVAL, "resolve address", "the id is %v", i.state)
	}
	mixed := i.src.Addr().Is4() != d.Addr().Is4()
	if dst.Addr().Is4In6() && unspecified(i.src.Addr()) {
		mixed = false // an IPv4 address in the form of IPv6 is of both
	}
	if !d.Addr().IsValid() || i.ib != nil || mixed {
		return refuse(syscall.EINVAL, "resolve address", "source %v and destination %v are of two families", i.src.Addr(), d.Addr())
	}
	if d.Addr().IsUnspecified() { // as connect(2): this machine
		d = netip.AddrPortFrom(loopback(d.Addr()), d.Port())
		own, found = d.Addr(), true
	}
	i.dst = d
	if i.port == nil {
		p, g := i.m.portOf(own, i.Scope)
		if !found || p == nil {
			i.emit(Event{Type: AddrError, Status: -int(syscall.ENODEV)})
			return nil
		}
		i.port, i.gid = p, g
		i.src = netip.AddrPortFrom(own, i.src.Port())
	}
	i.state = stateAddrResolved
	i.emit(Event{Type: AddrResolved})
	return nil
}

func anyOf(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func loopback(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// ResolveRoute follows Resolve: RouteResolved. On Ethernet there is nothing to find.
func (i *ID) ResolveRoute() error {
	defer i.lock()()
	if i.state != stateAddrResolved {
		return refuse(syscall.EINVAL, "resolve route", "the id is %v", i.state)
	}
	if i.ib != nil {
		return refuse(syscall.ENODEV, "resolve route", "a GID alone says no way on Ethernet: use the peer's IP address")
	}
	i.state = stateRouteResolved
	i.pathMTU, i.hopLimit = roce.MTUCode(i.port.dev.MTU()), 64
	i.emit(Event{Type: RouteResolved})
	return nil
}

// Listen takes requests for the address and port; an id that is not bound takes a port. Backlog bounds those that wait, 0: 1024.
func (i *ID) Listen(backlog int) error {
	defer i.lock()()
	if i.state == stateIdle {
		if err := i.bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)); err != nil {
			return err
		}
	}
	if i.state != stateBound {
		return refuse(syscall.EINVAL, "listen", "the id is %v", i.state)
	}
	for _, o := range i.m.bound[i.holds] {
		if o != i && o.state == stateListen && overlap(i, o) && i.Scope.meets(o.Scope, i.m.ports) {
			return refuse(syscall.EADDRINUSE, "listen", "port %d is in use", i.src.Port())
		}
	}
	if backlog <= 0 {
		backlog = 1024
	}
	if err := i.m.listen(i); err != nil {
		return err
	}
	i.backlog, i.state = backlog, stateListen
	for _, p := range i.m.ports {
		p.work() // requests that have waited for it
	}
	return nil
}

// Options of an id.

// SetTOS sets the traffic class of the connection.
func (i *ID) SetTOS(tos uint8) { defer i.lock()(); i.tos = tos }

// SetReuse lets other ids bind the same address, as long as none listens.
func (i *ID) SetReuse(on bool) error {
	defer i.lock()()
	if i.state != stateIdle && i.state != stateBound {
		return refuse(syscall.EINVAL, "set option", "the id is %v", i.state)
	}
	i.reuse = on
	return nil
}

// SetAFOnly keeps a wildcard of IPv6 from taking IPv4.
func (i *ID) SetAFOnly(on bool) error {
	defer i.lock()()
	if i.state != stateIdle && i.state != stateBound {
		return refuse(syscall.EINVAL, "set option", "the id is %v", i.state)
	}
	i.afOnly = on
	return nil
}

// SetAckTimeout sets the local ACK timeout of the connection, 4.096 us * 2^t.
func (i *ID) SetAckTimeout(t uint8) error {
	defer i.lock()()
	if t > 31 {
		return refuse(syscall.EINVAL, "set option", "ACK timeout %d", t)
	}
	i.ackTimeout = t
	return nil
}

// Info is what is known of an id.
type Info struct {
	Src, Dst netip.AddrPort
	IB       bool           // the id has addresses of InfiniBand in place of Src and Dst:
	IBSrc    IBAddr         // own
	IBDst    IBAddr         // the peer's
	Device   *device.Device // nil: none yet
	GIDIndex int
	Space    PortSpace
	Type     nic.QPType
	PathMTU  uint8 // code
	TOS      uint8
	HopLimit uint8
	AckTime  uint8
	Listens  bool
}

// Info describes the id.
func (i *ID) Info() Info {
	defer i.lock()()
	n := Info{Src: i.src, Dst: i.dst, GIDIndex: i.gid, Space: i.space, Type: i.typ, PathMTU: i.pathMTU, TOS: i.tos, HopLimit: i.hopLimit,
		AckTime: i.ackTimeout, Listens: i.state == stateListen}
	if i.ib != nil {
		n.IB, n.IBSrc, n.IBDst = true, i.ib.src, i.ib.dst
	}
	if i.port != nil {
		n.Device = i.port.dev
	}
	return n
}

// Destroy ends the id: no event of it comes afterwards. A request that it stands for is rejected, a connection disconnected; requests
// that wait at a listener are rejected by the destruction of their own ids.
func (i *ID) Destroy() {
	defer i.lock()()
	i.destroy()
}

func (i *ID) destroy() {
	if i.state == stateDestroyed {
		return
	}
	if i.state == stateListen {
		i.m.unlisten(i)
	}
	i.answered()
	i.state = stateDestroyed
	now := i.m.now()
	if i.conn != nil {
		i.conn.Close(now)
		i.conn = nil
	}
	if i.lookup != nil {
		i.lookup.Close(now)
		i.lookup = nil
	}
	for len(i.members) > 0 {
		i.members[0].leave()
	}
	i.m.releasePort(i)
	delete(i.m.ids, i)
	if i.port != nil {
		i.port.work()
	}
}

// Noticed takes a request out of its listener's backlog before it is answered. The kernel's module counts those that programs have not
// fetched; other owners need not call it.
func (i *ID) Noticed() {
	defer i.lock()()
	i.answered()
}

// answered takes a request out of its listener's backlog.
func (i *ID) answered() {
	if i.parent != nil {
		i.parent.pending--
		i.parent = nil
	}
}
