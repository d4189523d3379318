package nic

import (
	"cmp"
	"slices"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// Automatic path migration (10.4, 17.2.8). A connected queue pair may have an alternate path, to which both ends
// go over when the primary one fails, without loss: requests that are not acknowledged are sent again there. The
// bit MigReq of every packet (9.2.4) says whether its sender has migrated.

// Path migration states, enum ib_mig_state.
const (
	MigMigrated uint8 = iota // on the primary path; no alternate is ready. MigReq is 1
	MigRearm                 // the program has given an alternate path; the peer is not known to have. MigReq is 0
	MigArmed                 // both ends have: either may migrate. MigReq is 0
)

// migration is what a queue pair has to do with migration; most have none.
type migration struct {
	alt    roce.Path
	loaded bool // alt is the path of attr.AltAH
	told   bool // that alt cannot be used: once for each path
	// former is the path before the last migration, with its P_Key index. The peer sends there until it learns of it.
	former     roce.Path
	formerPKey uint16
}

func comesBy(rx, path *roce.Path) bool { return rx.Src == path.Dst && rx.Dst == path.Src }

// onOtherPath tells whether a packet that did not come by the primary path may be of the connection: by the alternate
// path from a peer that has migrated, or by the former one from a peer that has not yet.
func (q *QP) onOtherPath(rx *roce.Path, b roce.BTH) bool {
	m := q.mig
	switch {
	case m == nil:
		return false
	case q.attr.PathMigState == MigMigrated:
		return !b.MigReq() && m.former.Dst.IsValid() && comesBy(rx, &m.former)
	}
	return b.MigReq() && m.loaded && comesBy(rx, &m.alt)
}

// pkeyIndex is that of the path by which a packet came: each has its own (9.6.1, 11.2.5.2).
func (q *QP) pkeyIndex(rx *roce.Path) uint16 {
	switch {
	case q.mig == nil || comesBy(rx, &q.path):
		return q.attr.PKeyIndex
	case q.attr.PathMigState == MigMigrated:
		return q.mig.formerPKey
	}
	return q.attr.AltPKeyIndex
}

// noteMigReq does what the packet's MigReq asks for (17.2.8). False: the packet asks for a migration that is
// not possible. Precondition: accepts, and the state is not MigMigrated.
//
// The specification has a queue pair migrate on the peer's request when it is armed. One that is still to be armed
// does so too: the packets which would have told it that the peer was ready are lost if the path is.
func (q *QP) noteMigReq(now int64, rx *roce.Path, b roce.BTH) bool {
	m, primary := q.mig, comesBy(rx, &q.path)
	switch {
	case !b.MigReq():
		if q.attr.PathMigState == MigRearm && q.nic.planted != PlantedNeverArmed {
			q.attr.PathMigState = MigArmed
		}
		return true
	case !comesBy(rx, &m.alt) || primary && q.attr.PathMigState == MigRearm:
		return true // from before the peer gave its alternate path
	case q.nic.planted == PlantedMigrateDeaf:
		return primary
	}
	return q.migrate(now) || primary
}

// migrate goes over to the alternate path (17.2.8), or says that it cannot be used, and stays. It does not
// touch what is armed by itself: the caller knows the state.
func (q *QP) migrate(now int64) bool {
	m, t := q.mig, &q.attr
	if m == nil || !m.loaded || !q.nic.usableSource(m.alt.Src) {
		if m == nil || !m.told {
			q.nic.event(Event{Type: EventPathMigErr, QP: q}) // 11.6.3
		}
		if m != nil {
			m.told = true
		}
		return false
	}
	m.former, m.formerPKey, q.path, m.loaded = q.path, t.PKeyIndex, m.alt, false
	t.AH, t.PKeyIndex, t.Port, t.Timeout = t.AltAH, t.AltPKeyIndex, t.AltPort, t.AltTimeout
	t.AltAH, t.AltPKeyIndex, t.AltPort, t.AltTimeout = AHAttr{}, 0, 0, 0
	t.PathMigState = MigMigrated
	q.nic.stats.Migrations++
	q.nic.event(Event{Type: EventPathMig, QP: q}) // 11.6.3
	q.goOver(now)
	return true
}

// goOver lets the requester go on by the new path: nothing that it has learned of the old one counts.
func (q *QP) goOver(now int64) {
	r := &q.req
	if r.started && q.reliable() {
		if r.nxt != r.una && !r.failing {
			q.goBack(now, NoteMigrated)
		}
		if q.nic.planted != PlantedMigrateSpent {
			r.retries = q.attr.RetryCnt
		}
		r.implied, r.progressAt = false, now
		r.rtt, r.resend = roundTrip{}, earlyResend{since: now}
	}
	if r.peer != nil {
		q.joinPeer()
	}
	q.startRate(now)
	q.activate()
	q.rearm()
}

// survives tells whether the queue pair has migrated now that its retries are used up: then they count anew.
func (q *QP) survives(now int64) bool {
	return q.attr.PathMigState == MigArmed && q.migrate(now)
}

// retriesUsedUp ends the oldest request, unless there is another path.
func (q *QP) retriesUsedUp(now int64) {
	if !q.survives(now) {
		q.failOldest(now, ring.StatusRetryExcErr)
	}
}

// SetDown tells from which entries of the GID table, by index, nothing reaches the network. Armed queue pairs whose
// path begins at one which it did not say so of before migrate at once, whatever their retries (17.2.8). A command.
func (n *NIC) SetDown(now int64, down func(index int) bool) {
	var gone []roce.GID
	for i := range n.gids {
		d := down(i)
		if d && !n.gidDown[i] && !n.gids[i].IsZero() {
			gone = append(gone, n.gids[i])
		}
		n.gidDown[i] = d
	}
	for _, g := range gone {
		n.leave(now, g)
	}
}

// leave has armed queue pairs whose path begins at an address migrate.
func (n *NIC) leave(now int64, g roce.GID) {
	var on []*QP
	for _, q := range n.qps {
		if q.attr.PathMigState == MigArmed && (q.state == RTR || q.state == RTS || q.state == SQD) && roce.GIDFromAddr(q.path.Src) == g {
			on = append(on, q)
		}
	}
	slices.SortFunc(on, func(a, b *QP) int { return cmp.Compare(a.num, b.num) }) // the same seed, the same events
	for _, q := range on {
		q.migrate(max(now, q.nic.now))
	}
}

// ---- Modify.

// checkMigration says what is wrong with an alternate path or a migration state; "" if nothing is.
func (q *QP) checkMigration(a *Attr, mask AttrMask, c *change) string {
	state, loaded := q.attr.PathMigState, q.mig != nil && q.mig.loaded
	asked := state
	if mask&AttrPathMigState != 0 {
		asked = a.PathMigState
	}
	switch {
	case asked > MigArmed:
		return "there is no such path migration state"
	case asked == MigArmed && state != MigArmed:
		return "a queue pair is armed by its peer: ask for IBV_MIG_REARM" // 17.2.8
	case asked == MigRearm && !loaded && mask&AttrAltPath == 0:
		return "there is no alternate path to arm: give one (a migration uses it up)"
	case asked == MigMigrated && state == MigRearm:
		return "it cannot migrate before it is armed: the peer has not asked for IBV_MIG_REARM, or sent nothing since"
	case mask&AttrAltPath != 0 && asked == MigArmed:
		return "an armed alternate path is replaced only together with IBV_MIG_REARM"
	case mask&AttrAltPath != 0 && state == MigArmed && asked == MigMigrated:
		return "give another alternate path after the migration"
	}
	local := q.local
	if mask&AttrAV != 0 {
		local = c.local
	}
	altLocal := q.mig != nil && q.mig.local(q.nic)
	if mask&AttrAltPath != 0 {
		altLocal, loaded = c.altLocal, true
	}
	if loaded && mask&(AttrAV|AttrAltPath) != 0 && local != altLocal {
		return "one of primary and alternate path leads to this NIC, the other to another one"
	}
	return ""
}

func (m *migration) local(n *NIC) bool { return m.loaded && n.isLocal(roce.GIDFromAddr(m.alt.Dst)) }

// checkAltValues says what is wrong with the attributes of an alternate path; "" if nothing is.
func (n *NIC) checkAltValues(a *Attr) string {
	switch {
	case a.AltPort != 1 || a.AltAH.Port != 1:
		return "the alternate path's port is not 1"
	case int(a.AltPKeyIndex) >= len(n.pkeys):
		return "the alternate path's P_Key index is beyond the table"
	case a.AltTimeout > 31:
		return "the alternate path's timeout has 5 bits"
	}
	return ""
}

// modifyMigration takes over what a modify says of migration. It has been checked.
func (q *QP) modifyMigration(now int64, a *Attr, mask AttrMask, c *change) {
	if mask&AttrAltPath != 0 {
		q.setAltPath(a, c.altPath)
	}
	if mask&AttrPathMigState != 0 {
		q.setMigState(now, a.PathMigState)
	}
}

// setAltPath takes over a checked alternate path.
func (q *QP) setAltPath(a *Attr, path roce.Path) {
	t := &q.attr
	t.AltAH, t.AltPKeyIndex, t.AltPort, t.AltTimeout = a.AltAH, a.AltPKeyIndex, a.AltPort, a.AltTimeout
	if q.mig == nil {
		q.mig = new(migration)
	}
	path.SrcPort = sourcePort(t.AltAH.FlowLabel, q.num, t.DestQPN)
	q.mig.alt, q.mig.loaded, q.mig.told = path, true, false
}

// setMigState takes over a checked migration state, and migrates if the program says so (17.2.8).
func (q *QP) setMigState(now int64, to uint8) {
	t := &q.attr
	switch {
	case to == MigRearm:
		t.PathMigState = MigRearm
		q.mig.former = roce.Path{}
	case to == MigMigrated && t.PathMigState == MigArmed:
		q.migrate(now)
	}
}
