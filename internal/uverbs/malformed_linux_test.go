package uverbs

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// world is a program with an object of every kind in use, and one of every kind that may be destroyed.
type world struct {
	*program
	fd                                int
	pd, cq, srq, mr, mw, ah           uint32
	spare                             struct{ pd, cq, srq, mr, mw, ah uint32 }
	qp, ud, spareQP                   *qp
	key                               uint32 // of mr
	mem                               []byte
	channel, otherChannel, asyncEvent int
}

// unknown is the handle of nothing.
const unknown = 0xdddd

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(newProgram(t, nil))
}

// newWorldOn is newWorld of a program that there is.
func newWorldOn(p *program) *world {
	w := &world{program: p, mem: make([]byte, 8192)}
	w.drv.cfg.Logf = nil
	w.fd, w.asyncEvent = w.context()
	w.channel = w.compChannel(w.fd)
	other, _ := w.context()
	w.otherChannel = w.compChannel(other)
	w.pd, w.spare.pd = w.program.pd(w.fd), w.program.pd(w.fd)
	w.cq, _ = w.program.cq(w.fd, w.channel, 1)
	w.spare.cq, _ = w.program.cq(w.fd, -1, 2)
	w.mr, w.key = w.onDemand(w.mem)
	w.spare.mr, _ = w.onDemand(w.mem)
	w.qp, w.ud = w.program.qp(w.fd, w.pd, w.cq, uint64(nic.RC)), w.program.qp(w.fd, w.pd, w.cq, uint64(nic.UD))
	w.spareQP = w.program.qp(w.fd, w.pd, w.cq, uint64(nic.UC))
	handle := func(cmd uint32, req []byte, resp, uhw int) uint32 {
		answer := make([]byte, resp)
		w.must(w.command(w.fd, cmd, req, answer, make([]byte, uhw)))
		return le.Uint32(answer)
	}
	for _, o := range []*uint32{&w.srq, &w.spare.srq} {
		*o = handle(cmdCreateSRQ, request(32, 16, w.pd, 20, 10, 24, 2), 16, sizeSRQResp)
	}
	for _, o := range []*uint32{&w.mw, &w.spare.mw} {
		*o = handle(cmdAllocMW, request(16, 8, w.pd, 12, 1), 8, 0)
	}
	for _, o := range []*uint32{&w.ah, &w.spare.ah} {
		*o = handle(cmdCreateAH, w.address32(request(56, 16, w.pd), 24), 4, 8)
	}
	return w
}

// onDemand registers memory with all rights, on demand.
func (w *world) onDemand(mem []byte) (handle, key uint32) {
	h, key, errno := w.tryRegMR(w.fd, w.pd, w.program.address(mem), uint64(len(mem)), nic.AccessLocalWrite|nic.AccessRemoteWrite|nic.AccessOnDemand)
	w.must(errno)
	return h, key
}

// request builds a structure of n bytes: pairs of offset and 32-bit word.
func request(n int, at ...uint32) []byte {
	b := make([]byte, n)
	for i := 0; i < len(at); i += 2 {
		le.PutUint32(b[at[i]:], at[i+1])
	}
	return b
}

// address32 puts struct ib_uverbs_ah_attr of a peer into b at off.
func (w *world) address32(b []byte, off int) []byte {
	g := w.drv.dev.GIDs()[0]
	copy(b[off:], g.GID[:])
	b[off+20], b[off+21], b[off+29], b[off+30] = byte(g.Index), 64, 1, 1
	return b
}

// state is all of the program's objects that a command could have changed.
func (w *world) state() string {
	var lines []string
	for c := range w.drv.contexts {
		if c.file != nil {
			lines = append(lines, fmt.Sprintf("%+v opened %v", c.dev.Objects(), c.opened))
		}
		for h, o := range c.objects {
			line := fmt.Sprintf("%d %T", h, o)
			switch o := o.(type) {
			case *qpObject:
				a, _, _ := o.dev.Query()
				line += fmt.Sprintf(" %+v", a)
			case *srqObject:
				a, _ := o.dev.Query()
				line += fmt.Sprintf(" %+v at %#x", a, o.queue.area.Offset)
			case *cqObject:
				count, period, _ := o.dev.Moderation()
				line += fmt.Sprintf(" %d %d at %#x", count, period, o.queue.area.Offset)
			case *mrObject:
				line += fmt.Sprintf(" %#x %#x+%#x %#x %v in %p", o.lkey, o.start, o.length, o.iova, o.access, o.pd)
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + fmt.Sprintf("\n%d files", len(w.files))
}

// unchanged checks that a refused command has changed nothing.
func (w *world) unchanged(what string, before string, got, want syscall.Errno) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %v, want %v", what, got, want)
	}
	if now := w.state(); now != before {
		w.t.Errorf("%s: has changed something:\n%s", what, cmp.Diff(strings.Split(before, "\n"), strings.Split(now, "\n")))
	}
}

// wrong is one way to make a request wrong: another 32-bit word at an offset.
type wrong struct {
	at   int
	word uint32
	want syscall.Errno
	why  string
}

// form is a command that works, and what is wrong with others.
type form struct {
	req           []byte
	resp          int
	uhwIn, uhwOut []byte
	wrong         []wrong
	destroys      bool // and answers afterwards, as in the kernel: an answer that cannot be written does not bring it back
}

// handleAt are the ways to make a handle in a request wrong.
func handleAt(at int, another uint32, unknownIs, anotherIs syscall.Errno) []wrong {
	return []wrong{{at, unknown, unknownIs, "no such object"}, {at, another, anotherIs, "another kind of object"}}
}

const (
	einval  = syscall.EINVAL
	enoent  = syscall.ENOENT
	ebadf   = syscall.EBADF
	eopnot  = syscall.EOPNOTSUPP
	efault  = syscall.EFAULT
	enospc  = syscall.ENOSPC
	ebusy   = syscall.EBUSY
	eproto  = syscall.EPROTONOSUPPORT
	noFlags = 0
)

// forms are the commands that this NIC carries out, but GET_CONTEXT: see TestMalformedGetContext.
func (w *world) forms() map[uint32]form {
	list := func(l ...[]wrong) []wrong { return slices.Concat(l...) }
	plain := func(at int, another uint32) []wrong { return handleAt(at, another, einval, einval) }
	destroy := func(n, at int, h uint32, resp int, busy uint32) form {
		f := form{req: request(n, uint32(at), h), resp: resp, wrong: handleAt(at, w.qp.handle, enoent, einval), destroys: true}
		if h == w.spareQP.handle {
			f.wrong = handleAt(at, w.pd, enoent, einval)
		}
		if busy != 0 {
			f.wrong = append(f.wrong, wrong{at, busy, ebusy, "it is in use"})
		}
		return f
	}
	addr := w.program.address(w.mem)
	regMR := request(40, 16, 4096, 32, w.pd, 36, 1)
	le.PutUint64(regMR[8:], addr)
	le.PutUint64(regMR[24:], addr)
	rereg := request(48, 8, w.mr, 12, 4, 44, uint32(nic.AccessLocalWrite|nic.AccessOnDemand))
	cq := []wrong{{0, 0, einval, "no entries"}, {0, 1 << 20, einval, "too many entries"}, {4, 9, einval, "no such vector"}}
	cqAt := func(at int, channel int) []wrong {
		c := slices.Clone(cq)
		for i := range c {
			c[i].at += at
		}
		return append(c, wrong{channel, uint32(w.otherChannel), ebadf, "a channel of another context"},
			wrong{channel, uint32(w.asyncEvent), ebadf, "a channel of other events"}, wrong{channel, 9999, ebadf, "no descriptor"})
	}
	qp := func(n, at int) []byte {
		o := uint32(at)
		return request(n, o, w.pd, o+4, w.cq, o+8, w.cq, o+16, 4, o+20, 4, o+24, 1, o+28, 1, o+36, uint32(nic.RC)<<8)
	}
	qpWrong := func(at int) []wrong {
		return list(plain(at, w.cq), plain(at+4, w.pd), plain(at+8, w.pd), []wrong{
			{at + 16, 1 << 30, einval, "too many work requests"}, {at + 24, 1000, einval, "too many entries"}, {at + 32, 1 << 20, einval, "too much inline data"},
			{at + 36, 0x77 << 8, einval, "no such type"}, {at + 36, 8 << 8, eopnot, "raw packets"}, {at + 36, 9 << 8, eopnot, "XRC"},
			{at + 36, uint32(nic.RC)<<8 | 1<<16, einval, "a shared queue that there is not"}})
	}
	modify := func(n int) []byte {
		b := request(n, 64, w.qp.handle, 68, uint32(nic.AttrState|nic.AttrPKeyIndex|nic.AttrPort|nic.AttrAccessFlags), 96, uint32(nic.Init))
		b[104] = 1
		return b
	}
	modifyWrong := list(plain(64, w.pd), []wrong{{68, 1 << 30, eopnot, "an attribute that there is not"}, {96, uint32(nic.RTS), einval, "no such transition"},
		{96, 99, einval, "no such state"}, {104, 2, einval, "no such port"}, {92, 7, einval, "no such P_Key"}, {68, 1, einval, "attributes are missing"},
		{88, 1 << 10, einval, "rights that there are not"}})
	group := w.drv.dev.GIDs()[0].GID
	copy(group[12:], []byte{239, 1, 2, 3})
	if !w.drv.dev.GIDs()[0].GID.Addr().Is4() {
		group[0] = 0xff
	}
	mcast := append(group[:], words(w.ud.handle, 0)...)
	mcastWrong := list(plain(16, w.pd), []wrong{{16, w.qp.handle, einval, "a connection"}})
	return map[uint32]form{
		cmdQueryDevice: {req: request(8), resp: 176},
		cmdQueryPort:   {req: request(16, 8, 1), resp: 40, wrong: []wrong{{8, 0, einval, "port 0"}, {8, 2, einval, "port 2"}}},
		cmdAllocPD:     {req: request(8), resp: 4},
		cmdDeallocPD:   destroy(4, 0, w.spare.pd, 0, w.pd),
		cmdCreateAH: {req: w.address32(request(56, 16, w.pd), 24), resp: 4, uhwOut: make([]byte, 8), wrong: list(plain(16, w.cq),
			[]wrong{{24 + 28, 0, einval, "no GRH, no port"}, {24 + 20, 0x00ff, einval, "no such GID"}})},
		cmdDestroyAH: destroy(4, 0, w.spare.ah, 0, 0),
		cmdRegMR: {req: regMR, resp: 12, wrong: list(plain(32, w.cq), []wrong{{36, 2, einval, "remote write without local write"}, {36, 1 << 10, einval, "no such right"},
			{36, uint32(nic.AccessFlushPersist), eopnot, "memory that outlives a loss of power"}, {20, 0xffffffff, einval, "it wraps around"}, {12, 0x7fff, efault, "nothing is mapped"}})},
		cmdReregMR: {req: rereg, resp: 8, wrong: list(handleAt(8, w.pd, enoent, einval), []wrong{{12, 0, einval, "no flags"}, {12, 8, eopnot, "no such flag"},
			{44, 2, einval, "remote write without local write"}, {12, 6, einval, "no such domain"}})},
		cmdDeregMR:           destroy(4, 0, w.spare.mr, 0, 0),
		cmdAllocMW:           {req: request(16, 8, w.pd, 12, 2), resp: 8, wrong: list(plain(8, w.cq), []wrong{{12, 0, einval, "no such type"}, {12, 3, einval, "no such type"}})},
		cmdDeallocMW:         destroy(4, 0, w.spare.mw, 0, 0),
		cmdCreateCompChannel: {req: request(8), resp: 4},
		cmdCreateCQ:          {req: request(32, 16, 10, 24, uint32(w.channel)), resp: 8, uhwOut: make([]byte, sizeMMInfo), wrong: cqAt(16, 24)},
		cmdResizeCQ: {req: request(16, 8, w.cq, 12, 200), resp: 8, uhwOut: make([]byte, sizeMMInfo),
			wrong: list(plain(8, w.pd), []wrong{{12, 0, einval, "no entries"}, {12, 1 << 20, einval, "too many entries"}})},
		cmdDestroyCQ:   destroy(16, 8, w.spare.cq, 8, w.cq),
		cmdReqNotifyCQ: {req: request(8, 0, w.cq), wrong: plain(0, w.pd)},
		cmdCreateQP:    {req: qp(56, 16), resp: 32, uhwOut: make([]byte, 32), wrong: qpWrong(16)},
		cmdQueryQP:     {req: request(16, 8, w.qp.handle), resp: 128, wrong: plain(8, w.pd)},
		cmdModifyQP:    {req: modify(112), wrong: modifyWrong},
		cmdDestroyQP:   destroy(16, 8, w.spareQP.handle, 4, 0),
		cmdPostSend:    {req: request(24, 8, w.qp.handle, 20, 128), resp: 4, wrong: list(plain(8, w.pd), []wrong{{12, 1, einval, "work requests in the command"}})},
		cmdAttachMcast: {req: mcast, wrong: mcastWrong},
		cmdDetachMcast: {req: mcast, wrong: mcastWrong},
		cmdCreateSRQ: {req: request(32, 16, w.pd, 20, 10, 24, 2), resp: 16, uhwOut: make([]byte, sizeSRQResp),
			wrong: list(plain(16, w.cq), []wrong{{20, 0, einval, "no entries"}, {20, 1 << 30, einval, "too many entries"}, {24, 1000, einval, "too many pieces"}})},
		cmdModifySRQ: {req: request(16, 0, w.srq, 4, 2, 12, 5), uhwIn: make([]byte, 8), wrong: list(plain(0, w.pd), []wrong{{4, 4, einval, "no such attribute"},
			{12, 100, einval, "a limit beyond the queue"}, {4, 1, einval, "no entries"}})},
		cmdQuerySRQ:   {req: request(16, 8, w.srq), resp: 16, wrong: plain(8, w.pd)},
		cmdDestroySRQ: destroy(16, 8, w.spare.srq, 4, 0),

		exQueryDevice: {req: request(8), resp: 304, wrong: []wrong{{0, 1, einval, "comp_mask"}, {4, 1, einval, "reserved"}}},
		exCreateCQ: {req: request(32, 8, 10, 16, uint32(w.channel)), resp: 16, uhwOut: make([]byte, sizeMMInfo), wrong: list(cqAt(8, 16),
			[]wrong{{20, 1, einval, "comp_mask"}, {28, 1, einval, "reserved"}, {24, 1, eopnot, "time stamps"}})},
		exCreateQP: {req: qp(64, 8), resp: 40, uhwOut: make([]byte, 32), wrong: list(qpWrong(8), []wrong{{44, uint32(nic.RC)<<8 | 1<<24, einval, "reserved"}, {48, 2, einval, "comp_mask"}, {52, 1 << 8, eopnot, "create_flags"}})},
		exModifyQP: {req: modify(120), resp: 8, wrong: modifyWrong},
		exModifyCQ: {req: request(16, 0, w.cq, 4, 1, 8, 3), wrong: list(plain(0, w.pd), []wrong{{4, 0, einval, "no attribute"}, {4, 2, eopnot, "no such attribute"}, {12, 1, einval, "reserved"}})},
	}
}

// send is a command wrapped in an ioctl.
func (w *world) send(c *fakeCall, num uint32, req []byte, resp int, f *form) syscall.Errno {
	attrs := []attr{w.input(invokeCommand, le.AppendUint64(nil, uint64(num)))}
	if len(req) > 0 {
		attrs = append(attrs, w.input(invokeCoreIn, req))
	}
	if resp > 0 {
		b := make([]byte, resp)
		attrs = append(attrs, w.output(invokeCoreOut, b))
		if c.readOnly[1] == 1 { // not known before
			at := w.program.address(b)
			c.readOnly = [2]uint64{at, at + uint64(resp)}
		}
	}
	if f.uhwIn != nil {
		attrs = append(attrs, w.input(attrUHWIn, f.uhwIn))
	}
	if f.uhwOut != nil {
		attrs = append(attrs, w.output(attrUHWOut, f.uhwOut))
	}
	_, errno := w.ioctlWith(c, w.fd, objDevice, methodInvokeWrite, attrs...)
	return errno
}

func set(b []byte, at int, word uint32) []byte {
	b = slices.Clone(b)
	le.PutUint32(b[at:], word)
	return b
}

// Every command in forms that are wrong: the kernel's error, and nothing has changed; at last it works.
func TestMalformedCommands(t *testing.T) {
	w := newWorld(t)
	forms := w.forms()
	for num, c := range commands {
		f, ok := forms[num]
		if c.run == nil || num == cmdGetContext {
			if ok {
				t.Errorf("%s has a form, but is not carried out", c.name)
			}
			continue
		}
		if !ok {
			t.Errorf("%s is carried out, but has no form here", c.name)
			continue
		}
		before := w.state()
		refused := func(why string, want syscall.Errno, req []byte, resp int) {
			t.Helper()
			w.unchanged(c.name+": "+why, before, w.send(&fakeCall{p: w.program}, num, req, resp, &f), want)
		}
		for _, x := range f.wrong {
			refused(x.why, x.want, set(f.req, x.at, x.word), f.resp)
		}
		if c.req > 4 {
			refused("request too short", enospc, f.req[:c.req-4], f.resp)
		} else {
			refused("request too short", einval, f.req[:c.req-1], f.resp)
		}
		refused("no request", enospc, nil, f.resp)
		if num != cmdPostSend {
			refused("more than is known", eopnot, append(slices.Clone(f.req), 0, 0, 0, 0, 0, 0, 0, 1), f.resp)
		}
		if f.resp > 0 && c.resp > 0 {
			refused("answer too short", enospc, f.req, c.resp-1)
			refused("no answer", enospc, f.req, 0)
		}
		if f.uhwOut != nil && num != cmdCreateAH { // whose number old providers do not ask for
			short := f
			short.uhwOut = f.uhwOut[:len(f.uhwOut)-1]
			w.unchanged(c.name+": provider's answer too short", before, w.send(&fakeCall{p: w.program}, num, f.req, f.resp, &short), einval)
		}
		if f.resp > 0 && !f.destroys && num != cmdPostSend {
			unwritable := &fakeCall{p: w.program, readOnly: [2]uint64{0, 1}}
			w.unchanged(c.name+": answer to read-only memory", before, w.send(unwritable, num, f.req, f.resp, &f), efault)
		}
		if num == cmdDetachMcast {
			continue // see TestMulticastCommands
		}
		w.written(num, c, &f, before)
	}
	order := []uint32{cmdAttachMcast, cmdDetachMcast}
	for num := range forms {
		if !slices.Contains(order, num) && num != cmdModifyQP {
			order = append(order, num) // EX_MODIFY_QP has made the transition already
		}
	}
	for _, num := range order {
		f := forms[num]
		if errno := w.send(&fakeCall{p: w.program}, num, f.req, f.resp, &f); errno != 0 {
			t.Errorf("%s: %v", commands[num].name, errno)
		}
	}
}

// written writes a command in forms that are wrong.
func (w *world) written(num uint32, c *command, f *form, before string) {
	w.t.Helper()
	try := func(why string, want syscall.Errno, in, out int, body []byte, ext func(x []byte)) {
		w.t.Helper()
		b := make([]byte, sizeCmdHdr)
		le.PutUint32(b, num)
		if num&commandExtended != 0 {
			b = append(b, make([]byte, sizeExCmdHdr)...)
			le.PutUint16(b[4:], uint16(in/8))
			le.PutUint16(b[6:], uint16(out/8))
			le.PutUint64(b[8:], w.program.address(make([]byte, 512)))
			if ext != nil {
				ext(b[8:])
			}
		} else {
			le.PutUint16(b[4:], uint16((sizeCmdHdr+in)/4))
			le.PutUint16(b[6:], uint16(out/4))
		}
		b = append(b, body...)
		call := &fakeCall{p: w.program}
		w.drv.Write(call, w.files[w.fd], w.program.address(b), uint64(len(b)))
		w.unchanged(fmt.Sprintf("%s written: %s", c.name, why), before, call.errno, want)
	}
	in, out := len(f.req), f.resp
	if num&commandExtended == 0 {
		try("more than it says", einval, in, out, append(slices.Clone(f.req), 0, 0, 0, 0), nil)
		if num != cmdDestroyCQ { // which rdma-core 18 and 19 write so
			try("request too short", enospc, in-4, out, f.req[:in-4], nil)
		}
		if out > 0 {
			try("answer too short", enospc, in, out-4, f.req, nil)
		}
		return
	}
	out = (out + 7) &^ 7
	try("more than it says", einval, in, out, append(slices.Clone(f.req), 0, 0, 0, 0), nil)
	try("request too short", enospc, in&^7-8-(len(f.req)-c.req)&^7, out, f.req[:in&^7-8-(len(f.req)-c.req)&^7], nil)
	try("reserved field of the header", einval, in, out, f.req, func(x []byte) { x[12] = 1 })
	if out > 0 {
		try("nowhere to answer", einval, in, out, f.req, func(x []byte) { clear(x[:8]) })
	}
	if c.resp > 0 {
		try("answer too short", enospc, in, out-(out-c.resp)&^7-8, f.req, nil)
	}
}

// GET_CONTEXT comes first, once, and everything else after it.
func TestMalformedGetContext(t *testing.T) {
	w := newWorld(t)
	bare := w.open()
	before := w.state()
	for num, f := range w.forms() {
		attrs := []attr{w.input(invokeCommand, le.AppendUint64(nil, uint64(num))), w.input(invokeCoreIn, f.req), w.output(invokeCoreOut, make([]byte, max(1, f.resp)))}
		if f.resp == 0 {
			attrs = attrs[:2]
		}
		if f.uhwOut != nil {
			attrs = append(attrs, w.output(attrUHWOut, f.uhwOut))
		}
		_, errno := w.ioctl(bare, objDevice, methodInvokeWrite, attrs...)
		want := einval
		if f.destroys || num == cmdReregMR {
			want = enoent
		}
		w.unchanged(commands[num].name+" before GET_CONTEXT", before, errno, want)
	}
	w.unchanged("GET_CONTEXT, request too short", before, w.command(bare, cmdGetContext, make([]byte, 4), make([]byte, 8), nil), enospc)
	w.unchanged("GET_CONTEXT, answer too short", before, w.command(bare, cmdGetContext, make([]byte, 8), make([]byte, 4), nil), enospc)
	resp := make([]byte, 8)
	at := w.program.address(resp)
	_, errno := w.ioctlWith(&fakeCall{p: w.program, readOnly: [2]uint64{at, at + 8}}, bare, objDevice, methodInvokeWrite,
		w.input(invokeCommand, make([]byte, 8)), w.input(invokeCoreIn, make([]byte, 8)), w.output(invokeCoreOut, resp))
	w.unchanged("GET_CONTEXT, answer to read-only memory", before, errno, efault)
	w.must(w.command(bare, cmdGetContext, make([]byte, 8), resp, nil))
	before = w.state()
	w.unchanged("GET_CONTEXT, a second time", before, w.command(bare, cmdGetContext, make([]byte, 8), resp, nil), einval)
}

// methodForms are the methods as they work; want is what they answer if not 0.
func (w *world) methodForms() map[string]struct {
	attrs []attr
	want  syscall.Errno
} {
	type methodForm = struct {
		attrs []attr
		want  syscall.Errno
	}
	u64 := func(id uint16, v uint64) attr { return w.input(id, le.AppendUint64(nil, v)) }
	u32 := func(id uint16, v uint32) attr { return w.input(id, words(v)) }
	answer := func(id uint16, n int) attr { return w.output(id, make([]byte, n)) }
	destroy := func(h uint32, resp int) methodForm {
		f := methodForm{attrs: []attr{number(destroyHandle, uint64(h))}}
		if resp > 0 {
			f.attrs = append(f.attrs, answer(destroyResp, resp))
		}
		return f
	}
	sge := append(le.AppendUint64(nil, w.program.address(w.mem)), words(uint32(len(w.mem)), w.key)...)
	return map[string]methodForm{
		"DEVICE.INFO_HANDLES":  {attrs: []attr{u64(handlesObject, objPD), answer(handlesTotal, 4), answer(handlesList, 40)}},
		"DEVICE.QUERY_PORT":    {attrs: []attr{u64(portNum, 1), answer(portResp, 48)}},
		"DEVICE.GET_CONTEXT":   {attrs: []attr{answer(contextVectors, 4)}, want: einval}, // once only
		"DEVICE.QUERY_CONTEXT": {attrs: []attr{answer(contextVectors, 4), answer(contextSupport, 8)}},
		"DEVICE.QUERY_GID_TABLE": {attrs: []attr{u64(gidTableEntrySize, sizeGIDEntry), u32(gidTableFlags, noFlags),
			answer(gidTableEntries, 64*sizeGIDEntry), answer(gidTableCount, 8)}},
		"DEVICE.QUERY_GID_ENTRY": {attrs: []attr{u64(gidEntryPort, 1), u64(gidEntryIndex, uint64(w.drv.dev.GIDs()[0].Index)), u32(gidEntryFlags, noFlags), answer(gidEntryResp, sizeGIDEntry)}},
		"PD.DESTROY":             destroy(w.spare.pd, 0),
		"CQ.CREATE": {attrs: []attr{number(cqHandle, 0), u32(cqCQE, 10), u64(cqUserHandle, 1), number(cqCompChannel, uint64(w.channel)), u32(cqCompVector, 0),
			u32(cqFlags, noFlags), answer(cqRespCQE, 4), number(cqEventFD, uint64(w.asyncEvent)), answer(attrUHWOut, sizeMMInfo)}},
		"CQ.DESTROY": destroy(w.spare.cq, 8),
		"QP.CREATE": {attrs: []attr{number(qpHandle, 0), number(qpPD, uint64(w.pd)), number(qpSendCQ, uint64(w.cq)), number(qpRecvCQ, uint64(w.cq)), number(qpSRQ, uint64(w.srq)),
			u64(qpUserHandle, 1), w.input(qpCap, words(4, 4, 1, 1, 0)), u64(qpType, uint64(nic.RC)), u32(qpFlags, qpFlagSigAll), number(qpEventFD, uint64(w.asyncEvent)),
			answer(qpRespCap, sizeQPCap), answer(qpRespNum, 4), answer(attrUHWOut, 32)}},
		"QP.DESTROY": destroy(w.spareQP.handle, 4),
		"SRQ.CREATE": {attrs: []attr{number(srqHandle, 0), number(srqPD, uint64(w.pd)), u64(srqUserHandle, 1), u32(srqMaxWR, 10), u32(srqMaxSGE, 1), u32(srqLimit, 0), u64(srqType, 0),
			number(srqEventFD, uint64(w.asyncEvent)), answer(srqRespMaxWR, 4), answer(srqRespMaxSGE, 4), answer(srqRespNum, 4), answer(attrUHWOut, sizeSRQResp)}},
		"SRQ.DESTROY": destroy(w.spare.srq, 4),
		"AH.DESTROY":  destroy(w.spare.ah, 0),
		"MR.DESTROY":  destroy(w.spare.mr, 0),
		"MW.DESTROY":  destroy(w.spare.mw, 0),
		"MR.QUERY": {attrs: []attr{number(mrHandle, uint64(w.mr)), answer(mrRespLKey, 4), answer(mrRespRKey, 4), answer(mrRespLength, 8),
			answer(mrRespIOVA, 8)}},
		"MR.ADVISE": {attrs: []attr{number(advisePD, uint64(w.pd)), u64(adviseAdvice, advicePrefetchWrite), u32(adviseFlags, adviseFlush), w.input(adviseList, sge)}},
		"MR.REG_DMABUF": {attrs: []attr{number(dmabufHandle, 0), number(dmabufPD, uint64(w.pd)), u64(2, 0), u64(3, 4096), u64(4, 0), u32(5, 0), u32(6, 1), answer(7, 4),
			answer(dmabufRespRKey, 4)}, want: eopnot},
		"ASYNC_EVENT.ALLOC": {attrs: []attr{number(0, 0)}},
	}
}

// What methods refuse that has the right form but a wrong content: attribute, value, error.
func (w *world) wrongContent() map[string][]struct {
	why  string
	id   uint16
	b    []byte
	want syscall.Errno
} {
	type content = struct {
		why  string
		id   uint16
		b    []byte
		want syscall.Errno
	}
	u64 := func(v uint64) []byte { return le.AppendUint64(nil, v) }
	sge := func(addr uint64, n, key uint32) []byte { return append(u64(addr), words(n, key)...) }
	base := w.program.address(w.mem)
	return map[string][]content{
		"DEVICE.INFO_HANDLES":    {{"no such kind", handlesObject, u64(99), eopnot}},
		"DEVICE.QUERY_PORT":      {{"no such port", portNum, u64(2), einval}, {"no such port", portNum, u64(1 << 32), einval}},
		"DEVICE.QUERY_GID_TABLE": {{"entries of no size", gidTableEntrySize, u64(0), einval}, {"entries too short", gidTableEntrySize, u64(8), einval}, {"flags", gidTableFlags, words(1), einval}},
		"DEVICE.QUERY_GID_ENTRY": {{"no such port", gidEntryPort, u64(0), einval}, {"beyond the table", gidEntryIndex, u64(1 << 40), einval}, {"empty slot", gidEntryIndex, u64(15), syscall.ENODATA},
			{"flags", gidEntryFlags, words(1), einval}},
		"CQ.CREATE": {{"no entries", cqCQE, words(0), einval}, {"too many entries", cqCQE, words(1 << 20), einval}, {"no such vector", cqCompVector, words(7), einval},
			{"time stamps", cqFlags, words(1), eopnot}, {"no such flag", cqFlags, words(4), einval}},
		"QP.CREATE": {{"no such type", qpType, u64(77), einval}, {"the management queue pair", qpType, u64(1), einval}, {"raw packets", qpType, u64(8), eopnot}, {"no such flag", qpFlags, words(1), einval}, {"VLAN", qpFlags, words(1 << 9), eopnot},
			{"too many work requests", qpCap, words(1<<30, 1, 1, 1, 0), einval}, {"too many pieces", qpCap, words(1, 1, 1000, 1, 0), einval}},
		"SRQ.CREATE": {{"no entries", srqMaxWR, words(0), einval}, {"too many pieces", srqMaxSGE, words(1000), einval}, {"XRC", srqType, u64(1), eopnot}},
		"MR.ADVISE": {{"no such advice", adviseAdvice, u64(3), eopnot}, {"no such flag", adviseFlags, words(2), einval}, {"half an entry", adviseList, make([]byte, 24), einval},
			{"no such key", adviseList, sge(base, 10, 0x77), enoent}, {"before the region", adviseList, sge(base-1, 10, w.key), efault},
			{"beyond the region", adviseList, sge(base+1, uint32(len(w.mem)), w.key), efault}, {"it wraps around", adviseList, sge(^uint64(0), 10, w.key), efault}},
	}
}

// Every method in forms that are wrong, as TestMalformedCommands.
func TestMalformedMethods(t *testing.T) {
	w := newWorld(t)
	forms, contents := w.methodForms(), w.wrongContent()
	for _, m := range methods {
		name := objectName(m.object) + "." + m.name
		if m.name == "INVOKE_WRITE" {
			continue // TestMalformedCommands
		}
		f, ok := forms[name]
		if !ok {
			t.Errorf("%s has no form here", name)
			continue
		}
		before := w.state()
		refused := func(why string, want syscall.Errno, attrs ...attr) {
			t.Helper()
			_, errno := w.ioctl(w.fd, m.object, m.method, attrs...)
			w.unchanged(name+": "+why, before, errno, want)
		}
		refused("unknown and mandatory", eproto, append(slices.Clone(f.attrs), attr{id: 0x777, flags: flagMandatory})...)
		refused("one twice", einval, append(slices.Clone(f.attrs), f.attrs[0])...)
		for i, a := range f.attrs {
			spec := m.attr(a.id)
			change := func(why string, want syscall.Errno, f2 func(*attr)) {
				t.Helper()
				attrs := slices.Clone(f.attrs)
				f2(&attrs[i])
				refused(spec.name+": "+why, want, attrs...)
			}
			change("reserved field", einval, func(a *attr) { a.enum = 1 })
			if spec.required {
				refused(spec.name+" is missing", einval, slices.Delete(slices.Clone(f.attrs), i, i+1)...)
			}
			switch {
			case spec.kind == attrObject:
				change("negative", einval, func(a *attr) { a.data = 1 << 63 })
				change("beyond 32 bits", enoent, func(a *attr) { a.data |= 1 << 32 })
				change("no such object", enoent, func(a *attr) { a.data = unknown })
				another := uint64(w.qp.handle)
				if a.data == uint64(w.spareQP.handle) {
					another = uint64(w.pd)
				}
				change("another kind of object", einval, func(a *attr) { a.data = another })
			case spec.kind == attrFD:
				change("no descriptor", ebadf, func(a *attr) { a.data = 9999 })
				change("not of 32 bits", einval, func(a *attr) { a.data |= 1 << 32 })
				change("not a channel", ebadf, func(a *attr) { a.data = uint64(w.fd) })
			}
			switch {
			case spec.kind != attrIn && spec.kind != attrOut:
				change("with a length", einval, func(a *attr) { a.len = 4 })
			case spec.id < attrUHWIn:
				if spec.min > 0 {
					change("too short", einval, func(a *attr) { a.len = uint16(spec.min) - 1 })
				}
				if spec.max < anyLength {
					change("too long", einval, func(a *attr) { a.len = uint16(spec.max) + 1 })
				}
				if spec.kind == attrIn && a.len > inlineLimit {
					change("nothing mapped", efault, func(a *attr) { a.data = 8 })
				}
				if spec.kind == attrOut && m.name != "DESTROY" && f.want == 0 {
					change("answer to nowhere", efault, func(a *attr) { a.data = 8 })
				}
			}
		}
		for _, x := range contents[name] {
			attrs := slices.Clone(f.attrs)
			for i := range attrs {
				if attrs[i].id == x.id {
					attrs[i] = w.input(x.id, x.b)
				}
			}
			refused(x.why, x.want, attrs...)
		}
	}
	for name, f := range forms {
		object, meth, _ := strings.Cut(name, ".")
		for _, m := range methods {
			if objectName(m.object) == object && m.name == meth {
				if _, errno := w.ioctl(w.fd, m.object, m.method, f.attrs...); errno != f.want {
					t.Errorf("%s: %v, want %v", name, errno, f.want)
				}
			}
		}
	}
}

// The handles of a context (UVERBS_METHOD_INFO_HANDLES): as many as there is room for.
func TestInfoHandles(t *testing.T) {
	w := newWorld(t)
	total, list := make([]byte, 4), make([]byte, 12)
	ask := func(object uint64, list []byte) (n uint32) {
		t.Helper()
		_, errno := w.ioctl(w.fd, objDevice, 1, w.input(handlesObject, le.AppendUint64(nil, object)), w.output(handlesTotal, total), w.output(handlesList, list))
		w.must(errno)
		return le.Uint32(total)
	}
	if n := ask(objPD, list); n != 2 || le.Uint32(list) != w.pd || le.Uint32(list[4:]) != w.spare.pd || le.Uint32(list[8:]) != 0 {
		t.Errorf("%d domains: %x", n, list)
	}
	if n := ask(objQP, list[:8]); n != 2 || le.Uint32(list) != w.qp.handle {
		t.Errorf("%d of three queue pairs where there is room for two: %x", n, list)
	}
}

// Posting to a send queue is refused while its queue pair is not ready to send (vol. 1, 10.3.1): to the program the queue
// is full.
func TestPostingIsRefusedBeforeReadyToSend(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, mem := p.cq(fd, -1, 1)
	g, _ := ring.GeometryFor(100, ring.CQESize)
	completions := ring.View(mem, g)
	a, b := p.qp(fd, pd, cq, uint64(nic.RC)), p.qp(fd, pd, cq, uint64(nic.RC))
	refused := func(state string, want bool) {
		t.Helper()
		if got := a.send.Free() == 0; got != want {
			t.Errorf("%s: a post is refused: %v, want %v", state, got, want)
		}
	}
	init := func() {
		p.must(a.modify(nic.AttrState|nic.AttrPKeyIndex|nic.AttrPort|nic.AttrAccessFlags, func(b []byte) { b[96], b[104] = byte(nic.Init), 1 }))
	}
	refused("RESET", true)
	init()
	refused("INIT", true)
	p.must(a.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.Reset) }))
	b.connect(a)
	for range 3 { // also where the indices are not at the beginning
		a.connect(b)
		refused("RTS", false)
		b.receive0()
		a.send0()
		p.notify(fd, cq)
		if n := completions.Pending(); n != 2 {
			t.Fatalf("%d completions, want 2", n)
		}
		for completions.Pending() > 0 {
			_ = completions.Consume()
		}
		p.must(a.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.Err) }))
		refused("ERR", false) // what is posted is flushed
		for _, q := range []*qp{a, b} {
			p.must(q.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.Reset) }))
		}
		refused("RESET again", true)
		b.connect(a)
	}
	init()
	p.must(a.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.Err) }))
	refused("ERR from INIT", false)
}

// Memory on demand need not be mapped when it is registered: what is there when it is used counts.
func TestMemoryOnDemand(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, cqMem := p.cq(fd, -1, 1)
	g, _ := ring.GeometryFor(100, ring.CQESize)
	completions := ring.View(cqMem, g)

	const size = 4 * pageSize
	hole, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(hole) })
	at := p.address(hole)
	const rights = nic.AccessLocalWrite | nic.AccessRemoteWrite
	if _, _, errno := p.tryRegMR(fd, pd, at, size, rights); errno != efault {
		t.Errorf("memory that cannot be reached, not on demand: %v", errno)
	}
	_, explicit, errno := p.tryRegMR(fd, pd, at, size, rights|nic.AccessOnDemand)
	p.must(errno)
	req, resp := request(40, 32, pd, 36, uint32(rights|nic.AccessOnDemand)), make([]byte, 12)
	le.PutUint64(req[16:], nic.ImplicitLength)
	p.must(p.command(fd, cmdRegMR, req, resp, nil))
	implicit := le.Uint32(resp[8:])

	write := func(key uint32) ring.Status {
		t.Helper()
		a, b := p.connected(fd, pd, cq, cq)
		a.send.StoreSend(a.send.Position(), &ring.SendWQE{Opcode: ring.OpWrite, Flags: ring.SendSignaled | ring.SendInline,
			RemoteAddr: at + pageSize - 4, RKey: key, InlineLen: 8, Inline: [ring.MaxInline]byte{1, 2, 3, 4, 5, 6, 7, 8}}, false)
		if err := a.send.Publish(); err != nil {
			t.Fatal(err)
		}
		a.doorbell()
		p.notify(fd, cq)
		var e ring.CQE
		if completions.Pending() != 1 {
			t.Fatalf("%d completions, want 1", completions.Pending())
		}
		completions.LoadCQE(completions.Position(), &e)
		_ = completions.Consume()
		a.destroy()
		b.destroy()
		return e.Status
	}
	for what, key := range map[string]uint32{"explicit": explicit, "implicit": implicit} {
		if s := write(key); s != ring.StatusRemAccessErr && s != ring.StatusRemOpErr {
			t.Errorf("%s: a WRITE to memory that is not there: %v", what, s)
		}
	}
	if err := unix.Mprotect(hole, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	for what, key := range map[string]uint32{"explicit": explicit, "implicit": implicit} {
		clear(hole)
		if s := write(key); s != 0 || hole[pageSize-4] != 1 || hole[pageSize+3] != 8 {
			t.Errorf("%s: a WRITE to memory that has come: %v, %x", what, s, hole[pageSize-4:pageSize+4])
		}
	}
	if err := unix.Mprotect(hole, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if s := write(implicit); s == 0 || s == ring.StatusRetryExcErr {
		t.Errorf("a WRITE to memory that has become read-only: %v", s)
	}
}
