package sim

import (
	"net/netip"
	"slices"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// mgroup is a multicast group with its members, and the Q_Key that they have in common, most of them. It has
// an address of each IP version: a queue pair is a member of both.
type mgroup struct {
	addrs   [2]netip.Addr
	members []*qpair
}

// addGroups makes the groups, and has queue pairs join and leave them all the time.
func (w *world) addGroups() {
	if len(w.uds) == 0 || !w.chance(60) {
		return
	}
	for i := range w.between(1, 3) {
		g := &mgroup{addrs: [2]netip.Addr{netip.AddrFrom4([4]byte{239, 1, 2, byte(i)}), netip.AddrFrom16([16]byte{0xff, 0x0e, 15: byte(i)})}}
		w.groups = append(w.groups, g)
		for _, q := range w.uds {
			if w.chance(60) {
				w.attach(g, q)
			}
		}
		for range w.between(0, 12) {
			w.after(w.nanos(0, 900_000), func() { w.changeMember(g) })
		}
	}
}

// changeMember has a queue pair join if it is no member, and leave if it is.
func (w *world) changeMember(g *mgroup) {
	q := w.uds[w.rng.IntN(len(w.uds))]
	if slices.Contains(g.members, q) {
		w.detach(g, q)
	} else {
		w.attach(g, q)
	}
}

func (g *mgroup) on(h *host) (members []*qpair) {
	for _, q := range g.members {
		if q.h == h {
			members = append(members, q)
		}
	}
	return members
}

func (w *world) attach(g *mgroup, q *qpair) {
	want := len(g.on(q.h)) == 0
	for _, a := range g.addrs {
		first, err := q.h.nic.AttachMulticast(q.qp, roce.GIDFromAddr(a))
		w.must(err, "attaching "+q.String())
		if first != want {
			w.fail("%v attached to %v: the NIC's first member: %v", q, a, first)
		}
	}
	g.members = append(g.members, q)
	w.note(q.h, "%v joins %v", q, g.addrs[0])
}

func (w *world) detach(g *mgroup, q *qpair) {
	g.members = slices.DeleteFunc(g.members, func(o *qpair) bool { return o == q })
	want := len(g.on(q.h)) == 0
	for _, a := range g.addrs {
		last, err := q.h.nic.DetachMulticast(q.qp, roce.GIDFromAddr(a))
		w.must(err, "detaching "+q.String())
		if last != want {
			w.fail("%v detached from %v: the NIC's last member: %v", q, a, last)
		}
	}
	w.note(q.h, "%v leaves %v", q, g.addrs[0])
}

// groupOf is the group with an address, nil if it is none's.
func (w *world) groupOf(a netip.Addr) *mgroup {
	for _, g := range w.groups {
		if slices.Contains(g.addrs[:], a) {
			return g
		}
	}
	return nil
}

// putGroup sends a packet to a group: a copy to every host that is a member, or hears it nevertheless, each over
// its own link, and one to the members of the sender's own host. What the sender hears of its own
// packet must not reach anybody there again.
func (h *host) putGroup(p *nic.TxPacket) {
	w := h.w
	g := w.groupOf(p.Path.Dst)
	if g == nil || h.addrIndex(p.Path.Src) < 0 || roce.BTH(p.Data).DestQP() != 0xffffff {
		w.fail("host %d sends from %v to the group %v, which nobody asked for", h.index, p.Path.Src, p.Path.Dst)
	}
	if p.Local != (len(g.on(h)) > 0) {
		w.fail("host %d with %d members sends to a group with Local %v", h.index, len(g.on(h)), p.Local)
	}
	w.observeSend(h, nil, p)
	for _, to := range w.hosts {
		if to != h && (len(g.on(to)) > 0 || w.chance(10)) || to == h && p.Local {
			h.wires[to.index].send(p.Path, p.Data)
		}
	}
	if w.chance(30) {
		echo := w.packet(p.Path, p.Data[:len(p.Data)-roce.ICRCSize])
		echo.echo = true
		w.after(w.nanos(0, 20_000), func() { h.arrive(echo) })
	}
}

// arriveGroup has every member of the host expect a datagram.
func (w *world) arriveGroup(h *host, p *packet, pkt *roce.Packet) {
	if p.echo {
		return
	}
	for _, q := range w.groupOf(p.path.Dst).on(h) {
		w.count.MulticastCopies++
		w.expectDatagram(q, pkt)
	}
}

// groupHandle finds or makes the handle for a group.
func (w *world) groupHandle(h *host, g *mgroup, family int) *nic.AH {
	key := ahKey{group: g, index: family}
	if a := h.ahs[key]; a != nil {
		return a
	}
	if h.removed[family] {
		return w.groupHandle(h, g, 1-family)
	}
	a, err := h.nic.CreateAH(h.pd, nic.AHAttr{DGID: roce.GIDFromAddr(g.addrs[family]), SGIDIndex: uint8(family), HopLimit: 64,
		IsGlobal: true, Port: 1})
	w.must(err, "creating an address handle")
	h.ahs[key] = a
	return a
}

// mayReach tells whether a datagram may have come to q.
func (x *work) mayReach(q *qpair) bool { return x.reachable && (x.group != nil || x.dest == q) }

// checkDeliveries holds at the end: nobody got a datagram more often than links duplicated it.
func (w *world) checkDeliveries(x *work) {
	for _, q := range w.uds {
		if n := x.deliveries[q]; n > 1+q.h.duplicated {
			w.fail("%s was delivered %d times to %v", x, n, q)
		}
	}
}
