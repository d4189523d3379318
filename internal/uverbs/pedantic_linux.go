package uverbs

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// pedant warns of what works on this NIC and fails on hardware: of each kind once for each object. Only what is certain is
// warned of. It looks at commands that have succeeded, and now and then at what queue pairs count. Guarded by Driver.mu.
type pedant struct {
	j    *journal
	said map[string]struct{}
	keys map[uint32]string // keys given out, and the region or window that they were of
}

// Kinds of warnings, by the names that docs/run.md explains.
const (
	warnSendQueue    = "unsignaled-send-queue"
	warnLateReceive  = "late-receive"
	warnStaleKey     = "stale-key"
	warnLoopbackGID  = "loopback-gid"
	warnLinkLocalGID = "link-local-gid"
	warnPathMTU      = "path-mtu"
	warnCQSize       = "cq-size"
	warnCQOverrun    = "cq-overrun"
	warnAtomic       = "unaligned-atomic"
	warnFork         = "forked-child"
	warnTimeout      = "infinite-timeout"
	warnReads        = "too-many-reads"
	warnInline       = "inline-size"
	warnMemlock      = "locked-memory"
)

const (
	maxSaid = 4096    // warnings of a run
	maxKeys = 1 << 16 // keys that are remembered
	// commonInline is what most NICs grant of inline data, in bytes.
	commonInline = 220
	// lookEvery is how often the counters of queue pairs are looked at.
	lookEvery = 250 * time.Millisecond
)

func newPedant(j *journal) pedant {
	return pedant{j: j, said: map[string]struct{}{}, keys: map[uint32]string{}}
}

// watchCounters looks at the queue pairs' counters until stop is closed.
func (d *Driver) watchCounters(stop <-chan struct{}) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			d.lookAtAll()
		}
	}
}

func (d *Driver) lookAtAll() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.contexts {
		c.look()
	}
}

// look looks at the queue pairs of a context.
func (c *verbsContext) look() {
	for _, o := range c.objects {
		if q, ok := o.(*qpObject); ok {
			q.look()
		}
	}
}

// warn says something of an object once; object is unique in the run.
func (p *pedant) warn(kind, object string, ctx *verbsContext, args fields, format string, a ...any) {
	key := kind + " " + object
	if _, ok := p.said[key]; ok || len(p.said) >= maxSaid {
		return
	}
	p.said[key] = struct{}{}
	p.j.tell(&record{typ: recordWarning, pid: ctx.pid, process: ctx.process, name: kind, args: args, reason: fmt.Sprintf(format, a...)})
}

func (p *pedant) warnQP(kind string, o *qpObject, format string, a ...any) {
	var f fields
	f.queuePair("qp", uint64(o.handle), o.dev.Num())
	p.warn(kind, fmt.Sprintf("qp %x", o.dev.Num()), o.ctx, f, fmt.Sprintf("QP %d (%#x)", o.handle, o.dev.Num())+": "+format, a...)
}

// judge looks at what a queue pair has counted.
func (p *pedant) judge(o *qpObject, c *nic.QPCounters) {
	if c.Overruns > 0 {
		p.warnQP(warnSendQueue, o, "%d send requests in a row without IBV_SEND_SIGNALED: hardware frees the slots of the send queue only when a completion behind them is polled, so posting fails with ENOMEM; signal at least one in %d",
			o.cap.MaxSendWR, o.init.cap.MaxSendWR)
	}
	if c.LateReceives > 0 {
		p.warnQP(warnLateReceive, o, "the peer's message came before any receive was posted, and was sent again: hardware refuses it too, and the peer gives up unless its rnr_retry is 7; post receives before the peer learns that this side is ready")
	}
	if what, ok := p.keys[c.UnknownKey]; ok && c.UnknownKeys > 0 {
		p.warnQP(warnStaleKey, o, "the peer used key %#x of %s, which is deregistered: remote access error; deregister when the peer is done", c.UnknownKey, what)
	}
	if what, ok := p.keys[c.UnknownLKey]; ok && c.UnknownLKeys > 0 {
		p.warnQP(warnStaleKey, o, "a work request uses local key %#x of %s, which is deregistered: local protection error; deregister when its work requests have completed",
			c.UnknownLKey, what)
	}
	if c.UnalignedAtomics > 0 {
		p.warnQP(warnAtomic, o, "an atomic on remote address %#x: it must be a multiple of 8", c.UnalignedAddr)
	}
	if c.TooManyReads > 0 {
		p.warnQP(warnReads, o, "the peer had more READs or atomics in flight than this side's max_dest_rd_atomic: its max_rd_atomic must not be more than that")
	}
}

// remember keeps the key of a region, to know it again when it is gone.
func (p *pedant) remember(key uint32, what string) {
	if len(p.keys) >= maxKeys {
		for k := range p.keys { // any
			delete(p.keys, k)
			break
		}
	}
	p.keys[key] = what
}

// checkProcess warns of a process that uses the device which its parent has opened.
func (c *call) checkProcess() {
	if pid := c.sys.PID(); pid != 0 && c.ctx.pid != 0 && pid != c.ctx.pid {
		c.drv.pedant.warn(warnFork, fmt.Sprint(c.ctx.pid, pid), c.ctx, nil,
			"process %d uses the device that process %d opened before it forked: with hardware the child has no access to queues and doorbells; open the device in the child",
			pid, c.ctx.pid)
	}
}

// checkNewMR looks at a region that was registered: hardware locks its memory.
func checkNewMR(c *call) {
	o, ok := c.ctx.objects[c.ctx.last].(*mrObject)
	if !ok {
		return
	}
	c.drv.pedant.remember(o.rkey, fmt.Sprintf("MR %d", c.ctx.last))
	limit, ok := lockable(o.pid)
	if !ok {
		return
	}
	total := uint64(0)
	for ctx := range c.drv.contexts {
		for _, other := range ctx.objects {
			if m, ok := other.(*mrObject); ok && m.pid == o.pid && m.dev != nil {
				total += m.length
			}
		}
	}
	if total > limit {
		c.drv.pedant.warn(warnMemlock, fmt.Sprint(o.pid), c.ctx, nil,
			"%d bytes of memory are registered, and the limit of locked memory is %d: with hardware ibv_reg_mr fails with ENOMEM; raise it (ulimit -l, LimitMEMLOCK=, docker run --ulimit memlock=-1)",
			total, limit)
	}
}

// lockable is the limit of a process's locked memory in bytes; false if it has none, or it is not known.
func lockable(pid int) (limit uint64, ok bool) {
	soft, err := strconv.ParseUint(procField(pid, "limits", "Max locked memory"), 10, 64)
	if err != nil { // "unlimited", or the process is gone
		return 0, false
	}
	caps, err := strconv.ParseUint(procField(pid, "status", "CapEff:"), 16, 64)
	return soft, err == nil && caps&(1<<unix.CAP_IPC_LOCK) == 0
}

// procField is the first word behind a label in a file of /proc; "" if there is none.
func procField(pid int, file, label string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	_, rest, _ := bytes.Cut(b, []byte(label))
	words := bytes.Fields(rest)
	if len(words) == 0 {
		return ""
	}
	return string(words[0])
}

func checkReregMR(c *call) {
	handle := le.Uint32(c.req[8:])
	if o, ok := c.ctx.objects[handle].(*mrObject); ok {
		c.drv.pedant.remember(o.rkey, fmt.Sprintf("MR %d", handle))
	}
}

// checkNewQP looks at what a queue pair was made with.
func checkNewQP(c *call) {
	o, ok := c.ctx.objects[c.ctx.last].(*qpObject)
	if !ok {
		return
	}
	p := &c.drv.pedant
	if n := o.init.cap.MaxInline; n > commonInline {
		p.warnQP(warnInline, o, "max_inline_data %d: many NICs grant no more than %d, and refuse the queue pair; ask for less if that fails", n, commonInline)
	}
	for _, h := range []uint64{o.init.sendCQ, o.init.recvCQ} {
		if q, ok := c.ctx.objects[uint32(h)].(*cqObject); ok {
			c.checkCQSize(q)
		}
	}
}

// checkCQSize adds up what can complete to a queue at once: all receives, and all sends where each is signalled. The numbers are
// those that the program has asked for, which is what it can rely on.
func (c *call) checkCQSize(q *cqObject) {
	need, pairs := uint64(0), 0
	for _, o := range c.ctx.objects {
		p, ok := o.(*qpObject)
		if !ok {
			continue
		}
		before := need
		if p.init.recvCQ == uint64(q.handle) && !p.init.hasSRQ {
			need += uint64(p.init.cap.MaxRecvWR)
		}
		if p.init.sendCQ == uint64(q.handle) && p.init.sigAll {
			need += uint64(p.init.cap.MaxSendWR)
		}
		if need > before {
			pairs++
		}
	}
	if room := q.queue.ring.Capacity(); need > uint64(room) {
		var f fields
		f.num("cq", uint64(q.handle))
		c.drv.pedant.warn(warnCQSize, fmt.Sprint(c.ctx.pid, " ", q.userHandle, " ", q.handle), c.ctx, f,
			"CQ %d: it holds %d completions, and %d queue pairs can complete %d requests before one is polled: when they do it overruns, which is fatal to them; make it larger",
			q.handle, room, pairs, need)
	}
}

// checkModifyQP looks at the attributes of a connection.
func checkModifyQP(c *call) {
	m := decodeModifyQP(c.req)
	o, ok := c.ctx.objects[m.Handle].(*qpObject)
	if !ok {
		return
	}
	p := &c.drv.pedant
	if m.Mask&nic.AttrTimeout != 0 && m.Attr.Timeout == 0 && o.init.typ == uint64(nic.RC) {
		p.warnQP(warnTimeout, o, "timeout 0 waits for ever: one lost packet, or a peer that dies, and the requests never complete; 14 is 67 ms")
	}
	if m.Mask&nic.AttrAV != 0 {
		g := c.checkGID(m.Attr.AH.SGIDIndex)
		if i, err := net.InterfaceByIndex(g.IfIndex); m.Mask&nic.AttrPathMTU != 0 && err == nil && roce.MTUBytes(m.Attr.PathMTU) > i.MTU {
			p.warnQP(warnPathMTU, o, "path_mtu %d is more than interface %s carries, whose MTU is %d", roce.MTUBytes(m.Attr.PathMTU), i.Name, i.MTU)
		}
	}
}

func checkNewAH(c *call) { c.checkGID(decodeAHAttr(c.req[24:]).SGIDIndex) }

// checkGID looks at the source of a path: an address that reaches less far than another that the device has.
func (c *call) checkGID(index uint8) device.GIDEntry {
	g, errno := c.drv.gidAt(uint64(index))
	if errno != 0 {
		return g
	}
	a := g.GID.Addr()
	if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
		return g
	}
	better := -1
	for _, o := range c.drv.gids() {
		if b := o.GID.Addr(); better < 0 && !b.IsLoopback() && !b.IsLinkLocalUnicast() {
			better = o.Index
		}
	}
	if better < 0 {
		return g // there is no other choice here
	}
	var f fields
	f.num("sgid_index", uint64(index))
	kind, reach := warnLoopbackGID, "reaches this machine only"
	if !a.IsLoopback() {
		kind, reach = warnLinkLocalGID, "does not cross a router"
	}
	c.drv.pedant.warn(kind, fmt.Sprint(c.ctx.pid, index), c.ctx, f, "GID index %d is %v, which %s; index %d is an address that travels", index, a, reach, better)
	return g
}

// cqOverrun is told with the NIC held: it makes no warning, but has the journal make one.
func (j *journal) cqOverrun(o *cqObject) {
	if j.pedantic() {
		j.event(told{ctx: o.ctx, overrun: true, event: nic.EventCQErr, kind: "cq", id: o.handle})
	}
}

// overrunRecord is the warning.
func (j *journal) overrunRecord(t *told) *record {
	r := &record{typ: recordWarning, at: t.at.Sub(j.start), pid: t.ctx.pid, process: t.ctx.process, name: warnCQOverrun,
		reason: fmt.Sprintf("CQ %d: more completions than it holds: it is dead, and its queue pairs are in error; poll sooner, or make it larger than all that can complete", t.id)}
	r.args.num("cq", uint64(t.id))
	return r
}
