package device

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"rnic/internal/engine"
	"rnic/internal/hostmem"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// Sink takes the events of one context. It is called with the NIC held: it must not block, nor
// call the device.
type Sink interface {
	Completion(cq *CQ)
	Async(e AsyncEvent)
}

// AsyncEvent is an asynchronous event: of the QP, CQ or SRQ that is set, else of the port.
type AsyncEvent struct {
	Type nic.EventType
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
	Port uint8
}

// Context is one program's open device: the owner of what the program creates.
type Context struct {
	dev  *Device
	sink Sink

	mu      sync.Mutex // taken before the unit
	closed  bool
	pds     map[*PD]struct{}
	mrs     map[*MR]struct{}
	mws     map[*MW]struct{}
	cqs     map[*CQ]struct{}
	ahs     map[*AH]struct{}
	qps     map[*QP]struct{}
	srqs    map[*SRQ]struct{}
	xrcds   map[*XRCD]struct{}
	sources []engine.Doorbells

	byHandle map[uint32]*QP // guarded by the units
	number   uint32         // see resources.go
	pid      atomic.Int64
	home     int // the unit that polls the context's doorbells; set with the first source
	done     chan struct{}
}

// Open opens the device for one program. On a closed device, or a removed one, the context is closed too.
func (d *Device) Open(sink Sink) *Context {
	c := &Context{dev: d, sink: sink, pds: map[*PD]struct{}{}, mrs: map[*MR]struct{}{}, mws: map[*MW]struct{}{}, cqs: map[*CQ]struct{}{},
		ahs: map[*AH]struct{}{}, qps: map[*QP]struct{}{}, srqs: map[*SRQ]struct{}{}, xrcds: map[*XRCD]struct{}{}, byHandle: map[uint32]*QP{}, done: make(chan struct{})}
	d.mu.Lock()
	c.number = d.numbers.contexts.Add(1) // under the lock: see findLeaks
	c.closed = d.closed || d.away
	if c.closed {
		close(c.done)
	} else {
		d.contexts[c] = struct{}{}
	}
	d.mu.Unlock()
	return c
}

// Done is closed when the context is: by its owner, or with the device.
func (c *Context) Done() <-chan struct{} { return c.done }

// openContexts lists the contexts in the order of their numbers. d.mu is held.
func (d *Device) openContexts() []*Context {
	open := slices.Collect(maps.Keys(d.contexts))
	slices.SortFunc(open, func(a, b *Context) int { return cmp.Compare(a.number, b.number) })
	return open
}

// Device is the device that c is open on.
func (c *Context) Device() *Device { return c.dev }

// ErrClosed is wrapped, beside nic.EINVAL, by the errors of a context that is closed. It is net.ErrClosed too, for programs that ask for that.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string        { return "closed" }
func (closedError) Is(target error) bool { return target == net.ErrClosed }

var errClosed = fmt.Errorf("use context: %w: %w", ErrClosed, nic.EINVAL)

// do runs a command with the context and the NIC held.
func (c *Context) do(f func(core *nic.NIC, now int64) error) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	c.dev.engine.Do(func(core *nic.NIC, now int64) { err = f(core, now) })
	return err
}

// AddDoorbells makes the NIC poll a log of doorbells; its handles are QPInit.Handle.
func (c *Context) AddDoorbells(d engine.Doorbells) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if len(c.sources) == 0 {
		c.dev.engine.Do(func(*nic.NIC, int64) { c.home = c.dev.leastLoaded() })
	}
	c.sources = append(c.sources, d)
	c.dev.engine.AddDoorbells(c.home, d, func(handle uint32) *nic.QP {
		if q := c.byHandle[handle]; q != nil {
			return q.core
		}
		return nil
	})
}

// Drain executes what the program rang before this call, so that a command does not overtake it.
func (c *Context) Drain() { c.dev.engine.Drain() }

// Close destroys everything that the program owns.
func (c *Context) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	for _, s := range c.sources {
		c.dev.engine.RemoveDoorbells(s)
	}
	c.dev.engine.Do(func(core *nic.NIC, now int64) {
		for q := range c.qps {
			q.detachAll(core)
			_ = q.core.Destroy()
			c.dev.queuePairs[q.core.UnitIndex()]--
			q.core.Owner = nil
		}
		for s := range c.srqs {
			_ = s.core.Destroy()
			s.core.Owner = nil
		}
		for a := range c.ahs {
			_ = a.core.Destroy()
		}
		for w := range c.mws {
			_ = w.core.Dealloc()
		}
		for m := range c.mrs {
			_ = m.core.Dereg()
		}
		for q := range c.cqs {
			_ = q.core.Destroy()
			q.core.Owner = nil
		}
		for p := range c.pds {
			_ = p.core.Dealloc()
		}
		for d := range c.xrcds {
			_ = d.core.Dealloc()
		}
		clear(c.byHandle)
	})
	clear(c.qps)
	clear(c.srqs)
	clear(c.xrcds)
	clear(c.ahs)
	clear(c.mws)
	clear(c.mrs)
	clear(c.cqs)
	clear(c.pds)
	c.dev.mu.Lock()
	delete(c.dev.contexts, c)
	c.dev.mu.Unlock()
	close(c.done)
}

// Objects tells how many objects of each kind the context owns.
type Objects struct{ PDs, MRs, CQs, AHs, QPs, SRQs, MWs, XRCDs int }

// Objects counts what the context owns.
func (c *Context) Objects() Objects {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Objects{len(c.pds), len(c.mrs), len(c.cqs), len(c.ahs), len(c.qps), len(c.srqs), len(c.mws), len(c.xrcds)}
}

// PD is a protection domain.
type PD struct {
	ctx    *Context
	core   *nic.PD
	number uint32
	Cookie any
}

// AllocPD allocates a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	p := &PD{ctx: c, number: c.dev.numbers.pds.Add(1)}
	err := c.do(func(core *nic.NIC, _ int64) (err error) {
		if p.core, err = core.AllocPD(); err == nil {
			c.pds[p] = struct{}{}
		}
		return err
	})
	return orNil(p, err)
}

// Dealloc frees it; EBUSY while something is in it.
func (p *PD) Dealloc() error {
	return p.ctx.do(func(*nic.NIC, int64) error {
		err := p.core.Dealloc()
		if err == nil {
			delete(p.ctx.pds, p)
		}
		return err
	})
}

// MR is a memory region.
type MR struct {
	ctx    *Context
	core   *nic.MR
	number uint32
	key    atomic.Uint32 // read while Rereg may be under way
	Cookie any
}

// RegMR registers length bytes of space at start; work requests and peers name them by iova.
func (c *Context) RegMR(pd *PD, space hostmem.Space, start, length, iova uint64, access nic.Access) (*MR, error) {
	// The look at the program's memory is taken without the NIC: others' transfers go on meanwhile.
	err := c.do(func(core *nic.NIC, _ int64) error { return core.AdmitMR(pd.core, start, length, iova, access) })
	if err == nil {
		err = nic.CheckMemory(space, start, length, access)
	}
	if err != nil {
		return nil, err
	}
	m := &MR{ctx: c, number: c.dev.numbers.mrs.Add(1)}
	err = c.do(func(core *nic.NIC, _ int64) (err error) {
		if m.core, err = core.RegCheckedMR(pd.core, space, start, length, iova, access); err == nil {
			m.core.Owner = m
			m.key.Store(m.core.RKey())
			c.mrs[m] = struct{}{}
		}
		return err
	})
	return orNil(m, err)
}

// LKey and RKey are the region's keys.
func (m *MR) LKey() uint32 { return m.key.Load() }
func (m *MR) RKey() uint32 { return m.key.Load() }

// Dereg ends the region: its keys are refused from now on. EBUSY while memory windows are bound to it.
func (m *MR) Dereg() error {
	return m.ctx.do(func(*nic.NIC, int64) error {
		err := m.core.Dereg()
		if err == nil {
			delete(m.ctx.mrs, m)
		}
		return err
	})
}

// CQInit is what a completion queue is created with.
type CQInit struct {
	Ring   *ring.Queue // the NIC's view; the NIC is the producer
	Vector int         // completion vector: see units.go. 0: none in particular
	Cookie any
}

// CQ is a completion queue.
type CQ struct {
	ctx    *Context
	core   *nic.CQ
	number uint32
	vector int
	units  atomic.Uint64 // that have had queue pairs completing here
	Cookie any
}

// CreateCQ creates a completion queue.
func (c *Context) CreateCQ(i CQInit) (*CQ, error) {
	q := &CQ{ctx: c, number: c.dev.numbers.cqs.Add(1), vector: i.Vector, Cookie: i.Cookie}
	if i.Vector < 0 || i.Vector >= c.dev.Vectors() {
		return nil, noVector(i.Vector, c.dev.Vectors())
	}
	err := c.do(func(core *nic.NIC, _ int64) (err error) {
		if q.core, err = core.CreateCQ(i.Ring); err == nil {
			q.core.Owner = q
			c.cqs[q] = struct{}{}
		}
		return err
	})
	return orNil(q, err)
}

// Arm asks for one event at the next completion, or the next solicited or failed one.
func (q *CQ) Arm(solicitedOnly bool) error {
	if q.ctx.dev.cfg.Units == 1 {
		return q.ctx.do(func(*nic.NIC, int64) error {
			q.core.Arm(solicitedOnly)
			return nil
		})
	}
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.ctx.closed {
		return errClosed
	}
	q.core.Arm(solicitedOnly) // others drive their units meanwhile
	return nil
}

// Destroy destroys it; EBUSY while a queue pair uses it. No event of it comes afterwards.
func (q *CQ) Destroy() error {
	return q.ctx.do(func(*nic.NIC, int64) error {
		err := q.core.Destroy()
		if err == nil {
			q.core.Owner = nil
			delete(q.ctx.cqs, q)
		}
		return err
	})
}

// AH is an address handle.
type AH struct {
	ctx    *Context
	core   *nic.AH
	Cookie any
}

// CreateAH creates an address handle.
func (c *Context) CreateAH(pd *PD, attr nic.AHAttr) (*AH, error) {
	a := &AH{ctx: c}
	err := c.do(func(core *nic.NIC, _ int64) (err error) {
		if a.core, err = core.CreateAH(pd.core, attr); err == nil {
			c.ahs[a] = struct{}{}
		}
		return err
	})
	return orNil(a, err)
}

// Num is its number in work requests.
func (a *AH) Num() uint32 { return a.core.Num() }

// Destroy destroys it.
func (a *AH) Destroy() error {
	return a.ctx.do(func(*nic.NIC, int64) error {
		err := a.core.Destroy()
		if err == nil {
			delete(a.ctx.ahs, a)
		}
		return err
	})
}

// QPInit is what a queue pair is created with.
type QPInit struct {
	Type           nic.QPType
	PD             *PD
	SendCQ, RecvCQ *CQ
	SQ, RQ         *ring.Queue // the NIC's views; the NIC is the consumer
	SRQ            *SRQ        // instead of RQ; nil: none
	XRCD           *XRCD       // of an XRC target, which has no other of these objects
	Cap            nic.Cap
	SigAll         bool
	Special        bool   // see nic.QPInit
	RefuseSends    bool   // see nic.QPInit
	Handle         uint32 // in the context's doorbell log; 0: none
	Counters       bool   // count what this queue pair does: QP.Counters
	Cookie         any
}

// QP is a queue pair.
type QP struct {
	ctx    *Context
	core   *nic.QP
	handle uint32
	cqs    [2]*CQ // where it completes; nil: nowhere, or by its messages
	Cookie any
}

// CreateQP creates a queue pair.
func (c *Context) CreateQP(i QPInit) (*QP, error) {
	q := &QP{ctx: c, handle: i.Handle, cqs: [2]*CQ{i.SendCQ, i.RecvCQ}, Cookie: i.Cookie}
	err := c.do(func(core *nic.NIC, _ int64) (err error) {
		q.core, err = core.Units()[c.unitFor(&i)].CreateQP(i.coreInit())
		if err == nil {
			q.placed()
			q.core.Owner = q
			c.qps[q] = struct{}{}
			if i.Handle != 0 {
				c.byHandle[i.Handle] = q
			}
		}
		return err
	})
	return orNil(q, err)
}

// Num is the queue pair number.
func (q *QP) Num() uint32 { return q.core.Num() }

// Modify changes attributes and state.
func (q *QP) Modify(a *nic.Attr, mask nic.AttrMask) error {
	return q.ctx.do(func(core *nic.NIC, now int64) error { return core.Modify(now, q.core, a, mask) })
}

// SetSelective has the queue pair repeat selectively; see nic.QP.SetSelective.
func (q *QP) SetSelective(on bool) error {
	return q.ctx.do(func(*nic.NIC, int64) error { return q.core.SetSelective(on) })
}

// Selective tells whether the queue pair repeats selectively.
func (q *QP) Selective() (on bool, err error) {
	err = q.ctx.do(func(*nic.NIC, int64) error {
		on = q.core.Selective()
		return nil
	})
	return on, err
}

// Query returns attributes, and what the queue pair was created with.
func (q *QP) Query() (a nic.Attr, i nic.InitInfo, err error) {
	err = q.ctx.do(func(*nic.NIC, int64) error {
		a, i = q.core.Query()
		return nil
	})
	return a, i, err
}

// Doorbell tells the NIC that the send queue has new work requests: for programs of this process.
func (q *QP) Doorbell() { q.ctx.dev.engine.Ring(q.core) }

// Destroy destroys it. No event of it comes afterwards.
func (q *QP) Destroy() error {
	return q.ctx.do(func(*nic.NIC, int64) error {
		err := q.core.Destroy()
		if err == nil {
			q.ctx.dev.queuePairs[q.core.UnitIndex()]--
			q.core.Owner = nil
			delete(q.ctx.byHandle, q.handle)
			delete(q.ctx.qps, q)
		}
		return err
	})
}

func orNil[T any](p *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}
