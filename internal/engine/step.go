package engine

import (
	"rnic/internal/link"
	"rnic/internal/nic"
)

// sendBatches bounds the batches sent in one step, so that receiving gets its turn.
const sendBatches = 4

// look says whether a step looks at the network. An empty look costs a system call.
type look uint8

const (
	lookSometimes look = iota // always while it is in use, else once in a while
	lookNow                   // something has come
	lookRarely                // the caller is going to learn from the system whether something has come
)

const (
	netEvery = 16        // steps that may pass without a look
	netInUse = 1_000_000 // nanoseconds since the last packet for which the network counts as in use
)

// step is one round over everything that may give work, with the unit held. It tells whether
// there was any.
func (u *Unit) step(network look) bool {
	defer u.rescue()
	if u.dead {
		return false
	}
	u.counters.Steps.Add(1)
	now := Now()
	worked := u.doorbells(now)
	if u.many {
		worked = u.receiveHanded(now) || worked
	}
	if u.net != nil {
		u.tick(u.net, now)
		u.sinceNet++
		if network == lookNow || u.sinceNet >= netEvery || network == lookSometimes && now-u.netAt < netInUse {
			u.sinceNet = 0
			if u.receive(u.net, now) {
				u.netAt, worked = now, true
			}
		}
	}
	if u.loop != nil {
		u.tick(u.loop, now)
		worked = u.receive(u.loop, now) || worked // packets that a fault injector held back
	}
	if t := u.core.NextTimer(); t != 0 && t <= now {
		u.core.Expire(now)
		worked = true
	}
	worked = u.transmit(now) || worked
	if !worked && u.core.AcksWait() {
		u.core.Quiet()
		worked = u.transmit(now)
	}
	idle := u.core.Idle()
	u.dispatch()
	// A queue pair whose completion queue has overflowed makes room for others when its events are taken.
	return worked || idle && !u.core.Idle()
}

// send is the part of step that a doorbell of this process needs: what came in is looked at by the
// next step, so that posting costs no more system calls than sending does.
func (u *Unit) send() {
	defer u.rescue()
	if u.dead {
		return
	}
	now := Now()
	if u.net != nil {
		u.net.SetNow(now)
	}
	if u.loop != nil {
		u.loop.SetNow(now)
	}
	u.doorbells(now)
	for u.many && u.receiveHanded(now) {
	}
	u.transmit(now)
	u.dispatch()
	if !u.core.Idle() { // see step
		u.transmit(now)
	}
}

// tick tells a link the time and lets go what it held back until now.
func (u *Unit) tick(l link.Link, now int64) {
	l.SetNow(now)
	if t := l.NextDelayed(); t != 0 && t <= now {
		_, _ = l.Send(nil)
	}
}

// doorbells hands every doorbell since the last step to the core.
func (u *Unit) doorbells(now int64) bool {
	worked := false
	for _, s := range u.sources {
		worked = s.d.Drain(s.ring) > 0 || worked
	}
	if u.rings.n.Load() == 0 {
		return worked
	}
	u.rings.mu.Lock()
	u.rung, u.rings.q = u.rings.q, u.rung[:0]
	check := u.rings.check
	u.rings.check = false
	u.rings.n.Store(0)
	u.rings.mu.Unlock()
	for i, q := range u.rung {
		q.Rung.Store(false)
		u.doorbell(now, q)
		u.rung[i] = nil
	}
	if check {
		u.doCheckup(now) // what was rung before is seen
	}
	if len(u.rung) == 0 {
		return worked
	}
	if u.stages != nil {
		u.stages.Doorbell.Store(Now())
	}
	return true
}

// receive hands one batch of packets to the core and performs the transfers it asks for.
func (u *Unit) receive(l link.Link, now int64) bool {
	n, err := l.Recv(u.in)
	if n == 0 || err != nil {
		return false
	}
	for u.many && u.receiveHanded(now) { // those that were left here came first
	}
	u.rx = u.rx[:0]
	for i := range n {
		u.rx = append(u.rx, nic.RxPacket{Path: u.in[i].Path, Data: u.in[i].Data, Local: l == u.loop})
	}
	if u.many {
		if u.rx = u.steer(u.rx); len(u.rx) == 0 {
			return true
		}
	}
	record := u.stages != nil && l == u.net && passed(&u.stages.Received, u.in[:n])
	if taken := u.take(now, u.rx); taken < len(u.rx) {
		u.blocked = true
		for i := taken; i < len(u.rx); i++ {
			u.inbox.leave(&u.rx[i])
		}
	}
	if record {
		u.stages.Written.Store(Now())
	}
	return true
}

// transmit sends what the core has to send.
func (u *Unit) transmit(now int64) bool {
	if !u.flushPending() {
		return false
	}
	worked := false
	for range sendBatches {
		if u.core.Idle() {
			break
		}
		u.tx.Reset()
		more := u.core.Transmit(now, u.tx)
		if len(u.tx.Packets) > 0 {
			worked = true
			u.tx.Gather.Gather()
			u.core.GatherDone(now, u.tx)
			if t := u.engine.tap.Load(); t != nil {
				(*t).Sent(u.tx.Packets)
			}
			u.sort()
			u.sendLoop(now)
			if !u.sendNet() {
				break
			}
		}
		if !more {
			break
		}
	}
	return worked
}

// sort splits the batch into packets for the network and packets of this NIC.
func (u *Unit) sort() {
	u.out, u.back = u.out[:0], u.back[:0]
	for i := range u.tx.Packets {
		p := &u.tx.Packets[i]
		if p.Dead {
			continue
		}
		if p.Local {
			u.back = append(u.back, link.Packet{Path: *p.Path, Data: p.Data, QP: p.QPN})
		}
		if (!p.Local || p.Multicast) && u.net != nil {
			u.out = append(u.out, link.Packet{Path: *p.Path, Data: p.Data, QP: p.QPN})
		}
	}
}

// sendLoop sends the packets between queue pairs of this NIC and receives them at once, while the
// arena that they lie in is untouched.
func (u *Unit) sendLoop(now int64) {
	if len(u.back) == 0 || u.loop == nil {
		return
	}
	// The loop has no limit: what it does not take is lost like any packet.
	_, _ = u.loop.Send(u.back)
	for u.receive(u.loop, now) {
	}
}

// sendNet sends the packets for the network; false: the link is full, and the rest waits in pending,
// in the arena, which is not used before they are gone.
func (u *Unit) sendNet() bool {
	if len(u.out) == 0 {
		return true
	}
	n, err := u.net.Send(u.out)
	if err != nil {
		return true // lost; the transport finds out
	}
	if u.stages != nil {
		passed(&u.stages.Sent, u.out[:n])
	}
	u.pending = u.out[n:]
	return len(u.pending) == 0
}

func (u *Unit) flushPending() bool {
	if len(u.pending) == 0 {
		return true
	}
	n, err := u.net.Send(u.pending)
	if err != nil {
		n = len(u.pending)
	}
	u.pending = u.pending[n:]
	return len(u.pending) == 0
}

// dispatch hands the core's events up.
func (u *Unit) dispatch() {
	u.events = u.core.Events()
	if len(u.events) == 0 || u.engine.event == nil {
		return
	}
	if u.many {
		u.engine.calls.Lock()
		defer u.engine.calls.Unlock()
	}
	for ; len(u.events) > 0; u.events = u.events[1:] {
		u.engine.event(u.events[0])
	}
}
