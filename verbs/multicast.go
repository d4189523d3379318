package verbs

import (
	"net/netip"

	"rnic/internal/roce"
)

// MulticastQPN is the queue pair number that messages to a multicast group carry (InfiniBand vol. 1, 9.2).
const MulticastQPN = 0xffffff

// GIDOf is the GID of an IP address, of a multicast group as well.
func GIDOf(a netip.Addr) GID { return roce.GIDFromAddr(a) }

// AttachMulticast makes a UD queue pair a member of a multicast group (ibv_attach_mcast; vol. 1, 11.3.1): an IPv6 group of
// ff00::/8 or an IPv4 group of 224.0.0.0/4, see GIDOf. From then on it receives every message that is sent to the group
// and bears its Q_Key, the group's address in the destination of the GRH; its own messages too. The NIC joins the group
// on every interface of its addresses. To attach again does nothing. Errors: ErrInvalid, ErrNoMemory.
//
// A message goes to a group by an address handle of its GID (PD.AHTo) and queue pair number
// MulticastQPN; the sender need not be a member.
func (q *QP) AttachMulticast(group GID) error {
	if err := q.use("attach to multicast group"); err != nil {
		return err
	}
	return q.told("attach to multicast group", q.qp.AttachMulticast(group))
}

// DetachMulticast ends a membership (ibv_detach_mcast; vol. 1, 11.3.2). A queue pair can be closed only when it has none:
// ErrBusy. The end of its context ends them. ErrInvalid: it is no member.
func (q *QP) DetachMulticast(group GID) error {
	if err := q.use("detach from multicast group"); err != nil {
		return err
	}
	return q.told("detach from multicast group", q.qp.DetachMulticast(group))
}
