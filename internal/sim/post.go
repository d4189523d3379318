package sim

import (
	"errors"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// copyEntries posts a scatter/gather list. An entry without length may name anything.
func (w *world) copyEntries(to, from []ring.SGE) {
	for i, e := range from {
		if e.Length == 0 && w.chance(50) {
			e.Addr, e.LKey = w.rng.Uint64(), w.rng.Uint32()
		}
		to[i] = e
	}
}

// post puts a work request into the send queue.
func (w *world) post(q *qpair, x *work) {
	var e ring.SendWQE
	e.WRID, e.Opcode, e.Imm = x.id, x.op, x.imm
	e.RemoteAddr, e.RKey = x.raddr, x.rkey
	e.Bind, e.Flush = x.bind, x.flush
	e.CompareAdd, e.Swap = x.compare, x.swap
	if x.op == ring.OpFetchAdd {
		e.CompareAdd = x.add
	}
	for _, f := range []struct {
		on  bool
		bit ring.SendFlags
	}{{x.signalled && !(q.sigAll && w.chance(50)), ring.SendSignaled}, {x.fenced, ring.SendFence}, {x.solicited, ring.SendSolicited}, {x.inline, ring.SendInline}} {
		if f.on {
			e.Flags |= f.bit
		}
	}
	e.NumSGE = len(x.sge)
	w.copyEntries(e.SGE[:], x.sge)
	if x.inline {
		e.NumSGE, e.InlineLen = 0, copy(e.Inline[:], x.data)
	}
	if q.ud {
		w.addressDatagram(q, x, &e)
	}
	q.sq.StoreSend(q.sq.Position(), &e, q.ud)
	w.must(q.sq.Publish(), "posting a send")
	w.posted(q, x)
	if x.inline { // the buffer is the program's again
		q.h.mem.scribble(x.local)
	}
}

// posted tells the model.
func (w *world) posted(q *qpair, x *work) {
	x.index = len(q.sends)
	q.sends = append(q.sends, x)
	w.note(q.h, "%v posts %s %x of %d bytes, signalled %v fenced %v inline %v%s", q, OpNames[x.op], x.id, x.n,
		x.signalled, x.fenced, x.inline, x.why)
	if q.ud {
		w.count.PostedUD++
		return
	}
	x.held = q.qp.State() == nic.SQD
	if q.typ == nic.UC {
		w.count.PostedUC++
		return
	}
	w.count.Posted[x.op]++
	x.psnOff, x.psnCount = q.psnCount, max(1, uint32((x.n+q.mtu-1)/q.mtu))
	if x.isHere() {
		x.psnCount = 0
	}
	q.psnCount += x.psnCount
	if x.consumes() {
		x.takes = len(q.consuming)
		q.consuming = append(q.consuming, x)
	}
	if x.isAtomic() && !x.mustFail {
		x.postedAt = w.now
		x.onWord.ops = append(x.onWord.ops, x)
	}
	if x.remoteErr {
		q.peer.hitByPeer = true
	}
	if x.allowed != 0 {
		w.count.Intended++
		q.bomb = x
	}
}

// addressDatagram fills in where a datagram goes.
func (w *world) addressDatagram(q *qpair, x *work, e *ring.SendWQE) {
	e.RemoteQPN, e.RemoteQKey = x.dest.qp.Num(), x.dest.attr.QKey
	if x.group != nil {
		e.RemoteQPN, e.RemoteQKey = 0xffffff, w.qkey
	}
	if !x.reachable {
		e.RemoteQKey ^= 1 << w.rng.IntN(31)
	}
	e.AHNum = w.addressHandle(q.h, x.dest.h, w.anyAddress()).Num()
	if x.group != nil {
		e.AHNum = w.groupHandle(q.h, x.group, w.rng.IntN(2)).Num()
	}
	switch {
	case x.alienAH:
		e.AHNum = w.alienHandle(q.h, x.dest.h)
	case x.strayAH:
		e.AHNum ^= 1 << w.between(8, 31)
	}
}

// alienHandle makes a handle of the other protection domain.
func (w *world) alienHandle(h, to *host) uint32 {
	i := uint8(0)
	if h.removed[i] {
		i = 1
	}
	a, err := h.nic.CreateAH(h.other, route{i, i}.address(to))
	w.must(err, "creating an address handle")
	return a.Num()
}

// addressHandle finds or makes the handle for a host.
func (w *world) addressHandle(h, to *host, index int) *nic.AH {
	key := ahKey{to: to, index: index}
	if a := h.ahs[key]; a != nil {
		return a
	}
	if h.removed[index] { // another address has to do: at most one is gone
		if _, err := h.nic.CreateAH(h.pd, route{uint8(index), uint8(index)}.address(to)); !errors.Is(err, nic.EINVAL) {
			w.fail("host %d: an address handle from an address that is gone: %v", h.index, err)
		}
		return w.addressHandle(h, to, index^1)
	}
	a, err := h.nic.CreateAH(h.pd, route{uint8(index), uint8(index)}.address(to))
	w.must(err, "creating an address handle")
	h.ahs[key] = a
	return a
}
