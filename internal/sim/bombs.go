package sim

import (
	"rnic/internal/hostmem"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// bombKind is an error that a program makes on purpose. After it the connection is broken.
type bombKind int

const (
	bombBadKey bombKind = iota
	bombWrap            // an address just below 2^64: addr + length wraps
	bombBeyond          // a byte beyond the region
	bombBefore          // a byte before it
	bombRights
	bombQPRights // the peer's queue pair does not allow it
	bombForeign  // a key of another protection domain
	bombStale    // a key of a region that is gone
	bombDeregistered
	bombHole // a page of the peer's memory is gone
	bombMisaligned
	bombWindowBeyond  // a byte beyond a window, but not beyond its region
	bombWindowStale   // a window's earlier key
	bombWindowForeign // a window that is bound to another queue pair
	bombInvalidate    // SEND with invalidate of what may not be invalidated
	bombBadLKey
	bombLocalWrap
	bombLocalHole
	bombLocalRights
	bombLocalDeregistered
	bombShortRecv
	bombRecvLKey
	bombRecvHole
	bombKinds
	noBomb bombKind = -1
)

var bombNames = [bombKinds]string{"bad remote key", "remote address that wraps", "remote address beyond the region",
	"remote address before the region", "no remote rights", "no right at the remote queue pair", "key of another protection domain", "stale remote key",
	"region deregistered meanwhile", "hole in the remote memory", "misaligned atomic", "address beyond a window",
	"earlier key of a window", "window of another queue pair", "invalidation of what may not be", "bad local key",
	"local address that wraps", "hole in the local memory", "no local write right", "local region deregistered meanwhile", "receive too short",
	"receive with a bad key", "hole in the receive buffer"}

// ops are the opcodes that the error needs; nil for any.
func (k bombKind) ops() []ring.SendOpcode {
	switch k {
	case noBomb:
		return nil
	case bombBadKey, bombRights, bombQPRights, bombStale, bombForeign, bombBefore:
		return []ring.SendOpcode{ring.OpWrite, ring.OpRead, ring.OpWriteImm, ring.OpFetchAdd, ring.OpCompareSwap, ring.OpAtomicWrite}
	case bombMisaligned:
		return []ring.SendOpcode{ring.OpFetchAdd, ring.OpCompareSwap, ring.OpAtomicWrite}
	case bombInvalidate:
		return []ring.SendOpcode{ring.OpSendInv}
	case bombBadLKey, bombLocalWrap, bombLocalHole, bombLocalDeregistered:
		return []ring.SendOpcode{ring.OpWrite, ring.OpRead, ring.OpSend, ring.OpWriteImm, ring.OpSendImm}
	case bombLocalRights:
		return []ring.SendOpcode{ring.OpRead}
	case bombShortRecv, bombRecvLKey, bombRecvHole:
		return []ring.SendOpcode{ring.OpSend, ring.OpSendImm}
	}
	return []ring.SendOpcode{ring.OpWrite, ring.OpRead, ring.OpWriteImm}
}

// local tells whether the error is in the sender's own buffers.
func (k bombKind) local() bool { return k >= bombBadLKey && k <= bombLocalDeregistered }

// plant puts the error into a work request that is otherwise good.
func (w *world) plant(q *qpair, x *work, k bombKind) {
	x.mustFail, x.why = true, ": "+bombNames[k]
	switch {
	case k.local():
		x.allowed = statuses(ring.StatusLocProtErr)
		w.plantLocal(q, x, k)
	case k >= bombShortRecv:
		w.plantReceive(q, x, k)
	default:
		x.remoteErr = true
		x.allowed = statuses(ring.StatusRemAccessErr)
		w.plantRemote(q, x, k)
	}
}

func (w *world) plantRemote(q *qpair, x *work, k bombKind) {
	r, p := x.remote.r, q.peer.h
	switch k {
	case bombBadKey:
		x.rkey ^= 1 << w.rng.IntN(32)
	case bombWrap:
		x.raddr = -uint64(w.between(1, x.n-1))
	case bombBeyond:
		x.raddr = r.iova + uint64(r.size-x.n+w.between(1, x.n))
	case bombBefore:
		x.raddr = r.iova - uint64(max(8, w.between(1, x.n)&^7))
	case bombRights:
		s := p.mem.regions[pick(w, regionLocal, regionSource)]
		x.rkey, x.raddr = s.mr.RKey(), s.iova+uint64(w.rng.IntN(s.size-x.n)&^7)
	case bombQPRights:
		x.allowed = statuses(ring.StatusRemInvReqErr)
	case bombForeign:
		x.rkey = p.alien.RKey()
		if x.isWord() {
			x.raddr = p.mem.regions[regionMoved].iova &^ 7
			x.raddr += 8
		}
	case bombStale:
		mr := w.temporary(p, x.remote)
		x.rkey = mr.RKey()
		if w.chance(50) {
			w.reregister(p, mr, x.remote)
			break
		}
		w.must(mr.Dereg(), "deregistering memory")
		if w.chance(50) {
			w.temporary(p, x.remote) // takes its place in the NIC's tables, perhaps
		}
	case bombDeregistered:
		x.mustFail = false
		x.partial = true
		mr := w.temporary(p, x.remote)
		x.rkey = mr.RKey()
		w.after(w.nanos(1000, pick(w, int64(50_000), 300_000)), func() { w.deregister(p, mr, x) })
	case bombHole:
		x.allowed = statuses(ring.StatusRemOpErr, ring.StatusRemAccessErr)
		x.partial = true
		w.hole(x.remote)
	case bombMisaligned:
		x.allowed = statuses(ring.StatusRemInvReqErr)
		x.raddr += uint64(w.between(1, 7))
	case bombWindowBeyond, bombWindowStale, bombWindowForeign:
		w.plantWindow(q, x, k)
	case bombInvalidate:
		w.plantInvalidate(q, x)
	}
}

// temporary registers a region over s alone.
func (w *world) temporary(h *host, s seg) *nic.MR {
	mr, err := h.nic.RegMR(h.pd, &h.mem.space, h.mem.va(s.off), uint64(s.n), s.addr(), allAccess)
	w.must(err, "registering memory")
	return mr
}

// reregister changes a region in some way: its keys end.
func (w *world) reregister(h *host, mr *nic.MR, s seg) {
	flags := nic.ReregFlags(w.between(1, 7))
	_, err := h.nic.ReregMR(mr, flags, nic.Region{PD: h.pd, Space: &h.mem.space, Start: h.mem.va(s.off), Length: uint64(s.n),
		IOVA: s.addr(), Access: allAccess})
	w.must(err, "reregistering memory")
	w.count.Reregistered++
}

// deregister ends the region that x is meant for. From now on nothing may come in.
func (w *world) deregister(h *host, mr *nic.MR, x *work) {
	w.note(h, "deregisters key %x", mr.RKey())
	w.must(mr.Dereg(), "deregistering memory")
	target := []seg{x.remote}
	if x.isWrite() && !x.final && !x.landed {
		_, x.landed = h.mem.holds(target, x.data)
		if !x.landed && !h.mem.mixes(target, x.data) {
			w.fail("%s left bytes in its target that are neither old nor its own", x)
		}
	}
	x.closed = true
	h.mem.scribble(target)
}

// deregisterLocal is deregister for entry i of x's own list.
func (w *world) deregisterLocal(h *host, mr *nic.MR, x *work, i int) {
	w.note(h, "deregisters local key %x", mr.LKey())
	w.must(mr.Dereg(), "deregistering memory")
	x.shut, x.shutLanded = x.local[i], x.landed
	if x.op == ring.OpRead && !x.landed && !x.final {
		off := 0
		for _, s := range x.local[:i] {
			off += s.n
		}
		_, x.shutLanded = h.mem.holds([]seg{x.shut}, x.data[off:off+x.shut.n])
		if !h.mem.mixes([]seg{x.shut}, x.data[off:]) {
			w.fail("%s left bytes in its buffer that are neither old nor its own", x)
		}
	}
	h.mem.scribble([]seg{x.shut})
}

// scribble is the program, using memory for something else: what it writes is what must stay there.
func (a *arena) scribble(segs []seg) {
	for _, s := range segs {
		for i := s.off; i < s.off+s.n; i++ {
			a.space.Mem[i] ^= 0xff
		}
	}
	a.accept(segs)
}

// hole makes a part of s inaccessible, as if the program had unmapped it.
func (w *world) hole(s seg) {
	n := w.between(1, s.n)
	sp := &s.r.a.space
	sp.Holes = append(sp.Holes, hostmem.Range{Addr: s.r.a.va(s.off + w.rng.IntN(s.n-n+1)), Len: uint64(n)})
}

// plantLocal needs a scatter/gather entry that is not empty.
func (w *world) plantLocal(q *qpair, x *work, k bombKind) {
	i := x.someEntry()
	switch k {
	case bombBadLKey:
		x.sge[i].LKey ^= 1 << w.rng.IntN(32)
	case bombLocalWrap:
		x.sge[i].Addr = -uint64(w.between(1, x.local[i].n))
		if x.local[i].n == 1 {
			x.sge[i].Addr = x.local[i].r.iova - 1
		}
	case bombLocalHole:
		x.partial = true
		w.hole(x.local[i])
	case bombLocalRights:
		s := q.h.mem.regions[regionSource]
		x.sge[i].LKey, x.sge[i].Addr = s.mr.LKey(), s.iova
		x.sge[i].Length = min(x.sge[i].Length, uint32(s.size))
	case bombLocalDeregistered:
		x.mustFail, x.partial = false, true
		mr := w.temporary(q.h, x.local[i])
		x.sge[i].LKey = mr.LKey()
		w.after(w.nanos(1000, 300_000), func() { w.deregisterLocal(q.h, mr, x, i) })
	}
}

func (x *work) someEntry() int {
	for i, s := range x.local {
		if s.n > 0 {
			return i
		}
	}
	panic(&Violation{What: "simulator: no entry to spoil"})
}

// spoilReceive gives a receive that is not posted yet a bad key.
func (w *world) spoilReceive(r *work, n int) {
	if i := r.someEntryIn(n); i >= 0 {
		r.sge[i].LKey ^= 1 << w.rng.IntN(32)
		r.allowed, r.mustFail = statuses(ring.StatusLocProtErr), true
	}
}

// plantReceive puts the error into the receive of the message, as far as it can be.
func (w *world) plantReceive(q *qpair, x *work, k bombKind) {
	r := x.match
	i := r.someEntryIn(x.n)
	switch {
	case r.mustFail: // spoilReceive
		x.allowed = statuses(ring.StatusRemOpErr)
	case r.capacity() < x.n:
		x.why = ": receive too short"
		r.allowed, r.mustFail = statuses(ring.StatusLocLenErr), true
		x.allowed = statuses(ring.StatusRemInvReqErr)
	case k == bombRecvHole && i >= 0:
		r.allowed, r.mustFail = statuses(ring.StatusLocProtErr), true
		x.allowed = statuses(ring.StatusRemOpErr)
		w.hole(seg{r.local[i].r, r.local[i].off, 1})
	default:
		x.mustFail, x.why = false, ""
	}
}

// someEntryIn finds an entry of the list that a message of n bytes reaches; -1 if there is none.
func (x *work) someEntryIn(n int) int {
	for i, s := range x.local {
		if s.n > 0 && n > 0 {
			return i
		}
		n -= s.n
	}
	return -1
}

// permits tells whether a queue pair with these rights lets the peer do op.
func permits(rights nic.Access, op ring.SendOpcode) bool {
	switch op {
	case ring.OpWrite, ring.OpWriteImm, ring.OpAtomicWrite:
		return rights&nic.AccessRemoteWrite != 0
	case ring.OpFlush:
		return rights&nic.AccessFlushGlobal != 0
	case ring.OpRead:
		return rights&nic.AccessRemoteRead != 0
	case ring.OpCompareSwap, ring.OpFetchAdd:
		return rights&nic.AccessRemoteAtomic != 0
	}
	return true
}
