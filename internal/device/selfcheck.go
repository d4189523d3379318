package device

import (
	"fmt"
	"time"

	"rnic/internal/engine"
	"rnic/internal/nic"
)

// Health is what the device has found wrong with itself since it was made.
type Health struct {
	engine.Health
	Leaked uint64 // objects of the core that belong to no program
}

// Health reads the counters.
func (d *Device) Health() Health { return Health{d.engine.Health(), d.leaked.Load()} }

const (
	checkEvery = time.Second
	countEvery = 60 // of these
)

// selfCheck looks for what is wrong until stop is closed: units that do not move, queue pairs that nothing would look at,
// storms, and, more seldom, objects that nobody owns. It costs some microseconds a second.
func (d *Device) selfCheck(stop <-chan struct{}) {
	t := time.NewTicker(checkEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		d.engine.Check()
		if n%countEvery == 0 {
			d.findLeaks()
		}
	}
}

// most contexts at once whose objects are counted: all of them are held meanwhile.
const mostCounted = 256

// findLeaks compares what the core has with what programs own.
func (d *Device) findLeaks() {
	d.mu.Lock()
	open := d.openContexts()
	closed, last := d.closed, d.numbers.contexts.Load()
	d.mu.Unlock()
	if closed || len(open) > mostCounted {
		return
	}
	for _, c := range open { // nobody else holds two
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	var owned, there nic.Objects
	for _, c := range open {
		if c.closed {
			return // counted the next time
		}
		owned.QPs += len(c.qps)
		owned.CQs += len(c.cqs)
		owned.MRs += len(c.mrs)
		owned.AHs += len(c.ahs)
		owned.SRQs += len(c.srqs)
		owned.MWs += len(c.mws)
		owned.PDs += len(c.pds)
	}
	d.engine.Do(func(core *nic.NIC, _ int64) { there = core.Objects() })
	more := there.Sum() - owned.Sum()
	if more <= d.leakedSaid || d.numbers.contexts.Load() != last {
		return // others have been opened meanwhile, and may have been closed since
	}
	d.leaked.Add(uint64(more - d.leakedSaid))
	d.leakedSaid = more
	if d.cfg.Report != nil {
		d.cfg.Report(fmt.Sprintf("%d objects belong to no program any more (there are %+v, of programs %+v): their memory is lost until the NIC ends. This is a fault of rnic's: please report it", more, there, owned))
	}
}

// stopped tells whether the program that has the queue pair is stopped: by a signal, or in a debugger.
func stopped(owner any) bool {
	q, ok := owner.(*QP)
	return ok && processStopped(int(q.ctx.pid.Load()))
}
