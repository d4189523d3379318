package rdmanl

import "slices"

// summary is RDMA_NLDEV_CMD_RES_GET of one device: how many resources of each kind there are.
func (r *request) summary() errno {
	d, e := r.named()
	if e == 0 {
		m := r.begin(0)
		m.summary(d, r.resources(d))
		r.send(m)
	}
	return e
}

// summaries is the same of all.
func (r *request) summaries() errno {
	for i := range r.sys.Devices {
		d := &r.sys.Devices[i]
		m := r.begin(flagMulti)
		m.summary(d, r.resources(d))
		r.send(m)
	}
	return 0
}

func (m *message) summary(d *Device, res *Resources) {
	m.handle(d)
	table := m.nest(attrResSummary)
	for _, k := range []struct {
		name string
		n    int
	}{{"pd", len(res.PDs)}, {"cq", len(res.CQs)}, {"qp", len(res.QPs)}, {"cm_id", len(res.CMIDs)}, {"mr", len(res.MRs)},
		{"ctx", len(res.Contexts)}, {"srq", len(res.SRQs)}} {
		entry := m.nest(attrResSummaryEntry)
		m.text(attrResSummaryName, k.name)
		m.u64(attrResSummaryCurr, uint64(k.n))
		m.end(entry)
	}
	m.end(table)
}

// kind is one kind of resource.
type kind struct {
	table, entry, id uint16
	perPort          bool // a request for one names its port, and must not otherwise
	count            func(*Resources) int
	number, port     func(res *Resources, i int) uint32 // port: perPort only
	fill             func(m *message, res *Resources, i int)
}

// kinds are those with an operation of their own.
var kinds = map[uint16]*kind{
	opResQPGet: {attrResQP, attrResQPEntry, attrResLQPN, true,
		func(r *Resources) int { return len(r.QPs) },
		func(r *Resources, i int) uint32 { return r.QPs[i].Number }, func(r *Resources, i int) uint32 { return r.QPs[i].Port },
		func(m *message, r *Resources, i int) { m.qp(&r.QPs[i]) }},
	opResCMIDGet: {attrResCMID, attrResCMIDEntry, attrResCMN, true,
		func(r *Resources) int { return len(r.CMIDs) },
		func(r *Resources, i int) uint32 { return r.CMIDs[i].Number }, func(r *Resources, i int) uint32 { return r.CMIDs[i].Port },
		func(m *message, r *Resources, i int) { m.cmID(&r.CMIDs[i]) }},
	opResCQGet: {attrResCQ, attrResCQEntry, attrResCQN, false,
		func(r *Resources) int { return len(r.CQs) },
		func(r *Resources, i int) uint32 { return r.CQs[i].Number }, nil,
		func(m *message, r *Resources, i int) { m.cq(&r.CQs[i]) }},
	opResMRGet: {attrResMR, attrResMREntry, attrResMRN, false,
		func(r *Resources) int { return len(r.MRs) },
		func(r *Resources, i int) uint32 { return r.MRs[i].Number }, nil,
		func(m *message, r *Resources, i int) { m.mr(&r.MRs[i]) }},
	opResPDGet: {attrResPD, attrResPDEntry, attrResPDN, false,
		func(r *Resources) int { return len(r.PDs) },
		func(r *Resources, i int) uint32 { return r.PDs[i].Number }, nil,
		func(m *message, r *Resources, i int) { m.pd(&r.PDs[i]) }},
	opResCtxGet: {attrResCtx, attrResCtxEntry, attrResCTXN, false,
		func(r *Resources) int { return len(r.Contexts) },
		func(r *Resources, i int) uint32 { return r.Contexts[i].Number }, nil,
		func(m *message, r *Resources, i int) { m.context(&r.Contexts[i]) }},
	opResSRQGet: {attrResSRQ, attrResSRQEntry, attrResSRQN, false,
		func(r *Resources) int { return len(r.SRQs) },
		func(r *Resources, i int) uint32 { return r.SRQs[i].Number }, nil,
		func(m *message, r *Resources, i int) { m.srq(r, &r.SRQs[i]) }},
}

// do answers a request for one resource by its number: its attributes stand behind the device's, in no table.
func (k *kind) do(r *request) errno {
	d, e := r.named()
	if e != 0 {
		return e
	}
	id, ok := r.attrs.u32(k.id)
	port, e := r.namedPort(d)
	if !ok || e != 0 || k.perPort != (port != 0) {
		return einval
	}
	res := r.resources(d)
	for i := range k.count(res) {
		if k.number(res, i) != id || k.perPort && k.port(res, i) != port {
			continue
		}
		m := r.begin(0)
		m.handle(d)
		k.fill(m, res, i)
		r.send(m)
		return 0
	}
	return enoent
}

// dump answers a request for all resources of a kind on a device, or on one of its ports: a table, which goes on in
// the next message where one is full. Without any there is no message.
func (k *kind) dump(r *request) errno {
	d, e := r.named()
	if e != 0 {
		return e
	}
	port, e := r.namedPort(d)
	if e != 0 {
		return e
	}
	res := r.resources(d)
	var m *message
	var table int
	flush := func() {
		if m != nil {
			m.end(table)
			r.send(m)
			m = nil
		}
	}
	var entry message
	for i := range k.count(res) {
		if k.perPort && port != 0 && k.port(res, i) != port {
			continue
		}
		entry.b = entry.b[:0]
		at := entry.nest(k.entry)
		k.fill(&entry, res, i)
		entry.end(at)
		if m != nil && len(m.b)+len(entry.b) > maxMessage {
			flush()
		}
		if m == nil {
			m = r.begin(flagMulti)
			m.handle(d)
			table = m.nest(k.table)
		}
		m.b = append(m.b, entry.b...)
	}
	flush()
	return 0
}

func (m *message) qp(q *QP) {
	if q.Port != 0 {
		m.u32(attrPortIndex, q.Port)
	}
	m.u32(attrResLQPN, q.Number)
	m.u32(attrResPDN, q.PD)
	m.pid(q.PID)
	if q.connected() {
		m.u32(attrResRQPN, q.RemoteNumber)
		m.u32(attrResRQPSN, q.RQPSN)
	}
	m.u32(attrResSQPSN, q.SQPSN)
	if q.connected() {
		m.u8(attrResMigState, q.MigState)
	}
	m.u8(attrResType, q.Type)
	m.u8(attrResState, q.State)
}

func (m *message) cmID(c *CMID) {
	if c.Port != 0 {
		m.u32(attrPortIndex, c.Port)
	}
	if c.QP != 0 {
		m.u32(attrResLQPN, c.QP)
		m.u8(attrResType, c.QPType)
	}
	m.u32(attrResPS, c.PortSpace)
	m.u8(attrResState, c.State)
	m.address(attrResSrcAddr, c.Src)
	m.address(attrResDstAddr, c.Dst)
	m.u32(attrResCMN, c.Number)
	m.pid(c.PID)
}

func (m *message) cq(c *CQ) {
	m.u32(attrResCQE, c.CQE)
	m.u64(attrResUsers, c.Users)
	m.u8(attrDevDIM, 0)
	m.u32(attrResCQN, c.Number)
	m.u32(attrResCTXN, c.Context)
	m.pid(c.PID)
}

func (m *message) mr(x *MR) {
	// The kernel tells keys to administrators only. This NIC tells them whom it tells anything: the user that it is of.
	m.u32(attrResRKey, x.RKey)
	m.u32(attrResLKey, x.LKey)
	m.u64(attrResMRLen, x.Length)
	m.u32(attrResMRN, x.Number)
	m.u32(attrResPDN, x.PD)
	m.pid(x.PID)
}

func (m *message) pd(p *PD) {
	m.u64(attrResUsers, p.Users)
	m.u32(attrResPDN, p.Number)
	m.u32(attrResCTXN, p.Context)
	m.pid(p.PID)
}

func (m *message) context(c *Context) {
	m.u32(attrResCTXN, c.Number)
	m.pid(c.PID)
}

// maxQPList bounds the list of a shared receive queue's queue pairs, in bytes: it must fit into one message, and the
// rest of a longer one is not told.
const maxQPList = maxMessage - 512

func (m *message) srq(res *Resources, s *SRQ) {
	m.u32(attrResSRQN, s.Number)
	m.u8(attrResType, s.Type)
	m.u32(attrResPDN, s.PD)
	var qps []uint32
	for i := range res.QPs {
		if res.QPs[i].SRQ == s.Number {
			qps = append(qps, res.QPs[i].Number)
		}
	}
	slices.Sort(qps)
	table := m.nest(attrResQP | attrNested)
	for i := 0; i < len(qps) && len(m.b)-table < maxQPList; {
		j := i + 1
		for j < len(qps) && qps[j] == qps[j-1]+1 {
			j++
		}
		entry := m.nest(attrResQPEntry | attrNested)
		if j == i+1 {
			m.u32(attrResLQPN, qps[i])
		} else {
			m.u32(attrMinRange, qps[i])
			m.u32(attrMaxRange, qps[j-1])
		}
		m.end(entry)
		i = j
	}
	m.end(table)
	m.pid(s.PID)
}
