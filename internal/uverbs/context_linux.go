package uverbs

import (
	"strings"
	"syscall"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/shm"
)

// verbsContext is one open of the device node: an open file of the program, which its forked children
// share. All fields are guarded by Driver.mu.
type verbsContext struct {
	drv     *Driver
	file    *shm.File
	dev     *device.Context
	objects map[uint32]verbsObject
	last    uint32 // handle given out last
	qps     int
	opened  bool     // GET_CONTEXT was called
	async   *channel // its asynchronous events, if it asked for them
	closed  bool
	dead    bool // the device has been taken away

	pid     int // the process that opened it, and its name: known if somebody watches
	process string
}

// verbsObject is an object with a handle.
type verbsObject interface {
	// destroy destroys it, and frees what belongs to it; EBUSY while something needs it.
	destroy() error
}

func newContext(d *Driver, f *shm.File) *verbsContext {
	c := &verbsContext{drv: d, file: f, objects: map[uint32]verbsObject{}}
	c.dev = d.dev.Open(sink{c})
	// Watched before the program can ring.
	c.dev.AddDoorbells(f.Log())
	d.contexts[c] = struct{}{}
	return c
}

// close destroys everything the context owns.
func (c *verbsContext) close() {
	if c.closed {
		return
	}
	c.closed = true
	if !c.dead {
		c.destroyAll()
	}
	s := c.file.Log().Stats()
	if s.Dead != nil || s.Skipped > 0 {
		c.drv.logf("doorbells: %d seen, %d records skipped, log ended: %v", s.Doorbells, s.Skipped, s.Dead)
	}
	c.drv.warnOfLost(s.Others)
	c.file.Close()
	delete(c.drv.contexts, c)
}

// destroyAll destroys the context's objects.
func (c *verbsContext) destroyAll() {
	for _, o := range c.objects {
		if q, ok := o.(*qpObject); ok && c.drv.journal.counts() {
			n := q.look()
			q.tallyUp(&n)
		}
	}
	c.dev.Close()
	for _, o := range c.objects {
		switch o := o.(type) {
		case *cqObject:
			o.comp.remove(&o.compEvents)
			o.async.remove(&o.asyncEvents)
		case *qpObject:
			o.async.remove(&o.asyncEvents)
		case *srqObject:
			o.async.remove(&o.asyncEvents)
		}
	}
	c.objects = nil
	c.qps = 0
}

// newHandle finds a free handle. Never 0: a handle of 0 in a doorbell means that it is not written
// yet.
func (c *verbsContext) newHandle() uint32 {
	for {
		c.last++
		if _, used := c.objects[c.last]; !used && c.last != 0 {
			return c.last
		}
	}
}

// get finds an object by its handle: as the kernel does, EINVAL if it is of another kind.
func get[T verbsObject](c *verbsContext, handle uint64) (t T, errno syscall.Errno) {
	if int64(handle) < 0 {
		return t, syscall.EINVAL
	}
	o, ok := c.objects[uint32(handle)]
	if !ok || handle>>32 != 0 {
		return t, syscall.ENOENT
	}
	if t, ok = o.(T); !ok {
		return t, syscall.EINVAL
	}
	return t, 0
}

// destroy destroys the object with a handle and forgets it.
func destroy[T verbsObject](c *call, handle uint64) (t T, errno syscall.Errno) {
	t, errno = get[T](c.ctx, handle)
	if errno != 0 {
		return t, errno
	}
	if err := t.destroy(); err != nil {
		return t, c.failed(err)
	}
	delete(c.ctx.objects, uint32(handle))
	return t, 0
}

// destroyCommand is DEALLOC_PD, DESTROY_AH, DEREG_MR: struct { __u32 handle; }.
func destroyCommand[T verbsObject](c *call) syscall.Errno {
	_, errno := destroy[T](c, uint64(le.Uint32(c.req)))
	return errno
}

// destroyMethod is the same as a method.
func destroyMethod[T verbsObject](c *call) syscall.Errno {
	_, errno := destroy[T](c, c.uint(destroyHandle))
	return errno
}

// queue makes room for one queue in the shared file.
type queue struct {
	area shm.Area
	ring *ring.Queue
}

func (c *verbsContext) newQueue(entries, elemSize uint32) (q queue, err error) {
	g, err := ring.GeometryFor(entries, elemSize)
	if err != nil {
		return q, &nic.Error{Op: "create queue", Reason: err.Error(), Errno: nic.EINVAL}
	}
	if q.area, err = c.file.Alloc(g.Size()); err != nil {
		return q, err
	}
	if fault := shm.Guard(func() { q.ring, err = ring.Format(q.area.Mem, g) }); fault != nil {
		err = fault
	}
	if err != nil {
		c.free(q)
	}
	return q, err
}

func (c *verbsContext) free(q queue) {
	if q.area.Mem != nil {
		c.file.Free(q.area)
	}
}

// info writes where the program maps the queue.
func (q *queue) info(b []byte) { mmInfo(b, q.area.Offset, len(q.area.Mem)) }

// requireContext is the kernel's order: GET_CONTEXT comes before objects.
func (c *call) requireContext() syscall.Errno {
	if !c.ctx.opened {
		return syscall.EINVAL
	}
	return 0
}

// warnOfLost tells, once, that the program's library has written commands of the length of a doorbell, which no filter for system calls can tell from
// one: libraries before rdma-core 22 do. others is shm.LogStats.Others.
func (d *Driver) warnOfLost(others uint64) {
	var names []string
	for _, c := range []struct {
		number uint32
		name   string
	}{{cmdAttachMcast, "ATTACH_MCAST"}, {cmdDetachMcast, "DETACH_MCAST"}, {cmdModifySRQ, "MODIFY_SRQ"}} {
		if others&(1<<c.number) != 0 {
			names = append(names, c.name)
		}
	}
	if names == nil || d.warnedOfLost || d.cfg.Warnf == nil {
		return
	}
	d.warnedOfLost = true
	d.cfg.Warnf("%s had no effect: the program's libibverbs writes it as long as a doorbell, as those before rdma-core 22 do; use a newer one", strings.Join(names, ", "))
}
