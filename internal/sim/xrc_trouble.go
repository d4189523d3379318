package sim

import (
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// What can go wrong with XRC, and what its programs do besides sending.

// troubleXRC decides what the programs do to a connection that has just been made.
func (w *world) troubleXRC(s *xrcSender) {
	maybe := func(percent int, do func()) {
		if w.chance(percent) {
			w.after(w.nanos(1000, 600_000), func() {
				if !s.failed && !s.tgtDown {
					do()
				}
			})
		}
	}
	modify := func(e *pathEnd, a *nic.Attr, mask nic.AttrMask) {
		w.note(e.h, "%s goes to %v", e.name(), a.State)
		w.must(e.h.nic.Modify(w.now, e.qp, a, mask), "modify of "+e.name())
		e.h.look("modify of XRC")
		e.h.driveSoon()
	}
	ini, tgt := s.flow.ends[0], s.flow.ends[1]
	maybe(20, func() {
		if s.qp.State() == nic.RTS {
			modify(ini, &nic.Attr{State: nic.SQD, EnSQDAsyncNotify: 1}, nic.AttrState|nic.AttrEnSQDAsyncNotify)
		}
	})
	maybe(15, func() {
		if s.tgt.State() == nic.RTS { // it goes on answering (10.3.1.5)
			modify(tgt, &nic.Attr{State: nic.SQD, EnSQDAsyncNotify: 1}, nic.AttrState|nic.AttrEnSQDAsyncNotify)
		}
	})
	maybe(4, func() {
		w.breakXRC(s)
		modify(ini, &nic.Attr{State: nic.Err}, nic.AttrState)
	})
	maybe(4, func() {
		w.breakXRC(s)
		s.reset = true
		modify(ini, &nic.Attr{State: nic.Reset}, nic.AttrState)
	})
	maybe(8, func() {
		s.tgtDown = true // the initiator's retries run out
		modify(tgt, &nic.Attr{State: pick(w, nic.Err, nic.Err, nic.Reset)}, nic.AttrState)
	})
}

// breakXRC is the end of a connection: both ends are destroyed once everything has been flushed.
func (w *world) breakXRC(s *xrcSender) {
	s.failed = true
	w.after(flushNanos, func() {
		w.must(s.qp.Destroy(), "destroying an XRC initiator")
		w.must(s.tgt.Destroy(), "destroying an XRC target")
		s.flow.ends[0].over, s.flow.ends[1].over = true, true
	})
}

// drainedXRC is the event that everything which had begun when an end entered SQD has completed (10.3.1.5).
func (w *world) drainedXRC(s *xrcSender, qp *nic.QP) {
	if s.failed {
		return
	}
	e := s.flow.ends[0]
	if qp == s.tgt {
		e = s.flow.ends[1]
	}
	if qp.State() != nic.SQD {
		w.fail("%s is in %v and reports that its send queue is drained", e.name(), qp.State())
	}
	w.after(w.nanos(0, 100_000), func() {
		if qp.State() == nic.SQD && !s.failed {
			w.must(e.h.nic.Modify(w.now, qp, &nic.Attr{State: nic.RTS}, nic.AttrState), "leaving SQD")
			e.h.driveSoon()
		}
	})
}

// chooseXRCBomb makes an error of a message: its target does not allow it.
func (w *world) chooseXRCBomb(m *xrcSend) {
	m.mustFail = true
	w.count.Intended++
	switch w.rng.IntN(3) {
	case 0:
		m.op = pick(w, ring.OpWrite, ring.OpRead)
		m.n = max(m.n, 1)
		m.key ^= 1 << w.rng.IntN(32)
		m.allowed = statuses(ring.StatusRemAccessErr)
	case 1:
		m.op = ring.OpSendInv // no window is a target's: they are bound to queue pairs that send (10.6.7.2, A14)
		m.allowed = statuses(ring.StatusRemAccessErr, ring.StatusRemInvReqErr)
	default:
		m.op = pick(w, ring.OpSend, ring.OpSendImm, ring.OpWrite)
		m.srq ^= 1 << w.rng.IntN(24)
		m.allowed = statuses(ring.StatusRemInvReqErr)
	}
}

// windowForXRC finds a window that the message may go through: of type 1, which is bound to no queue pair, and of
// the first queue's protection domain.
func (w *world) windowForXRC(s *xrcSender, m *xrcSend) *region {
	if m.index != 0 || m.atomic() || m.n == 0 || !w.chance(40) {
		return nil
	}
	for _, q := range s.g.h.qps {
		for _, v := range q.windows {
			if v.typ == nic.MWType1 && !v.busy && v.grants(m.op, m.n) && m.n+32 <= v.now.off+v.now.size-v.now.next {
				w.count.XRCWindows++
				return v.now
			}
		}
	}
	return nil
}

// idle tells whether nothing of XRC is under way through the window.
func (v *window) idle() bool {
	for _, m := range v.remote {
		if !m.over {
			return false
		}
	}
	return true
}

// windowGone tells whether the message goes through a window that was taken down with its connection.
func (m *xrcSend) windowGone() bool {
	return m.remote.r.win != nil && m.remote.r.win.bound != m.remote.r
}

// mayFailXRC tells whether a message may complete with this error.
func (w *world) mayFailXRC(s *xrcSender, m *xrcSend, status ring.Status) bool {
	return m.allowed.has(status) || status == ring.StatusRemAccessErr && m.windowGone() || status == ring.StatusRetryExcErr && (s.tgtDown || s.late)
}

// receiveFailedXRC judges a receive that fails, and tells whether it does.
func (w *world) receiveFailedXRC(s *xrcSender, r *xrcRecv, i int, e *ring.CQE) bool {
	var m *xrcSend
	if len(s.coming[i]) > 0 {
		m = s.coming[i][0]
	}
	inHole := r.hole && m != nil && m.n > 0 && !m.writes()
	switch {
	case e.Status == ring.StatusSuccess && !inHole && !(m != nil && m.mustFail):
		return false
	case e.Status == ring.StatusWRFlushErr && s.tgt.State() == nic.Err:
	case e.Status == ring.StatusLocProtErr && inHole:
		m.allowed |= statuses(ring.StatusRemOpErr)
	case e.Status == ring.StatusRemInvReqErr && m != nil && m.op == ring.OpSendInv:
	default:
		w.fail("a receive of an XRC queue completes with %q, for which there is no cause", e.Status)
	}
	s.tgtDown = true
	s.g.h.mem.accept([]seg{r.at})
	return true
}

// expectsError tells whether a target may report an error.
func (s *xrcSender) expectsError() bool {
	for _, m := range s.sends {
		if m.allowed != 0 || m.windowGone() {
			return true
		}
	}
	return false
}

// forgeXRC is forge for an XRC connection.
func (w *world) forgeXRC() {
	g := w.xrcs[w.rng.IntN(len(w.xrcs))]
	s := g.senders[w.rng.IntN(len(g.senders))]
	e := s.flow.ends[w.rng.IntN(2)]
	op := pick(w, roce.RCSendOnly, roce.RCSendOnlyImm, roce.RCSendFirst, roce.RCSendOnlyInv, roce.RCWriteOnly, roce.RCWriteOnlyImm, roce.RCReadRequest,
		roce.RCFetchAdd, roce.RCCmpSwap)
	if e.qp == s.qp {
		op = pick(w, roce.RCAck, roce.RCReadResponseOnly, roce.RCAtomicAck)
	}
	op += roce.XRCSendFirst - roce.RCSendFirst
	info, q := op.Info(), g.queues[0]
	pkt := make([]byte, info.HeaderLen+8)
	if !info.Payload {
		pkt = pkt[:info.HeaderLen]
	}
	psn := roce.PSN(s.attr.SQPSN).Add(w.between(-1, s.psns+1))
	roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: op, PKey: 0xffff, DestQP: e.qp.Num(), PSN: psn, AckReq: true, MigReq: w.chance(50)})
	if h := info.XRCETH(pkt); h != nil {
		h.Encode(&roce.XRCETHFields{SRQ: q.srq.Num()})
	}
	if h := info.RETH(pkt); h != nil {
		h.Encode(&roce.RETHFields{VA: q.r.iova, RKey: q.lkey, Length: 8})
	}
	if h := info.AtomicETH(pkt); h != nil {
		h.Encode(&roce.AtomicETHFields{VA: e.h.words[0].at.addr(), RKey: q.lkey, SwapAdd: 1})
	}
	if h := info.AETH(pkt); h != nil {
		h.Encode(&roce.AETHFields{Syndrome: pick(w, roce.ACKSyndrome(31), roce.NAKRemoteAccess, roce.NAKSequence, roce.RNRSyndrome(3))})
	}
	path := roce.Path{Src: w.unknown(e.primary.family()), Dst: e.h.addrs[e.primary.src], SrcPort: 0xc123, TTL: 64}
	w.notePacket(e.h, "is sent a forged", pkt)
	p := w.packet(&path, pkt)
	p.forged, p.faults = true, 1<<FaultForged
	e.h.arrive(p)
}
