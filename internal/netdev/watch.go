package netdev

import (
	"net/netip"
	"slices"
)

// observe is the chosen addresses at one moment, also those of interfaces that are down: an address
// outlives its link. Nothing that is missing is an error; the Index of the entries means nothing.
func observe(ifaces []iface, sel Selection) (entries []Entry) {
	add := func(f *iface) {
		for _, c := range f.usable() {
			entries = append(entries, c.entry(len(entries)))
		}
	}
	switch {
	case len(sel.Addrs) > 0:
		for _, a := range sel.Addrs {
			want := a.Unmap().WithZone("")
			if f := ownerOf(ifaces, want); f != nil {
				entries = append(entries, candidate{f, want}.entry(len(entries)))
			}
		}
	case len(sel.Interfaces) > 0:
		for _, name := range sel.Interfaces {
			if i := slices.IndexFunc(ifaces, func(f iface) bool { return f.name == name }); i >= 0 {
				add(&ifaces[i])
			}
		}
	default:
		for i := range ifaces {
			add(&ifaces[i])
		}
	}
	return entries
}

// ownerOf finds the interface of an address; one that is up before one that is not.
func ownerOf(ifaces []iface, ip netip.Addr) (owner *iface) {
	for i := range ifaces {
		f := &ifaces[i]
		if f.has(ip) {
			return f
		}
		if slices.ContainsFunc(f.usable(), func(c candidate) bool { return c.ip == ip }) {
			owner = f
		}
	}
	return owner
}
