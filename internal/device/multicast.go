package device

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// AttachMulticast makes a UD queue pair a member of a multicast group, and the NIC one of it on the
// interfaces of its addresses. To attach again does nothing.
func (q *QP) AttachMulticast(g roce.GID) error {
	return q.ctx.do(func(core *nic.NIC, _ int64) error {
		first, err := core.AttachMulticast(q.core, g)
		if err != nil || !first {
			return err
		}
		if err := q.ctx.dev.port.join(g, q.ctx.dev.GIDs()); err != nil {
			_, _ = core.DetachMulticast(q.core, g)
			return err
		}
		return nil
	})
}

// DetachMulticast ends a membership.
func (q *QP) DetachMulticast(g roce.GID) error {
	return q.ctx.do(func(core *nic.NIC, _ int64) error { return q.detach(core, g) })
}

func (q *QP) detach(core *nic.NIC, g roce.GID) error {
	last, err := core.DetachMulticast(q.core, g)
	if last {
		q.ctx.dev.port.leave(g)
	}
	return err
}

// detachAll ends all memberships. The unit is held.
func (q *QP) detachAll(core *nic.NIC) {
	for _, g := range slices.Clone(q.core.MulticastGroups()) {
		_ = q.detach(core, g)
	}
}

// join joins a group on every interface that has an address of its IP version. Without a network the
// members are this NIC's only.
func (p *port) join(g roce.GID, gids []GIDEntry) error {
	if p.udp == nil {
		return nil
	}
	group := g.Addr()
	var interfaces []int
	for _, e := range gids {
		if e.GID.Addr().Is4() == group.Is4() && !slices.Contains(interfaces, e.IfIndex) {
			interfaces = append(interfaces, e.IfIndex)
		}
	}
	err := p.udp.Join(group, interfaces)
	if err == nil {
		return nil
	}
	errno := nic.EINVAL
	if errors.Is(err, errors.ErrUnsupported) {
		errno = nic.EOPNOTSUPP
	}
	for _, full := range []error{syscall.ENOBUFS, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, full) {
			errno = nic.ENOMEM
		}
	}
	return fmt.Errorf("attach to multicast group: %w: %w", err, errno)
}

func (p *port) leave(g roce.GID) {
	if p.udp != nil {
		p.udp.Leave(g.Addr())
	}
}
