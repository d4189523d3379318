package cma

import (
	"net/netip"
	"syscall"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/verbs"
)

// Membership is an id's membership in a multicast group. The owner attaches the queue pair itself.
type Membership struct {
	id    *ID
	Group netip.Addr
	// Owner is the front end's.
	Owner any
}

// Join makes the id, which must be of a NIC, a member of a group: MulticastJoin follows, with the address vector, queue pair number and Q_Key to send to.
func (i *ID) Join(group netip.Addr, owner any) (*Membership, error) {
	defer i.lock()()
	group = group.Unmap().WithZone("")
	switch {
	case i.state != stateBound && i.state != stateAddrResolved && i.state != stateRouteResolved || i.port == nil:
		return nil, refuse(syscall.EINVAL, "join", "the id is %v, of no NIC", i.state)
	case !i.datagrams():
		return nil, refuse(syscall.EINVAL, "join", "the id is not of datagrams")
	case !group.IsMulticast():
		return nil, refuse(syscall.EINVAL, "join", "%v is no multicast address", group)
	}
	m := &Membership{id: i, Group: group, Owner: owner}
	i.members = append(i.members, m)
	i.emit(Event{Type: MulticastJoin, Member: m, UD: UDParam{QPN: verbs.MulticastQPN, QKey: QKey,
		AH: nic.AHAttr{DGID: ibcm.GIDOf(group), SGIDIndex: uint8(i.gid), HopLimit: 1, TrafficClass: i.tos, IsGlobal: true, Port: 1}}})
	return m, nil
}

// Leave ends a membership.
func (m *Membership) Leave() {
	defer m.id.lock()()
	m.leave()
}

func (m *Membership) leave() {
	m.id.members = without(m.id.members, m)
}
