package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
)

// socket is one unconnected UDP socket.
type socket struct {
	fd      int
	addr    netip.Addr // as bound, may be unspecified
	recvBuf int        // bytes the kernel granted, as the kernel counts
	gro     bool
}

// openSocket makes a socket bound to addr. The caller closes it.
func openSocket(addr netip.Addr, cfg *Config) (*socket, error) {
	s, err := newSocket(addr, cfg)
	if err != nil {
		return nil, err
	}
	if cfg.follows {
		err = s.share()
	}
	if err == nil {
		err = s.bind(cfg.port())
	}
	if err == nil && cfg.shared && !cfg.follows {
		err = s.share()
	}
	if err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

// newSocket makes a socket that is to be bound to addr. The caller closes it.
func newSocket(addr netip.Addr, cfg *Config) (*socket, error) {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd, addr: addr}
	if err := s.configure(cfg); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

type option struct {
	level, name, value int
	text               string
	required           bool
}

var options4 = [...]option{
	// DF, and with it the identification that the ICRC was computed with.
	{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, "IP_MTU_DISCOVER", true},
	// The destination address is under the ICRC.
	{unix.IPPROTO_IP, unix.IP_PKTINFO, 1, "IP_PKTINFO", false},
	{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "IP_RECVTOS", false},
	{unix.IPPROTO_IP, unix.IP_RECVTTL, 1, "IP_RECVTTL", false},
	{unix.IPPROTO_IP, unix.IP_TTL, defaultTTL, "IP_TTL", false},
	// One peer's ICMP error must not fail a send to another.
	{unix.IPPROTO_IP, unix.IP_RECVERR, 0, "IP_RECVERR", false},
	// Only groups that this socket joined, not those of other programs.
	{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0, "IP_MULTICAST_ALL", false},
	// Other NICs of this machine may be members of what is sent to.
	{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 1, "IP_MULTICAST_LOOP", false},
	{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, defaultTTL, "IP_MULTICAST_TTL", false},
}

var options6 = [...]option{
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "IPV6_V6ONLY", true},
	{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, "IPV6_MTU_DISCOVER", true},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1, "IPV6_RECVPKTINFO", false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS", false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1, "IPV6_RECVHOPLIMIT", false},
	{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, defaultTTL, "IPV6_UNICAST_HOPS", false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 0, "IPV6_RECVERR", false},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0, "IPV6_MULTICAST_ALL", false},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 1, "IPV6_MULTICAST_LOOP", false},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, defaultTTL, "IPV6_MULTICAST_HOPS", false},
	// Linux's Soft-RoCE sends IPv6 with UDP checksum 0 (RFC 6936): the ICRC
	// is the check.
	{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX", false},
}

func (s *socket) configure(cfg *Config) error {
	options := options4[:]
	if s.addr.Is6() {
		options = options6[:]
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil && o.required {
			return fmt.Errorf("set %s: %w", o.text, err)
		}
	}
	if !cfg.NoGRO {
		s.gro = unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	}
	if !cfg.KeepSocketBuffers {
		// Best effort: cut to net.core.rmem_max and wmem_max.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, wantedSocketBuffer)
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, wantedSocketBuffer)
	}
	var err error
	if s.recvBuf, err = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return fmt.Errorf("get SO_RCVBUF: %w", err)
	}
	return nil
}

func (s *socket) bind(port uint16) error {
	var sa unix.Sockaddr
	if s.addr.Is4() {
		sa = &unix.SockaddrInet4{Port: int(port), Addr: s.addr.As4()}
	} else {
		sa = &unix.SockaddrInet6{Port: int(port), Addr: s.addr.As16()}
	}
	// SO_REUSEADDR stays off: with it a second NIC would get part of the
	// first one's packets instead of this error.
	err := unix.Bind(s.fd, sa)
	if err == nil {
		return nil
	}
	e := &link.Error{Op: "open", Link: "udp " + netip.AddrPortFrom(s.addr, port).String(), Err: os.NewSyscallError("bind", err)}
	switch err {
	case unix.EADDRINUSE:
		e.Hint = portHolder(s.addr, port)
	case unix.EADDRNOTAVAIL:
		e.Hint = "no interface of this machine has the address"
	}
	return e
}

// portHolder says who seems to hold a UDP port of an address, for an error message.
func portHolder(addr netip.Addr, port uint16) string {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // sl local_address ... inode is the 10th
			if len(f) >= 10 && conflicts(f[1], addr, port) {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	names, _ := os.ReadDir("/proc")
	for _, e := range names {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + e.Name() + "/fd"
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			target, _ := os.Readlink(dir + "/" + fd.Name())
			if inodes[target] {
				comm, _ := os.ReadFile("/proc/" + e.Name() + "/comm")
				return fmt.Sprintf("held by process %d (%s): stop it, or give each NIC its own address", pid, strings.TrimSpace(string(comm)))
			}
		}
	}
	return "held by another NIC of another user, or by the kernel's Soft-RoCE (rmmod rdma_rxe)"
}

// conflicts tells whether a socket bound to local, as the system's table writes it (words of the address in the byte order of the
// machine, and the port), is in the way of one at addr. Addresses that are all of the machine are zeros.
func conflicts(local string, addr netip.Addr, port uint16) bool {
	host, number, _ := strings.Cut(local, ":")
	if number != fmt.Sprintf("%04X", port) {
		return false
	}
	var own strings.Builder
	for b := addr.AsSlice(); len(b) >= 4; b = b[4:] {
		fmt.Fprintf(&own, "%08X", binary.NativeEndian.Uint32(b))
	}
	return addr.IsUnspecified() || strings.Trim(host, "0") == "" || host == own.String()
}
