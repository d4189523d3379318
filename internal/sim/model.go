package sim

import (
	"encoding/binary"
	"fmt"

	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// String names the work request in messages.
func (x *work) String() string {
	what := OpNames[x.op]
	if x.recv {
		what = "receive"
	}
	if x.q == nil {
		return fmt.Sprintf("shared %s %x (%d bytes)", what, x.id, x.n)
	}
	return fmt.Sprintf("%s %x (%d bytes, %v%s)", what, x.id, x.n, x.q, x.why)
}

func (x *work) compareSwap() bool { return x.op == ring.OpCompareSwap }

// complete judges one completion, and tells whether it is a solicited one.
func (w *world) complete(c *cqueue, e *ring.CQE) (solicited bool) {
	w.count.Completions++
	x := w.workOf(e.WRID)
	if x == nil {
		w.fail("host %d: a completion of work request %x, which was never posted", c.h.index, e.WRID)
	}
	w.note(c.h, "completion of %x: %v", e.WRID, e.Status)
	if x.pool != nil {
		w.adopt(x, e)
	}
	q := x.q
	want := q.sendCQ
	if x.recv {
		want = q.recvCQ
	}
	switch {
	case x.done:
		w.fail("%s: a second completion, or one that was not to come: %v", x, e.Status)
	case x.epoch != q.number:
		w.fail("%s: a completion after the queue pair was reset", x)
	case want != c:
		w.fail("%s: its completion came to the wrong completion queue", x)
	case e.QPN != q.qp.Num():
		w.fail("%s: its completion names QP %06x", x, e.QPN)
	}
	x.done = true
	switch {
	case e.Status == ring.StatusWRFlushErr:
		w.count.Flushed++
		q.flushed = true
	case e.Status != ring.StatusSuccess:
		w.count.Errors++
	}
	if x.recv {
		w.completeReceive(x, e)
		if x.pool != nil {
			w.completed(x)
		}
		return e.Status != ring.StatusSuccess || x.match.solicited
	}
	w.completeSend(x, e)
	return e.Status != ring.StatusSuccess
}

// completeSend checks the order of a send queue's completions, and the status.
func (w *world) completeSend(x *work, e *ring.CQE) {
	q := x.q
	if x.index < q.nextSend {
		w.fail("%s completes after a later work request of its queue", x)
	}
	for _, y := range q.sends[q.nextSend:x.index] {
		switch {
		case q.sendErr:
			w.fail("%s was not flushed: %s was, behind it", y, x)
		case y.signalled:
			w.fail("%s completes before %s, which was posted earlier", x, y)
		}
		w.silent(y)
	}
	q.nextSend = x.index + 1
	if q.sendErr && e.Status != ring.StatusWRFlushErr {
		w.fail("%s completes with %q after an error of its queue: it should be flushed", x, e.Status)
	}
	switch {
	case e.Status == ring.StatusSuccess:
		if !x.signalled {
			w.fail("%s completes although it was not signalled", x)
		}
		w.checkSendFields(x, e)
		w.succeed(x)
	case e.Status == ring.StatusWRFlushErr:
		q.sendErr = true
	default:
		q.sendErr, q.sendFault = true, true
		w.judge(x, e.Status)
	}
}

// silent is an unsignalled work request that must have succeeded, because later ones completed.
func (w *world) silent(x *work) {
	x.done = true
	w.succeed(x)
}

func (w *world) checkSendFields(x *work, e *ring.CQE) {
	if e.Opcode != x.wcOpcode() {
		w.fail("%s completes with opcode %d", x, e.Opcode)
	}
	if x.fetches() && e.ByteLen != uint32(x.n) {
		w.fail("%s completes with byte_len %d", x, e.ByteLen)
	}
	if e.Flags&(ring.WCWithImm|ring.WCWithInv) != 0 {
		w.fail("%s completes with flags %#x", x, e.Flags)
	}
}

// judge decides whether a work request may fail with this status.
func (w *world) judge(x *work, s ring.Status) {
	q := x.q
	switch {
	case x.allowed.has(s):
	case s == ring.StatusRetryExcErr && q.mayLose():
		w.checkGivesUp(q.end, x.String())
		w.checkRetryTime(x)
	case s == ring.StatusRNRRetryExcErr && q.lateRecv && q.attr.RNRRetry != 7 && x.consumes():
	default:
		w.fail("%s fails with %q, for which there is no cause", x, s)
	}
}

// checkRetryTime holds where nothing is ever lost but everything: every retry has then waited for the
// local ACK timeout at least (9.9.2.1.1), but perhaps the first, which a response behind a lost one
// may have taken.
func (w *world) checkRetryTime(x *work) {
	q := x.q
	if q.troubled() {
		return
	}
	least := roce.TimeoutNanos(q.attr.Timeout) * int64(q.attr.RetryCnt)
	if waited := w.now - max(q.lastHeard, x.sentAt); waited < least {
		w.fail("%s gives up %s after the last sign of the peer: its timeout and its retries make %s at least", x, clock(waited), clock(least))
	}
}

// mayLose tells whether the retries of q may run out: nothing comes through, the peer is in error,
// or the program allowed too few.
func (q *qpair) mayLose() bool {
	if q.unreliable() {
		return false
	}
	p := q.peer
	if w := q.h.w; w.cutOff(q.end) || q.outages() || p.progErr || p.reset || p.sendFault || p.down || p.late {
		return true
	}
	if q.attr.RetryCnt < 6 && (q.troubled() || q.end.flow.on) {
		return true
	}
	// Where nothing is lost, the NAK of a peer that goes into error arrives.
	return (p.errState || p.recvFault) && (q.lossy() || q.end.flow.on)
}

// succeed checks what the success of a work request promises: all of it is true now.
func (w *world) succeed(x *work) {
	if x.mustFail {
		w.fail("%s succeeds, which it cannot", x)
	}
	x.success = true
	if x.isHere() {
		w.windowDone(x)
		return
	}
	if x.q.unreliable() {
		return
	}
	switch {
	case x.isAtomic():
		w.fetched(x)
	case x.op == ring.OpRead:
		w.checkRead(x)
		x.landed = true
	case x.isWrite():
		w.land(x)
	}
	if x.op == ring.OpSendInv {
		w.windowDone(x)
	}
	switch r := x.match; {
	case !x.consumes() || x.q.peer.deaf:
	case r == nil:
		w.fail("%s is complete, but no shared receive is", x)
	case !(r.done && r.match == x && r.success):
		w.fail("%s is complete, but its receive %x at %v is not", x, r.id, r.q)
	}
}

// checkRead checks that all of a READ is in its buffer.
func (w *world) checkRead(x *work) {
	mem, data := x.q.h.mem, x.data
	for _, s := range x.local {
		if at, ok := mem.holds([]seg{s}, data[:s.n]); !ok && !(s == x.shut && x.shutLanded) {
			w.fail("%s is complete, but its byte %d is not in memory", x, len(x.data)-len(data)+at)
		}
		data = data[s.n:]
	}
	mem.accept(x.local)
}

// fetched takes note of what an atomic found.
func (w *world) fetched(x *work) {
	s := x.local[0]
	x.old = binary.LittleEndian.Uint64(x.q.h.mem.space.Mem[s.off:])
	x.onWord.last = x.apply(x.old)
	x.endedAt = w.now
	x.q.h.mem.accept(x.local)
	x.landed = true
}

// land checks that a write is in the peer's memory.
func (w *world) land(x *work) {
	if x.landed {
		return
	}
	x.landed = true
	p := x.remote.r.a
	target := []seg{x.remote}
	if at, ok := p.holds(target, x.data); !ok {
		w.fail("%s should be in the peer's memory, but its byte %d is not", x, at)
	}
	p.accept(target)
}

// completeReceive checks a completion of a receive queue.
func (w *world) completeReceive(r *work, e *ring.CQE) {
	q := r.q
	if r.index != q.nextRecv {
		w.fail("%s completes out of order: %s is first", r, q.recvs[q.nextRecv])
	}
	q.nextRecv++
	if q.recvBlocked {
		q.recvBlocked = false
		number := q.number
		w.after(w.nanos(0, 20_000), func() { w.postPlanned(q, number) })
	}
	if q.pool != nil && q.typ == nic.UC && w.sharedUnreliable(r, e) {
		return
	}
	if q.recvErr && e.Status != ring.StatusWRFlushErr {
		w.fail("%s completes with %q after an error of its queue: it should be flushed", r, e.Status)
	}
	switch {
	case e.Status == ring.StatusWRFlushErr:
		q.recvErr = true
	case e.Status != ring.StatusSuccess:
		q.recvErr, q.recvFault = true, true
		if !r.allowed.has(e.Status) {
			w.fail("%s fails with %q, for which there is no cause", r, e.Status)
		}
	case r.mustFail:
		w.fail("%s succeeds, which it cannot", r)
	case q.ud:
		w.receiveDatagram(r, e)
	case q.typ == nic.UC:
		w.receiveUnreliableMessage(r, e)
	default:
		w.receiveMessage(r, e)
	}
}

// receiveMessage checks a successful receive of a reliable connection.
func (w *world) receiveMessage(r *work, e *ring.CQE) {
	p := r.q.peer
	if r.index >= len(p.consuming) {
		w.fail("%s completes, but the peer has sent only %d messages", r, len(p.consuming))
	}
	m := p.consuming[r.index]
	r.match, m.match = m, r
	if m.mustFail {
		w.fail("%s completes for %s, which cannot arrive", r, m)
	}
	w.checkReceiveFields(r, m, e)
	data := m.data
	if m.isWrite() {
		data = nil
	}
	mem := r.q.h.mem
	if at, ok := mem.holds(r.local, data); !ok {
		w.fail("%s is complete, but byte %d of %s is not in its buffer, or something else is behind it", r, at, m)
	}
	mem.accept(r.local)
	r.success = true
	// What was sent before has been carried out before (9.5).
	for ; p.landed <= m.index; p.landed++ {
		switch x := p.sends[p.landed]; {
		case x.mustFail && x.op == ring.OpRead && x.partial:
			// The memory is read when the response is sent, which may be after what follows (9.5).
		case x.mustFail:
			w.fail("%s arrives although %s, before it, cannot succeed", m, x)
		case x.isWrite():
			w.land(x)
		}
	}
}

func (w *world) checkReceiveFields(r, m *work, e *ring.CQE) {
	opcode, imm := ring.WCRecv, uint32(0)
	if m.op == ring.OpWriteImm {
		opcode = ring.WCRecvImm
	}
	if m.withImm() {
		imm = m.imm
	}
	switch {
	case e.Opcode != opcode:
		w.fail("%s for %s completes with opcode %d", r, m, e.Opcode)
	case m.withImm() != (e.Flags&ring.WCWithImm != 0) || (m.op == ring.OpSendInv) != (e.Flags&ring.WCWithInv != 0):
		w.fail("%s for %s completes with flags %#x", r, m, e.Flags)
	case m.withImm() && e.Imm != imm:
		w.fail("%s for %s completes with immediate %x instead of %x", r, m, e.Imm, imm)
	case m.op == ring.OpSendInv && e.Imm != m.imm:
		w.fail("%s for %s completes with key %x instead of %x", r, m, e.Imm, m.imm)
	case e.PKeyIndex != r.q.attr.PKeyIndex && !(r.q.end != nil && r.q.end.hasFormer && e.PKeyIndex == r.q.end.formerPKey):
		w.fail("%s for %s completes with P_Key index %d", r, m, e.PKeyIndex)
	case e.SrcQP != m.q.qp.Num():
		w.fail("%s for %s completes with source QP %06x", r, m, e.SrcQP)
	}
	want := uint32(m.n)
	if m.q.ud {
		want += 40
	}
	if e.ByteLen != want {
		w.fail("%s for %s completes with byte_len %d", r, m, e.ByteLen)
	}
}

// checkStates compares the states of a host's queue pairs with what the model knows of. It runs
// when all completions have been polled.
func (w *world) checkStates(h *host) {
	for _, q := range h.qps {
		if q.gone {
			continue
		}
		inErr := q.qp.State() == nic.Err
		if inErr && !q.errState {
			q.errState = true
			w.note(h, "%v is in ERR", q)
			if q.typ == nic.RC {
				w.breakDown(q.conn)
			}
		}
		if q.ud && (inErr || q.recvFault) {
			w.endUnreliable(q)
		}
		if q.unreliable() && q.sendFault {
			if s := q.qp.State(); s == nic.RTS || s == nic.SQD {
				w.fail("%v has reported an error of its send queue and is in %v, not in SQE", q, s) // 10.3.1.6
			}
			w.reviveSends(q)
		}
		fault := q.sendFault || q.recvFault
		if fault && !inErr && !q.unreliable() && !q.down && !q.reset {
			w.fail("%v has reported an error and is in %v", q, q.qp.State())
		}
		if (q.errState || q.flushed) && !q.progErr && !q.hitByPeer && !fault {
			w.fail("%v is in %v and flushes, for which there is no cause", q, q.qp.State())
		}
	}
}
