package device

import (
	"rnic/internal/fault"
	"rnic/internal/link"
	"rnic/internal/link/capture"
	linkfault "rnic/internal/link/fault"
	"rnic/internal/nic"
)

// Counters are the queue pair's own, if it was made with QPInit.Counters; else, or when its context is closed, false.
func (q *QP) Counters() (c nic.QPCounters, ok bool) {
	_ = q.ctx.do(func(*nic.NIC, int64) error {
		if p := q.core.Counters(); p != nil {
			c, ok = *p, true
		}
		return nil
	})
	return c, ok
}

// Readings are a device's counters at one moment.
type Readings struct {
	NIC        nic.Stats
	Net, Loop  LinkStats     // the network, and packets between queue pairs of the device
	Send, Recv FaultCounters // faults planted
	PortDowns  uint64        // how often the port went down
	Health     Health
}

// LinkStats and FaultCounters are what Readings are made of.
type (
	LinkStats     = link.Stats
	FaultCounters = fault.Counters
)

// Readings reads the counters.
func (d *Device) Readings() (r Readings) {
	r.NIC = d.Stats()
	r.Net, r.Loop = d.LinkStats()
	r.Send, r.Recv = d.Injected()
	r.Health = d.Health()
	r.PortDowns = d.portDowns.Load()
	return r
}

// Injected counts the faults that Config.SendFault and RecvFault have planted.
func (d *Device) Injected() (send, recv fault.Counters) {
	d.engine.Lock()
	defer d.engine.Unlock()
	for _, u := range d.port.links {
		for _, l := range []link.Link{u.Net, u.Loop} {
			if c, ok := l.(*capture.Link); ok {
				l = c.Link
			}
			if f, ok := l.(*linkfault.Link); ok {
				s, r := f.Injected()
				addFaults(&send, &s)
				addFaults(&recv, &r)
			}
		}
	}
	return send, recv
}

func addFaults(to, from *fault.Counters) {
	to.Seen += from.Seen
	to.Selected += from.Selected
	to.Dropped += from.Dropped
	to.Duplicated += from.Duplicated
	to.Corrupted += from.Corrupted
	to.Reordered += from.Reordered
	to.Delayed += from.Delayed
	to.Marked += from.Marked
}
