package ucm

import (
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"rnic/internal/cma"
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

	// For those who are told of it.
	began   time.Time
	decoded bool // the input is as long as the command's
	result  []slog.Attr
}

// spec is what the ABI says of a command (enum of rdma_user_cm.h).
type spec struct {
	name string
	in   int // least length of the input
	run  func(*command) error
}

// Numbers of the command that may wait, and of that which is left to an id whose device is gone.
const (
	cmdGetEvent  = 12
	cmdDestroyID = 1
)

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
	c.name, c.began = s.name, time.Now()
	err := error(syscall.ENOSYS)
	switch {
	case s.run == nil:
	case len(c.in) < s.in:
		err = syscall.EINVAL
	case !c.sys.Valid():
		err = syscall.EINTR
	default:
		c.decoded = true
		err = s.run(c)
	}
	if err != errLater {
		c.answer(err)
	}
}

// answer ends the call.
func (c *command) answer(err error) {
	if err == nil && c.num == cmdGetEvent { // the event has been told
		c.sys.Reply(int64(c.length))
		return
	}
	c.tell(err)
	if err != nil {
		c.sys.Fail(cma.Errno(err))
		return
	}
	c.sys.Reply(int64(c.length))
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

// id is the id whose number is at an offset. As in the kernel, one whose device has been taken away can only be destroyed.
func (c *command) id(at int) (*id, error) {
	i, errno := c.drv.get(c.file, c.u32(at))
	if errno != 0 {
		return nil, errno
	}
	if c.num != cmdDestroyID && i.cm.Gone() {
		return nil, fmt.Errorf("its device was removed: %w", syscall.ENXIO)
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
	i.cm.Owner, i.cm.PID, i.cm.Scope = i, c.sys.PID(), c.drv.cfg.Scope
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
	c.result = []slog.Attr{num("id", i.num)}
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
