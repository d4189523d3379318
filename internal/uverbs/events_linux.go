package uverbs

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/pipewatch"
	"rnic/internal/sandbox"
)

// channel is the NIC's end of a completion channel or of an asynchronous event file. The program's
// end is the read end of a pipe in packet mode (O_DIRECT, pipe(2)): one record a read, natively
// readable and pollable. The supervisor keeps only the write end, so that the program's last close shows
// there.
//
// Its methods may be called by the NIC, with the processing unit held: they never block on anything
// but mu, under which nothing blocks. A nil channel takes events and drops them.
type channel struct {
	pump *pump
	ctx  *verbsContext // that it was made in
	id   int32
	size int // bytes of a record

	mu      sync.Mutex
	fd      int     // write end, -1: closed
	sent    []event // in the pipe, oldest first; some at the front may have been read already
	waiting []event // do not fit into the pipe yet
	lost    uint64  // more than maxWaiting
}

// event is one record.
type event struct {
	origin *eventOrigin
	record [sizeAsyncEvent]byte
}

// eventOrigin counts the events of one object in one channel. Guarded by the channel's mu.
type eventOrigin struct {
	given uint32 // records put into the pipe, less those taken out again unread
	gone  bool   // the object is destroyed
}

// maxWaiting bounds the events that wait for a program which does not read.
const maxWaiting = 1 << 16

// newChannel makes a channel with records of size bytes; readEnd is for the program.
func newChannel(p *pump, size int) (c *channel, readEnd int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, fmt.Errorf("creating an event channel: %w", err)
	}
	// Only this end: the program's is as the kernel's, blocking until the program says otherwise.
	if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETFL, unix.O_NONBLOCK|unix.O_DIRECT); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, -1, fmt.Errorf("creating an event channel: %w", err)
	}
	c = &channel{pump: p, size: size, fd: fds[1]}
	return c, fds[0], nil
}

// post gives the program an event of origin.
func (c *channel) post(origin *eventOrigin, record [sizeAsyncEvent]byte) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 || origin.gone {
		return
	}
	if len(c.waiting) >= maxWaiting {
		c.lost++
		return
	}
	c.waiting = append(c.waiting, event{origin, record})
	c.flush()
}

// flush moves waiting events into the pipe. mu is held.
func (c *channel) flush() {
	if len(c.sent) >= 64 {
		c.forgetRead()
	}
	n := 0
	for ; n < len(c.waiting); n++ {
		if !c.write(&c.waiting[n]) {
			break
		}
	}
	if n > 0 {
		c.waiting = c.waiting[:copy(c.waiting, c.waiting[n:])]
	}
}

func (c *channel) write(e *event) bool {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(&e.record[0])), uintptr(c.size))
		switch errno {
		case 0:
			e.origin.given++
			c.sent = append(c.sent, *e)
			return true
		case unix.EINTR:
		default: // EAGAIN: the pump tries again; EPIPE: the pump closes the channel
			return false
		}
	}
}

// forgetRead drops from sent what the program has read. mu is held.
func (c *channel) forgetRead() {
	unread, err := unix.IoctlGetInt(c.fd, unix.TIOCINQ) // FIONREAD: of the pipe, from either end
	if err != nil {
		return
	}
	if read := len(c.sent) - unread/c.size; read > 0 {
		c.sent = c.sent[:copy(c.sent, c.sent[read:])]
	}
}

// remove ends an object's events and returns how many of them the program has read: those that it
// has not are taken back, as in the kernel, or it would read the address of something freed.
func (c *channel) remove(origin *eventOrigin) (read uint32) {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	origin.gone = true
	if c.fd < 0 {
		return origin.given
	}
	keep := c.waiting[:0]
	for _, e := range c.waiting {
		if e.origin != origin {
			keep = append(keep, e)
		}
	}
	clear(c.waiting[len(keep):])
	c.waiting = keep
	c.forgetRead()
	for i := range c.sent {
		if c.sent[i].origin == origin {
			c.takeBack(origin)
			break
		}
	}
	return origin.given
}

// takeBack empties the pipe and puts back what is not origin's. The program may read meanwhile: what
// comes out here is the tail of sent. mu is held.
func (c *channel) takeBack(origin *eventOrigin) {
	r, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(r)
	var b [sizeAsyncEvent]byte
	n := 0
	for n < len(c.sent) {
		k, err := unix.Read(r, b[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || k <= 0 {
			break
		}
		n++
	}
	tail := c.sent[len(c.sent)-n:]
	var again []event
	for i := range tail {
		tail[i].origin.given--
		if tail[i].origin != origin {
			again = append(again, tail[i])
		}
	}
	c.sent = c.sent[:0]
	c.waiting = append(again, c.waiting...)
	c.flush()
}

func (c *channel) close() {
	c.mu.Lock()
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
	c.sent, c.waiting = nil, nil
	c.mu.Unlock()
}

// pump watches the channels: it moves events on where the program has made room, and ends a
// channel whose program's end is closed.
type pump struct {
	sup   Forgetter
	pipes *pipewatch.Watcher[pumped]
}

type pumped struct {
	c    *channel
	file *sandbox.File
}

func newPump(sup Forgetter) (p *pump, err error) {
	p = &pump{sup: sup}
	p.pipes, err = pipewatch.New(p.happened)
	return p, err
}

// add watches a channel whose program's end is injected as file.
func (p *pump) add(c *channel, file *sandbox.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.pipes.Add(c.fd, pumped{c, file}, true, func(id int32) { c.id = id })
}

// remove closes a channel and forgets it.
func (p *pump) remove(c *channel) *sandbox.File {
	c.mu.Lock()
	w, _ := p.pipes.Remove(c.id)
	c.mu.Unlock()
	c.close()
	return w.file
}

func (p *pump) happened(_ int32, w pumped, gone bool) {
	if gone {
		if f := p.remove(w.c); f != nil {
			p.sup.Forget(f)
		}
		return
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.fd >= 0 {
		w.c.flush()
	}
}

func (p *pump) close() {
	p.pipes.Close()
	for _, w := range p.pipes.Items() {
		w.c.close()
	}
}

// of lists the channels of a context, and asyncOf those of asynchronous events.
func (p *pump) of(ctx *verbsContext) (found []*channel) {
	for _, w := range p.pipes.Items() {
		if w.c.ctx == ctx {
			found = append(found, w.c)
		}
	}
	return found
}

func (p *pump) asyncOf(ctx *verbsContext) []*channel {
	return slices.DeleteFunc(p.of(ctx), func(c *channel) bool { return c.size != sizeAsyncEvent })
}

// sink hands the device's events to the channels of the objects they are about, or, those of the port, to
// all channels of asynchronous events of its context.
type sink struct{ ctx *verbsContext }

// Completion implements device.Sink: struct ib_uverbs_comp_event_desc.
func (sink) Completion(q *device.CQ) {
	o, ok := q.Cookie.(*cqObject)
	if !ok {
		return
	}
	var r [sizeAsyncEvent]byte
	le.PutUint64(r[:], o.userHandle)
	o.comp.post(&o.compEvents, r)
	if j := o.ctx.drv.journal; j.tellsCommands() {
		j.event(told{ctx: o.ctx, event: nic.EventCompletion, kind: "cq", id: o.handle})
	}
}

// Async implements device.Sink: struct ib_uverbs_async_event_desc.
func (s sink) Async(e device.AsyncEvent) {
	var r [sizeAsyncEvent]byte
	le.PutUint32(r[8:], uint32(e.Type))
	j := s.ctx.drv.journal
	t := told{ctx: s.ctx, event: e.Type}
	switch {
	case e.QP != nil:
		if o, ok := e.QP.Cookie.(*qpObject); ok {
			t.kind, t.id, t.num = "qp", o.handle, e.QP.Num()
			le.PutUint64(r[:], o.userHandle)
			o.async.post(&o.asyncEvents, r)
		}
	case e.CQ != nil:
		if o, ok := e.CQ.Cookie.(*cqObject); ok {
			t.kind, t.id = "cq", o.handle
			j.cqOverrun(o)
			le.PutUint64(r[:], o.userHandle)
			o.async.post(&o.asyncEvents, r)
		}
	case e.SRQ != nil:
		if o, ok := e.SRQ.Cookie.(*srqObject); ok {
			t.kind, t.id = "srq", o.handle
			le.PutUint64(r[:], o.userHandle)
			o.async.post(&o.asyncEvents, r)
		}
	case e.Port != 0:
		le.PutUint64(r[:], uint64(e.Port))
		for _, c := range s.ctx.drv.pump.asyncOf(s.ctx) {
			c.post(&eventOrigin{}, r)
		}
	}
	if j.tellsCommands() {
		j.event(t)
	}
}
