package rdmanl

// regionStats are the counters of memory regions: there are none, so each is named and no more.
var regionStats = &kind{attrResMR, attrResMREntry, attrResMRN, false,
	func(r *Resources) int { return len(r.MRs) },
	func(r *Resources, i int) uint32 { return r.MRs[i].Number }, nil,
	func(m *message, r *Resources, i int) { m.u32(attrResMRN, r.MRs[i].Number) }}

// stat is RDMA_NLDEV_CMD_STAT_GET: the counters of a port, or how those of a kind of resource are bound.
func (r *request) stat() errno {
	of, ok := r.attrs.u32(attrStatRes)
	switch {
	case !ok:
		return r.counters(func(m *message, i int, c *Counter) {
			m.text(attrStatCounterName, c.Name)
			m.u64(attrStatCounterValue, c.Value)
		})
	case of == attrResQP:
		return r.counterMode()
	case of == attrResMR:
		return regionStats.do(r)
	}
	return einval
}

// statDump is the same of all of a kind. Queue pairs have no counters of their own.
func (r *request) statDump() errno {
	of, _ := r.attrs.u32(attrStatRes)
	d, e := r.named()
	switch {
	case of == attrResMR:
		return regionStats.dump(r)
	case of != attrResQP || e != 0:
		return einval
	}
	_, e = r.namedPort(d)
	return e
}

// statStatus is RDMA_NLDEV_CMD_STAT_GET_STATUS: which counters there are. None can be switched on or off.
func (r *request) statStatus() errno {
	return r.counters(func(m *message, i int, c *Counter) {
		m.text(attrStatCounterName, c.Name)
		m.u32(attrStatIndex, uint32(i))
	})
}

// counters answers with a table of a port's counters.
func (r *request) counters(fill func(m *message, i int, c *Counter)) errno {
	d, e := r.named()
	if e != 0 {
		return e
	}
	port, e := r.namedPort(d)
	if e != 0 || port == 0 || d.Counters == nil {
		return einval
	}
	m := r.begin(0)
	m.handle(d)
	m.u32(attrPortIndex, port)
	table := m.nest(attrStatCounters | attrNested)
	for i, c := range d.Counters(port) {
		entry := m.nest(attrStatCounterEntry | attrNested)
		fill(m, i, &c)
		m.end(entry)
	}
	m.end(table)
	r.send(m)
	return 0
}

// counterMode answers that queue pairs are not bound to counters (RDMA_COUNTER_MODE_NONE).
func (r *request) counterMode() errno {
	if _, ok := r.attrs.u32(attrStatCounterID); ok {
		return enoent
	}
	d, e := r.named()
	if e != 0 {
		return e
	}
	port, e := r.namedPort(d)
	if _, ok := r.attrs.u32(attrStatMode); e != 0 || port == 0 || !ok {
		return einval
	}
	m := r.begin(0)
	m.handle(d)
	m.u32(attrPortIndex, port)
	m.u32(attrStatMode, 0)
	r.send(m)
	return 0
}
