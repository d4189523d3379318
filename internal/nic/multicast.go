package nic

import (
	"slices"

	"rnic/internal/roce"
)

// multicastQPN is the destination of every multicast packet (vol. 1, 9.2 and 10.5).
const multicastQPN = 0xffffff

// A group is a multicast group of which queue pairs of this NIC are members. Whoever drives the NIC
// joins it on the network while it exists.
type group struct {
	members []*QP // in the order in which they were attached
}

// AttachMulticast makes an unreliable datagram queue pair a member of a multicast group (vol. 1, 10.5, 11.3.1): an IPv6
// address in ff00::/8, or a mapped IPv4 address in 224.0.0.0/4. first: it is the NIC's first member of that
// group. A member again is none more. EINVAL: another type, or no multicast address. ENOMEM: a limit.
func (n *NIC) AttachMulticast(q *QP, g roce.GID) (first bool, err error) {
	const op = "attach to multicast group"
	if err := q.checkMulticast(n, op, g); err != nil {
		return false, err
	}
	m := n.groups[g]
	l := &n.limits
	switch {
	case m != nil && slices.Contains(m.members, q):
		return false, nil
	case m == nil && len(n.groups) >= l.MaxMulticastGroups:
		return false, refuse(ENOMEM, op, g.Addr().String(), "the limit of multicast groups is reached: detach from some")
	case m != nil && len(m.members) >= l.MaxMulticastMembers:
		return false, refuse(ENOMEM, op, g.Addr().String(), "the limit of members of a multicast group is reached: detach some")
	}
	if m == nil {
		m, first = new(group), true
		n.groups[g] = m
	}
	m.members = append(m.members, q)
	q.groups = append(q.groups, g)
	return first, nil
}

// DetachMulticast ends a membership (11.3.2). last: the NIC has no other member of that group. EINVAL: it is no member.
func (n *NIC) DetachMulticast(q *QP, g roce.GID) (last bool, err error) {
	const op = "detach from multicast group"
	if err := q.checkMulticast(n, op, g); err != nil {
		return false, err
	}
	at := slices.Index(q.groups, g)
	if at < 0 {
		return false, refuse(EINVAL, op, g.Addr().String(), q.String()+" is not attached to it")
	}
	q.groups = slices.Delete(q.groups, at, at+1)
	m := n.groups[g]
	if n.planted != PlantedStaleMember || len(m.members) == 1 {
		m.members = slices.DeleteFunc(m.members, func(o *QP) bool { return o == q })
	}
	if last = len(m.members) == 0; last {
		delete(n.groups, g)
	}
	return last, nil
}

func (q *QP) checkMulticast(n *NIC, op string, g roce.GID) error {
	switch {
	case q == nil || q.nic.shared != n.shared || q.dead:
		return refuse(EINVAL, op, g.Addr().String(), "no such queue pair")
	case q.typ != UD:
		return refuse(EINVAL, op, g.Addr().String(), q.String()+" is not of type UD") // 10.5: unreliable datagrams only
	case !g.Addr().IsMulticast():
		return refuse(EINVAL, op, g.Addr().String(), "no multicast address: 224.0.0.0/4 or ff00::/8 is needed")
	}
	return nil
}

// MulticastGroups are the groups that q is a member of. It must not be changed.
func (q *QP) MulticastGroups() []roce.GID { return q.groups }

// receiveMulticast gives a copy of a datagram to every member of the group that it was sent to. Each
// checks it as if it were the only one: its own state, partition, Q_Key and receive queue (10.5).
func (n *NIC) receiveMulticast(rx *RxPacket, p *roce.Packet) {
	m := n.groups[roce.GIDFromAddr(rx.Path.Dst)]
	switch {
	case p.Info.Transport != roce.TransportUD || m == nil:
		n.stats.BadPackets++
		if n.noteReceived(NoteNoGroup); p.Info.Transport != roce.TransportUD {
			n.transport.note = NoteTransport
		}
		return
	case !rx.Local && n.isLocal(roce.GIDFromAddr(rx.Path.Src)) && n.planted != PlantedEchoedCopy:
		n.noteReceived(NoteOwnEcho)
		n.stats.MulticastEchoes++
		return // its own, back from the network: the members here have had it
	}
	for i, q := range m.members {
		if q.nic != n {
			continue // another unit has a copy of the datagram
		}
		switch {
		case n.planted == PlantedLostCopy && i > 0 && i == len(m.members)-1:
		case !q.receives():
			n.stats.BadPackets++
			n.noteReceived(NoteState)
		case !partitionsMatch(p.BTH.PKey(), n.pkeys[q.attr.PKeyIndex]):
			n.stats.BadPKey++
			n.noteReceived(NotePKey)
		default:
			q.receiveCopy(rx, p)
		}
	}
}

// receiveCopy gives a member its copy.
func (q *QP) receiveCopy(rx *RxPacket, p *roce.Packet) {
	defer unlock(q.lockReceives())
	q.receiveDatagram(rx, p)
}

// receives tells whether the queue pair's state lets requests in (10.3.1).
func (q *QP) receives() bool { return q.state >= RTR && q.state <= SQE }

// toGroup marks the last packet of the batch as one for a multicast group: it goes to the network, and to
// the members of this NIC, the sender itself included.
func (n *NIC) toGroup(tx *Tx, g roce.GID) {
	p := &tx.Packets[len(tx.Packets)-1]
	p.Multicast, p.Local = true, n.groups[g] != nil
}
