package rdmanl

import "encoding/binary"

// device is RDMA_NLDEV_CMD_GET of one.
func (r *request) device() errno {
	d, e := r.named()
	if e == 0 {
		m := r.begin(0)
		m.device(d)
		r.send(m)
	}
	return e
}

// devices is the same of all.
func (r *request) devices() errno {
	for i := range r.sys.Devices {
		m := r.begin(flagMulti)
		m.device(&r.sys.Devices[i])
		r.send(m)
	}
	return 0
}

func (m *message) device(d *Device) {
	m.handle(d)
	m.u32(attrPortIndex, uint32(len(d.Ports))) // here: how many there are
	m.u64(attrCapFlags, d.CapFlags)
	if d.Firmware != "" {
		m.text(attrFWVersion, d.Firmware)
	}
	m.u64(attrNodeGUID, binary.BigEndian.Uint64(d.NodeGUID[:]))
	m.u64(attrSysImageGUID, binary.BigEndian.Uint64(d.SysImageGUID[:]))
	m.u8(attrNodeType, d.NodeType)
	m.u8(attrDevDIM, 0)
	m.text(attrDevProtocol, d.Protocol)
}

// port is RDMA_NLDEV_CMD_PORT_GET of one.
func (r *request) port() errno {
	d, e := r.named()
	if e != 0 {
		return e
	}
	n, e := r.namedPort(d)
	if e != 0 || n == 0 {
		return einval
	}
	r.op = opGet // what the kernel calls this answer (nldev_port_get_doit)
	m := r.begin(0)
	m.port(d, n)
	r.send(m)
	return 0
}

// ports is the same of all of a device.
func (r *request) ports() errno {
	d, e := r.named()
	if e != 0 {
		return e
	}
	for i := range d.Ports {
		m := r.begin(flagMulti)
		m.port(d, uint32(i+1))
		r.send(m)
	}
	return 0
}

func (m *message) port(d *Device, n uint32) {
	p := &d.Ports[n-1]
	m.handle(d)
	m.u32(attrPortIndex, n)
	m.u8(attrPortState, p.State)
	m.u8(attrPortPhys, p.PhysState)
	if p.IfIndex != 0 {
		m.u32(attrNdevIndex, p.IfIndex)
		m.text(attrNdevName, p.IfName)
	}
}

// delLink is RDMA_NLDEV_CMD_DELLINK, which takes a device away that a user has made. In the kernel it takes CAP_NET_ADMIN; here a device is of the user whose
// programs ask.
func (r *request) delLink() errno {
	d, e := r.named()
	switch {
	case e != 0:
		return e
	case d.Remove == nil:
		return eopnotsupp
	}
	d.Remove()
	return 0
}

// system is RDMA_NLDEV_CMD_SYS_GET: network namespaces share devices, and memory that is registered survives a fork.
func (r *request) system() errno {
	m := r.begin(0)
	m.u8(attrNetnsMode, 1)
	m.u8(attrCopyOnFork, 1)
	r.send(m)
	return 0
}

// chardev is RDMA_NLDEV_CMD_GET_CHARDEV: the node of a type, of one device. Types that belong to none, as rdma_cm,
// are not known here.
func (r *request) chardev() errno {
	typ, ok := r.attrs.text(attrChardevType)
	if !ok {
		return einval
	}
	if _, ok := r.attrs.u32(attrDevIndex); !ok {
		if _, ok := r.attrs.u32(attrPortIndex); ok {
			return einval
		}
		return eopnotsupp
	}
	d, e := r.named()
	if e != 0 {
		return e
	}
	if _, e := r.namedPort(d); e != 0 {
		return e
	}
	for i := range d.Chardevs {
		c := &d.Chardevs[i]
		if c.Type != typ {
			continue
		}
		m := r.begin(0)
		if c.DriverID != 0 {
			m.u32(attrDriverID, c.DriverID)
		}
		// As huge_encode_dev has it: major 20 bits at most, minor in two parts.
		m.u64(attrChardev, uint64(c.Minor&0xff|c.Major<<8)|uint64(c.Minor&^0xff)<<12)
		m.u64(attrChardevABI, c.ABI)
		m.text(attrChardevName, c.Name)
		r.send(m)
		return 0
	}
	return eopnotsupp
}
