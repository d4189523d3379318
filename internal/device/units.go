package device

import (
	"fmt"
	"sync/atomic"

	"rnic/internal/nic"
)

// A device with many units places each queue pair when it is made, and may move it later. A completion vector, of which
// there are as many as units, is a wish: queue pairs whose receives complete in a completion queue of vector
// v > 0 are of unit v. Those of vector 0, which programs without a wish name, are placed by the device: with the unit
// that polls their program's doorbells, if it has a log of them, which saves handing each over; else where the fewest are.

// Units is the number of processing units.
func (d *Device) Units() int { return d.cfg.Units }

// Vectors is the number of completion vectors.
func (d *Device) Vectors() int { return d.cfg.Units }

func noVector(vector, vectors int) error {
	return &nic.Error{Op: "create completion queue", Reason: fmt.Sprintf("there is no completion vector %d: 0 to %d are", vector, vectors-1), Errno: nic.EINVAL}
}

// leastLoaded is the unit with the fewest queue pairs. The units are held.
func (d *Device) leastLoaded() int {
	least := 0
	for i, n := range d.queuePairs {
		if n < d.queuePairs[least] {
			least = i
		}
	}
	return least
}

// unitFor is the unit of a queue pair that is to be made. The units are held.
func (c *Context) unitFor(i *QPInit) int {
	switch {
	case c.dev.cfg.Units == 1:
		return 0
	case i.Special:
		return int(nic.ManagementQPN % uint32(c.dev.cfg.Units))
	case i.RecvCQ != nil && i.RecvCQ.vector > 0:
		return i.RecvCQ.vector
	case len(c.sources) > 0:
		return c.home
	}
	return c.dev.leastLoaded()
}

// placed notes the unit of a queue pair that was made or moved. The units are held.
func (q *QP) placed() {
	unit := q.core.UnitIndex()
	q.ctx.dev.queuePairs[unit]++
	for _, cq := range q.cqs {
		if cq != nil {
			cq.usedBy(1 << unit)
		}
	}
}

func (q *CQ) usedBy(units uint64) { setBits(&q.units, units) }

func setBits(v *atomic.Uint64, bits uint64) {
	for old := v.Load(); old|bits != old && !v.CompareAndSwap(old, old|bits); old = v.Load() {
	}
}

// Unit is the index of the unit that the queue pair is of.
func (q *QP) Unit() int { return q.core.UnitIndex() }

// MoveTo makes the queue pair one of another unit, while it works: nothing that it has in flight is lost. EINVAL: there
// is no such unit.
func (q *QP) MoveTo(unit int) error {
	if unit < 0 || unit >= q.ctx.dev.cfg.Units {
		return &nic.Error{Op: "move queue pair", Object: q.core.String(), Reason: fmt.Sprintf("there is no unit %d: the NIC has %d", unit, q.ctx.dev.cfg.Units), Errno: nic.EINVAL}
	}
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.ctx.closed {
		return errClosed
	}
	q.ctx.dev.engine.Move(q.core, unit, func(from int) {
		q.ctx.dev.queuePairs[from]--
		q.placed()
	})
	return nil
}

// Progress lets the calling goroutine drive the units that complete to the queue, as far as nobody does; false: somebody does.
func (q *CQ) Progress() bool {
	e := q.ctx.dev.engine
	if q.ctx.dev.cfg.Units == 1 {
		return e.Progress(1)
	}
	return e.Progress(q.units.Load())
}
