package nic

import (
	"encoding/binary"

	"rnic/internal/hostmem"
	"rnic/internal/roce"
)

// ATOMIC WRITE and FLUSH, the memory placement extensions of annex A19. Both are answered by an RDMA READ
// response without data, and take the place of a READ among those that may be outstanding; a duplicate is
// answered again and not executed again.

// receiveAtomicWrite stores eight aligned bytes at once (A19.4.2).
func (q *QP) receiveAtomicWrite(p *roce.Packet) {
	r, h := &q.resp, p.RETH()
	if r.reads >= int(q.attr.MaxDestRDAtomic) || len(p.Payload) != 8 || h.Length() != 8 || h.VA()&7 != 0 {
		switch {
		case h.VA()&7 != 0:
			q.note(NoteUnaligned)
		case len(p.Payload) != 8 || h.Length() != 8:
			q.note(NoteLength)
		}
		q.note(NoteReads)
		q.refuseFatal(roce.NAKInvalidRequest)
		return
	}
	if !q.setUpFor(AccessRemoteWrite) {
		return
	}
	m := q.remoteMR(h.RKey(), h.VA(), 8, AccessRemoteWrite)
	if m == nil || m.hostAddr(h.VA())&7 != 0 {
		q.noteAccess(h.RKey(), h.VA(), 8, AccessRemoteWrite)
		q.refuseAccess()
		return
	}
	q.nic.transport.list.AddAtomic(hostmem.Atomic{Space: m.space, Addr: m.hostAddr(h.VA()), Op: hostmem.Store,
		Operand: binary.NativeEndian.Uint64(p.Payload), Lane: q.num})
	q.acceptPlaced()
}

// receiveFlush answers when everything that was written before has been placed: which it has whenever an
// answer is sent, because a program's memory is all that there is to place it in.
func (q *QP) receiveFlush(p *roce.Packet) {
	r, h, f := &q.resp, p.RETH(), p.FETH()
	place, sel := f.Placement(), f.Selectivity()
	if r.reads >= int(q.attr.MaxDestRDAtomic) || place == 0 || place&^(roce.PlaceGlobal|roce.PlacePersistent) != 0 ||
		sel > roce.SelectRegion || sel == roce.SelectRange && h.Length() > q.nic.limits.MaxMsgSize {
		if r.reads < int(q.attr.MaxDestRDAtomic) {
			q.note(NotePlacement)
		}
		q.note(NoteReads)
		q.refuseFatal(roce.NAKInvalidRequest)
		return
	}
	need := rightsFor(place)
	if !q.setUpFor(need) {
		return
	}
	if !q.mayFlush(h, need, sel) {
		q.noteAccess(h.RKey(), h.VA(), uint64(h.Length()), need)
		q.refuseAccess()
		return
	}
	q.acceptPlaced()
}

// rightsFor are what a placement needs.
func rightsFor(place roce.Placement) (need Access) {
	if place&roce.PlaceGlobal != 0 {
		need |= AccessFlushGlobal
	}
	if place&roce.PlacePersistent != 0 {
		need |= AccessFlushPersist
	}
	return need
}

// mayFlush tells whether the region grants the rights.
func (q *QP) mayFlush(h roce.RETH, need Access, sel roce.Selectivity) bool {
	if sel == roce.SelectRange {
		return q.remoteMR(h.RKey(), h.VA(), uint64(h.Length()), need) != nil
	}
	m := q.nic.lookupMR(h.RKey())
	return m != nil && q.remoteMR(h.RKey(), m.iova, m.length, need) != nil
}

// acceptPlaced moves on behind the request, which is executed with the transfers so far.
func (q *QP) acceptPlaced() {
	r := &q.resp
	e := q.effect(effectPlaced)
	e.psn = r.expected
	r.expected = r.expected.Add(1)
	r.reads++
	q.save(savedRequest{psn: e.psn, end: r.expected, atomic: true, places: true})
}
