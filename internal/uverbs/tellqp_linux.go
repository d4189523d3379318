package uverbs

import (
	"fmt"
	"strings"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

func (f *fields) newQP(c *call, i *qpInit) {
	f.object(c, "pd", i.pd)
	f.word("type", numbered(i.typ, qpTypeNames))
	f.object(c, "send_cq", i.sendCQ)
	f.object(c, "recv_cq", i.recvCQ)
	f.num("send_wr", uint64(i.cap.MaxSendWR))
	if i.hasSRQ {
		f.object(c, "srq", i.srq)
	} else {
		f.num("recv_wr", uint64(i.cap.MaxRecvWR))
	}
	f.num("send_sge", uint64(i.cap.MaxSendSGE))
	if !i.hasSRQ {
		f.num("recv_sge", uint64(i.cap.MaxRecvSGE))
	}
	if i.cap.MaxInline != 0 {
		f.num("inline", uint64(i.cap.MaxInline))
	}
	f.is("sq_sig_all", i.sigAll)
}

func tellCreateQPMethod(c *call, f *fields) {
	f.newQP(c, &qpInit{pd: c.uint(qpPD), sendCQ: c.uint(qpSendCQ), recvCQ: c.uint(qpRecvCQ), srq: c.uint(qpSRQ), hasSRQ: c.has(qpSRQ),
		cap: decodeCap(c.bytes(qpCap)), typ: c.uint(qpType), sigAll: c.uint(qpFlags)&qpFlagSigAll != 0})
}

func tellCreateQP(c *call, f *fields)    { f.newQPFrom(c, c.req[16:]) }
func tellCreateQPExt(c *call, f *fields) { f.newQPFrom(c, c.req[8:]) }

// newQPFrom reads what createQPFrom does.
func (f *fields) newQPFrom(c *call, b []byte) {
	f.newQP(c, &qpInit{pd: uint64(le.Uint32(b)), sendCQ: uint64(le.Uint32(b[4:])), recvCQ: uint64(le.Uint32(b[8:])), srq: uint64(le.Uint32(b[12:])),
		hasSRQ: b[38] != 0, cap: decodeCap(b[16:]), sigAll: b[36] != 0, typ: uint64(b[37])})
}

func tellNewQP(c *call, f *fields) {
	o, _ := c.ctx.objects[c.ctx.last].(*qpObject)
	if o == nil {
		return
	}
	f.bare("qp", fmt.Sprintf("qp %d (QPN %#x)", c.ctx.last, o.dev.Num()), c.ctx.last)
	f.add("qpn", "", o.dev.Num())
	f.num("send_wr", uint64(o.cap.MaxSendWR))
	if o.cap.MaxRecvWR != 0 {
		f.num("recv_wr", uint64(o.cap.MaxRecvWR))
	}
	f.num("inline", uint64(o.cap.MaxInline))
}

// tellModifyQP tells of the attributes that the mask names, by their names in struct ibv_qp_attr.
func tellModifyQP(c *call, f *fields) {
	m := decodeModifyQP(c.req)
	a := &m.Attr
	f.object(c, "qp", uint64(m.Handle))
	has := func(bit nic.AttrMask) bool { return m.Mask&bit != 0 }
	num := func(bit nic.AttrMask, name string, v uint64) {
		if has(bit) {
			f.num(name, v)
		}
	}
	hex := func(bit nic.AttrMask, name string, v uint32) {
		if has(bit) {
			f.hex(name, uint64(v))
		}
	}
	if has(nic.AttrState) {
		f.transition(c, m.Handle, a.State)
	}
	if has(nic.AttrCurState) {
		f.word("cur_qp_state", stateName(a.CurState))
	}
	num(nic.AttrPort, "port_num", uint64(a.Port))
	num(nic.AttrPKeyIndex, "pkey_index", uint64(a.PKeyIndex))
	hex(nic.AttrQKey, "qkey", a.QKey)
	if has(nic.AttrAccessFlags) {
		f.flags("access", uint64(a.AccessFlags), accessNames)
	}
	if has(nic.AttrPathMTU) {
		f.mtu("path_mtu", a.PathMTU)
	}
	hex(nic.AttrDestQPN, "dest_qp_num", a.DestQPN)
	hex(nic.AttrRQPSN, "rq_psn", a.RQPSN)
	hex(nic.AttrSQPSN, "sq_psn", a.SQPSN)
	num(nic.AttrMaxRDAtomic, "max_rd_atomic", uint64(a.MaxRDAtomic))
	num(nic.AttrMaxDestRDAtomic, "max_dest_rd_atomic", uint64(a.MaxDestRDAtomic))
	if has(nic.AttrMinRNRTimer) {
		f.span("min_rnr_timer", a.MinRNRTimer, roce.RNRTimerNanos(a.MinRNRTimer), "")
	}
	if has(nic.AttrTimeout) {
		f.span("timeout", a.Timeout, roce.TimeoutNanos(a.Timeout), "for ever")
	}
	num(nic.AttrRetryCnt, "retry_cnt", uint64(a.RetryCnt))
	if has(nic.AttrRNRRetry) {
		f.rnrRetry(a.RNRRetry)
	}
	if has(nic.AttrAV) {
		f.address(c, "", &a.AH)
	}
	f.alternate(c, &m)
	num(nic.AttrEnSQDAsyncNotify, "en_sqd_async_notify", uint64(a.EnSQDAsyncNotify))
	if rest := m.Mask & (nic.AttrCap | nic.AttrRateLimit | ^extendedAttrMask); rest != 0 {
		f.hex("other_attr_mask", uint64(rest))
	}
}

// alternate is what a modify says of the alternate path.
func (f *fields) alternate(c *call, m *modifyQP) {
	if m.Mask&nic.AttrAltPath != 0 {
		a := &m.Attr
		f.address(c, "alt_", &a.AltAH)
		f.num("alt_port_num", uint64(a.AltPort))
		f.span("alt_timeout", a.AltTimeout, roce.TimeoutNanos(a.AltTimeout), "for ever")
	}
	if m.Mask&nic.AttrPathMigState != 0 {
		f.word("path_mig_state", numbered(uint64(m.Attr.PathMigState), migrationNames))
	}
}

// transition is from the state that the queue pair is in.
func (f *fields) transition(c *call, handle uint32, to nic.State) {
	from := "?"
	if o, ok := c.ctx.objects[handle].(*qpObject); ok {
		if a, _, err := o.dev.Query(); err == nil {
			from = stateName(a.State)
		}
	}
	f.bare("from", from+"->"+stateName(to), from)
	f.add("to", "", stateName(to))
}

// mtu is a path MTU in bytes.
func (f *fields) mtu(name string, code uint8) {
	if n := roce.MTUBytes(code); n != 0 {
		f.num(name, uint64(n))
		return
	}
	f.add(name, fmt.Sprintf("code %d?", code), -int(code))
}

func (f *fields) rnrRetry(n uint8) {
	if n == 7 {
		f.add("rnr_retry", "7 (for ever)", n)
		return
	}
	f.num("rnr_retry", uint64(n))
}

func tellQueriedQP(c *call, f *fields) {
	if len(c.answers) == 0 || len(c.answers[0].data) < sizeQPAttr {
		return
	}
	b := c.answers[0].data
	s := stateName(nic.State(b[108]))
	f.bare("state", s, s)
	f.hex("rq_psn", uint64(le.Uint32(b[88:])))
	f.hex("sq_psn", uint64(le.Uint32(b[92:])))
	f.num("inline", uint64(decodeCap(b[64:]).MaxInline))
}

func tellMulticast(c *call, f *fields) {
	f.object(c, "qp", uint64(le.Uint32(c.req[16:])))
	f.gid("gid", [16]byte(c.req[:16]))
}

func (f *fields) newSRQ(c *call, pd uint64, wr, sge uint32) {
	f.object(c, "pd", pd)
	f.num("max_wr", uint64(wr))
	f.num("max_sge", uint64(sge))
}

func tellCreateSRQMethod(c *call, f *fields) {
	f.newSRQ(c, c.uint(srqPD), uint32(c.uint(srqMaxWR)), uint32(c.uint(srqMaxSGE)))
	if t := c.uint(srqType); t != 0 {
		f.num("type", t)
	}
}

func tellCreateSRQ(c *call, f *fields) {
	f.newSRQ(c, uint64(le.Uint32(c.req[16:])), le.Uint32(c.req[20:]), le.Uint32(c.req[24:]))
}

func tellNewSRQ(c *call, f *fields) {
	o, _ := c.ctx.objects[c.ctx.last].(*srqObject)
	if o == nil {
		return
	}
	f.bare("srq", fmt.Sprintf("srq %d", c.ctx.last), c.ctx.last)
	f.num("max_wr", uint64(o.queue.ring.Capacity()))
}

func tellModifySRQ(c *call, f *fields) {
	f.object(c, "srq", uint64(le.Uint32(c.req)))
	mask := le.Uint32(c.req[4:])
	if mask&srqAttrMaxWR != 0 {
		f.num("max_wr", uint64(le.Uint32(c.req[8:])))
	}
	if mask&srqAttrLimit != 0 {
		f.num("srq_limit", uint64(le.Uint32(c.req[12:])))
	}
}

func tellQueriedSRQ(c *call, f *fields) {
	for i, name := range []string{"max_wr", "max_sge", "srq_limit"} {
		f.num(name, uint64(c.answered(i)))
	}
}

// countedObjects says what objects there are, as "2 QPs, 1 CQ".
func countedObjects(objects map[uint32]verbsObject) string {
	n := map[string]int{}
	for _, o := range objects {
		switch o.(type) {
		case *qpObject:
			n["QP"]++
		case *cqObject:
			n["CQ"]++
		case *srqObject:
			n["SRQ"]++
		case *mrObject:
			n["MR"]++
		case *mwObject:
			n["MW"]++
		case *ahObject:
			n["AH"]++
		case *pdObject:
			n["PD"]++
		}
	}
	var parts []string
	for _, kind := range []string{"QP", "CQ", "SRQ", "MR", "MW", "AH", "PD"} {
		switch k := n[kind]; {
		case k == 1:
			parts = append(parts, "1 "+kind)
		case k > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", k, kind))
		}
	}
	return strings.Join(parts, ", ")
}
