package netdev

import (
	"net"
	"net/netip"
)

// readPlain uses the standard library. It knows neither the default route nor
// the state of addresses.
func readPlain() ([]iface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	ifaces := make([]iface, 0, len(list))
	for _, i := range list {
		f := iface{
			name: i.Name, index: i.Index, mtu: i.MTU, mac: i.HardwareAddr,
			up: i.Flags&net.FlagUp != 0, loopback: i.Flags&net.FlagLoopback != 0, metric: noDefault,
			running: i.Flags&net.FlagRunning != 0,
		}
		if f.mtu < 0 { // Windows' loopback has no limit
			f.mtu = 1 << 16
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					f.addrs = append(f.addrs, addr{ip: ip.Unmap()})
				}
			}
		}
		ifaces = append(ifaces, f)
	}
	return ifaces, nil
}
