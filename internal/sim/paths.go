package sim

import (
	"fmt"
	"net/netip"
	"slices"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// A host has two addresses of each IP version. They are entries of its GID table: the even ones are IPv4, those from 2
// on lead through a network of their own.
const hostAddrs = 4

// A route is a pair of addresses: of one's own host and of the peer's, by their index.
type route struct{ src, dst uint8 }

func (r route) back() route    { return route{r.dst, r.src} }
func (r route) bit() uint16    { return 1 << (r.src*hostAddrs + r.dst) }
func (r route) family() int    { return int(r.src & 1) }
func (r route) String() string { return fmt.Sprintf("%d-%d", r.src, r.dst) }

// addressesOf are those of host number i.
func addressesOf(i int) (addrs [hostAddrs]netip.Addr) {
	for n := range addrs {
		if plane := byte(n / 2); n%2 == 0 {
			addrs[n] = netip.AddrFrom4([4]byte{192, 0, 2 + plane, byte(1 + i)})
		} else {
			addrs[n] = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 7: plane, 15: byte(1 + i)})
		}
	}
	return addrs
}

// addrIndex is the entry of the host's GID table with an address; -1: it is not the host's.
func (h *host) addrIndex(a netip.Addr) int { return slices.Index(h.addrs[:], a) }

// randomRoute chooses the addresses of a connection; all are the first ones where no path ever fails.
func (w *world) randomRoute() route {
	fam := uint8(w.rng.IntN(2))
	if !w.paths {
		return route{fam, fam}
	}
	return route{fam + 2*uint8(w.rng.IntN(2)), fam + 2*uint8(w.rng.IntN(2))}
}

// address is the address vector of a route.
func (r route) address(peer *host) nic.AHAttr {
	return nic.AHAttr{DGID: gidOf(peer, int(r.dst)), SGIDIndex: r.src, HopLimit: 64, IsGlobal: true, Port: 1}
}

// A silence is a time in which nothing passes on some routes of a wire.
type silence struct {
	routes   uint16 // 1<<bit of each
	from, to int64
}

// routeOf is the route that a packet takes; false: it is for a group.
func (x *wire) routeOf(path *roce.Path) (route, bool) {
	src, dst := x.from.addrIndex(path.Src), x.to.addrIndex(path.Dst)
	if src < 0 || dst < 0 {
		return route{}, false
	}
	return route{uint8(src), uint8(dst)}, true
}

// hush makes routes silent from now on.
func (x *wire) hush(routes uint16, nanos int64) {
	x.silences = append(x.silences, silence{routes, x.w.now, x.w.now + nanos})
	x.w.count.Silences++
}

// silent tells whether nothing passes on the route now.
func (x *wire) silent(r route) bool {
	return slices.ContainsFunc(x.silences, func(s silence) bool { return s.routes&r.bit() != 0 && x.w.now < s.to })
}

// silentSince tells whether there was a silence on one of the routes since then.
func (x *wire) silentSince(routes uint16, since int64) bool {
	return slices.ContainsFunc(x.silences, func(s silence) bool { return s.routes&routes != 0 && s.to > since })
}

// anyAddress chooses an address of a host.
func (w *world) anyAddress() int {
	if w.paths {
		return w.rng.IntN(hostAddrs)
	}
	return w.rng.IntN(2)
}

// usable tells whether the host may send from its address i.
func (h *host) usable(i uint8) bool { return !h.down[i] && !h.removed[i] }

// addPortChanges has addresses and whole ports of some hosts go down and come up.
func (w *world) addPortChanges() {
	for _, h := range w.hosts {
		if w.chance(40) {
			w.after(w.nanos(20_000, 2_000_000), func() { w.changePort(h, w.between(1, 4)) })
		}
	}
}

// changePort lets an address, or all of them, go down, or vanish, and come back: what the device tells its NIC of its
// interfaces, in that order. One change follows another, left of them in all.
func (w *world) changePort(h *host, left int) {
	one, gone := w.rng.IntN(hostAddrs), w.chance(40)
	h.down = [hostAddrs]bool{}
	h.down[one] = true
	if !gone && w.chance(30) {
		h.down = [hostAddrs]bool{true, true, true, true}
	}
	nanos := pick(w, w.nanos(10_000, 500_000), w.nanos(500_000, 20_000_000), w.nanos(20_000_000, 700_000_000))
	w.note(h, "addresses %v go down, gone %v, for %s", h.down, gone, clock(nanos))
	w.count.PortChanges++
	routes := uint16(0)
	for i, down := range h.down {
		for other := range uint8(hostAddrs) {
			if down {
				routes |= route{uint8(i), other}.bit()
			}
		}
	}
	for _, to := range w.hosts {
		if to == h {
			continue // what a host sends to itself does not leave it
		}
		h.wires[to.index].hush(routes, nanos)
		back := uint16(0)
		for r := range uint8(hostAddrs * hostAddrs) {
			if at := (route{r / hostAddrs, r % hostAddrs}); routes&at.bit() != 0 {
				back |= at.back().bit()
			}
		}
		to.wires[h.index].hush(back, nanos)
	}
	w.setDown(h)
	if gone {
		h.removed[one] = true
		h.nic.SetGID(one, roce.GID{})
	}
	if w.chance(40) { // something else has changed: what was down still is
		w.after(nanos/2, func() { w.setDown(h) })
	}
	w.after(nanos, func() {
		w.note(h, "all addresses are up")
		h.down, h.removed = [hostAddrs]bool{}, [hostAddrs]bool{}
		w.setDown(h)
		h.nic.SetGID(one, gidOf(h, one))
		if left > 1 {
			w.after(w.nanos(20_000, 5_000_000), func() { w.changePort(h, left-1) })
		}
	})
}

// setDown tells the NIC, and the model, which addresses are down. Queue pairs that are armed leave these (17.2.8.1.3).
func (w *world) setDown(h *host) {
	for _, e := range h.ends {
		w.noteMismatch(e.flow)
	}
	old := h.told
	h.told = h.down
	for i := range h.down {
		for _, e := range h.ends {
			switch s := e.qp.State(); {
			case !h.down[i] || old[i] || h.removed[i] || e.dead():
			case e.state == nic.MigArmed && int(e.primary.src) == i && (s == nic.RTR || s == nic.RTS || s == nic.SQD):
				w.migrate(e, "its address is down")
			}
		}
	}
	h.nic.SetDown(w.now, func(i int) bool { return i < hostAddrs && h.down[i] })
	h.look("port change")
	h.driveSoon()
}
