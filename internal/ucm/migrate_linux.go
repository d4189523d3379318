package ucm

import (
	"syscall"
)

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
		if i.dead || i.file != from { // another thread has destroyed or moved it meanwhile
			c.drv.mu.Unlock()
			return syscall.ENOENT
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
