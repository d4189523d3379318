package ucm

import (
	"net/netip"
	"syscall"
)

// bindIP is struct rdma_ucm_bind_ip: response, sockaddr_in6, id.
func (c *command) bindIP() error {
	i, err := c.id(36)
	if err != nil {
		return err
	}
	a, err := c.sockaddr(c.in[8:36])
	if err != nil {
		return err
	}
	return i.cm.Bind(a)
}

// bind is struct rdma_ucm_bind: id, addr_size, reserved, sockaddr_storage.
func (c *command) bind() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	size := int(le.Uint16(c.in[4:]))
	if le.Uint16(c.in[6:]) != 0 || size > 128 {
		return syscall.EINVAL
	}
	addr := c.in[8 : 8+size]
	if err := sized(addr); err != nil {
		return err
	}
	if isIB(addr) {
		return i.cm.BindIB(decodeIB(addr))
	}
	a, err := c.sockaddr(addr)
	if err != nil {
		return err
	}
	return i.cm.Bind(a)
}

// resolveIP is struct rdma_ucm_resolve_ip: two sockaddr_in6, id, timeout.
func (c *command) resolveIP() error {
	i, err := c.id(56)
	if err != nil {
		return err
	}
	return c.resolve(i, c.in[:28], c.in[28:56])
}

// resolveAddr is struct rdma_ucm_resolve_addr: id, timeout, src_size, dst_size, reserved, two sockaddr_storage.
func (c *command) resolveAddr() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	src, dst := int(le.Uint16(c.in[8:])), int(le.Uint16(c.in[10:]))
	if le.Uint32(c.in[12:]) != 0 || src > 128 || dst > 128 {
		return syscall.EINVAL
	}
	from, to := c.in[16:16+src], c.in[144:144+dst]
	if sized(to) != nil || src > 0 && sized(from) != nil {
		return syscall.EINVAL
	}
	if isIB(to) || isIB(from) {
		return c.resolveIB(i, from, to)
	}
	return c.resolve(i, from, to)
}

func (c *command) resolve(i *id, src, dst []byte) error {
	var from netip.AddrPort
	if len(src) >= 2 && le.Uint16(src) != 0 {
		var err error
		if from, err = c.sockaddr(src); err != nil {
			return err
		}
	}
	to, err := c.sockaddr(dst)
	if err != nil {
		return err
	}
	return i.cm.Resolve(from, to)
}

func (c *command) resolveRoute() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	return i.cm.ResolveRoute()
}
