package nic

import (
	"fmt"

	"rnic/internal/roce"
)

// A transition says which attributes a modify from one state to another must give and may give
// (InfiniBand vol. 1, 10.3 and table 11.2.5.2; Linux checks the same in ib_modify_qp_is_ok).
type transition struct {
	valid              bool
	required, optional AttrMask
}

const (
	rcToRTS = AttrCurState | AttrAltPath | AttrAccessFlags | AttrMinRNRTimer | AttrPathMigState
	ucToRTS = AttrCurState | AttrAltPath | AttrAccessFlags | AttrPathMigState
	udToRTS = AttrCurState | AttrQKey
)

// anyState are the transitions that all types share: nearly every state may be left for Reset and
// Err.
func anyState(t map[State]map[State]transition) (table [Err + 1][Err + 1]transition) {
	for from := Reset; from <= Err; from++ {
		table[from][Reset].valid = true
		table[from][Err].valid = from != Reset
	}
	for from, row := range t {
		for to, e := range row {
			e.valid = true
			table[from][to] = e
		}
	}
	return table
}

var rcTransitions = anyState(map[State]map[State]transition{
	Reset: {Init: {required: AttrPKeyIndex | AttrPort | AttrAccessFlags}},
	Init: {
		Init: {optional: AttrPKeyIndex | AttrPort | AttrAccessFlags},
		RTR: {required: AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRDAtomic | AttrMinRNRTimer,
			optional: AttrAltPath | AttrAccessFlags | AttrPKeyIndex},
	},
	RTR: {RTS: {required: AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxRDAtomic, optional: rcToRTS}},
	RTS: {RTS: {optional: rcToRTS}, SQD: {optional: AttrEnSQDAsyncNotify}},
	SQD: {
		RTS: {optional: rcToRTS},
		SQD: {optional: AttrPort | AttrAV | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRDAtomic | AttrMaxDestRDAtomic |
			AttrAltPath | AttrAccessFlags | AttrPKeyIndex | AttrMinRNRTimer | AttrPathMigState},
	},
	// An RC queue pair never enters SQE (10.3.1.6); Linux lists the way out of it all the same.
	SQE: {RTS: {}},
})

var ucTransitions = anyState(map[State]map[State]transition{
	Reset: {Init: {required: AttrPKeyIndex | AttrPort | AttrAccessFlags}},
	Init: {
		Init: {optional: AttrPKeyIndex | AttrPort | AttrAccessFlags},
		RTR: {required: AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN,
			optional: AttrAltPath | AttrAccessFlags | AttrPKeyIndex},
	},
	RTR: {RTS: {required: AttrSQPSN, optional: ucToRTS}},
	RTS: {RTS: {optional: ucToRTS}, SQD: {optional: AttrEnSQDAsyncNotify}},
	SQD: {
		RTS: {optional: ucToRTS},
		SQD: {optional: AttrAV | AttrAltPath | AttrAccessFlags | AttrPKeyIndex | AttrPathMigState},
	},
	SQE: {RTS: {optional: AttrCurState | AttrAccessFlags}},
})

// The two halves of RC (annex A14).
var iniTransitions = anyState(map[State]map[State]transition{
	Reset: {Init: {required: AttrPKeyIndex | AttrPort | AttrAccessFlags}},
	Init: {
		Init: {optional: AttrPKeyIndex | AttrPort | AttrAccessFlags},
		RTR: {required: AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN,
			optional: AttrAltPath | AttrAccessFlags | AttrPKeyIndex},
	},
	RTR: {RTS: {required: AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxRDAtomic, optional: ucToRTS}},
	RTS: {RTS: {optional: ucToRTS}, SQD: {optional: AttrEnSQDAsyncNotify}},
	SQD: {
		RTS: {optional: ucToRTS},
		SQD: {optional: AttrPort | AttrAV | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRDAtomic |
			AttrAltPath | AttrAccessFlags | AttrPKeyIndex | AttrPathMigState},
	},
})

var tgtTransitions = anyState(map[State]map[State]transition{
	Reset: {Init: {required: AttrPKeyIndex | AttrPort | AttrAccessFlags}},
	Init: {
		Init: {optional: AttrPKeyIndex | AttrPort | AttrAccessFlags},
		RTR: {required: AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRDAtomic | AttrMinRNRTimer,
			optional: AttrAltPath | AttrAccessFlags | AttrPKeyIndex},
	},
	RTR: {RTS: {required: AttrTimeout | AttrSQPSN, optional: rcToRTS}},
	RTS: {RTS: {optional: rcToRTS}, SQD: {optional: AttrEnSQDAsyncNotify}},
	SQD: {
		RTS: {optional: rcToRTS},
		SQD: {optional: AttrPort | AttrAV | AttrTimeout | AttrMaxDestRDAtomic |
			AttrAltPath | AttrAccessFlags | AttrPKeyIndex | AttrMinRNRTimer | AttrPathMigState},
	},
})

var udTransitions = anyState(map[State]map[State]transition{
	Reset: {Init: {required: AttrPKeyIndex | AttrPort | AttrQKey}},
	Init:  {Init: {optional: AttrPKeyIndex | AttrPort | AttrQKey}, RTR: {optional: AttrPKeyIndex | AttrQKey}},
	RTR:   {RTS: {required: AttrSQPSN, optional: udToRTS}},
	RTS:   {RTS: {optional: udToRTS}, SQD: {optional: AttrEnSQDAsyncNotify}},
	SQD:   {RTS: {optional: udToRTS}, SQD: {optional: AttrPKeyIndex | AttrQKey}},
	SQE:   {RTS: {optional: udToRTS}},
})

// change is a checked modify, ready to be applied.
type change struct {
	to    State
	path  roce.Path // with AttrAV
	local bool

	altPath  roce.Path // with AttrAltPath
	altLocal bool
}

// Modify changes the attributes of q that mask names, and its state if AttrState is among them. It
// does all or nothing. EINVAL: the transition, an attribute with it, or a value is not allowed.
// ENOENT: q is destroyed.
//
// PSNs and the destination queue pair number are cut to 24 bits. Alternate paths: see migrate.go.
func (n *NIC) Modify(now int64, q *QP, a *Attr, mask AttrMask) error {
	if q.dead {
		return refuse(ENOENT, opModify, q.String(), "it is destroyed")
	}
	n = q.nic // the command may have come by another unit
	n.now = max(n.now, now)
	c, err := n.checkModify(q, a, mask)
	if err != nil {
		return err
	}
	from := q.state
	if mask&AttrState == 0 || from == c.to && c.to != Reset {
		q.setAttributes(a, mask, &c)
		q.modifyMigration(now, a, mask, &c)
		return nil
	}
	switch c.to {
	case Reset:
		q.reset()
	case Err:
		q.enterError(now)
	default:
		q.setAttributes(a, mask, &c)
		q.state = c.to
		q.entered(now, from)
		q.modifyMigration(now, a, mask, &c)
	}
	q.showReadiness()
	return nil
}

// entered tells the transport of a new state.
func (q *QP) entered(now int64, from State) {
	switch q.state {
	case RTR:
		q.transportToRTR(now)
	case RTS:
		q.transportToRTS(now)
	case SQD:
		q.attr.SQDraining = true
		q.transportToSQD(now)
	}
}

const opModify = "modify queue pair"

// checkModify finds out everything that can be wrong before anything is changed.
func (n *NIC) checkModify(q *QP, a *Attr, mask AttrMask) (c change, err error) {
	bad := func(format string, args ...any) (change, error) {
		return change{}, refuse(EINVAL, opModify, q.String(), fmt.Sprintf(format, args...))
	}
	c.to = q.state
	if mask&AttrState != 0 {
		c.to = a.State
	}
	if c.to > Err {
		return bad("there is no state %d", c.to)
	}
	table := &rcTransitions
	switch q.typ {
	case XRCINI:
		table = &iniTransitions
	case XRCTGT:
		table = &tgtTransitions
	case UC:
		table = &ucTransitions
	case UD:
		table = &udTransitions
	}
	t := table[q.state][c.to]
	if !t.valid {
		return bad("a transition from %v to %v is not allowed", q.state, c.to)
	}
	if miss := t.required &^ mask; miss != 0 {
		return bad("%v to %v: required attributes are missing from the mask: %#x", q.state, c.to, uint32(miss))
	}
	if extra := mask &^ (t.required | t.optional | AttrState); extra != 0 {
		return bad("%v to %v: attributes not allowed in the mask: %#x", q.state, c.to, uint32(extra))
	}
	if mask&AttrCurState != 0 && a.CurState != q.state {
		return bad("the current state is given as %v, it is %v", a.CurState, q.state)
	}
	if q.state == SQD && q.attr.SQDraining && c.to != Reset && c.to != Err {
		return bad("the send queue is still draining: wait for the event IBV_EVENT_SQ_DRAINED") // 10.3.1.5
	}
	if q.state == Reset && c.to == Init && (q.sendCQ.overrun.Load() || q.recvCQ.overrun.Load()) {
		return bad("%s", overrunReason) // no completion would ever come
	}
	if reason := n.checkValues(a, mask); reason != "" {
		return bad("%s", reason)
	}
	if mask&AttrAV != 0 {
		if c.path, c.local, err = n.resolve(opModify, q.String(), &a.AH); err != nil {
			return change{}, err
		}
		if c.path.Dst.IsMulticast() {
			return bad("a connection has one peer: the destination GID is a multicast address") // 10.5: UD only
		}
	}
	if mask&AttrAltPath != 0 {
		if c.altPath, c.altLocal, err = n.resolve(opModify, q.String()+", alternate path", &a.AltAH); err != nil {
			return change{}, err
		}
		if c.altPath.Dst.IsMulticast() {
			return bad("a connection has one peer: the alternate destination GID is a multicast address")
		}
	}
	if mask&(AttrAltPath|AttrPathMigState|AttrAV) != 0 {
		if reason := q.checkMigration(a, mask, &c); reason != "" {
			return bad("%s", reason)
		}
	}
	return c, nil
}

// checkValues says what is wrong with a value that mask names; "" if nothing is.
func (n *NIC) checkValues(a *Attr, mask AttrMask) string {
	has := func(m AttrMask) bool { return mask&m != 0 }
	switch {
	case has(AttrAltPath) && n.checkAltValues(a) != "":
		return n.checkAltValues(a)
	case has(AttrPort) && a.Port != 1:
		return fmt.Sprintf("port %d does not exist, 1 does", a.Port)
	case has(AttrPKeyIndex) && int(a.PKeyIndex) >= len(n.pkeys):
		return fmt.Sprintf("P_Key index %d is beyond the table of %d", a.PKeyIndex, len(n.pkeys))
	case has(AttrAccessFlags) && a.AccessFlags&^(qpAccess|AccessOptional|regionOnly) != 0:
		return fmt.Sprintf("access flags %#x are not for queue pairs", uint32(a.AccessFlags&^(qpAccess|AccessOptional|regionOnly)))
	case has(AttrPathMTU) && roce.MTUBytes(a.PathMTU) == 0:
		return fmt.Sprintf("path MTU code %d is not one of 1 to 5", a.PathMTU)
	case has(AttrPathMTU) && a.PathMTU > n.mtuCode:
		return fmt.Sprintf("path MTU %d is more than the port's active MTU %d: ask for less", roce.MTUBytes(a.PathMTU), roce.MTUBytes(n.mtuCode))
	case has(AttrTimeout) && a.Timeout > 31:
		return "the timeout has 5 bits"
	case has(AttrMinRNRTimer) && a.MinRNRTimer > 31:
		return "the RNR timer has 5 bits"
	case has(AttrRetryCnt) && a.RetryCnt > 7, has(AttrRNRRetry) && a.RNRRetry > 7:
		return "retry counts have 3 bits"
	case has(AttrMaxRDAtomic) && a.MaxRDAtomic > n.limits.MaxRDAtomic,
		has(AttrMaxDestRDAtomic) && a.MaxDestRDAtomic > n.limits.MaxRDAtomic:
		return fmt.Sprintf("more than %d outstanding reads and atomics", n.limits.MaxRDAtomic)
	}
	return ""
}

const qpAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind | AccessFlushGlobal

// regionOnly says nothing about a queue pair, but programs give it the flags of their regions.
const regionOnly = AccessOnDemand | AccessHugeTLB

// setAttributes takes over the attributes that mask names. They have been checked.
func (q *QP) setAttributes(a *Attr, mask AttrMask, c *change) {
	t := &q.attr
	set(mask&AttrEnSQDAsyncNotify, &t.EnSQDAsyncNotify, a.EnSQDAsyncNotify)
	set(mask&AttrAccessFlags, &t.AccessFlags, a.AccessFlags&^(AccessOptional|regionOnly))
	set(mask&AttrPKeyIndex, &t.PKeyIndex, a.PKeyIndex)
	set(mask&AttrPort, &t.Port, a.Port)
	set(mask&AttrQKey, &t.QKey, a.QKey)
	set(mask&AttrPathMTU, &t.PathMTU, a.PathMTU)
	set(mask&AttrTimeout, &t.Timeout, a.Timeout)
	set(mask&AttrRetryCnt, &t.RetryCnt, a.RetryCnt)
	set(mask&AttrRNRRetry, &t.RNRRetry, a.RNRRetry)
	set(mask&AttrRQPSN, &t.RQPSN, a.RQPSN&roce.PSNMask)
	set(mask&AttrSQPSN, &t.SQPSN, a.SQPSN&roce.PSNMask)
	set(mask&AttrMaxRDAtomic, &t.MaxRDAtomic, a.MaxRDAtomic)
	set(mask&AttrMaxDestRDAtomic, &t.MaxDestRDAtomic, a.MaxDestRDAtomic)
	set(mask&AttrMinRNRTimer, &t.MinRNRTimer, a.MinRNRTimer)
	set(mask&AttrDestQPN, &t.DestQPN, a.DestQPN&roce.PSNMask)
	if mask&AttrAV != 0 {
		t.AH = a.AH
		q.path, q.local = c.path, c.local
	}
	q.mtu = q.nic.pathMTU(t.PathMTU, q.local)
	if mask&(AttrAV|AttrDestQPN) != 0 {
		q.path.SrcPort = sourcePort(t.AH.FlowLabel, q.num, t.DestQPN)
	}
}

// pathMTU is what a queue pair's packets carry, in bytes. Between queue pairs of this NIC no
// interface stands in the way: where both ask for what the port carries, the wider MTU of the loop is
// used. A smaller one is kept, so that a disagreement shows as on any wire.
func (n *NIC) pathMTU(code uint8, local bool) uint32 {
	mtu := uint32(roce.MTUBytes(code))
	if local && code == n.mtuCode {
		return max(mtu, n.localMTU)
	}
	return mtu
}

func set[T any](named AttrMask, to *T, v T) {
	if named != 0 {
		*to = v
	}
}
