package ucm

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"rnic/internal/nic"
)

// wellFormed are the commands on an id, of a kind that is wrong for most of them: what is wrong with the form itself shows before.
func (p *program) wellFormed(id uint32) []form {
	a := sockaddr(p.addr, 0)
	return []form{
		formOf("BIND_IP", "bind_ip", "id", id, "addr", a), newForm("bind", "id", id, "addr_size", len(a), "addr", a),
		newForm("resolve_ip", "id", id, "dst_addr", a), p.resolveForm(id, 1), newForm("resolve_route", "id", id),
		newForm("query", "id", id, "option", queryAddr), newForm("query", "id", id, "option", queryPath), newForm("query", "id", id, "option", queryGID),
		formOf("QUERY_ROUTE", "query", "id", id),
		newForm("connect", "id", id, "conn_param", param(1, "")), newForm("listen", "id", id, "backlog", 1),
		newForm("accept", "id", id, "conn_param", param(1, "")), newForm("reject", "id", id), newForm("disconnect", "id", id),
		newForm("init_qp_attr", "id", id, "qp_state", int(nic.Init)), newForm("set_option", "id", id, "level", levelID, "optname", optionTOS, "optlen", 1, "optval", uint64(memBase)),
		newForm("notify", "id", id, "event", eventCommEst), formOf("LEAVE_MCAST", "destroy_id", "id", id),
		formOf("JOIN_IP_MCAST", "join_ip_mcast", "id", id, "addr", a), newForm("join_mcast", "id", id, "addr_size", len(a), "addr", a),
		newForm("migrate_id", "id", id), newForm("destroy_id", "id", id),
	}
}

// least is the room that a command's answer needs.
var least = map[string]int{"CREATE_ID": 4, "DESTROY_ID": 4, "QUERY_ROUTE": 200, "INIT_QP_ATTR": 144, "GET_EVENT": 324, "JOIN_IP_MCAST": 4, "JOIN_MCAST": 4, "LEAVE_MCAST": 4,
	"MIGRATE_ID": 4, "QUERY": 272}

func TestMalformed(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	mine, other := p.id(a, psUDP, 1), p.id(b, psUDP, 2)
	onMine, onOther := p.wellFormed(mine), p.wellFormed(other)
	all := append(slices.Clone(onMine), newForm("create_id", "ps", psTCP), newForm("get_event"))
	seen := map[string]bool{}
	for i, f := range all {
		seen[f.name] = true
		room := least[f.name]
		if f.name == "QUERY" && f.num("option") == queryPath {
			room = 8
		}
		for n := range commands[f.command()].in {
			p.refused("cut short", a, form{f.name, f.structure, f.b[:n]}.plain(), room, syscall.EINVAL)
		}
		if room > 0 {
			p.refused("no room for the answer", a, f.with("response", uint64(memBase)), room-1, syscall.ENOSPC)
		}
		if i >= len(onMine) {
			continue
		}
		f = f.with()
		if f.name == "MIGRATE_ID" {
			f.set("fd", a)
		}
		want, wantOther := syscall.ENOENT, syscall.EINVAL
		if f.name == "LEAVE_MCAST" {
			wantOther = syscall.ENOENT // an id is no membership
		}
		p.refused("no such id", a, f.with("id", uint32(1<<31)), 512, want)
		g := onOther[i].with()
		if f.name == "MIGRATE_ID" {
			g.set("fd", a)
		}
		p.refused("another file's id", a, g, 512, wantOther)
	}
	for _, s := range commands {
		if s.run != nil && !seen[s.name] {
			t.Errorf("%s is not tried", s.name)
		}
	}
	if f, i := p.drv.Contexts(); f != 2 || i != 2 {
		t.Errorf("%d files, %d ids", f, i)
	}
}

// plain is a form whose response is not looked for: it may be too short to have one.
func (f form) plain() form { f.structure = "create_id_resp"; return f }

func TestHeaders(t *testing.T) {
	p := newProgram(t)
	fd := p.open()
	raw := func(b []byte, n int) syscall.Errno {
		at := p.space()
		p.put(at, b)
		c := p.call(fd)
		p.drv.Write(c, c.File(fd), at, uint64(n))
		return c.wait().errno
	}
	for _, x := range []struct {
		what string
		b    []byte
		n    int
		want syscall.Errno
	}{
		{"no header", make([]byte, 8), 7, syscall.EINVAL},
		{"nothing", nil, 0, syscall.EINVAL},
		{"more input than written", []byte{10, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0}, 12, syscall.EINVAL},
		{"no such command", []byte{23, 0, 0, 0, 0, 0, 0, 0}, 8, syscall.EINVAL},
		{"no such command", []byte{255, 255, 255, 255, 0, 0, 0, 0}, 8, syscall.EINVAL},
		{"GET_OPTION", []byte{13, 0, 0, 0, 0, 0, 0, 0}, 8, syscall.ENOSYS},
		{"more than any command has", []byte{10, 0, 0, 0, 0xff, 0xff, 0, 0}, 1 << 17, syscall.EINVAL},
	} {
		if got := raw(x.b, x.n); got != x.want {
			t.Errorf("%s: %v, want %v", x.what, got, x.want)
		}
	}
	c := p.call(fd)
	p.drv.Write(c, c.File(fd), nowhere, 16)
	if c.wait(); c.errno != syscall.EFAULT {
		t.Errorf("no memory there: %v", c.errno)
	}
	c = p.call(fd)
	p.drv.Ioctl(c, c.File(fd), 0)
	if c.wait(); c.errno != syscall.ENOTTY {
		t.Errorf("ioctl: %v", c.errno)
	}
	c = p.call(fd)
	c.invalid.Store(true)
	p.write(c, p.space(), commandNumbers["CREATE_ID"], newForm("create_id", "ps", psTCP).b, 4)
	if _, ids := p.drv.Contexts(); c.wait().errno != syscall.EINTR || ids != 0 {
		t.Errorf("a thread that is gone: %v, %d ids", c.errno, ids)
	}
}

// Nothing is left of a command whose answer cannot be written.
func TestUnwritableAnswers(t *testing.T) {
	p := newProgram(t)
	a := p.open()
	f := newForm("create_id", "ps", psTCP, "uid", 1, "response", uint64(nowhere))
	p.refused("nowhere", a, f, 4, syscall.EFAULT)
	if _, ids := p.drv.Contexts(); ids+p.mgr.IDs() != 0 {
		t.Errorf("%d ids, %d in the manager", ids, p.mgr.IDs())
	}
	num := p.id(a, psTCP, 1)
	p.must(a, p.resolveForm(num, 1), 0)
	for _, f := range p.wellFormed(num) {
		if _, answers := least[f.name]; answers && !strings.Contains(f.name, "MCAST") {
			if f.name == "MIGRATE_ID" {
				f.set("fd", a)
			}
			p.refused("nowhere", a, f.with("response", uint64(nowhere)), 512, syscall.EFAULT)
		}
	}
	if _, ids := p.drv.Contexts(); ids+p.mgr.IDs() != 0 { // destroyed all the same, as in the kernel
		t.Errorf("%d ids, %d in the manager", ids, p.mgr.IDs())
	}
}

func TestBadAddresses(t *testing.T) {
	p := newProgram(t)
	a := p.open()
	num := p.id(a, psTCP, 1)
	good := sockaddr(p.addr, 0)
	bad := func(family byte) []byte { return append([]byte{family, 0}, good[2:]...) }
	bind := newForm("bind", "id", num, "addr_size", len(good), "addr", good)
	p.refused("no family", a, bind.with("addr", bad(0)), 0, syscall.EINVAL)
	p.refused("an unknown family", a, bind.with("addr", bad(99)), 0, syscall.EINVAL)
	p.refused("too short for its family", a, bind.with("addr_size", 4), 0, syscall.EINVAL)
	p.refused("no length", a, bind.with("addr_size", 0), 0, syscall.EINVAL)
	p.refused("too long", a, bind.with("addr_size", 129), 0, syscall.EINVAL)
	p.refused("too long", a, bind.with("addr_size", 65535), 0, syscall.EINVAL)
	p.refused("reserved", a, bind.with("reserved", 1), 0, syscall.EINVAL)
	ib := make([]byte, 48)
	ib[0], ib[8] = afIB, 0xfe
	p.refused("an address of InfiniBand", a, bind.with("addr", ib, "addr_size", 48), 0, syscall.ENODEV)
	p.refused("too long for its family", a, bind.with("addr_size", 24+len(good)), 0, syscall.EINVAL)
	p.refused("one that is cut short", a, bind.with("addr", ib, "addr_size", 28), 0, syscall.EINVAL)
	p.refused("in the older form", a, formOf("BIND_IP", "bind_ip", "id", num, "addr", ib[:28]), 0, syscall.EINVAL)
	r := p.resolveForm(num, 1)
	p.refused("no destination", a, r.with("dst_size", 0), 0, syscall.EINVAL)
	p.refused("too long", a, r.with("dst_size", 129), 0, syscall.EINVAL)
	p.refused("too long a source", a, r.with("src_size", 65535), 0, syscall.EINVAL)
	p.refused("a bad source", a, r.with("src_size", 28, "src_addr", bad(99)), 0, syscall.EINVAL)
	p.refused("reserved", a, r.with("reserved", 1), 0, syscall.EINVAL)
	p.must(a, bind, 0)
}

func TestOptions(t *testing.T) {
	p := newProgram(t)
	a := p.open()
	num := p.id(a, psTCP, 1)
	at := p.space()
	p.put(at, []byte{3, 0, 0, 0})
	option := func(level, name, n int) form {
		return newForm("set_option", "id", num, "optval", at, "level", level, "optname", name, "optlen", n)
	}
	for _, x := range []struct {
		level, name, n int
		want           syscall.Errno
	}{
		{levelID, optionTOS, 1, 0}, {levelID, optionTOS, 4, syscall.EINVAL}, {levelID, optionTOS, 0, syscall.EINVAL},
		{levelID, optionReuse, 4, 0}, {levelID, optionReuse, 1, syscall.EINVAL}, {levelID, optionAFOnly, 4, 0}, {levelID, optionAFOnly, 8, syscall.EINVAL},
		{levelID, optionAckTimeout, 1, 0}, {levelID, optionAckTimeout, 2, syscall.EINVAL}, {levelID, 4, 1, syscall.ENOSYS},
		{levelIB, optionIBPath, 0, syscall.EINVAL}, {levelIB, optionIBPath, 71, syscall.EINVAL}, {levelIB, optionIBPath, 72, syscall.EINVAL}, {levelIB, 2, 72, syscall.ENOSYS},
		{2, 0, 1, syscall.ENOSYS}, {levelID, optionTOS, -1, syscall.EINVAL}, {levelID, optionTOS, 1 << 31, syscall.EINVAL},
	} {
		if _, errno := p.do(a, option(x.level, x.name, x.n), 0); errno != x.want {
			t.Errorf("level %d, option %d, %d bytes: %v, want %v", x.level, x.name, x.n, errno, x.want)
		}
	}
	p.refused("no memory there", a, option(levelID, optionTOS, 1).with("optval", uint64(nowhere)), 0, syscall.EFAULT)
}
