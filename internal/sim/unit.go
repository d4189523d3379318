package sim

import (
	"math/bits"
	"slices"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// unit is one processing unit of a host's NIC, which is driven at times of its own. Packets reach the unit that the number
// of their queue pair says, or for some queue pairs another, and are handed over from there.
type unit struct {
	h   *host
	nic *nic.NIC

	inbox   []*packet
	rx      []nic.RxPacket
	tx      *nic.Tx
	rung    []*qpair
	driving bool  // a drive is scheduled
	timer   int64 // the earliest timer event scheduled, 0 for none
	checked int64 // when the unit last looked for what is wrong with itself
	blocked bool  // the first packet of the inbox waits until the unit is alone
}

// addUnits makes the host's units of those of its NIC.
func (h *host) addUnits() {
	w := h.w
	for _, n := range h.nic.Units() {
		h.units = append(h.units, &unit{h: h, nic: n, tx: nic.NewTx(w.between(3, 40)*roce.MaxPacketSize, w.between(2, 64))})
	}
}

// anyUnit is where the next queue pair is made.
func (h *host) anyUnit() *nic.NIC {
	if len(h.units) == 1 {
		return h.nic
	}
	return h.units[h.w.rng.IntN(len(h.units))].nic
}

// arrive puts a packet into the inbox of a unit.
func (h *host) arrive(p *packet) {
	if h.cmArrive(p) {
		return
	}
	at := 0
	if n := len(h.units); n > 1 {
		if len(p.data) >= roce.BTHSize {
			num := roce.BTH(p.data).DestQP()
			if at = h.nic.HomeUnit(num); num>>8&3 == 0 {
				at = int(num>>10) % n // always the same wrong one: packets stay in order
			}
		}
	}
	h.units[at].arrive(p)
}

func (u *unit) arrive(p *packet) {
	u.inbox = append(u.inbox, p)
	u.driveSoon()
}

// driveSoon lets the NIC run in a little while: what comes until then is one batch.
func (h *host) driveSoon() {
	for _, u := range h.units {
		u.driveSoon()
	}
}

func (u *unit) driveSoon() {
	if u.driving {
		return
	}
	u.driving = true
	u.h.w.after(u.h.w.nanos(0, 3000), u.drive)
}

// ring is a doorbell.
func (h *host) ring(q *qpair) {
	u := h.units[q.qp.UnitIndex()]
	if !slices.Contains(u.rung, q) {
		u.rung = append(u.rung, q)
	}
	u.driveSoon()
}

// drive is one turn of the loop that package nic asks for.
func (u *unit) drive() {
	h, w := u.h, u.h.w
	u.driving = false
	if len(h.units) > 1 && w.chance(3) {
		h.moveOne()
	}
	u.receive()
	for _, q := range u.rung {
		if to := h.units[q.qp.UnitIndex()]; to != u { // it has moved since it was rung
			h.ring(q)
			continue
		}
		u.nic.Doorbell(w.now, q.qp)
		h.look("doorbell")
	}
	u.rung = u.rung[:0]
	h.expire()
	u.check()
	u.transmit()
	if len(u.inbox) > 0 && !u.blocked {
		u.driveSoon()
	}
	u.setTimer()
	h.aloneSoon()
}

// check has the unit look at itself: no queue pair may ever wait for nothing.
func (u *unit) check() {
	if u.h.w.now-u.checked < 1e9 {
		return
	}
	u.checked = u.h.w.now
	for _, t := range u.nic.Check(u.h.w.now, nil) {
		if t.Kind == nic.TroubleStalled {
			u.h.w.fail("%v has work and waits for nothing", t.QP)
		}
	}
}

// expire lets the timers of all units act that are due: the model knows what time brings to a host, not to which unit.
func (h *host) expire() {
	any := false
	for _, u := range h.units {
		if t := u.nic.NextTimer(); t != 0 && t <= h.w.now {
			u.nic.Expire(h.w.now)
			any = true
			if len(h.units) > 1 {
				u.driveSoon()
			}
		}
	}
	if any {
		h.look("timer")
	}
}

func (u *unit) setTimer() {
	w := u.h.w
	t := u.nic.NextTimer()
	if t == 0 || u.timer != 0 && u.timer <= t {
		return
	}
	t = max(t, w.now+1)
	u.timer = t
	w.after(t-w.now, func() {
		if u.timer == t {
			u.timer = 0
		}
		if due := u.nic.NextTimer(); due != 0 && due <= w.now {
			u.drive()
			return
		}
		u.setTimer()
	})
}

// moveOne moves a queue pair to another unit.
func (h *host) moveOne() {
	if len(h.qps) == 0 {
		return
	}
	q := h.qps[h.w.rng.IntN(len(h.qps))]
	to := h.units[h.w.rng.IntN(len(h.units))]
	if q.gone {
		return
	}
	h.w.note(h, "%v moves to unit %d", q, to.nic.Index())
	from := h.units[q.qp.UnitIndex()]
	if from != to {
		h.w.count.Moves++
	}
	q.qp.Move(to.nic)
	if from != to { // what waits there is older than what waits elsewhere
		var mine []*packet
		from.inbox = slices.DeleteFunc(from.inbox, func(p *packet) bool {
			is := len(p.data) >= roce.BTHSize && roce.BTH(p.data).DestQP() == q.qp.Num()
			if is {
				mine = append(mine, p)
			}
			return is
		})
		to.inbox = append(mine, to.inbox...)
	}
	to.blocked = false
	from.blocked = false // found out anew
	to.driveSoon()
	from.driveSoon()
}

// aloneSoon lets the units be driven together in a little while, if one of them wants that.
func (h *host) aloneSoon() {
	if h.lonely || !slices.ContainsFunc(h.units, func(u *unit) bool { return u.nic.WantsAlone() }) {
		return
	}
	h.lonely = true
	h.w.after(h.w.nanos(0, 3000), func() {
		h.lonely = false
		h.nic.SetAlone(true)
		h.nic.RunAlone(h.w.now)
		h.look("alone")
		for _, u := range h.units {
			if u.blocked {
				u.blocked = false
				u.receive()
			}
			u.transmit()
		}
		h.nic.SetAlone(false)
		for _, u := range h.units {
			u.driveSoon()
		}
	})
}

// receive hands a batch to the unit, performs the memory transfers it asks for, and looks at the
// completions before and after: what a completion promises must be there when it is visible.
func (u *unit) receive() {
	if u.blocked {
		return
	}
	h, w := u.h, u.h.w
	n := min(len(u.inbox), w.between(1, 48))
	batch := u.inbox[:n]
	if len(h.units) > 1 {
		batch = u.steer(batch)
	}
	u.rx = u.rx[:0]
	for _, p := range batch {
		u.rx = append(u.rx, nic.RxPacket{Path: p.path, Data: p.data, Local: p.local})
	}
	taken := u.take(batch, u.rx)
	u.blocked = taken < len(batch)
	w.free = append(w.free, batch[:taken]...)
	rest := append(slices.Clone(batch[taken:]), u.inbox[n:]...)
	u.inbox = append(u.inbox[:0], rest...)
}

// take lets the unit deal with packets, as far as it can before it is alone.
func (u *unit) take(batch []*packet, rx []nic.RxPacket) (taken int) {
	h, w := u.h, u.h.w
	taken = len(rx)
	if len(h.units) == 1 {
		u.met(batch)
		u.nic.Receive(w.now, rx)
	} else {
		// The unit stops at a packet that invalidates, unless it is alone: none behind it has arrived yet.
		taken = 0
		for i := range rx {
			if u.nic.Receive(w.now, rx[i:i+1]) == 0 {
				break
			}
			u.met(batch[i : i+1])
			taken++
		}
	}
	h.look("receive")
	u.nic.Memory().Scatter()
	u.nic.MemoryDone(w.now)
	h.look("memory")
	w.checkDatagrams(h)
	return taken
}

// met notes packets that the NIC gets to see.
func (u *unit) met(batch []*packet) {
	h, w := u.h, u.h.w
	for _, p := range batch {
		w.notePacket(h, "receives", p.data)
		w.meetAll(h, p)
		w.observeArrival(h, p)
	}
}

// steer takes the packets that are other units' out of a batch, and leaves them there. A datagram to a group reaches all
// units with members at once: the model says what all of them get when it arrives.
func (u *unit) steer(batch []*packet) (own []*packet) {
	h, w := u.h, u.h.w
	for _, p := range batch {
		set := u.nic.Steer(&p.path, p.data)
		if p.path.Dst.IsMulticast() {
			u.met([]*packet{p})
			for _, v := range h.units {
				if set>>v.nic.Index()&1 == 0 {
					continue
				}
				v.nic.Receive(w.now, []nic.RxPacket{{Path: p.path, Data: p.data, Local: p.local}})
				h.look("receive")
				v.nic.Memory().Scatter()
				v.nic.MemoryDone(w.now)
				h.look("memory")
			}
			w.checkDatagrams(h)
			w.free = append(w.free, p)
			continue
		}
		if v := h.units[bits.TrailingZeros64(set)]; v != u {
			v.arrive(p)
			continue
		}
		own = append(own, p)
	}
	return own
}

func (u *unit) transmit() {
	h, w := u.h, u.h.w
	for turn := 0; ; turn++ {
		if turn > 100_000 {
			w.fail("liveness: host %d's NIC transmits without end", h.index)
		}
		u.tx.Reset()
		more := u.nic.Transmit(w.now, u.tx)
		h.look("transmit")
		u.tx.Gather.Gather()
		u.nic.GatherDone(w.now, u.tx)
		h.look("gather")
		for i := range u.tx.Packets {
			if p := &u.tx.Packets[i]; !p.Dead {
				h.put(p)
			}
		}
		if !more {
			return
		}
		if w.chance(25) { // the rest has to wait: other things happen in between
			u.driving = true
			w.after(w.nanos(0, 20_000), u.drive)
			return
		}
		if len(u.tx.Packets) == 0 && turn > 1000 {
			w.fail("liveness: host %d's NIC asks for another batch and puts nothing in it", h.index)
		}
	}
}
