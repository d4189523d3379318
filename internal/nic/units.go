package nic

import (
	"sync/atomic"

	"rnic/internal/roce"
)

// Many units. The device core is divided into processing units, each with the queue pairs that are of it,
// their timers and their share of the windows. What queue pairs refer to (regions, completion queues, shared
// receive queues, address handles) is of the device:
//
//   - commands, that is whatever makes, changes or ends an object, and every bind and invalidation of a memory
//     window, change what all units read. They run while nobody drives another unit: the caller is alone;
//   - completion queues and shared receive queues change with packets of any unit. Each has a lock, which is
//     taken only where there are many units. One caller who drives all units in turn, such as the
//     simulator, never waits for it;
//   - everything else that packets, doorbells and timers change is of one unit.
//
// What comes upon a unit in driving that needs it to be alone is put off: WantsAlone says so, and RunAlone
// does it. A packet belongs to the unit of its destination queue pair (Steer), whichever got it.

// MaxUnits bounds Config.Units: a set of units fits a word.
const MaxUnits = 64

// shared is what the units of a device have in common.
type shared struct {
	units []*NIC
	alone bool // the caller drives all units at once, and nobody else any

	limits   Limits
	policy   Policy
	planted  Planted
	mtuCode  uint8 // of the port's active MTU: no queue pair's path MTU is larger
	localMTU uint32
	pkeys    []uint16 // the port's P_Key table

	pds    int
	cqs    int
	srqs   int
	xrcds  int
	xrcCQ  *CQ            // of XRC targets between messages: nothing completes there
	xrcPD  *PD            // and nothing is in there
	mrs    map[uint32]*MR // by the index bits of the key
	ahs    map[uint32]*AH // by number
	qps    map[uint32]*QP // by number
	mws    int
	mrKeys keySpace
	qpNums keySpace
	ahNext uint32
	moved  int // queue pairs that are not of the unit that their number says

	gids [gidTableSize]roce.GID
	// gidDown: nothing reaches the network from there at the moment.
	gidDown [gidTableSize]bool
	groups  map[roce.GID]*group

	completionDelay func(now int64, qp uint32) int64 // SetCompletionDelay

	makeLock func() Lock
	peersMu  Lock
	peers    map[peerKey]*peerShare
}

// A Lock is what the caller provides where units are driven by many goroutines (Config.NewLock).
type Lock interface {
	Lock()
	Unlock()
}

// newLock makes a lock for an object that many units share; nil: none is needed.
func (s *shared) newLock() Lock {
	if len(s.units) > 1 && s.makeLock != nil {
		return s.makeLock()
	}
	return nil
}

// lock takes the lock of an object, if it has one, and unlock gives it back.
func lock(mu Lock) {
	if mu != nil {
		mu.Lock()
	}
}

func unlock(mu Lock) {
	if mu != nil {
		mu.Unlock()
	}
}

// Units are the device's units, the first of which New has returned. It must not be changed.
func (s *shared) Units() []*NIC { return s.units }

// Index is the unit's place among the units.
func (n *NIC) Index() int { return n.index }

// Unit is the unit that the queue pair is of.
func (q *QP) Unit() *NIC { return q.nic }

// UnitIndex is the index of that unit. It may be asked at any time by anybody; the queue pair may have moved on then.
func (q *QP) UnitIndex() int { return int(q.unit.Load()) }

// SetAlone says whether the caller drives all units, and nobody else any: for commands, and RunAlone.
func (s *shared) SetAlone(alone bool) { s.alone = alone }

// mayBeAlone tells whether what needs no other unit to be driven may be done now.
func (s *shared) mayBeAlone() bool { return s.alone || len(s.units) == 1 }

// WantsAlone tells whether the unit has something to do that it can do alone only.
func (n *NIC) WantsAlone() bool {
	return len(n.units) > 1 && (n.transport.lonely.head != nil || len(n.overruns) > 0 || n.transport.stopped)
}

// RunAlone has every unit do what it had put off. Precondition: SetAlone(true). What it leads to, packets and events, is
// there for the units' drivers.
func (s *shared) RunAlone(now int64) {
	for _, n := range s.units {
		n.now = max(n.now, now)
		n.transport.stopped = false
		n.activateLonely()
	}
	for again := true; again; {
		again = false
		for _, n := range s.units {
			if len(n.overruns) > 0 {
				n.failOverruns(n.now)
				again = true
			}
		}
	}
}

// activateLonely puts the queue pairs that waited for the unit to be alone before all others, in their order: what the unit sends
// while it is alone is bounded, and behind others that always have something to send they might never get there.
func (n *NIC) activateLonely() {
	t := &n.transport
	for q := t.lonely.tail; q != nil; q = t.lonely.tail {
		t.lonely.remove(q)
		if n.planted != PlantedLonely {
			t.active.remove(q)
			t.active.pushFront(q)
		}
	}
}

// stopsAt tells whether the packet ends a batch that the unit takes: it invalidates a window, which is for a unit
// that is alone.
func (n *NIC) stopsAt(rx *RxPacket) bool {
	if n.mayBeAlone() || len(rx.Data) < roce.BTHSize {
		return false
	}
	info := roce.Opcode(rx.Data[0]).Info()
	if info == nil || !info.HasIETH {
		return false
	}
	q := n.lookupQP(roce.BTH(rx.Data).DestQP())
	if q == nil || q.nic != n || !comesBy(&rx.Path, &q.path) && q.mig == nil {
		return false // it is dropped: nobody who is not the peer makes the units wait for each other
	}
	n.transport.stopped = true
	return true
}

// Steer tells which units a packet is for, as a set of their indices: that of the destination queue pair, every
// one with members of a multicast group, or n itself for what is for nobody.
func (n *NIC) Steer(path *roce.Path, data []byte) (units uint64) {
	self := uint64(1) << n.index
	if len(n.units) == 1 || len(data) < roce.BTHSize {
		return self
	}
	num := roce.BTH(data).DestQP()
	if num == multicastQPN {
		if to := n.memberUnits(roce.GIDFromAddr(path.Dst)); to != 0 {
			return to
		}
		return self
	}
	if n.planted == PlantedStaleSteer {
		return 1 << n.HomeUnit(num)
	}
	if n.moved == 0 && int(num)%len(n.units) == n.index {
		return self
	}
	if q := n.qps[num]; q != nil {
		return 1 << q.nic.index
	}
	return self
}

func (n *NIC) memberUnits(g roce.GID) (units uint64) {
	if m := n.groups[g]; m != nil {
		for _, q := range m.members {
			units |= 1 << q.nic.index
		}
	}
	return units
}

// HomeUnit is the index of the unit that a queue pair number says: what a port that looks at numbers alone steers by.
func (s *shared) HomeUnit(num uint32) int { return int(num % uint32(len(s.units))) }

// newQPNumber finds a number that says the unit.
func (n *NIC) newQPNumber() uint32 {
	for {
		if num := n.newQPN(); n.HomeUnit(num) == n.index {
			return num
		}
	}
}

// Move makes the queue pair one of another unit: what it has in flight stays so, and packets which arrive at the
// old unit are steered to the new one. A command.
func (q *QP) Move(to *NIC) {
	from := q.nic
	if from == to || q.dead || from.shared != to.shared {
		return
	}
	r := &q.req
	window, had := r.window, r.peer != nil
	waits := q.sched.links[onAcks].on
	q.detachTransport()
	if from.transport.lastQP == q {
		from.transport.lastQP = nil
	}
	q.countMove(-1)
	q.moveKept(&from.transport, &to.transport)
	q.nic = to
	q.unit.Store(int32(to.index))
	q.countMove(+1)
	to.now = max(to.now, from.now)
	if had {
		q.joinPeer()
		r.window = window
		r.peer.window.inFlight += window.inFlight
	}
	if waits {
		to.transport.acks.pushBack(q)
	}
	if from.planted == PlantedMoveForgets {
		return
	}
	q.activate()
	q.rearm()
}

// countMove keeps the number of queue pairs that are not where their numbers say.
func (q *QP) countMove(by int) {
	if q.nic.HomeUnit(q.num) != q.nic.index {
		q.nic.moved += by
	}
}

// Moved calls f with every queue pair that is not of the unit that its number says, in no order.
func (s *shared) Moved(f func(num uint32, unit int)) {
	if s.moved == 0 {
		return
	}
	for num, q := range s.qps {
		if s.HomeUnit(num) != q.nic.index {
			f(num, q.nic.index)
		}
	}
}

// lockReceives takes the lock of the shared receive queue, or of the XRC domain, that packets for q take receives
// from; nil: it has its own.
func (q *QP) lockReceives() Lock {
	var mu Lock
	switch {
	case q.xrcd != nil:
		mu = q.xrcd.mu
	case q.srq != nil:
		mu = q.srq.mu
	}
	lock(mu)
	return mu
}

// peerShare counts the units whose queue pairs send to an address: they share what may be in flight to it.
type peerShare struct{ units atomic.Int32 }

// joinShare counts the unit among those that send to the address, and leaveShare no longer.
func (n *NIC) joinShare(key peerKey) *peerShare {
	lock(n.peersMu)
	defer unlock(n.peersMu)
	s := n.shared.peers[key]
	if s == nil {
		s = new(peerShare)
		n.shared.peers[key] = s
	}
	s.units.Add(1)
	return s
}

func (n *NIC) leaveShare(key peerKey) {
	lock(n.peersMu)
	defer unlock(n.peersMu)
	s := n.shared.peers[key]
	if s.units.Add(-1) == 0 {
		delete(n.shared.peers, key)
	}
}
