package uverbs

import (
	"fmt"
	"syscall"

	"rnic/internal/device"
	"rnic/internal/roce"
	"rnic/internal/sandbox"
)

// minGIDSlots is the least length of the GID table that is reported: clients ask for every slot.
const minGIDSlots = 16

// describe fills in what QUERY_DEVICE and QUERY_PORT answer.
func (d *Driver) describe() {
	v := d.cfg.Version
	d.attr = deviceAttr{
		// As the rxe provider prints it: 16 bits each.
		FWVersion: uint64(v[0])<<32 | uint64(v[1])<<16 | uint64(v[2]),
		NodeGUID:  d.dev.NodeGUID(), Limits: d.dev.Limits(), PKeys: pkeyTableLength, ACKDelay: localACKDelay,
		Ports: 1, CapFlags: deviceCaps, VendorID: deviceVendor, AtomicCap: atomicHCA,
		PageSizes: 0xfffff000, MaxMRBytes: ^uint64(0), ODP: deviceODP,
	}
	d.port = portAttr{CapFlags: portCapCM | portCapIPGIDs, MaxMsgSize: d.attr.Limits.MaxMsgSize,
		GIDs: uint32(d.gidSlots()), PKeys: pkeyTableLength, State: portActive, MaxMTU: mtuCode4096,
		ActiveMTU: roce.MTUCode(d.dev.MTU()), Width: portWidth4X, Speed: portSpeedEDR, PhysState: portLinkUp,
		LinkLayer: portEthernet}
}

// portNow is what QUERY_PORT answers now.
func (d *Driver) portNow() portAttr {
	p := d.port
	if !d.dev.PortActive() {
		p.State, p.PhysState = portDown, portDisabled
	}
	return p
}

// gids are the entries of the GID table that programs can name: its length does not change under them.
func (d *Driver) gids() []device.GIDEntry {
	all := d.dev.GIDs()
	n := 0
	for n < len(all) && all[n].Index < int(d.port.GIDs) {
		n++
	}
	return all[:n]
}

func (d *Driver) gidSlots() int {
	n := minGIDSlots
	for _, g := range d.dev.GIDs() {
		n = max(n, g.Index+1)
	}
	return n
}

// invokeWrite is a command inside an ioctl (DEVICE, INVOKE_WRITE).
func (c *call) invokeWrite() syscall.Errno {
	cmd, errno := lookup(uint32(min(c.uint(invokeCommand), 1<<32-1)))
	if cmd != nil {
		c.trace.wraps(cmd)
		c.rec.wraps(cmd)
	}
	if errno != 0 {
		return errno
	}
	if cmd.run == nil {
		return c.failed(fmt.Errorf("%s: this NIC does not have it: %w", cmd.name, syscall.EOPNOTSUPP))
	}
	c.req, c.uhw = c.bytes(invokeCoreIn), c.bytes(attrUHWIn)
	if a := find(c.attrs, invokeCoreOut); a != nil {
		c.respAttr, c.resp = a, span{a.data, int(a.len)}
	}
	if a := find(c.attrs, attrUHWOut); a != nil {
		c.uhwRespAt, c.uhwResp = a, span{a.data, int(a.len)}
	}
	if len(c.req) < cmd.req || c.resp.len < cmd.resp {
		if c.rec != nil && !c.has(invokeCoreIn) && !c.has(invokeCoreOut) {
			c.why = "the library only asks whether there is an ioctl: there is"
		}
		return syscall.ENOSPC
	}
	if cmd.num != cmdPostSend {
		if errno := cmd.excess(c.req); errno != 0 {
			return errno
		}
	}
	c.watched(tellCommands[cmd.num], cmd.name)
	return cmd.run(c)
}

// getContext is GET_CONTEXT through write(), which makes the file of asynchronous events too.
func (c *call) getContext() syscall.Errno {
	if c.ctx.opened {
		return syscall.EINVAL
	}
	n, errno := c.openAsync()
	if errno != 0 {
		return errno
	}
	c.ctx.opened = true
	c.respond(words(uint32(n), uint32(c.drv.dev.Vectors())))
	return 0
}

// getContextMethod is DEVICE, GET_CONTEXT.
func (c *call) getContextMethod() syscall.Errno {
	if c.ctx.opened {
		return syscall.EINVAL
	}
	c.ctx.opened = true
	return c.queryContext()
}

// queryContext is DEVICE, QUERY_CONTEXT.
func (c *call) queryContext() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	c.put(contextVectors, words(uint32(c.drv.dev.Vectors())))
	// IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS: optional access flags may come, and are ignored.
	c.put(contextSupport, words(1, 0))
	return 0
}

// allocAsyncEvent is ASYNC_EVENT, ALLOC.
func (c *call) allocAsyncEvent() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	n, errno := c.openAsync()
	if errno == 0 {
		c.putNumber(0, uint64(n))
	}
	return errno
}

// openAsync makes a file of asynchronous events; the first is the context's own.
func (c *call) openAsync() (int, syscall.Errno) {
	ch, n, errno := c.openChannel(sizeAsyncEvent)
	if errno == 0 && c.ctx.async == nil {
		c.ctx.async = ch
	}
	return n, errno
}

// openChannel makes an event channel and injects its read end.
func (c *call) openChannel(recordSize int) (*channel, int, syscall.Errno) {
	if errno := c.answerable(); errno != 0 {
		return nil, -1, errno
	}
	ch, readEnd, err := newChannel(c.drv.pump, recordSize)
	if err != nil {
		return nil, -1, c.failed(err)
	}
	ch.ctx = c.ctx
	n, f, err := c.sys.Inject(readEnd, sandbox.RangeLow, true, ch)
	if err == nil {
		// Before our copy of the read end is closed: only then the program's close is the last.
		err = c.drv.pump.add(ch, f)
		closeFD(readEnd)
		if err != nil {
			c.drv.pump.remove(ch)
			c.drv.pump.sup.Forget(f)
		}
	} else {
		closeFD(readEnd)
		ch.close()
	}
	if err != nil {
		return nil, -1, c.failed(err)
	}
	return ch, n, 0
}

// channelAt is the channel at a descriptor of the program, which must be of this context: EBADF, as in the
// kernel (lookup_get_fd_uobject), for all others.
func (c *call) channelAt(fd int, recordSize int) (*channel, syscall.Errno) {
	f := c.sys.File(fd)
	if f == nil {
		return nil, syscall.EBADF
	}
	ch, ok := f.Data.(*channel)
	if !ok || ch.ctx != c.ctx || ch.size != recordSize {
		return nil, syscall.EBADF
	}
	return ch, 0
}

// channelIn is the channel at the descriptor in an attribute.
func (c *call) channelIn(id uint16, recordSize int) (*channel, syscall.Errno) {
	n := c.uint(id)
	if n != uint64(int64(int32(n))) { // the kernel's is an int, given as 64 bits
		return nil, syscall.EINVAL
	}
	return c.channelAt(int(int32(n)), recordSize)
}

// asyncFor is where an object's asynchronous events go: to the file that the attribute names, else
// the context's.
func (c *call) asyncFor(id uint16) (*channel, syscall.Errno) {
	if !c.has(id) {
		return c.ctx.async, 0
	}
	return c.channelIn(id, sizeAsyncEvent)
}

// queryDevice is QUERY_DEVICE.
func (c *call) queryDevice() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	b := make([]byte, sizeDeviceAttr)
	c.drv.attr.encode(b)
	c.respond(b)
	return 0
}

// queryDeviceExt is EX_QUERY_DEVICE.
func (c *call) queryDeviceExt() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	if le.Uint32(c.req) != 0 || le.Uint32(c.req[4:]) != 0 { // comp_mask, reserved
		return syscall.EINVAL
	}
	b := make([]byte, sizeDeviceExt)
	c.drv.attr.encodeExt(b, min(sizeDeviceExt, c.resp.len))
	c.respond(b)
	return 0
}

// queryPort is QUERY_PORT.
func (c *call) queryPort() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	if c.req[8] != portNumber {
		return syscall.EINVAL
	}
	b := make([]byte, sizePortAttrExt)
	p := c.drv.portNow()
	p.encode(b)
	c.respond(b[:sizePortAttr])
	return 0
}

// queryPortMethod is DEVICE, QUERY_PORT.
func (c *call) queryPortMethod() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	if c.uint(portNum) != portNumber {
		return syscall.EINVAL
	}
	b := make([]byte, sizePortAttrExt)
	p := c.drv.portNow()
	p.encode(b)
	c.put(portResp, b)
	return 0
}

// gidAt is the entry of the GID table at index.
func (d *Driver) gidAt(index uint64) (device.GIDEntry, syscall.Errno) {
	if index >= uint64(d.port.GIDs) {
		return device.GIDEntry{}, syscall.EINVAL
	}
	for _, g := range d.gids() {
		if uint64(g.Index) == index {
			return g, 0
		}
	}
	return device.GIDEntry{}, syscall.ENODATA
}

// queryGIDEntry is DEVICE, QUERY_GID_ENTRY.
func (c *call) queryGIDEntry() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	if _, errno := c.flags(gidEntryFlags, 0); errno != 0 {
		return errno
	}
	if c.uint(gidEntryPort) != portNumber {
		return syscall.EINVAL
	}
	g, errno := c.drv.gidAt(c.uint(gidEntryIndex))
	if errno != 0 {
		return errno
	}
	b := make([]byte, sizeGIDEntry)
	gidEntry(b, g.GID, g.Index, g.IfIndex)
	c.put(gidEntryResp, b)
	return 0
}

// queryGIDTable is DEVICE, QUERY_GID_TABLE: all entries, of a size that the client chooses.
func (c *call) queryGIDTable() syscall.Errno {
	if errno := c.requireContext(); errno != 0 {
		return errno
	}
	if _, errno := c.flags(gidTableFlags, 0); errno != 0 {
		return errno
	}
	size := c.uint(gidTableEntrySize)
	room := uint64(find(c.attrs, gidTableEntries).len)
	if size < sizeGIDEntry || size > maxIoctl || room%size != 0 {
		return syscall.EINVAL
	}
	gids := c.drv.gids()
	if uint64(len(gids)) > room/size {
		return syscall.EINVAL
	}
	b := make([]byte, len(gids)*int(size))
	for i, g := range gids {
		gidEntry(b[i*int(size):], g.GID, g.Index, g.IfIndex)
	}
	c.put(gidTableEntries, b)
	c.put(gidTableCount, words(uint32(len(gids)), 0))
	return 0
}
