package device

import (
	"rnic/internal/fault"
	"rnic/internal/link"
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
