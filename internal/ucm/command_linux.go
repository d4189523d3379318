package ucm

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"rnic/internal/cma"
	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/internal/sandbox"
)

// command is one command of a program: its input, copied.
type command struct {
	drv    *Driver
	file   *file
	sys    sandbox.Call
	length uint64 // of the write: the answer if it succeeds
	num    uint32
	name   string
	in     []byte
	outLen int
}

// spec is what the ABI says of a command (enum of rdma_user_cm.h).
type spec struct {
	name string
	in   int // least length of the input
	run  func(*command) error
}

var commands = []spec{
	{"CREATE_ID", 24, (*command).createID},
	{"DESTROY_ID", 16, (*command).destroyID},
	{"BIND_IP", 40, (*command).bindIP},
	{"RESOLVE_IP", 64, (*command).resolveIP},
	{"RESOLVE_ROUTE", 8, (*command).resolveRoute},
	{"QUERY_ROUTE", 16, (*command).queryRoute},
	{"CONNECT", 280, (*command).connect},
	{"LISTEN", 8, (*command).listen},
	{"ACCEPT", 288, (*command).accept},
	{"REJECT", 264, (*command).reject},
	{"DISCONNECT", 4, (*command).disconnect},
	{"INIT_QP_ATTR", 16, (*command).initQPAttr},
	{"GET_EVENT", 8, (*command).getEvent},
	{"GET_OPTION", 0, nil},
	{"SET_OPTION", 24, (*command).setOption},
	{"NOTIFY", 8, (*command).notify},
	{"JOIN_IP_MCAST", 48, (*command).joinIP},
	{"LEAVE_MCAST", 16, (*command).leave},
	{"MIGRATE_ID", 16, (*command).migrate},
	{"QUERY", 16, (*command).query},
	{"BIND", 136, (*command).bind},
	{"RESOLVE_ADDR", 272, (*command).resolveAddr},
	{"JOIN_MCAST", 152, (*command).join},
}

// errLater says that the call is answered later.
var errLater = fmt.Errorf("answered later")

// run carries the command out and answers the call.
func (c *command) run() {
	if c.num >= uint32(len(commands)) {
		c.sys.Fail(syscall.EINVAL)
		return
	}
	s := &commands[c.num]
	c.name = s.name
	err := error(syscall.ENOSYS)
	switch {
	case s.run == nil:
	case len(c.in) < s.in:
		err = syscall.EINVAL
	case !c.sys.Valid():
		err = syscall.EINTR
	default:
		err = s.run(c)
	}
	if err != errLater {
		c.answer(err)
	}
}

// answer ends the call.
func (c *command) answer(err error) {
	name := c.name
	if err != nil {
		errno := cma.Errno(err)
		if c.drv.cfg.Logf != nil && errno != syscall.EAGAIN && errno != syscall.EINTR && errno != syscall.EBADF {
			c.drv.cfg.Logf("process %d: rdma_cm: %s: %v", c.sys.PID(), name, err)
		}
		c.trace("%s = -%v", name, errno)
		c.sys.Fail(errno)
		return
	}
	c.trace("%s = ok", name)
	c.sys.Reply(int64(c.length))
}

func (c *command) trace(format string, args ...any) {
	if t := c.drv.cfg.Trace; t != nil {
		t("[%d] rdma_cm: "+format, append([]any{c.sys.PID()}, args...)...)
	}
}

// respond writes the answer where the program wants it, as much as it has room for; least is what it must have room for.
func (c *command) respond(addr uint64, b []byte, least int) error {
	if c.outLen < least {
		return syscall.ENOSPC
	}
	if c.sys.WriteMem(addr, b[:min(len(b), c.outLen)]) != nil {
		return syscall.EFAULT
	}
	return nil
}

func (c *command) u32(at int) uint32 { return le.Uint32(c.in[at:]) }
func (c *command) u64(at int) uint64 { return le.Uint64(c.in[at:]) }

// id is the id whose number is at an offset.
func (c *command) id(at int) (*id, error) {
	i, errno := c.drv.get(c.file, c.u32(at))
	if errno != 0 {
		return nil, errno
	}
	return i, nil
}

// createID is struct rdma_ucm_create_id: uid, response, ps, qp_type.
func (c *command) createID() error {
	if c.outLen < 4 {
		return syscall.ENOSPC
	}
	space := cma.PortSpace(le.Uint16(c.in[16:]))
	typ := nic.RC
	switch space {
	case cma.SpaceUDP, cma.SpaceIPoIB:
		typ = nic.UD
	case cma.SpaceIB: // whatever else it says is taken for connections, as in the kernel
		switch t := nic.QPType(c.in[18]); t {
		case nic.RC, nic.UC, nic.UD:
			typ = t
		default:
		}
	}
	i := &id{uid: c.u64(0), ud: typ == nic.UD, file: c.file}
	var err error
	if i.cm, err = c.drv.mgr.NewID(space, typ, c.drv.sink); err != nil {
		return syscall.EINVAL
	}
	i.cm.Owner, i.cm.PID = i, c.sys.PID()
	c.drv.mu.Lock()
	if !c.drv.open(c.file) { // another thread has closed it meanwhile
		c.drv.mu.Unlock()
		i.cm.Destroy()
		return syscall.EBADF
	}
	i.num = c.drv.number()
	c.drv.ids[i.num] = i
	c.drv.mu.Unlock()
	if err := c.respond(c.u64(8), le.AppendUint32(nil, i.num), 4); err != nil {
		c.drv.mu.Lock()
		delete(c.drv.ids, i.num)
		c.drv.mu.Unlock()
		i.cm.Destroy()
		return err
	}
	c.trace("CREATE_ID(space %#x, type %v) = id %d", uint16(space), typ, i.num)
	return nil
}

// destroyID answers how many events the program has fetched: the library waits until they are acknowledged. Those still
// queued are dropped.
func (c *command) destroyID() error {
	if c.outLen < 4 {
		return syscall.ENOSPC
	}
	i, err := c.id(8)
	if err != nil {
		return err
	}
	c.drv.mu.Lock()
	i.dead = true
	delete(c.drv.ids, i.num)
	for n, m := range c.drv.groups {
		if m.id == i {
			delete(c.drv.groups, n)
		}
	}
	c.drv.mu.Unlock()
	i.cm.Destroy()
	dropped := c.file.drop(func(e *event) bool { return e.id == i || e.conn == i })
	for _, e := range dropped {
		c.drv.uncount(&e)
		if e.conn != nil && e.conn != i { // a request that nobody will see
			c.drv.mu.Lock()
			e.conn.dead = true
			delete(c.drv.ids, e.conn.num)
			c.drv.mu.Unlock()
			e.conn.cm.Destroy()
		}
	}
	c.drv.mu.Lock()
	n := i.reported
	c.drv.mu.Unlock()
	return c.respond(c.u64(0), le.AppendUint32(nil, n), 4)
}

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

// connect is struct rdma_ucm_connect: conn_param, id, reserved, ece.
func (c *command) connect() error {
	p, valid := decodeParam(c.in)
	if !valid {
		return syscall.EINVAL
	}
	i, err := c.id(272)
	if err != nil {
		return err
	}
	p.ECE = c.ece(280)
	return i.cm.Connect(p)
}

// accept is struct rdma_ucm_accept: uid, conn_param, id, reserved, ece.
func (c *command) accept() error {
	i, err := c.id(280)
	if err != nil {
		return err
	}
	p, valid := decodeParam(c.in[8:])
	if !valid {
		return i.cm.Accept(nil)
	}
	p.ECE = c.ece(288)
	c.drv.mu.Lock()
	old := i.uid
	i.uid = c.u64(0) // before an event can come
	c.drv.mu.Unlock()
	if err := i.cm.Accept(&p); err != nil {
		c.drv.mu.Lock()
		i.uid = old
		c.drv.mu.Unlock()
		return err
	}
	return nil
}

// rejVendor is the other reason that a program may give (IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED).
const rejVendor = 35

// reject is struct rdma_ucm_reject: id, private_data_len, reason, reserved, private data.
func (c *command) reject() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	reason := ibcm.Reason(c.in[5])
	if reason != 0 && reason != ibcm.RejConsumer && reason != rejVendor {
		return syscall.EINVAL
	}
	return i.cm.Reject(append([]byte(nil), c.in[8:8+int(c.in[4])]...), reason)
}

func (c *command) listen() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	backlog := int(int32(c.u32(4)))
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	return i.cm.Listen(backlog)
}

// maxBacklog is what the kernel's module bounds it by.
const maxBacklog = 1024

func (c *command) disconnect() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	return i.cm.Disconnect()
}

// initQPAttr is struct rdma_ucm_init_qp_attr: response, id, state. The answer is struct ib_uverbs_qp_attr.
func (c *command) initQPAttr() error {
	if c.outLen < sizeQPAttr {
		return syscall.ENOSPC
	}
	i, err := c.id(8)
	if err != nil {
		return err
	}
	state := c.u32(12)
	if state > uint32(nic.Err) {
		return syscall.EINVAL
	}
	a, mask, err := i.cm.Attr(nic.State(state))
	if err != nil {
		return err
	}
	return c.respond(c.u64(0), encodeQPAttr(&a, mask), sizeQPAttr)
}

// eventCommEst is enum ib_event_type IB_EVENT_COMM_EST.
const eventCommEst = 4

func (c *command) notify() error {
	i, err := c.id(0)
	if err != nil {
		return err
	}
	if c.u32(4) != eventCommEst {
		return syscall.EINVAL // as the kernel
	}
	return i.cm.Notify()
}

// migrate is struct rdma_ucm_migrate_id: response, id, descriptor of the file that has it. The id moves to the file written to,
// with its events.
func (c *command) migrate() error {
	if c.outLen < 4 {
		return syscall.ENOSPC
	}
	sf := c.sys.File(int(int32(c.u32(12))))
	if sf == nil {
		return syscall.EBADF
	}
	from, ok := sf.Data.(*file)
	if !ok {
		return syscall.EINVAL
	}
	i, errno := c.drv.get(from, c.u32(8))
	if errno != 0 {
		return errno
	}
	if from != c.file {
		// Events that come from now on go to the new file; those that wait move before them.
		c.drv.mu.Lock()
		if !c.drv.open(c.file) {
			c.drv.mu.Unlock()
			return syscall.EBADF
		}
		moved := from.drop(func(e *event) bool { return e.id == i })
		i.file = c.file
		for _, e := range moved {
			if e.conn != nil {
				e.conn.file = c.file
			}
			c.file.put(e)
		}
		c.drv.mu.Unlock()
	}
	c.drv.mu.Lock()
	n := i.reported
	c.drv.mu.Unlock()
	return c.respond(c.u64(0), le.AppendUint32(nil, n), 4)
}

// Levels and names of options (rdma_user_cm.h).
const (
	levelID = 0
	levelIB = 1

	optionTOS        = 0
	optionReuse      = 1
	optionAFOnly     = 2
	optionAckTimeout = 3
	optionIBPath     = 1

	maxOption = 4096
)

// setOption is struct rdma_ucm_set_option: optval, id, level, optname, optlen.
func (c *command) setOption() error {
	i, err := c.id(8)
	if err != nil {
		return err
	}
	n := c.u32(20)
	if n > maxOption {
		return syscall.EINVAL
	}
	v := make([]byte, n)
	if n > 0 && c.sys.ReadMem(c.u64(0), v) != nil {
		return syscall.EFAULT
	}
	switch level, name := c.u32(12), c.u32(16); {
	case level == levelID && name == optionTOS && n == 1:
		i.cm.SetTOS(v[0])
		return nil
	case level == levelID && name == optionReuse && n == 4:
		return i.cm.SetReuse(le.Uint32(v) != 0)
	case level == levelID && name == optionAFOnly && n == 4:
		return i.cm.SetAFOnly(le.Uint32(v) != 0)
	case level == levelID && name == optionAckTimeout && n == 1:
		return i.cm.SetAckTimeout(v[0])
	case level == levelIB && name == optionIBPath && n > 0 && n%sizePathData == 0:
		// A path that the program has found itself: on Ethernet it says nothing new.
		return i.cm.ResolveRoute()
	case level > levelIB:
		return syscall.ENOSYS
	case level == levelID && name <= optionAckTimeout, level == levelIB && name == optionIBPath:
		return syscall.EINVAL
	}
	return syscall.ENOSYS
}

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

// sink queues the events of the run's ids. The manager is held. As the kernel does, it keeps from a program what happens to
// a request before that has been accepted: until then the program has no word for the id, and libraries would drop the event but
// wait for it when they destroy the id. Accept fails then.
func (d *Driver) sink(e cma.Event) {
	i, _ := e.ID.Owner.(*id)
	if i == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q := event{id: i, e: e}
	if e.Type == cma.ConnectRequest {
		// The new id is of the listener's file, and the program learns of it by this event. Whoever destroys the listener, or ends the
		// file, takes the new id with it, as long as the event has not been fetched.
		n := &id{cm: e.ID, ud: i.ud, file: i.file, num: d.number()}
		e.ID.Owner = n
		d.ids[n.num] = n
		q.conn = n
	} else if i.dead || i.uid == 0 {
		return
	}
	if e.Member != nil {
		q.member, _ = e.Member.Owner.(*member)
	}
	i.file.put(q)
}

// take takes the oldest event of a file (see file.take), and counts it: whoever destroys its id from now on waits for it.
func (d *Driver) take(f *file) (e event, ok bool, more chan struct{}, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, ok, more, ended = f.take(); ok && !e.counted {
		e.counted = true
		e.id.reported++
		if e.member != nil {
			e.member.reported++
		}
	}
	return e, ok, more, ended
}

// uncount is for an event that was dropped after it had been put back.
func (d *Driver) uncount(e *event) {
	if !e.counted {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e.id.reported--
	if e.member != nil {
		e.member.reported--
	}
}

// getEvent gives the program the oldest event, or waits for one.
func (c *command) getEvent() error {
	if c.outLen < sizeEvent-sizeEventTail {
		return syscall.ENOSPC
	}
	e, ok, more, ended := c.drv.take(c.file)
	switch {
	case ok:
		return c.give(e)
	case ended: // closed by another thread in this moment: see wait
	case c.sys.Nonblocking(c.sys.FD()):
		return syscall.EAGAIN
	}
	c.drv.waits.Add(1)
	go c.wait(more)
	return errLater
}

// wait answers a call that waits for an event, when there is one, or the thread has a signal to handle.
func (c *command) wait(more chan struct{}) {
	defer c.drv.waits.Done()
	t := time.NewTicker(patience)
	defer t.Stop()
	for {
		select {
		case <-c.drv.closing:
			c.answer(syscall.EINTR)
			return
		case <-more:
		case <-t.C:
			if c.sys.SignalPending() || !c.sys.Valid() {
				c.answer(syscall.EINTR)
				return
			}
			continue
		}
		e, ok, again, ended := c.drv.take(c.file)
		switch {
		case ended:
			// Another thread has closed the descriptor. The call goes on, as in the kernel, where it holds the file: programs
			// that exit so do not expect an error.
			more = nil
			continue
		case !ok:
			more = again
			continue
		case !c.sys.Valid():
			c.file.putBack(e)
			c.answer(syscall.EINTR)
			return
		}
		c.answer(c.give(e))
		return
	}
}

// give writes an event into the program's memory.
func (c *command) give(e event) error {
	d := c.drv
	d.mu.Lock()
	uid, num := e.id.uid, e.id.num
	switch {
	case e.conn != nil:
		num = e.conn.num
	case e.member != nil:
		uid, num = e.member.uid, e.member.num
	}
	d.mu.Unlock()
	b := encodeEvent(uid, num, e.id.ud, &e.e)
	if c.sys.WriteMem(c.u64(0), b[:min(len(b), c.outLen)]) != nil {
		c.file.putBack(e)
		return syscall.EFAULT
	}
	if e.conn != nil {
		e.conn.cm.Noticed()
	}
	c.trace("event %v of id %d, status %d", strings.ToLower(e.e.Type.String()), num, e.e.Status)
	return nil
}
