package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
)

// A membership is that of a multicast group. A socket bound to an address of
// the machine gets no packets to groups: then the group has a socket of its
// own, bound to the group's address, which NICs of one machine may share. A
// socket that takes all addresses of the machine joins the group itself.
type membership struct {
	sockets []*socket // its own; none if it is the wildcard socket's
	joined  []int     // interfaces that the wildcard socket joined it on
}

// Join makes the link receive what is sent to a multicast group on any of the
// interfaces (IGMP, RFC 3376; MLD, RFC 3810): those of the group's IP version
// that have a local address of the NIC. An interface that cannot is left out
// while another can. Errors: a *link.Error. It belongs to the goroutine of Recv.
func (l *Link) Join(group netip.Addr, interfaces []int) error {
	if err := l.usable("join"); err != nil {
		return err
	}
	if l.groups[group] != nil {
		return nil
	}
	m := &membership{}
	wildcard := l.wildcard(group)
	var first error
	joined := 0
	for _, index := range interfaces {
		var err error
		if wildcard != nil {
			if err = wildcard.join(group, index); err == nil {
				m.joined = append(m.joined, index)
			}
		} else {
			err = l.joinOwn(m, group, index)
		}
		switch {
		case err == nil:
			joined++
		case first == nil:
			first = err
		}
	}
	if joined == 0 {
		if first == nil {
			first = unix.ENODEV
		}
		return &link.Error{Op: "join group " + group.String(), Link: l.name, Err: first, Hint: joinHint(first)}
	}
	if l.groups == nil {
		l.groups = map[netip.Addr]*membership{}
	}
	l.groups[group] = m
	return nil
}

func joinHint(err error) string {
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return "the system's limit of groups of a socket is reached: raise net.ipv4.igmp_max_memberships, or give the NIC an address of its own"
	case errors.Is(err, unix.ENODEV):
		return "no interface of the NIC has an address of the group's IP version"
	}
	return ""
}

// Leave ends a membership.
func (l *Link) Leave(group netip.Addr) {
	m := l.groups[group]
	if m == nil || l.closed {
		return
	}
	delete(l.groups, group)
	for _, index := range m.joined {
		l.wildcard(group).leave(group, index)
	}
	for _, s := range m.sockets {
		l.closeGroupSocket(s)
	}
}

// wildcard is the socket that takes all addresses of the group's IP version.
func (l *Link) wildcard(group netip.Addr) *socket {
	for _, s := range l.sockets {
		if s.addr.IsUnspecified() && s.addr.Is4() == group.Is4() {
			return s
		}
	}
	return nil
}

// joinOwn joins a group on one more interface, on a socket of its own. A group
// whose address means something on one link only has a socket for each.
func (l *Link) joinOwn(m *membership, group netip.Addr, index int) error {
	scoped := group.Is6() && (group.IsLinkLocalMulticast() || group.IsInterfaceLocalMulticast())
	if len(m.sockets) > 0 && !scoped {
		return m.sockets[0].join(group, index)
	}
	cfg := l.cfg
	s, err := openGroupSocket(group, index, scoped, &cfg)
	if err != nil {
		return err
	}
	err = unix.EpollCtl(l.groupPoll, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)})
	if err != nil {
		unix.Close(s.fd)
		return os.NewSyscallError("epoll_ctl", err)
	}
	l.mu.Lock()
	l.groupSockets = append(l.groupSockets, s)
	l.mu.Unlock()
	m.sockets = append(m.sockets, s)
	return nil
}

// openGroupSocket makes a socket that gets what is sent to a group on the interface.
func openGroupSocket(group netip.Addr, index int, scoped bool, cfg *Config) (*socket, error) {
	s, err := newSocket(group, cfg)
	if err != nil {
		return nil, err
	}
	fail := func(what string, err error) (*socket, error) {
		unix.Close(s.fd)
		return nil, os.NewSyscallError(what, err)
	}
	// Every member of the machine gets a copy: here the port may be shared.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fail("setsockopt SO_REUSEADDR", err)
	}
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(cfg.port())}
	if group.Is4() {
		sa.(*unix.SockaddrInet4).Addr = group.As4()
	} else {
		a := &unix.SockaddrInet6{Port: int(cfg.port()), Addr: group.As16()}
		if scoped {
			a.ZoneId = uint32(index)
		}
		sa = a
	}
	if err := unix.Bind(s.fd, sa); err != nil {
		return fail("bind", err)
	}
	if err := s.join(group, index); err != nil {
		return fail("setsockopt", err)
	}
	return s, nil
}

func (l *Link) closeGroupSocket(s *socket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.groupSockets {
		if o == s {
			l.groupSockets = append(l.groupSockets[:i:i], l.groupSockets[i+1:]...)
			break
		}
	}
	_ = unix.Close(s.fd) // and it is out of groupPoll
}

func (s *socket) join(group netip.Addr, index int) error {
	err := s.membership(group, index, unix.IP_ADD_MEMBERSHIP, unix.IPV6_JOIN_GROUP)
	switch {
	case err == nil, err == unix.EADDRINUSE: // a member already
		return nil
	}
	return fmt.Errorf("interface %d: %w", index, err)
}

func (s *socket) leave(group netip.Addr, index int) {
	_ = s.membership(group, index, unix.IP_DROP_MEMBERSHIP, unix.IPV6_LEAVE_GROUP) // the interface may have gone
}

func (s *socket) membership(group netip.Addr, index, option4, option6 int) error {
	if group.Is4() {
		return unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, option4, &unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(index)})
	}
	return unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, option6, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
}

// readyGroup is the socket of a group that has something, nil if none has.
func (l *Link) readyGroup() *socket {
	var events [1]unix.EpollEvent
	for range 2 { // once more if a signal came
		n, err := unix.EpollWait(l.groupPoll, events[:], 0)
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			return nil
		}
		for _, s := range l.groupSockets {
			if s.fd == int(events[0].Fd) {
				return s
			}
		}
	}
	return nil
}
