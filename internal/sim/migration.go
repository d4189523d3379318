package sim

import (
	"errors"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// Automatic path migration (17.2.8). The model goes through the states of both ends itself, by what arrives, what the
// programs ask for and which addresses go down, and checks at any time that the NIC is in the same state, sends by the
// right path with the right MigReq, and reports what has happened. Only when retries are used up is the NIC's to say:
// there the model checks that there was a cause, and that an armed queue pair does not give up instead.

// A flow is a connection as its paths see it.
type flow struct {
	ends     [2]*pathEnd
	on       bool        // its programs use alternate paths
	alive    func() bool // it is in use
	life     int         // connections made so far
	round    int         // of the alternate path that the programs have agreed upon
	next     route       // that path, as the first end sees it
	nextPKey int         // and its partition
	mismatch int64       // when it last was that one end would not take what the other sent
}

// pathEnd is one end of a flow.
type pathEnd struct {
	flow *flow
	h    *host
	qp   *nic.QP
	q    *qpair // nil: XRC
	over bool   // XRC: it has been destroyed
	peer *pathEnd

	state                uint8 // nic.MigMigrated and so on
	primary, alt, former route
	loaded, hasFormer    bool
	told                 bool // that alt cannot be used
	altTimeout           uint8
	altPKey              uint16
	pkey, formerPKey     uint16
	timeout, retryCnt    uint8
	round                int   // the latest in which it was armed
	armedAt              int64 // when it heard that the peer is ready
	migratedAt           int64 // 0: never
	heard                int   // responses since

	owed, owedErr int // events that must come with the present call
	got, gotErr   int
}

// dead tells whether the queue pair has been destroyed.
func (e *pathEnd) dead() bool { return e.over || e.q != nil && e.q.gone }

func (e *pathEnd) name() string {
	if e.q != nil {
		return e.q.String()
	}
	return "XRC " + e.qp.String()
}

// newFlow makes the flow of two queue pairs.
func (w *world) newFlow(a, b *pathEnd) *flow {
	f := &flow{ends: [2]*pathEnd{a, b}}
	a.peer, b.peer = b, a
	for _, e := range f.ends {
		e.flow = f
		e.h.ends = append(e.h.ends, e)
	}
	return f
}

// begin is a new connection by a route, as the first end sees it.
func (f *flow) begin(w *world, r route, attrs [2]*nic.Attr) {
	f.life++
	f.on, f.round, f.mismatch = w.paths && w.chance(60), 0, 0
	for i, e := range f.ends {
		*e = pathEnd{flow: f, h: e.h, qp: e.qp, q: e.q, peer: e.peer, primary: r}
		e.pkey, e.timeout, e.retryCnt = attrs[i].PKeyIndex, attrs[i].Timeout, attrs[i].RetryCnt
		r = r.back()
	}
	if f.on {
		w.count.Migrating++
		if w.chance(40) {
			w.agree(f)
		}
		life := f.life
		for range w.between(1, 3) {
			w.after(w.nanos(50_000, pick(w, int64(500_000), 5_000_000)), func() { w.failPath(f, life) })
		}
		w.after(w.nanos(0, 300_000), func() { w.manage(f, life, w.between(4, 14)) })
	}
}

// failPath makes the path that an end sends by silent, or that by which it hears, or both.
func (w *world) failPath(f *flow, life int) {
	if f.life != life || !f.alive() {
		return
	}
	e := f.ends[w.rng.IntN(2)]
	nanos := pick(w, w.nanos(100_000, 5_000_000), w.nanos(5_000_000, 100_000_000), w.nanos(100_000_000, 900_000_000), maxVirtualNanos)
	direction := w.rng.IntN(3)
	w.note(e.h, "route %v of %s fails, direction %d, for %s", e.primary, e.name(), direction, clock(nanos))
	if direction != 1 {
		e.there().hush(e.primary.bit(), nanos)
	}
	if direction != 0 {
		e.peer.there().hush(e.primary.back().bit(), nanos)
	}
}

// there is the wire to the peer.
func (e *pathEnd) there() *wire { return e.h.wires[e.peer.h.index] }

// takes tells whether the end would take a packet that the peer sends now.
func (e *pathEnd) takes() bool {
	by, req := e.peer.primary.back(), e.peer.state == nic.MigMigrated
	switch {
	case by == e.primary:
		return true
	case e.state == nic.MigMigrated:
		return !req && e.hasFormer && by == e.former
	}
	return req && e.loaded && by == e.alt && e.h.usable(e.alt.src)
}

// noteMismatch is called before anything changes: what was so far was so until now.
func (w *world) noteMismatch(f *flow) {
	if !f.ends[0].takes() || !f.ends[1].takes() {
		f.mismatch = w.now
	}
}

// cutOff tells whether the end's path has failed since it has gone over to it, or one end has not taken what the other sent.
func (w *world) cutOff(e *pathEnd) bool {
	w.noteMismatch(e.flow)
	if e.flow.mismatch != 0 && e.flow.mismatch >= e.migratedAt || e.there().silentSince(e.primary.bit(), e.migratedAt) {
		return true
	}
	p := e.peer
	routes := p.primary.bit() | e.primary.back().bit()
	if p.hasFormer {
		routes |= p.former.bit()
	}
	return p.there().silentSince(routes, e.migratedAt)
}

// checkGivesUp is called when the retries of an end are used up: an armed one goes over instead, and who has gone over has
// all of its retries anew, each of which waits for the timeout unless something was heard.
func (w *world) checkGivesUp(e *pathEnd, what string) {
	if e.state == nic.MigArmed && e.h.usable(e.alt.src) && e.armedAt < w.now {
		w.fail("%s gives up %s although its alternate path is armed (17.2.8.1.3)", e.name(), what)
	}
	w.checkRetries(e, what+" is given up")
}

// checkRetries holds when retries are used up some time after a migration.
func (w *world) checkRetries(e *pathEnd, what string) {
	if e.migratedAt == 0 {
		return
	}
	least := roce.TimeoutNanos(e.timeout) * int64(max(0, int(e.retryCnt)-e.heard))
	if waited := w.now - e.migratedAt; waited < least {
		w.fail("%s: %s %s after its migration: its timeout and its retries, which count anew, make %s at least", e.name(), what, clock(waited), clock(least))
	}
}

// pathArrive takes a packet through the rules of 17.2.8.1, and tells whether the queue pair takes it.
func (w *world) pathArrive(e *pathEnd, p *packet, pkt *roce.Packet) bool {
	switch e.qp.State() {
	case nic.RTS, nic.SQD, nic.SQE:
		if e.dead() {
			return false
		}
	case nic.RTR:
		if !pkt.Info.Request {
			return false
		}
	default:
		return false
	}
	src, dst := e.peer.h.addrIndex(p.path.Src), e.h.addrIndex(p.path.Dst)
	if src < 0 || dst < 0 {
		return false
	}
	by, req := route{uint8(dst), uint8(src)}, pkt.BTH.MigReq()
	primary, key := by == e.primary, e.pkey
	switch {
	case primary:
	case e.state == nic.MigMigrated:
		return !req && e.hasFormer && by == e.former && e.inPartition(e.formerPKey, pkt)
	case !req || !e.loaded || by != e.alt:
		return false
	default:
		key = e.altPKey
	}
	switch {
	case !e.inPartition(key, pkt):
		return false
	case e.state == nic.MigMigrated:
	case !req:
		if e.state == nic.MigRearm {
			w.note(e.h, "%s is armed", e.name())
			w.noteMismatch(e.flow)
			e.state, e.armedAt = nic.MigArmed, w.now
			w.count.Armed++
		}
	case by != e.alt || primary && e.state == nic.MigRearm:
	default:
		return w.migrate(e, "its peer has") || primary
	}
	return true
}

// inPartition tells whether a packet is of the partition that the path by which it came has (9.6.1).
func (e *pathEnd) inPartition(index uint16, pkt *roce.Packet) bool {
	return (pkt.BTH.PKey()^e.h.pkeys[index])&0x7fff == 0
}

// migrate is a migration that must happen, or be reported as impossible.
func (w *world) migrate(e *pathEnd, why string) bool {
	if !e.loaded || !e.h.usable(e.alt.src) {
		if !e.told {
			w.note(e.h, "%s cannot migrate: %s", e.name(), why)
			e.owedErr++
		}
		e.told = true
		return false
	}
	w.note(e.h, "%s migrates from %v to %v: %s", e.name(), e.primary, e.alt, why)
	w.count.Migrations++
	e.owed++
	w.gone(e)
	return true
}

// gone is what a migration changes.
func (w *world) gone(e *pathEnd) {
	w.noteMismatch(e.flow)
	e.former, e.hasFormer, e.formerPKey = e.primary, true, e.pkey
	e.primary, e.loaded, e.state = e.alt, false, nic.MigMigrated
	e.pkey, e.timeout = e.altPKey, e.altTimeout
	e.migratedAt, e.heard = w.now, 0
	if q := e.q; q != nil {
		q.attr.PKeyIndex, q.attr.Timeout = e.pkey, e.timeout
		q.congested.sentFrom, q.congested.sent = 0, 0 // what it knew of the old path's rate does not count
	}
}

// endOf is the end whose queue pair an event is of.
func (h *host) endOf(qp *nic.QP) *pathEnd {
	for _, e := range h.ends {
		if e.qp == qp {
			return e
		}
	}
	h.w.fail("host %d: an event of migration of QP %06x, which is not connected", h.index, qp.Num())
	return nil
}

// migrated is the event PATH_MIG (11.6.3.1).
func (w *world) migrated(h *host, qp *nic.QP) {
	e := h.endOf(qp)
	if e.got++; e.got <= e.owed {
		return
	}
	// Nobody but the NIC knows when its retries are used up.
	if e.owed++; e.state != nic.MigArmed || !e.loaded || !h.usable(e.alt.src) || !w.mayRunOut(e) {
		w.fail("%s migrates in migration state %d, for which there is no cause", e.name(), e.state)
	}
	w.checkRetries(e, "it goes over")
	w.note(h, "%s has migrated from %v to %v: its retries are used up", e.name(), e.primary, e.alt)
	w.count.Failovers++
	w.gone(e)
	if w.chance(40) { // the new path takes a while, too
		nanos := roce.TimeoutNanos(max(e.timeout, 10)) * int64(w.between(1, 3))
		e.there().hush(e.primary.bit(), nanos)
	}
}

// mayRunOut tells whether the retries of an end may be used up.
func (w *world) mayRunOut(e *pathEnd) bool {
	if w.cutOff(e) || len(e.there().outages)+len(e.peer.there().outages) > 0 {
		return true
	}
	return e.q != nil && e.q.mayLose()
}

// cannotMigrate is the event PATH_MIG_ERR (11.6.3.2).
func (w *world) cannotMigrate(h *host, qp *nic.QP) {
	e := h.endOf(qp)
	if e.gotErr++; e.gotErr <= e.owedErr {
		return
	}
	if e.owedErr++; e.state != nic.MigArmed || e.told || h.usable(e.alt.src) || !w.mayRunOut(e) {
		w.fail("%s cannot migrate in migration state %d, for which there is no cause", e.name(), e.state)
	}
	e.told = true
}

// checkPaths compares every end of a host with the model, after every call.
func (w *world) checkPaths(h *host, after string) {
	for _, e := range h.ends {
		if e.owed != e.got || e.owedErr != e.gotErr {
			w.fail("%s, after %s: %d events of migration and %d that it is impossible, instead of %d and %d",
				e.name(), after, e.got, e.gotErr, e.owed, e.owedErr)
		}
		w.count.PathErrors += uint64(e.gotErr)
		e.owed, e.got, e.owedErr, e.gotErr = 0, 0, 0, 0
		if !e.flow.on || e.dead() || after == "transmit" || after == "gather" { // sending changes nothing
			continue
		}
		switch s := e.qp.State(); s {
		case nic.RTR, nic.RTS, nic.SQD, nic.SQE:
			if a, _ := e.qp.Query(); a.PathMigState != e.state || a.AH.SGIDIndex != e.primary.src {
				w.fail("%s, after %s: it is in migration state %d on address %d, and should be in %d on %d", e.name(), after, a.PathMigState,
					a.AH.SGIDIndex, e.state, e.primary.src)
			}
		}
	}
}

// checkSent checks by which path a packet leaves, and whether it asks for a migration (17.2.8.1.1).
func (w *world) checkSent(e *pathEnd, p *nic.TxPacket, pkt *roce.Packet) {
	want := e.primary
	if p.Path.Src != e.h.addrs[want.src] || p.Path.Dst != e.peer.h.addrs[want.dst] {
		w.fail("%s sends %s from %v to %v: its path is %v", e.name(), pkt.Info.Name, p.Path.Src, p.Path.Dst, want)
	}
	if req := pkt.BTH.MigReq(); req != (e.state == nic.MigMigrated) {
		w.fail("%s sends %s with MigReq %v in migration state %d", e.name(), pkt.Info.Name, req, e.state)
	}
}

// ---- The programs.

// manage has the programs of a flow do what a connection manager does, for a while.
func (w *world) manage(f *flow, life, left int) {
	if left == 0 || f.life != life || !f.alive() {
		return
	}
	if a, b := f.ends[0], f.ends[1]; a.state == nic.MigMigrated && b.state == nic.MigMigrated && a.round == f.round && b.round == f.round && w.calm(f) {
		w.agree(f)
	}
	for _, e := range f.ends {
		if a, _ := e.qp.Query(); a.State == nic.RTS || a.State == nic.SQD && !a.SQDraining {
			w.tend(e)
		}
	}
	w.after(w.nanos(5_000, pick(w, int64(50_000), 300_000, 3_000_000, 100_000_000)), func() { w.manage(f, life, left-1) })
}

// agree chooses the next alternate path.
func (w *world) agree(f *flow) {
	f.round++
	f.nextPKey = w.rng.IntN(2)
	for f.next = w.randomRoute(); f.next == f.ends[0].primary && w.chance(95); {
		f.next = w.randomRoute()
	}
}

// calm tells whether nothing from before the last migration can be under way any more: the programs wait for that before
// they use a path again.
func (w *world) calm(f *flow) bool {
	quiet := f.ends[0].there().delayBound() + f.ends[1].there().delayBound()
	return w.now-max(f.ends[0].migratedAt, f.ends[1].migratedAt) > quiet || f.round == 0
}

// tend is the turn of the program at one end.
func (w *world) tend(e *pathEnd) {
	if w.chance(10) {
		w.askWrongly(e)
	}
	switch {
	case e.state == nic.MigMigrated && e.round < e.flow.round && w.chance(70):
		w.rearm(e)
	case e.state != nic.MigArmed:
	case w.chance(12), e.peer.state == nic.MigMigrated && e.peer.round == e.flow.round && w.chance(40):
		w.noteMismatch(e.flow)
		w.migrate(e, "its program says so")
		w.modifyPath(e, &nic.Attr{PathMigState: nic.MigMigrated}, nic.AttrPathMigState)
	}
}

// rearm gives an end its alternate path and asks for it to be armed, at once or one after the other.
func (w *world) rearm(e *pathEnd) {
	r, a := e.next(), nic.Attr{}
	e.offer(w, &a)
	if e.peer.h == e.h && e.h.removed[r.dst] {
		return // it would not be known to lead to this NIC
	}
	if e.h.removed[r.src] {
		if err := e.h.nic.Modify(w.now, e.qp, &a, nic.AttrAltPath|nic.AttrPathMigState); !errors.Is(err, nic.EINVAL) {
			w.fail("%s: an alternate path from an address that is gone: %v", e.name(), err)
		}
		return
	}
	mask := nic.AttrAltPath | nic.AttrPathMigState
	switch {
	case e.loaded && e.alt == r && w.chance(70):
		mask = nic.AttrPathMigState
	case w.chance(30):
		mask = nic.AttrAltPath
	}
	e.given(w, &a, mask)
	w.modifyPath(e, &a, mask)
}

// next is the alternate path that the programs have agreed upon, as this end sees it.
func (e *pathEnd) next() route {
	if e == e.flow.ends[1] {
		return e.flow.next.back()
	}
	return e.flow.next
}

// offer fills in the attributes of the next alternate path.
func (e *pathEnd) offer(w *world, a *nic.Attr) {
	a.AltAH, a.AltPKeyIndex, a.AltPort, a.AltTimeout = e.next().address(e.peer.h), e.h.partition(e.flow.nextPKey), 1, uint8(w.between(10, 14))
	a.PathMigState = nic.MigRearm
}

// given tells the model of what a modify is about to say of migration.
func (e *pathEnd) given(w *world, a *nic.Attr, mask nic.AttrMask) {
	w.noteMismatch(e.flow)
	if mask&nic.AttrAltPath != 0 {
		e.alt, e.loaded, e.told = e.next(), true, false
		e.altTimeout, e.altPKey = a.AltTimeout, a.AltPKeyIndex
	}
	if mask&nic.AttrPathMigState != 0 {
		e.state, e.hasFormer, e.round = nic.MigRearm, false, e.flow.round
	}
}

// early is what a connection says of migration while it is made.
func (e *pathEnd) early(w *world, a *nic.Attr, mask nic.AttrMask) nic.AttrMask {
	f, r := e.flow, e.next()
	if !f.on || f.round == 0 || e.h.removed[r.src] || e.peer.h == e.h && e.h.removed[r.dst] || w.chance(40) {
		return 0
	}
	if mask &^= nic.AttrAltPath; !e.loaded {
		mask = nic.AttrAltPath | mask&nic.AttrPathMigState
	}
	e.offer(w, a)
	e.given(w, a, mask)
	return mask
}

func (w *world) modifyPath(e *pathEnd, a *nic.Attr, mask nic.AttrMask) {
	w.note(e.h, "%s is given path %d-%d, migration state %d, mask %x", e.name(), a.AltAH.SGIDIndex, e.alt.dst, a.PathMigState, mask)
	w.must(e.h.nic.Modify(w.now, e.qp, a, mask), "migration of "+e.name())
	e.h.look("migration command")
	e.h.driveSoon()
}

// askWrongly asks for what must be refused, and change nothing (17.2.8.1.2).
func (w *world) askWrongly(e *pathEnd) {
	a, mask := nic.Attr{AltAH: e.primary.address(e.peer.h), AltPort: 1}, nic.AttrPathMigState
	switch e.state {
	case nic.MigMigrated:
		a.PathMigState = nic.MigArmed
		if !e.loaded && w.chance(50) {
			a.PathMigState = nic.MigRearm
		}
	case nic.MigRearm:
		a.PathMigState = pick(w, nic.MigMigrated, nic.MigArmed)
	case nic.MigArmed:
		a.PathMigState, mask = pick(w, nic.MigMigrated, nic.MigArmed), mask|nic.AttrAltPath
	}
	if err := e.h.nic.Modify(w.now, e.qp, &a, mask); !errors.Is(err, nic.EINVAL) {
		w.fail("%s in migration state %d is asked for %d with mask %x: %v", e.name(), e.state, a.PathMigState, mask, err)
	}
}
