package nic

import (
	"slices"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// responder is a queue pair's receiving half: 9.7.4 and 9.7.5. The expected state runs ahead of
// the committed one by the packets that were received since the last MemoryDone.
type responder struct {
	expected    roce.PSN // of the next new request
	inMessage   messageKind
	nakSent     bool // for the gap before expected: one NAK each (9.7.5.1)
	refusing    bool // a fatal NAK has been decided: everything behind it is dropped
	established bool

	mr      *MR // WRITE in progress: target, position, rest, length
	va      uint64
	left    uint32
	total   uint32
	recv    *recvState // SEND in progress
	recvPos uint32     // receive queue position of the next receive to use

	committed roce.PSN // everything up to here has been executed
	acked     roce.PSN // and the peer has been told so up to here, by an acknowledgement or a response
	msn       uint32

	out     []response // to send, in PSN order; out[outHead:] is in use
	outHead int
	reads   int    // READs and atomics accepted and not answered yet, without duplicates
	ackDue  bool   // acknowledge committed, behind out
	ackOwed uint32 // bytes since the last acknowledgement
	ackAt   int64  // when it is due at the latest; 0: now
	nakDue  bool   // send nak, behind out
	nak     roce.Syndrome
	nakPSN  roce.PSN
	cnpAt   int64          // when the peer was last told of congestion
	cnpDue  bool           // it is to be told
	saved   []savedRequest // the latest READs and atomics: a ring of max_dest_rd_atomic
	savedAt int            // the oldest of them, once the ring is full
}

type messageKind uint8

const (
	noMessage messageKind = iota
	inSend
	inWrite
)

// A response is a READ or atomic response to send, or what is left of it.
type response struct {
	psn, end  roce.PSN // next packet; the packet behind the last of this piece
	first     roce.PSN // of the whole response, with final: for the opcodes
	final     roce.PSN // behind its last packet
	mr        *MR      // READ; nil for zero bytes
	va        uint64
	left      uint32
	value     uint64 // atomic
	msn       uint32
	atomic    bool
	duplicate bool
}

// A savedRequest is what a duplicate READ or atomic is recognised by and answered from (9.7.5.1,
// 9.4.5).
type savedRequest struct {
	psn, end roce.PSN
	atomic   bool
	places   bool // with atomic: ATOMIC WRITE or FLUSH, which are answered without a value
	executed bool
	value    uint64
	msn      uint32
}

func (q *QP) startResponder() {
	r := &q.resp
	*r = responder{out: r.out[:0], saved: r.saved[:0]}
	r.expected = roce.PSN(q.attr.RQPSN) & roce.PSNMask
	r.committed = r.expected.Add(-1)
	r.acked = r.committed
	if q.srq == nil {
		r.recvPos = q.rq.Position()
	}
}

// psnDiff is roce.Diff, unless the fault of comparing without wrap is planted.
func (n *NIC) psnDiff(a, b roce.PSN) int32 {
	if n.planted == PlantedPSNWrap {
		return int32(a) - int32(b)
	}
	return roce.Diff(a, b)
}

func (q *QP) receiveRequest(now int64, p *roce.Packet) {
	r := &q.resp
	if r.refusing {
		q.note(NoteRefusing)
		q.nic.stats.BehindErrors++
		return
	}
	psn := p.BTH.PSN()
	switch d := q.nic.psnDiff(psn, r.expected); {
	case d > 0 && q.sel.on:
		q.note(NoteKept)
		q.keepRequest(p, psn)
		return
	case d > 0:
		q.nic.stats.OutOfSequence++
		if r.nakSent {
			q.note(NoteGapAgain)
		} else {
			q.note(NoteGap)
			r.nakSent = true
			q.refuse(roce.NAKSequence, r.expected)
		}
		return
	case d < 0:
		q.nic.stats.Duplicates++
		q.note(NoteDuplicate)
		if c := q.count; c != nil {
			c.Duplicates++
		}
		if q.typ == XRCTGT {
			q.receiveDuplicateXRC(p, psn)
			return
		}
		q.receiveDuplicate(p, psn)
		return
	}
	q.receiveInOrder(now, p, psn)
	if s := &q.sel; s.on && s.requests != nil && s.requests.count > 0 {
		if r.expected == psn { // refused: it comes again, and so does what is behind it
			q.nic.transport.drop(s.requests)
			return
		}
		q.resume(now)
	}
}

// receiveInOrder treats the request that is expected.
func (q *QP) receiveInOrder(now int64, p *roce.Packet, psn roce.PSN) {
	r := &q.resp
	r.nakSent = false
	if q.typ == XRCTGT && !q.aim(p) {
		return
	}
	if !q.opcodeFits(p) {
		q.refuseFatal(roce.NAKInvalidRequest)
		return
	}
	switch p.Info.Kind {
	case roce.KindSend:
		q.receiveSend(p)
	case roce.KindWrite:
		q.receiveWrite(p)
	case roce.KindReadRequest:
		q.receiveRead(p)
	case roce.KindCmpSwap, roce.KindFetchAdd:
		q.receiveAtomic(p)
	case roce.KindAtomicWrite:
		q.receiveAtomicWrite(p)
	case roce.KindFlush:
		q.receiveFlush(p)
	default:
		q.note(NoteOperation)
		q.refuseFatal(roce.NAKInvalidRequest) // 9.7.4.1: an operation that is not offered
	}
}

// opcodeFits checks the sequence of opcodes and the length of the packet (9.7.4.1).
func (q *QP) opcodeFits(p *roce.Packet) bool {
	i, kind, mtu := p.Info, noMessage, uint32(q.mtu)
	switch i.Kind {
	case roce.KindSend:
		kind = inSend
	case roce.KindWrite:
		kind = inWrite
	}
	if i.Middle || i.Last {
		if q.resp.inMessage != kind {
			q.note(NoteOrder)
			return false
		}
	} else if q.resp.inMessage != noMessage {
		q.note(NoteOrder)
		return false
	}
	n := uint32(len(p.Payload))
	fits := n <= mtu
	switch {
	case i.First || i.Middle:
		fits = n == mtu
	case i.Last:
		fits = n > 0 && n <= mtu
	}
	if !fits {
		q.note(NoteMTU)
	}
	return fits
}

// accept moves the expected state behind a packet of a SEND or WRITE.
func (q *QP) accept(p *roce.Packet, kind messageKind) {
	r := &q.resp
	r.expected = r.expected.Add(1)
	r.inMessage = kind
	if p.Info.Ends() {
		r.inMessage = noMessage
	}
}

func (q *QP) receiveSend(p *roce.Packet) {
	r, t := &q.resp, &q.nic.transport
	if p.Info.Starts() && !q.takeReceive() {
		return
	}
	s := r.recv
	psn := p.BTH.PSN()
	if uint64(len(p.Payload)) > s.room-uint64(s.used) {
		// 9.7.4.1: more than the receive request's buffers hold
		q.note(NoteTooLong)
		e := q.refuseFatal(roce.NAKInvalidRequest)
		e.recvErr, e.cqe.WRID = ring.StatusLocLenErr, s.wqe.WRID
		return
	}
	mark := len(t.list.Segs)
	if !q.walkIn(q.receivePD(), &t.list, s.wqe.SGE[:s.wqe.NumSGE], &s.cursor, s.used, p.Payload, AccessLocalWrite, uint32(psn)) {
		t.list.Segs = t.list.Segs[:mark]
		q.note(NoteLocal)
		e := q.refuseFatal(roce.NAKRemoteOperational)
		e.recvErr, e.cqe.WRID = ring.StatusLocProtErr, s.wqe.WRID
		return
	}
	if h := p.IETH(); h != nil && !q.invalidate(h.RKey()) {
		// 9.4.1.1.3, 9.9.6.2: nothing that the key names may be invalidated from here.
		t.list.Segs = t.list.Segs[:mark]
		q.note(NoteInvalidate)
		e := q.refuseFatal(roce.NAKRemoteAccess)
		e.recvErr, e.cqe.WRID = ring.StatusRemInvReqErr, s.wqe.WRID
		return
	}
	s.used += uint32(len(p.Payload))
	q.accept(p, inSend)
	if !p.Info.Ends() {
		q.commit(p, true, s.wqe.WRID)
		return
	}
	q.completeReceive(p, s.wqe.WRID, s.used, ring.WCRecv, true)
	t.putRecv(s)
	r.recv = nil
}

// takeReceive takes the next receive request, private from here on. False: there is none, or it is
// no good, and the answer is on its way.
func (q *QP) takeReceive() bool {
	if !q.receivePosted() {
		q.refuseNotReady()
		return false
	}
	if !q.beginReceive() {
		q.note(NoteLocal)
		e := q.refuseFatal(roce.NAKRemoteOperational)
		e.recvErr, e.cqe.WRID = ring.StatusLocQPOpErr, q.resp.recv.wqe.WRID
		return false
	}
	return true
}

// beginReceive makes the next receive request resp.recv. False: it is no good. Precondition: there is one.
func (q *QP) beginReceive() bool {
	s := q.nic.transport.newRecv()
	s.used, s.cursor, s.room, s.pos = 0, cursor{}, 0, q.resp.recvPos
	q.resp.recv = s // given back with the queue pair's reset if anything goes wrong
	bad, err := q.peekReceive(&s.wqe)
	q.takeLoaded(s.wqe.WRID)
	if bad || err != nil {
		return false
	}
	for _, g := range s.wqe.SGE[:s.wqe.NumSGE] {
		s.room += uint64(g.Length)
	}
	s.room = min(s.room, uint64(q.nic.limits.MaxMsgSize)) // 9.7.7: no message is larger
	return true
}

func (q *QP) receiveWrite(p *roce.Packet) {
	r, t := &q.resp, &q.nic.transport
	n := uint32(len(p.Payload))
	if p.Info.HasImm && !q.receivePosted() {
		q.refuseNotReady() // 9.7.5.2.8; the packet comes again, with its payload
		return
	}
	if p.Info.Starts() {
		if !q.startWrite(p) {
			return
		}
	} else if n > r.left || p.Info.Last != (n == r.left) {
		q.note(NoteLength)
		q.refuseFatal(roce.NAKInvalidRequest) // 9.7.4.1: more or less than the RETH announced
		return
	}
	if p.Info.HasImm && !q.loadImmReceive() {
		return
	}
	if n > 0 {
		if r.mr.dead && q.nic.planted != PlantedStaleKey {
			if c := q.count; c != nil {
				c.unknownKey(r.mr.key)
			}
			q.note(NoteKeyUnknown)
			q.refuseAccess()
			return
		}
		t.list.Add(hostmem.Segment{Space: r.mr.space, Addr: r.mr.hostAddr(r.va), Buf: p.Payload, Lane: q.num, Tag: uint32(p.BTH.PSN())})
		r.va += uint64(n)
		r.left -= n
	}
	q.accept(p, inWrite)
	if p.Info.HasImm {
		q.completeWriteImm(p)
		return
	}
	q.commit(p, false, 0)
}

// startWrite checks the RETH of the first packet: rights and bounds of the whole message.
func (q *QP) startWrite(p *roce.Packet) bool {
	r, h := &q.resp, p.RETH()
	length, n := h.Length(), uint32(len(p.Payload))
	if length > q.nic.limits.MaxMsgSize || p.Info.Only && length != n || p.Info.First && length <= n {
		if length > q.nic.limits.MaxMsgSize {
			q.note(NoteTooLarge)
		}
		q.note(NoteLength)
		q.refuseFatal(roce.NAKInvalidRequest)
		return false
	}
	if !q.setUpFor(AccessRemoteWrite) {
		return false
	}
	r.mr, r.va, r.left, r.total = nil, h.VA(), length, length
	if length == 0 {
		return true // 9.4.3: the key of a request without data is not checked
	}
	if r.mr = q.remoteMR(h.RKey(), h.VA(), uint64(length), AccessRemoteWrite); r.mr == nil {
		q.noteAccess(h.RKey(), h.VA(), uint64(length), AccessRemoteWrite)
		q.refuseAccess()
		return false
	}
	return true
}

// setUpFor tells whether the queue pair takes requests that need these rights, whatever their key says. One that does not answers as to an
// opcode that it does not know (9.7.4.1: a function not supported by this queue pair; 11.6.2: remote invalid request).
func (q *QP) setUpFor(need Access) bool {
	if need&^q.attr.AccessFlags != 0 {
		q.note(NoteNoRight)
		q.refuseFatal(roce.NAKInvalidRequest)
		return false
	}
	return true
}

// remoteMR finds the region that a peer's key names, nil unless it allows the access (10.6.3).
func (q *QP) remoteMR(key uint32, va, length uint64, need Access) *MR {
	m := q.nic.lookupMR(key)
	if m == nil && q.count != nil {
		q.count.unknownKey(key)
	}
	if m == nil || !m.check(q.pd, va, length, need) {
		return nil
	}
	if m.only != nil && m.only != q && q.nic.planted != PlantedForeignWindow {
		return nil // a type 2 window of another queue pair (10.6.7.2)
	}
	return m
}

// loadImmReceive loads the receive request that immediate data uses up. It is the packet with the
// immediate data that is refused if the request is no good, so this comes before the packet is accepted.
func (q *QP) loadImmReceive() bool {
	w := &q.nic.transport.recvWQE
	bad, err := q.peekReceive(w)
	if bad || err != nil {
		q.note(NoteLocal)
		q.takeLoaded(w.WRID)
		e := q.refuseFatal(roce.NAKRemoteOperational)
		e.recvErr, e.cqe.WRID = ring.StatusLocQPOpErr, w.WRID
		return false
	}
	return true
}

// completeWriteImm uses the loaded receive request up; its buffers stay untouched.
func (q *QP) completeWriteImm(p *roce.Packet) {
	wrid := q.nic.transport.recvWQE.WRID
	q.takeLoaded(wrid)
	q.completeReceive(p, wrid, q.resp.total, ring.WCRecvImm, false)
}

// commit has the packet acknowledged when its transfers are done.
func (q *QP) commit(p *roce.Packet, send bool, wrid uint64) {
	e := q.lastEffect(effectCommit)
	if e == nil || e.send != send || e.cqe.WRID != wrid || e.last {
		e = q.effect(effectCommit)
		e.send, e.cqe.WRID = send, wrid
	}
	q.nic.transport.extend(e)
	e.psn = p.BTH.PSN()
	e.last = p.Info.Ends()
	e.ackReq = e.ackReq || p.BTH.AckReq()
	e.bytes += uint32(len(p.Payload))
	if q.nic.planted == PlantedEarlyACK {
		q.commitNow(e)
	}
}

// completeReceive has a receive completed when the packet's transfers are done.
func (q *QP) completeReceive(p *roce.Packet, wrid uint64, length uint32, op ring.WCOpcode, send bool) {
	e := q.effect(effectReceive)
	e.psn, e.send, e.last = p.BTH.PSN(), send, true
	e.ackReq, e.solicited = p.BTH.AckReq(), p.BTH.Solicited()
	e.bytes = uint32(len(p.Payload))
	e.cqe = ring.CQE{WRID: wrid, Opcode: op, ByteLen: length, QPN: q.num, SrcQP: q.attr.DestQPN, PKeyIndex: q.attr.PKeyIndex}
	if p.Info.HasImm {
		e.cqe.Imm, e.cqe.Flags = immediate(p.ImmDt()), ring.WCWithImm
	}
	if h := p.IETH(); h != nil {
		e.cqe.Imm, e.cqe.Flags = h.RKey(), ring.WCWithInv
	}
	if q.nic.planted == PlantedEarlyACK {
		q.commitNow(e)
	}
	if q.nic.planted == PlantedCompletionBeforeData {
		q.receiveDone(e)
		e.kind = effectCommit
	}
}

func (q *QP) receiveRead(p *roce.Packet) {
	r, h := &q.resp, p.RETH()
	length := h.Length()
	if r.reads >= int(q.attr.MaxDestRDAtomic) || length > q.nic.limits.MaxMsgSize {
		if c := q.count; c != nil && r.reads >= int(q.attr.MaxDestRDAtomic) {
			c.TooManyReads++
		}
		if r.reads < int(q.attr.MaxDestRDAtomic) {
			q.note(NoteTooLarge)
		}
		q.note(NoteReads)
		q.refuseFatal(roce.NAKInvalidRequest) // 9.7.4.1: too many outstanding
		return
	}
	if !q.setUpFor(AccessRemoteRead) {
		return
	}
	m, ok := q.readTarget(h)
	if !ok {
		q.noteAccess(h.RKey(), h.VA(), uint64(length), AccessRemoteRead)
		q.refuseAccess()
		return
	}
	e := q.effect(effectRead)
	e.psn, e.packets, e.mr, e.va, e.cqe.ByteLen = r.expected, q.packetsOf(length), m, h.VA(), length
	r.expected = r.expected.Add(int(e.packets))
	r.reads++
	q.save(savedRequest{psn: e.psn, end: r.expected})
}

func (q *QP) readTarget(h roce.RETH) (m *MR, ok bool) {
	if h.Length() == 0 {
		return nil, true
	}
	if q.attr.AccessFlags&AccessRemoteRead != 0 {
		m = q.remoteMR(h.RKey(), h.VA(), uint64(h.Length()), AccessRemoteRead)
	}
	return m, m != nil
}

// packetsOf is the number of packets of a message: one at least.
func (q *QP) packetsOf(length uint32) uint32 {
	return max(1, uint32((uint64(length)+uint64(q.mtu)-1)/uint64(q.mtu)))
}

func (q *QP) receiveAtomic(p *roce.Packet) {
	r, h := &q.resp, p.AtomicETH()
	if r.reads >= int(q.attr.MaxDestRDAtomic) || h.VA()&7 != 0 {
		if c := q.count; c != nil && r.reads >= int(q.attr.MaxDestRDAtomic) {
			c.TooManyReads++
		}
		if h.VA()&7 != 0 {
			q.note(NoteUnaligned)
		}
		q.note(NoteReads)
		q.refuseFatal(roce.NAKInvalidRequest) // 9.4.5: the address is a multiple of 8
		return
	}
	if !q.setUpFor(AccessRemoteAtomic) {
		return
	}
	if !q.executeAtomic(p, h) {
		q.noteAccess(h.RKey(), h.VA(), 8, AccessRemoteAtomic)
		q.refuseAccess()
		return
	}
	e := q.effect(effectAtomic)
	e.psn = r.expected
	r.expected = r.expected.Add(1)
	r.reads++
	q.save(savedRequest{psn: e.psn, end: r.expected, atomic: true})
}

func (q *QP) executeAtomic(p *roce.Packet, h roce.AtomicETH) bool {
	m := q.remoteMR(h.RKey(), h.VA(), 8, AccessRemoteAtomic)
	// An arbitrary iova may align an address that is not aligned in the program.
	if m == nil || m.hostAddr(h.VA())&7 != 0 {
		return false
	}
	op := hostmem.FetchAdd
	if p.Info.Kind == roce.KindCmpSwap {
		op = hostmem.CompareSwap
	}
	q.nic.transport.list.AddAtomic(hostmem.Atomic{Space: m.space, Addr: m.hostAddr(h.VA()), Op: op,
		Operand: h.SwapAdd(), Compare: h.Compare(), Lane: q.num})
	return true
}

// save keeps s for duplicates, in the place of the oldest.
func (q *QP) save(s savedRequest) {
	r := &q.resp
	if len(r.saved) < int(q.attr.MaxDestRDAtomic) {
		if at := r.savedAt % max(1, len(r.saved)); at != 0 { // more are allowed than before: the oldest first
			r.saved = slices.Concat(r.saved[at:], r.saved[:at])
		}
		r.saved, r.savedAt = append(r.saved, s), 0
		return
	}
	if r.savedAt >= len(r.saved) {
		r.savedAt = 0
	}
	r.saved[r.savedAt] = s
	r.savedAt++
}

// findSaved finds the READ or atomic that PSNs [psn, end) belong to: the latest, as an earlier one may have had them when the PSNs went round before.
func (r *responder) findSaved(psn, end roce.PSN, atomic bool) *savedRequest {
	for k := range r.saved {
		s := &r.saved[(r.savedAt+2*len(r.saved)-1-k)%len(r.saved)]
		if s.atomic == atomic && !psn.Before(s.psn) && psn.Before(s.end) && !end.After(s.end) {
			return s
		}
	}
	return nil
}

// receiveDuplicate answers a request whose PSN has been executed already (9.7.5.1).
func (q *QP) receiveDuplicate(p *roce.Packet, psn roce.PSN) {
	switch p.Info.Kind {
	case roce.KindReadRequest:
		h := p.RETH()
		n := q.packetsOf(h.Length())
		// The PSNs of anything larger go round.
		if h.Length() > q.nic.limits.MaxMsgSize || q.resp.findSaved(psn, psn.Add(int(n)), false) == nil {
			q.nic.transport.note = NoteForgotten
			return
		}
		m, ok := q.readTarget(h)
		if !ok {
			// Its window or region is gone since. A requester that has the data already does not look at this NAK;
			// one that has not ends its connection.
			q.effect(effectRefuseAgain).psn = psn
			return
		}
		e := q.effect(effectReadAgain)
		e.psn, e.packets, e.mr, e.va, e.cqe.ByteLen = psn, n, m, h.VA(), h.Length()
	case roce.KindCmpSwap, roce.KindFetchAdd, roce.KindAtomicWrite, roce.KindFlush:
		if q.resp.findSaved(psn, psn.Add(1), true) == nil {
			q.nic.transport.note = NoteForgotten
			return
		}
		if q.nic.planted == PlantedAtomicTwice && p.Info.HasAtomicETH {
			q.executeAtomic(p, p.AtomicETH())
		}
		q.effect(effectAtomicAgain).psn = psn
	default:
		if q.lastEffect(effectAckAgain) == nil {
			q.effect(effectAckAgain)
		}
	}
}

// refuse answers psn with a NAK after which the connection goes on: sequence error.
func (q *QP) refuse(s roce.Syndrome, psn roce.PSN) {
	e := q.effect(effectNAK)
	e.syndrome, e.psn = s, psn
}

// refuseNotReady answers the expected packet with an RNR NAK: no receive is posted (9.7.5.2.8).
func (q *QP) refuseNotReady() {
	if c := q.count; c != nil && c.ReceivesTaken == 0 && q.srq == nil {
		c.LateReceives++
	}
	q.note(NoteNoReceive)
	q.resp.nakSent = true // what follows in flight is dropped until this packet comes again
	q.refuse(roce.RNRSyndrome(q.attr.MinRNRTimer), q.resp.expected)
}

// refuseFatal answers the expected packet with a NAK after which the queue pair is in error.
func (q *QP) refuseFatal(s roce.Syndrome) *effect { return q.refuseFatalAt(s, q.resp.expected) }

func (q *QP) refuseFatalAt(s roce.Syndrome, psn roce.PSN) *effect {
	q.resp.refusing = true
	e := q.effect(effectNAK)
	e.syndrome, e.psn = s, psn
	return e
}

func (q *QP) refuseAccess() { q.refuseFatal(roce.NAKRemoteAccess) }
