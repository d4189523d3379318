package ucm

import (
	"log/slog"
	"syscall"
)

// joinIP is struct rdma_ucm_join_ip_mcast: response, uid, sockaddr_in6, id.
func (c *command) joinIP() error {
	return c.joinGroup(c.u64(0), c.u64(8), 44, c.in[16:44])
}

// join is struct rdma_ucm_join_mcast: response, uid, id, addr_size, flags, sockaddr_storage.
func (c *command) join() error {
	size, flags := int(le.Uint16(c.in[20:])), le.Uint16(c.in[22:])
	if size > 128 || sized(c.in[24:24+size]) != nil || flags > 1 {
		return syscall.EINVAL
	}
	return c.joinGroup(c.u64(0), c.u64(8), 16, c.in[24:24+size])
}

func (c *command) joinGroup(response, uid uint64, at int, addr []byte) error {
	if c.outLen < 4 {
		return syscall.ENOSPC
	}
	i, err := c.id(at)
	if err != nil {
		return err
	}
	a, err := c.sockaddr(addr)
	if err != nil {
		return err
	}
	m := &member{uid: uid, id: i}
	c.drv.mu.Lock()
	m.num = c.drv.number()
	c.drv.groups[m.num] = m
	c.drv.mu.Unlock()
	if m.m, err = i.cm.Join(a.Addr(), m); err == nil {
		if err = c.respond(response, le.AppendUint32(nil, m.num), 4); err == nil {
			c.result = []slog.Attr{num("mcast", m.num)}
			return nil
		}
		m.m.Leave()
	}
	c.drv.mu.Lock()
	delete(c.drv.groups, m.num)
	c.drv.mu.Unlock()
	c.file.drop(func(e *event) bool { return e.member == m })
	return err
}

// leave is LEAVE_MCAST, struct rdma_ucm_destroy_id with the number of a membership.
func (c *command) leave() error {
	if c.outLen < 4 {
		return syscall.ENOSPC
	}
	c.drv.mu.Lock()
	m := c.drv.groups[c.u32(8)]
	switch {
	case m == nil:
		c.drv.mu.Unlock()
		return syscall.ENOENT
	case m.id.file != c.file:
		c.drv.mu.Unlock()
		return syscall.EINVAL
	}
	delete(c.drv.groups, m.num)
	c.drv.mu.Unlock()
	m.m.Leave()
	for _, e := range c.file.drop(func(e *event) bool { return e.member == m }) {
		c.drv.uncount(&e)
	}
	c.drv.mu.Lock()
	n := m.reported
	c.drv.mu.Unlock()
	return c.respond(c.u64(0), le.AppendUint32(nil, n), 4)
}
