package netdev

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// readInterfaces asks rtnetlink, and the standard library where that is
// refused (some sandboxes allow only part of it).
func readInterfaces() ([]iface, error) {
	const attempts = 5 // a dump fails when the table changes under it
	for i := 0; ; i++ {
		ifaces, err := readNetlink(&netlink.Handle{})
		switch {
		case err == nil:
			return ifaces, nil
		case errors.Is(err, netlink.ErrDumpInterrupted) && i < attempts:
			continue
		}
		ifaces, plain := readPlain()
		if plain != nil {
			return nil, errors.Join(err, plain)
		}
		return ifaces, nil
	}
}

// readNetlink asks in the network namespace of h; that of the zero Handle is the calling thread's.
func readNetlink(h *netlink.Handle) ([]iface, error) {
	links, err := h.LinkList()
	if err != nil {
		return nil, err
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	metrics := defaultRoutes(h)
	ifaces := make([]iface, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		f := iface{
			name: a.Name, index: a.Index, mtu: a.MTU, mac: a.HardwareAddr,
			up: a.Flags&net.FlagUp != 0, loopback: a.Flags&net.FlagLoopback != 0, metric: noDefault,
			running: a.RawFlags&unix.IFF_RUNNING != 0,
		}
		if m, ok := metrics[a.Index]; ok {
			f.metric = m
		}
		for i := range addrs {
			if addrs[i].LinkIndex == a.Index {
				f.add(&addrs[i])
			}
		}
		ifaces = append(ifaces, f)
	}
	return ifaces, nil
}

func (f *iface) add(a *netlink.Addr) {
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return
	}
	const secondary = unix.IFA_F_SECONDARY // the same bit as IFA_F_TEMPORARY of IPv6
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	f.addrs = append(f.addrs, addr{ip: ip.Unmap(), secondary: a.Flags&secondary != 0, deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
		unusable: a.Flags&unusable != 0})
}

// defaultRoutes returns the best metric of the default routes by interface
// index. Without routes interfaces are ordered by index alone.
func defaultRoutes(h *netlink.Handle) map[int]int {
	metrics := map[int]int{}
	note := func(index, metric int) {
		if m, ok := metrics[index]; index != 0 && (!ok || metric < m) {
			metrics[index] = metric
		}
	}
	const ipv6Later = 1 << 30 // IPv4 decides where there is both
	for family, later := range map[int]int{netlink.FAMILY_V4: 0, netlink.FAMILY_V6: ipv6Later} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		if err != nil {
			continue
		}
		for _, r := range routes {
			note(r.LinkIndex, r.Priority+later)
			for _, hop := range r.MultiPath {
				note(hop.LinkIndex, r.Priority+later)
			}
		}
	}
	return metrics
}
