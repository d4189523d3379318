package device

import (
	"cmp"
	"slices"
	"sync/atomic"

	"rnic/internal/nic"
)

// numbers are given out once for each kind of object, from 1: an object is known by its number to whoever lists what
// there is. Queue pairs have their own.
type numbers struct{ contexts, pds, cqs, mrs, srqs atomic.Uint32 }

// Resources are what programs have created on the device, in the order of their numbers. PID is the process that
// opened the context, 0 if the front end did not tell (Context.SetPID).
type Resources struct {
	Contexts []ContextInfo
	PDs      []PDInfo
	CQs      []CQInfo
	QPs      []QPInfo
	MRs      []MRInfo
	SRQs     []SRQInfo
}

// ContextInfo is an open device.
type ContextInfo struct {
	Number uint32
	PID    int
}

// PDInfo is a protection domain with the number of objects in it.
type PDInfo struct {
	Number  uint32
	Context ContextInfo
	Users   int
}

// CQInfo is a completion queue with the number of queues that complete there.
type CQInfo struct {
	Number   uint32
	Context  ContextInfo
	Capacity uint32
	Users    int
}

// QPInfo is a queue pair. SRQ is 0 if it has none.
type QPInfo struct {
	Number, PD, SRQ uint32
	Context         ContextInfo
	Type            nic.QPType
	Attr            nic.Attr
}

// MRInfo is a memory region.
type MRInfo struct {
	Number, PD uint32
	Context    ContextInfo
	Key        uint32
	Length     uint64
}

// SRQInfo is a shared receive queue.
type SRQInfo struct {
	Number, PD uint32
	Context    ContextInfo
	XRC        bool
}

// SetPID tells which process opened the context.
func (c *Context) SetPID(pid int) { c.pid.Store(int64(pid)) }

// Resources lists what there is. It holds each context, and the NIC, for as long as that one's objects take.
func (d *Device) Resources() (r Resources) {
	d.mu.Lock()
	open := d.openContexts()
	d.mu.Unlock()
	for _, c := range open {
		// One that has been closed meanwhile has nothing.
		_ = c.do(func(*nic.NIC, int64) error {
			r.add(c)
			return nil
		})
	}
	slices.SortFunc(r.PDs, func(a, b PDInfo) int { return cmp.Compare(a.Number, b.Number) })
	slices.SortFunc(r.CQs, func(a, b CQInfo) int { return cmp.Compare(a.Number, b.Number) })
	slices.SortFunc(r.QPs, func(a, b QPInfo) int { return cmp.Compare(a.Number, b.Number) })
	slices.SortFunc(r.MRs, func(a, b MRInfo) int { return cmp.Compare(a.Number, b.Number) })
	slices.SortFunc(r.SRQs, func(a, b SRQInfo) int { return cmp.Compare(a.Number, b.Number) })
	return r
}

// add lists a context. It and the NIC are held.
func (r *Resources) add(c *Context) {
	self := ContextInfo{c.number, int(c.pid.Load())}
	r.Contexts = append(r.Contexts, self)
	pds, srqs := make(map[*nic.PD]uint32, len(c.pds)), make(map[*nic.SRQ]uint32, len(c.srqs))
	for p := range c.pds {
		pds[p.core] = p.number
		r.PDs = append(r.PDs, PDInfo{p.number, self, p.core.Users()})
	}
	for s := range c.srqs {
		srqs[s.core] = s.number
		r.SRQs = append(r.SRQs, SRQInfo{s.number, pds[s.core.PD()], self, s.core.OfXRC()})
	}
	for q := range c.cqs {
		r.CQs = append(r.CQs, CQInfo{q.number, self, q.core.Capacity(), q.core.Users()})
	}
	for m := range c.mrs {
		r.MRs = append(r.MRs, MRInfo{m.number, pds[m.core.PD()], self, m.core.RKey(), m.core.Length()})
	}
	for q := range c.qps {
		a, _ := q.core.Query()
		r.QPs = append(r.QPs, QPInfo{q.core.Num(), pds[q.core.PD()], srqs[q.core.SRQ()], self, q.core.Type(), a})
	}
}
