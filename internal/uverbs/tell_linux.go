package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"rnic/internal/nic"
	"rnic/internal/roce"
	"rnic/internal/sandbox"
)

// teller says how a command is told. Its functions are called with the driver's lock held; each may be nil.
type teller struct {
	name   string                   // as InfiniBand's verbs have it, whichever way the command came
	before func(c *call, f *fields) // arguments, before the command runs
	after  func(c *call, f *fields) // its answer, if it succeeds
	check  func(c *call)            // --pedantic: a look at what it has asked for, if it succeeds
}

// tellMethods are of methods, by object<<16 | method; tellCommands of commands, written or wrapped. Those that are in neither
// are told by their name alone.
var (
	tellMethods  map[uint32]teller
	tellCommands map[uint32]teller
)

func init() {
	handle := func(kind string) func(*call, *fields) {
		return func(c *call, f *fields) { f.object(c, kind, c.uint(destroyHandle)) }
	}
	// request tells of a command by the handle at an offset of its request.
	request := func(kind string, at int) func(*call, *fields) {
		return func(c *call, f *fields) { f.object(c, kind, uint64(le.Uint32(c.req[at:]))) }
	}
	tellMethods = map[uint32]teller{
		objDevice<<16 | 1:   {"INFO_HANDLES", func(c *call, f *fields) { f.word("kind", objectName(uint16(c.uint(handlesObject)))) }, nil, nil},
		objDevice<<16 | 2:   {"QUERY_PORT", func(c *call, f *fields) { f.num("port", c.uint(portNum)) }, tellPort, nil},
		objDevice<<16 | 3:   {"GET_CONTEXT", nil, tellVectors, nil},
		objDevice<<16 | 4:   {"QUERY_CONTEXT", nil, tellVectors, nil},
		objDevice<<16 | 5:   {"QUERY_GID_TABLE", nil, func(c *call, f *fields) { f.num("entries", uint64(len(c.drv.gids()))) }, nil},
		objDevice<<16 | 6:   {"QUERY_GID_ENTRY", tellGIDIndex, tellGID, nil},
		objPD << 16:         {"DEALLOC_PD", handle("pd"), nil, nil},
		objCQ << 16:         {"CREATE_CQ", tellCreateCQMethod, tellNewCQ, nil},
		objCQ<<16 | 1:       {"DESTROY_CQ", handle("cq"), tellEventsRead, nil},
		objQP << 16:         {"CREATE_QP", tellCreateQPMethod, tellNewQP, checkNewQP},
		objQP<<16 | 1:       {"DESTROY_QP", handle("qp"), tellEventsRead, nil},
		objSRQ << 16:        {"CREATE_SRQ", tellCreateSRQMethod, tellNewSRQ, nil},
		objSRQ<<16 | 1:      {"DESTROY_SRQ", handle("srq"), tellEventsRead, nil},
		objAH << 16:         {"DESTROY_AH", handle("ah"), nil, nil},
		objMR<<16 | 1:       {"DEREG_MR", handle("mr"), nil, nil},
		objMR<<16 | 2:       {"ADVISE_MR", tellAdvise, nil, nil},
		objMR<<16 | 4:       {"REG_DMABUF_MR", func(c *call, f *fields) { f.object(c, "pd", c.uint(dmabufPD)); f.num("length", c.uint(3)) }, nil, nil},
		objMR<<16 | 3:       {"QUERY_MR", handle("mr"), nil, nil},
		objMW << 16:         {"DEALLOC_MW", handle("mw"), nil, nil},
		objAsyncEvent << 16: {"ALLOC_ASYNC_EVENT", nil, func(c *call, f *fields) { f.num("fd", le.Uint64(c.raw[8:])) }, nil},
	}
	tellCommands = map[uint32]teller{
		cmdGetContext:        {"GET_CONTEXT", nil, tellVectors, nil},
		cmdQueryPort:         {"QUERY_PORT", func(c *call, f *fields) { f.num("port", uint64(c.req[8])) }, tellPort, nil},
		cmdAllocPD:           {"ALLOC_PD", nil, tellNew("pd"), nil},
		cmdDeallocPD:         {"DEALLOC_PD", request("pd", 0), nil, nil},
		cmdCreateAH:          {"CREATE_AH", tellCreateAH, tellNew("ah"), checkNewAH},
		cmdDestroyAH:         {"DESTROY_AH", request("ah", 0), nil, nil},
		cmdRegMR:             {"REG_MR", tellRegMR, tellNewMR, checkNewMR},
		cmdReregMR:           {"REREG_MR", tellReregMR, tellReregistered, checkReregMR},
		cmdDeregMR:           {"DEREG_MR", request("mr", 0), nil, nil},
		cmdAllocMW:           {"ALLOC_MW", tellAllocMW, tellNewMW, nil},
		cmdDeallocMW:         {"DEALLOC_MW", request("mw", 0), nil, nil},
		cmdCreateCompChannel: {"CREATE_COMP_CHANNEL", nil, func(c *call, f *fields) { f.num("fd", uint64(c.answered(0))) }, nil},
		cmdCreateCQ:          {"CREATE_CQ", tellCreateCQ, tellNewCQ, nil},
		exCreateCQ:           {"EX_CREATE_CQ", tellCreateCQExt, tellNewCQ, nil},
		cmdResizeCQ:          {"RESIZE_CQ", tellResizeCQ, func(c *call, f *fields) { f.num("cqe", uint64(c.answered(0))) }, nil},
		exModifyCQ:           {"EX_MODIFY_CQ", tellModifyCQ, nil, nil},
		cmdDestroyCQ:         {"DESTROY_CQ", request("cq", 8), tellEventsRead, nil},
		cmdReqNotifyCQ:       {"REQ_NOTIFY_CQ", tellReqNotify, nil, nil},
		cmdCreateQP:          {"CREATE_QP", tellCreateQP, tellNewQP, checkNewQP},
		exCreateQP:           {"EX_CREATE_QP", tellCreateQPExt, tellNewQP, checkNewQP},
		cmdQueryQP:           {"QUERY_QP", request("qp", 8), tellQueriedQP, nil},
		cmdModifyQP:          {"MODIFY_QP", tellModifyQP, nil, checkModifyQP},
		exModifyQP:           {"EX_MODIFY_QP", tellModifyQP, nil, checkModifyQP},
		cmdDestroyQP:         {"DESTROY_QP", request("qp", 8), tellEventsRead, nil},
		cmdPostSend:          {"POST_SEND", request("qp", 8), nil, nil},
		cmdAttachMcast:       {"ATTACH_MCAST", tellMulticast, nil, nil},
		cmdDetachMcast:       {"DETACH_MCAST", tellMulticast, nil, nil},
		cmdCreateSRQ:         {"CREATE_SRQ", tellCreateSRQ, tellNewSRQ, nil},
		cmdModifySRQ:         {"MODIFY_SRQ", tellModifySRQ, nil, nil},
		cmdQuerySRQ:          {"QUERY_SRQ", request("srq", 8), tellQueriedSRQ, nil},
		cmdDestroySRQ:        {"DESTROY_SRQ", request("srq", 8), tellEventsRead, nil},
	}
}

// named says which method it is, while no more is known of it.
func (r *record) named(h *ioctlHeader, m *method) {
	switch {
	case r == nil:
	case m == nil:
		r.name = fmt.Sprintf("%s.%d", objectName(h.Object), h.Method)
	case tellMethods[uint32(h.Object)<<16|uint32(h.Method)].name != "":
		r.name = tellMethods[uint32(h.Object)<<16|uint32(h.Method)].name
	default:
		r.name = objectName(h.Object) + "." + m.name
	}
}

// wraps says which command it is.
func (r *record) wraps(c *command) {
	if r != nil {
		r.name = c.name
	}
}

// watchedStart is watched, of a method or of a command that was written; INVOKE_WRITE knows later what it wraps.
func (c *call) watchedStart() {
	switch {
	case c.command != nil:
		c.watched(tellCommands[c.command.num], c.command.name)
	case c.method != nil && (c.method.object != objDevice || c.method.method != methodInvokeWrite):
		c.watched(tellMethods[uint32(c.method.object)<<16|uint32(c.method.method)], objectName(c.method.object)+"."+c.method.name)
	}
}

// watched says how the command that c is now will be told. The driver's lock is held, the request has its least length.
func (c *call) watched(t teller, name string) {
	if c.drv.journal == nil {
		return
	}
	if t.name != "" {
		name = t.name
	}
	c.teller = t
	if r := c.rec; r != nil {
		r.name = name
		if t.before != nil {
			t.before(c, &r.args)
		}
	}
}

// watchedDone tells what came of it. The driver's lock is held.
func (c *call) watchedDone(errno syscall.Errno) {
	j := c.drv.journal
	if j == nil || errno != 0 {
		return
	}
	if c.rec != nil && c.teller.after != nil {
		c.teller.after(c, &c.rec.result)
	}
	if j.pedantic() {
		c.checkProcess()
		if c.teller.check != nil {
			c.teller.check(c)
		}
	}
}

// tellEnd writes the record: nothing is held, and the program has no answer yet.
func (c *call) tellEnd(errno syscall.Errno) {
	j := c.drv.journal
	if j == nil {
		return
	}
	j.commands.Add(1)
	if errno != 0 {
		j.failed.Add(1)
	}
	if r := c.rec; r != nil {
		if r.errno = errno; errno != 0 {
			r.reason = c.why
			if r.reason == "" {
				r.reason = r.args.missing()
			}
		}
		j.command(r)
	}
}

// reasonOf says why a command failed: which, and of which object, the record says itself.
func reasonOf(err error) string {
	var e *nic.Error
	if errors.As(err, &e) && e.Reason != "" {
		return e.Reason
	}
	return err.Error()
}

// answered is word i of the first answer.
func (c *call) answered(i int) uint32 {
	if len(c.answers) > 0 && len(c.answers[0].data) >= 4*i+4 {
		return le.Uint32(c.answers[0].data[4*i:])
	}
	return 0
}

// object is an object by its handle: a queue pair with its number. One that there is not has a question mark.
func (f *fields) object(c *call, kind string, handle uint64) {
	o := c.ctx.objects[uint32(min(handle, 1<<32-1))]
	switch o := o.(type) {
	case nil:
		*f = append(*f, field{name: kind, text: fmt.Sprintf("%d?", handle), json: handle, missing: true})
	case *qpObject:
		f.queuePair(kind, handle, o.dev.Num())
	default:
		f.num(kind, handle)
	}
}

func (f *fields) queuePair(name string, handle uint64, num uint32) {
	f.add(name, fmt.Sprintf("%d %#x", handle, num), handle)
	f.add(name+"n", "", num)
}

// missing says which object there is not, if that is so.
func (f fields) missing() string {
	for i := range f {
		if f[i].missing {
			return fmt.Sprintf("there is no %s %v", f[i].name, f[i].json)
		}
	}
	return ""
}

// tellNew tells the handle of what was created.
func tellNew(kind string) func(*call, *fields) {
	return func(c *call, f *fields) { f.bare(kind, fmt.Sprintf("%s %d", kind, c.ctx.last), c.ctx.last) }
}

func tellVectors(c *call, f *fields) { f.num("num_comp_vectors", uint64(c.drv.dev.Vectors())) }

func tellPort(c *call, f *fields) {
	p := c.drv.portNow()
	f.bare("state", map[uint8]string{portActive: "ACTIVE", portDown: "DOWN"}[p.State], map[uint8]string{portActive: "ACTIVE", portDown: "DOWN"}[p.State])
	f.num("active_mtu", uint64(roce.MTUBytes(p.ActiveMTU)))
	f.num("gid_tbl_len", uint64(p.GIDs))
}

func tellGIDIndex(c *call, f *fields) {
	f.num("port", c.uint(gidEntryPort))
	f.num("index", c.uint(gidEntryIndex))
}

func tellGID(c *call, f *fields) {
	if g, errno := c.drv.gidAt(c.uint(gidEntryIndex)); errno == 0 {
		f.bare("gid", gidText(g.GID), gidText(g.GID))
		f.bare("type", "RoCE v2", "RoCE v2")
		f.bare("netdev", g.IfName, g.IfName)
	}
}

func tellRegMR(c *call, f *fields) {
	start, iova := le.Uint64(c.req[8:]), le.Uint64(c.req[24:])
	f.object(c, "pd", uint64(le.Uint32(c.req[32:])))
	f.hex("addr", start)
	f.num("length", le.Uint64(c.req[16:]))
	if iova != start {
		f.hex("iova", iova)
	}
	f.flags("access", uint64(le.Uint32(c.req[36:])), accessNames)
}

func tellNewMR(c *call, f *fields) {
	o, _ := c.ctx.objects[c.ctx.last].(*mrObject)
	if o == nil {
		return
	}
	f.bare("mr", fmt.Sprintf("mr %d (key %#x)", c.ctx.last, o.rkey), c.ctx.last)
	f.add("key", "", o.rkey)
}

func tellReregMR(c *call, f *fields) {
	flags := le.Uint32(c.req[12:])
	f.object(c, "mr", uint64(le.Uint32(c.req[8:])))
	f.flags("flags", uint64(flags), reregNames)
	if nic.ReregFlags(flags)&nic.ReregTranslation != 0 {
		f.hex("addr", le.Uint64(c.req[16:]))
		f.num("length", le.Uint64(c.req[24:]))
		f.hex("iova", le.Uint64(c.req[32:]))
	}
	if nic.ReregFlags(flags)&nic.ReregPD != 0 {
		f.object(c, "pd", uint64(le.Uint32(c.req[40:])))
	}
	if nic.ReregFlags(flags)&nic.ReregAccess != 0 {
		f.flags("access", uint64(le.Uint32(c.req[44:])), accessNames)
	}
}

func tellReregistered(c *call, f *fields) { f.hex("key", uint64(c.answered(0))) }

func tellAllocMW(c *call, f *fields) {
	f.object(c, "pd", uint64(le.Uint32(c.req[8:])))
	f.word("type", numbered(uint64(c.req[12]), mwTypeNames))
}

func tellNewMW(c *call, f *fields) {
	f.bare("mw", fmt.Sprintf("mw %d (key %#x)", c.ctx.last, c.answered(1)), c.ctx.last)
	f.add("key", "", c.answered(1))
}

func tellCreateAH(c *call, f *fields) {
	f.object(c, "pd", uint64(le.Uint32(c.req[16:])))
	a := decodeAHAttr(c.req[24:])
	f.address(c, "", &a)
}

// address is an address vector; prefix is that of an alternate path.
func (f *fields) address(c *call, prefix string, a *nic.AHAttr) {
	if !a.IsGlobal {
		f.num(prefix+"dlid", uint64(a.DLID))
		f.num(prefix+"is_global", 0)
		return
	}
	f.gid(prefix+"dgid", a.DGID)
	sgid := "?"
	if g, errno := c.drv.gidAt(uint64(a.SGIDIndex)); errno == 0 {
		sgid = gidText(g.GID)
	}
	f.add(prefix+"sgid_index", fmt.Sprintf("%d (%s)", a.SGIDIndex, sgid), a.SGIDIndex)
	f.add(prefix+"sgid", "", sgid)
	f.num(prefix+"hop_limit", uint64(a.HopLimit))
	if a.TrafficClass != 0 {
		f.num(prefix+"traffic_class", uint64(a.TrafficClass))
	}
	if a.FlowLabel != 0 {
		f.hex(prefix+"flow_label", uint64(a.FlowLabel))
	}
	if a.SL != 0 {
		f.num(prefix+"sl", uint64(a.SL))
	}
}

func (f *fields) newCQ(cqe, vector uint32, channel int64) {
	f.num("cqe", uint64(cqe))
	f.num("comp_vector", uint64(vector))
	if channel >= 0 {
		f.num("channel_fd", uint64(channel))
	}
}

func tellCreateCQMethod(c *call, f *fields) {
	channel := int64(-1)
	if c.has(cqCompChannel) {
		channel = int64(c.uint(cqCompChannel))
	}
	f.newCQ(uint32(c.uint(cqCQE)), uint32(c.uint(cqCompVector)), channel)
}

func tellCreateCQ(c *call, f *fields) {
	f.newCQ(le.Uint32(c.req[16:]), le.Uint32(c.req[20:]), int64(int32(le.Uint32(c.req[24:]))))
}

func tellCreateCQExt(c *call, f *fields) {
	f.newCQ(le.Uint32(c.req[8:]), le.Uint32(c.req[12:]), int64(int32(le.Uint32(c.req[16:]))))
}

func tellNewCQ(c *call, f *fields) {
	o, _ := c.ctx.objects[c.ctx.last].(*cqObject)
	if o == nil {
		return
	}
	f.bare("cq", fmt.Sprintf("cq %d", c.ctx.last), c.ctx.last)
	f.num("cqe", uint64(o.queue.ring.Capacity()))
}

func tellResizeCQ(c *call, f *fields) {
	f.object(c, "cq", uint64(le.Uint32(c.req[8:])))
	f.num("cqe", uint64(le.Uint32(c.req[12:])))
}

func tellModifyCQ(c *call, f *fields) {
	f.object(c, "cq", uint64(le.Uint32(c.req)))
	f.num("cq_count", uint64(le.Uint16(c.req[8:])))
	f.num("cq_period_us", uint64(le.Uint16(c.req[10:])))
}

func tellReqNotify(c *call, f *fields) {
	f.object(c, "cq", uint64(le.Uint32(c.req)))
	f.is("solicited_only", le.Uint32(c.req[4:]) != 0)
}

// tellEventsRead tells how many events of an object that is destroyed the program has read, and will wait until it has
// acknowledged.
func tellEventsRead(c *call, f *fields) {
	names := []string{"async_events"}
	if len(c.answers) > 0 && len(c.answers[0].data) >= 8 {
		names = []string{"comp_events", "async_events"}
	}
	for i, name := range names {
		if n := c.answered(i); n != 0 {
			f.num(name, uint64(n))
		}
	}
}

// tellOpen tells that the device was opened, as descriptor n, and keeps whose it is.
func (c *verbsContext) tellOpen(sys sandbox.Call, n int) {
	j := c.drv.journal
	if j == nil {
		return
	}
	c.pid = sys.PID()
	c.process = j.learnName(c.pid)
	if r := j.begin(sys); r != nil {
		r.name = "OPEN"
		path := fmt.Sprintf("/dev/infiniband/uverbs%d", c.drv.cfg.Index)
		r.args.bare("path", path, path)
		r.result.bare("fd", fmt.Sprintf("fd %d", n), n)
		j.tell(r)
	}
}

// tellClosed tells that the last descriptor of the device is closed, and what goes with it.
func (c *verbsContext) tellClosed() {
	if j := c.drv.journal; j.tellsCommands() {
		what := "device closed"
		if s := countedObjects(c.objects); s != "" {
			what += "; destroyed with it: " + s
		}
		j.tell(&record{typ: recordProcess, pid: c.pid, process: c.process, name: "closed", reason: what})
	}
}

// memoryGone tells that a process has ended, or is about to become another program, and forgets its name.
func (j *journal) memoryGone(pid, regions int) {
	if !j.tellsCommands() {
		return
	}
	j.mu.Lock()
	name := j.names[pid]
	delete(j.names, pid)
	j.mu.Unlock()
	what := "process has ended, or become another program"
	if regions > 0 {
		what += fmt.Sprintf("; memory regions that are gone: %d", regions)
	}
	j.tell(&record{typ: recordProcess, pid: pid, process: name, name: "ended", reason: what})
}

// tellAdvise tells of MR, ADVISE.
func tellAdvise(c *call, f *fields) {
	f.object(c, "pd", c.uint(advisePD))
	names := [...]string{"prefetch", "prefetch for writing", "prefetch without faults"}
	if a := c.uint(adviseAdvice); a < uint64(len(names)) {
		f.word("advice", names[a])
	} else {
		f.num("advice", a)
	}
	f.num("ranges", uint64(len(c.bytes(adviseList))/sizeSGE))
}
