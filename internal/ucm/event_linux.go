package ucm

import (
	"syscall"
	"time"

	"rnic/internal/cma"
)

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
	c.tellEvent(&e, num)
	return nil
}
