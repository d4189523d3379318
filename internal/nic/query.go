package nic

// InitInfo is what a queue pair was created with.
type InitInfo struct {
	Cap    Cap
	SigAll bool
	Type   QPType
}

// Query returns the queue pair's attributes and what it was created with (vol. 1, 11.2.5.3). The
// PSNs are the next to be expected and to be sent. The address vectors are always global: there are
// no others on RoCE.
func (q *QP) Query() (Attr, InitInfo) {
	a := q.attr
	a.State, a.CurState = q.state, q.state
	a.Cap = q.cap
	a.AH.IsGlobal, a.AltAH.IsGlobal = true, true
	if q.reliable() && q.state >= RTR {
		a.RQPSN = uint32(q.resp.expected)
	}
	if q.req.started {
		a.SQPSN = uint32(q.req.nxt)
	}
	return a, InitInfo{Cap: q.cap, SigAll: q.sigAll, Type: q.typ}
}
