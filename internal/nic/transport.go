package nic

import (
	"rnic/internal/hostmem"
	"rnic/internal/ring"
)

// transport is the part of the NIC that the transport of all its queue pairs shares.
type transport struct {
	list    hostmem.List // memory transfers of the packets received since the last MemoryDone
	effects []effect     // what those packets mean, once the transfers are done, in order
	scratch []byte       // small pieces that list points to: atomic results, GRH areas

	timers  timerHeap
	active  schedList // queue pairs that may have something to send
	acks    schedList // queue pairs that owe an acknowledgement which may wait
	lonely  schedList // queue pairs whose next request is for a unit that is alone
	stopped bool      // so is the next packet

	peers   map[peerKey]*peer
	windows windowPolicy
	rates   ratePolicy // nil: connections have windows alone

	lastQP    *QP          // the queue pair of the last packet: the next one is often of the same
	sendWQE   ring.SendWQE // a request being fetched: copied here once, then checked
	recvWQE   ring.RecvWQE // likewise, for flushes and datagrams
	freeRecvs []*recvState // those of no queue pair
	requests  requestPool  // likewise

	freeKept, usedKept []*keptPacket // see selective.go
	keptInUse          int
	planted            Planted
	pace               PacePolicy

	note           Note  // of the packet that is being received
	unacknowledged int   // UD and UC packets in the batch being sent
	carried        []*QP // they have carried out local operations behind transfers of that batch
}

func (t *transport) init(n *NIC) {
	t.active.kind, t.acks.kind, t.lonely.kind = onActive, onAcks, onLonely
	t.peers = make(map[peerKey]*peer)
	t.windows = newAIMD(n.policy.Window)
	t.rates = newRates(&n.policy)
	t.planted = n.planted
	t.pace = n.policy.Pace.withDefaults()
	t.scratch = make([]byte, 0, scratchSize)
}

const scratchSize = 4096

// small returns n bytes that stay untouched until MemoryDone. Precondition: n <= scratchSize.
func (t *transport) small(n int) []byte {
	if len(t.scratch)+n > cap(t.scratch) {
		// The full block is referred to by the list; it becomes garbage with it.
		t.scratch = make([]byte, 0, 2*cap(t.scratch))
	}
	at := len(t.scratch)
	t.scratch = t.scratch[:at+n]
	return t.scratch[at : at+n : at+n]
}

// A recvState is a private copy of a receive work request while a message lands in its buffers.
type recvState struct {
	wqe    ring.RecvWQE
	room   uint64 // bytes that a message may have: of all its buffers, or the device's limit
	used   uint32 // bytes of the message that have arrived
	cursor cursor
	pos    uint32 // where it stands in the queue pair's own receive queue
}

func (t *transport) newRecv() *recvState {
	if last := len(t.freeRecvs) - 1; last >= 0 {
		s := t.freeRecvs[last]
		t.freeRecvs = t.freeRecvs[:last]
		return s
	}
	return new(recvState)
}

func (t *transport) putRecv(s *recvState) {
	if s != nil {
		t.freeRecvs = append(t.freeRecvs, s)
	}
}

// A cursor remembers where in a scatter/gather list an offset lies: messages are walked in order.
type cursor struct {
	index int    // entry
	base  uint32 // offset of its first byte in the message
}

// walk calls seg for the pieces of memory behind bytes [off, off+len(buf)) of the message that sge
// describes, each with its part of buf. It stops and says false at the first piece that need
// rights do not allow. Precondition: the message has that many bytes.
func (q *QP) walk(l *hostmem.List, sge []ring.SGE, c *cursor, off uint32, buf []byte, need Access, tag uint32) bool {
	return q.walkIn(q.pd, l, sge, c, off, buf, need, tag)
}

// walkIn is walk with the keys of another protection domain than the queue pair's.
func (q *QP) walkIn(pd *PD, l *hostmem.List, sge []ring.SGE, c *cursor, off uint32, buf []byte, need Access, tag uint32) bool {
	if off < c.base {
		*c = cursor{}
	}
	for len(buf) > 0 {
		for c.index < len(sge) && off-c.base >= sge[c.index].Length {
			c.base += sge[c.index].Length
			c.index++
		}
		if c.index >= len(sge) {
			return false
		}
		s := &sge[c.index]
		in := off - c.base
		n := min(uint32(len(buf)), s.Length-in)
		m := q.nic.lookupLocal(s.LKey)
		// Addr+in cannot pass the end of the region when the entry as a whole is checked.
		if m == nil || !m.check(pd, s.Addr, uint64(s.Length), need) {
			return false
		}
		l.Add(hostmem.Segment{Space: m.space, Addr: m.hostAddr(s.Addr + uint64(in)), Buf: buf[:n:n], Lane: q.num, Tag: tag})
		buf = buf[n:]
		off += n
	}
	return true
}

// ---- Hooks that the objects call.

// transportReset forgets everything: the queue pair is new, or goes to Reset.
func (q *QP) transportReset() {
	q.detachTransport()
	q.rate = nil
	epoch := q.req.epoch + 1
	q.dropKept()
	q.sel = selective{}
	q.nic.transport.requests.put(q.req.reqs)
	q.nic.transport.putRecv(q.resp.recv)
	q.req = requester{epoch: epoch}
	q.resp = responder{out: q.resp.out[:0], saved: q.resp.saved[:0]}
}

// transportDestroy lets go of everything that refers to the queue pair.
func (q *QP) transportDestroy() {
	q.detachTransport()
	q.dropKept()
	q.nic.transport.putRecv(q.resp.recv)
	q.resp = responder{}
	q.nic.transport.requests.put(q.req.reqs)
	q.req = requester{epoch: q.req.epoch + 1}
	if q.nic.transport.lastQP == q {
		q.nic.transport.lastQP = nil
	}
}

func (q *QP) detachTransport() {
	t := &q.nic.transport
	q.leavePeer()
	t.active.remove(q)
	t.acks.remove(q)
	t.lonely.remove(q)
	t.timers.remove(q)
}

// transportToRTR starts the responder.
func (q *QP) transportToRTR(now int64) {
	q.startResponder()
	q.startRate(now)
}

// transportToRTS starts the requester, or lets it go on after SQD.
func (q *QP) transportToRTS(now int64) {
	if q.typ != UD {
		q.joinPeer()
	}
	q.startRate(now)
	if !q.req.started {
		q.startRequester()
	}
	r := &q.req
	r.stopped = false  // SQE has flushed the request that stopped the queue
	if !q.reliable() { // and those behind it, whose PSNs are left out
		r.una, r.nxt, r.max = r.end, r.end, r.end
	}
	q.sizeReads() // more may be allowed than before SQD, where all has completed (11.2.5.2)
	q.activate()
}

// transportToSQD lets the requests that have begun complete, and begins no other (10.3.1.5).
func (q *QP) transportToSQD(now int64) {
	if q.req.head == q.req.tail {
		q.sqDrained()
	}
}

// transportToError flushes everything; see flush.go.
func (q *QP) transportToError(now int64) { q.flush(now) }
