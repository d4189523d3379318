package engine

import (
	"sync"
	"sync/atomic"

	"rnic/internal/hostmem"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// What one unit has for another. Packets arrive at the wrong unit because the system steers them by the number of
// the queue pair (or not at all), because the queue pair has moved, or because they lay behind others in one segment
// that the system had put together; and packets between queue pairs of one NIC go from unit to unit in this way. They are copied into
// the other unit's inbox, which it works through before it looks at its links: so nothing overtakes. What is more than an inbox
// holds is lost, like what is more than a socket holds.

const (
	inboxBytes   = 1 << 20
	inboxPackets = 4096
)

// parcel is a batch of packets that were left for a unit, in order.
type parcel struct {
	arena []byte
	pkts  []leftPacket
	at    int // the first that has not been dealt with
}

type leftPacket struct {
	path     roce.Path
	from, to int // in arena
	local    bool
}

type inbox struct {
	mu      sync.Mutex
	filling parcel
	n       atomic.Int32 // packets that were left and have not been dealt with
	lost    atomic.Uint64
}

// leave copies a packet into the inbox.
func (b *inbox) leave(p *nic.RxPacket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := &b.filling
	if len(f.pkts) >= inboxPackets || len(f.arena)+len(p.Data) > inboxBytes {
		b.lost.Add(1)
		return
	}
	from := len(f.arena)
	f.arena = append(f.arena, p.Data...)
	f.pkts = append(f.pkts, leftPacket{path: p.Path, from: from, to: len(f.arena), local: p.Local})
	b.n.Add(1)
}

// collect swaps what was left with the memory of a parcel that is done with.
func (b *inbox) collect(p *parcel) {
	b.mu.Lock()
	b.filling, *p = parcel{arena: p.arena[:0], pkts: p.pkts[:0]}, b.filling
	b.mu.Unlock()
}

// hand leaves a packet with the units of a set.
func (u *Unit) hand(set uint64, p *nic.RxPacket) {
	for _, v := range u.engine.units {
		if set>>v.index&1 != 0 {
			v.inbox.leave(p)
		}
	}
	u.touched |= set &^ (1 << u.index)
}

// steer takes those packets out of rx that are for other units, and leaves them there. If the unit waits to be alone, its own
// go behind those that wait.
func (u *Unit) steer(rx []nic.RxPacket) []nic.RxPacket {
	own := rx[:0]
	self := uint64(1) << u.index
	for i := range rx {
		p := rx[i]
		set := u.core.Steer(&p.Path, p.Data)
		if set&^self != 0 {
			u.hand(set&^self, &p)
		}
		if set&self == 0 {
			continue
		}
		if u.blocked {
			u.inbox.leave(&p)
			continue
		}
		own = append(own, p)
	}
	return own
}

// receiveHanded deals with a batch of what other units have left here.
func (u *Unit) receiveHanded(now int64) bool {
	h := &u.handed
	if h.at == len(h.pkts) {
		if u.inbox.n.Load() == 0 {
			return false
		}
		u.inbox.collect(h)
	}
	if u.blocked {
		return false
	}
	began, end := h.at, min(len(h.pkts), h.at+recvPackets)
	self := uint64(1) << u.index
	u.rx = u.rx[:0]
	for i := h.at; i < end; i++ {
		l := &h.pkts[i]
		p := nic.RxPacket{Path: l.path, Data: h.arena[l.from:l.to], Local: l.local}
		// The queue pair may have moved on. A datagram to a group was left with each unit that has members.
		if set := u.core.Steer(&p.Path, p.Data); set&self == 0 && !p.Path.Dst.IsMulticast() {
			if len(u.rx) > 0 { // in order: those before it first
				end = i
				break
			}
			u.hand(set, &p)
			h.at++
			continue
		}
		u.rx = append(u.rx, p)
	}
	taken := u.take(now, u.rx)
	h.at += taken
	u.inbox.n.Add(int32(began - h.at))
	u.blocked = taken < len(u.rx)
	return true
}

// take hands packets to the core and performs the transfers that they ask for. It tells how many were dealt with: the
// next waits until the unit is alone.
func (u *Unit) take(now int64, rx []nic.RxPacket) (taken int) {
	taken = u.core.Receive(now, rx)
	list := u.core.Memory()
	if u.many && len(list.Atomics) > 0 {
		// IBV_ATOMIC_HCA: atomic among all operations of the NIC, though another process's memory is read and written
		// by two calls.
		u.engine.scatterAlone(list)
	} else {
		list.Scatter()
	}
	u.core.MemoryDone(now)
	return taken
}

func (e *Engine) scatterAlone(list *hostmem.List) {
	e.atomics.Lock()
	defer e.atomics.Unlock()
	list.Scatter()
}

// doorbell rings the doorbell of a queue pair of any unit. The unit is held.
func (u *Unit) doorbell(now int64, q *nic.QP) {
	if to := q.Unit(); to != u.core {
		u.engine.units[to.Index()].leaveDoorbell(q)
		u.touched |= 1 << to.Index()
		return
	}
	u.core.Doorbell(now, q)
}

// aftermath is what is left to do for who has driven a unit, once he has let go of it.
type aftermath struct {
	touched uint64 // units to be told
	alone   bool
	wake    bool // the unit's own thread, for a caller who may not come back
}

// noteLeft adds what is left to do. The unit is held.
func (u *Unit) noteLeft(a *aftermath) {
	if u.many {
		a.touched, a.alone = a.touched|u.touched, a.alone || u.core.WantsAlone()
		u.touched = 0
	}
}

// letGo gives the unit back.
func (u *Unit) letGo() (a aftermath) {
	u.noteLeft(&a)
	u.mu.Unlock()
	return a
}

// do does what is left to do: the caller holds no unit. A caller who drives drives on where he has left something.
func (a aftermath) do(e *Engine, caller bool) {
	e.revive()
	if a.alone {
		e.alone()
	}
	if a.touched == 0 {
		return
	}
	for _, u := range e.units {
		if a.touched>>u.index&1 == 0 {
			continue
		}
		if !caller || !u.driveOn() {
			u.kick()
		}
	}
}
