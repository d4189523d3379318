package ucm

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"rnic/internal/cma"
	"rnic/internal/nic"
)

const (
	psTCP, psUDP, psIB = 0x106, 0x111, 0x13f
	uid                = 0x1122334455667788
)

// id makes an id, with a word of the program's.
func (p *program) id(fd, space int, word uint64) uint32 {
	p.t.Helper()
	return le.Uint32(p.must(fd, newForm("create_id", "uid", word, "ps", space), 4))
}

// listener makes an id that listens, and tells its port.
func (p *program) listener(fd, space int, word uint64, backlog int) (num uint32, port int) {
	p.t.Helper()
	num = p.id(fd, space, word)
	p.must(fd, newForm("bind", "id", num, "addr_size", len(sockaddr(p.addr, 0)), "addr", sockaddr(p.addr, 0)), 0)
	p.must(fd, newForm("listen", "id", num, "backlog", backlog), 0)
	q := p.must(fd, newForm("query", "id", num, "option", queryAddr), 280)
	return num, int(q[18])<<8 | int(q[19])
}

func (p *program) resolveForm(num uint32, port int) form {
	a := sockaddr(p.addr, port)
	return newForm("resolve_addr", "id", num, "timeout_ms", 1000, "dst_size", len(a), "dst_addr", a)
}

// resolved makes an id that has found its way.
func (p *program) resolved(fd, space int, word uint64, port int) uint32 {
	p.t.Helper()
	num := p.id(fd, space, word)
	p.must(fd, p.resolveForm(num, port), 0)
	p.event(fd, cma.AddrResolved)
	p.must(fd, newForm("resolve_route", "id", num, "timeout_ms", 1000), 0)
	p.event(fd, cma.RouteResolved)
	return num
}

// param is a struct rdma_ucm_conn_param.
func param(qpn int, private string) []byte {
	b := make([]byte, sizeParam)
	le.PutUint32(b, uint32(qpn))
	b[264] = byte(copy(b[8:], private))
	b[266], b[267], b[269], b[270], b[271] = 3, 5, 7, 6, 1
	return b
}

func privateOf(b []byte, ud bool) string {
	l, f := "conn_param", "private_data"
	if ud {
		l = "ud_param"
	}
	at, n := field_(l, f).at, field_(l, "private_data_len").get(b)
	return string(b[at : at+int(n)])
}

func (p *program) reported(fd int, command, structure string, num uint32) uint32 {
	p.t.Helper()
	return le.Uint32(p.must(fd, formOf(command, structure, "id", num), 4))
}

// trim is private data without the zeroes that messages are filled with.
func trim(s string, n int) string { return s[:min(n, len(s))] }

// A connection, by the commands of today's libraries, with a file for each side.
func TestConnection(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	l, port := p.listener(b, psTCP, 9, 4)
	c := p.resolved(a, psTCP, uid, port)

	q := p.must(a, newForm("query", "id", c, "option", queryPath), 80)
	if le.Uint32(q) != 1 {
		t.Errorf("%d paths", le.Uint32(q))
	}
	q = p.must(a, newForm("query", "id", c, "option", queryAddr), 280)
	if field_("query_addr_resp", "port_num").get(q) != 1 || string(q[146:148]) != string([]byte{byte(port >> 8), byte(port)}) || le.Uint64(q) == 0 {
		t.Errorf("query answers % x", q)
	}
	q = p.must(a, newForm("query", "id", c, "option", queryGID), 280)
	if le.Uint16(q[16:]) != afIB || le.Uint16(q[12:]) != 48 {
		t.Errorf("query for GIDs answers % x", q)
	}
	q = p.must(a, formOf("QUERY_ROUTE", "query", "id", c), 208)
	if field_("query_route_resp", "num_paths").get(q) != 1 || field_("query_route_resp", "port_num").get(q) != 1 {
		t.Errorf("query of the route answers % x", q)
	}

	p.must(a, newForm("connect", "id", c, "conn_param", param(0x1234, "hello")), 0)
	req := p.event(b, cma.ConnectRequest)
	if req.uid() != 9 || req.id() == l || trim(privateOf(req.param(), false), 5) != "hello" || field_("conn_param", "responder_resources").get(req.param()) != 5 {
		t.Errorf("request of %#x, id %d: %q", req.uid(), req.id(), privateOf(req.param(), false))
	}
	s := req.id()
	p.must(b, newForm("accept", "id", s, "uid", 77, "conn_param", param(0x4321, "welcome")), 0)
	rep := p.event(a, cma.ConnectResponse)
	if rep.uid() != uid || rep.id() != c || trim(privateOf(rep.param(), false), 7) != "welcome" {
		t.Errorf("response of %#x: %q", rep.uid(), privateOf(rep.param(), false))
	}
	for _, state := range []nic.State{nic.Init, nic.RTR, nic.RTS} {
		at := p.must(a, newForm("init_qp_attr", "id", c, "qp_state", int(state)), sizeQPAttr)
		if nic.State(field_("~ib_uverbs_qp_attr", "qp_state").get(at)) != state {
			t.Errorf("attributes for state %v: % x", state, at)
		}
		if state == nic.RTR && field_("~ib_uverbs_qp_attr", "dest_qp_num").get(at) != 0x4321 {
			t.Errorf("attributes for state %v: % x", state, at)
		}
	}
	p.must(a, newForm("accept", "id", c), 0)
	est := p.event(b, cma.Established)
	if est.uid() != 77 || est.id() != s {
		t.Errorf("established: %#x of id %d", est.uid(), est.id())
	}
	p.must(b, newForm("notify", "id", s, "event", eventCommEst), 0)
	p.must(a, newForm("disconnect", "id", c), 0)
	if e := p.event(b, cma.Disconnected); e.uid() != 77 {
		t.Errorf("disconnected: %#x", e.uid())
	}
	p.must(b, newForm("disconnect", "id", s), 0)
	p.event(a, cma.Disconnected)
	p.event(a, cma.TimewaitExit)
	p.event(b, cma.TimewaitExit)
	p.must(a, newForm("disconnect", "id", c), 0) // nothing is left to disconnect
	// What was fetched is counted: the request for the listener, the rest for the ids.
	for _, x := range []struct {
		fd   int
		num  uint32
		want uint32
	}{{a, c, 5}, {b, s, 3}, {b, l, 1}} {
		if n := p.reported(x.fd, "DESTROY_ID", "destroy_id", x.num); n != x.want {
			t.Errorf("id %d: %d events, want %d", x.num, n, x.want)
		}
		p.refused("afterwards", x.fd, newForm("disconnect", "id", x.num), 0, syscall.ENOENT)
	}
}

// Datagrams have their parameters at other places than connections, also in a refusal.
func TestDatagrams(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	_, port := p.listener(b, psUDP, 9, 4)
	c := p.resolved(a, psUDP, uid, port)
	p.must(a, newForm("connect", "id", c, "conn_param", param(0, "who")), 0)
	req := p.event(b, cma.ConnectRequest)
	if trim(privateOf(req.param(), true), 3) != "who" {
		t.Errorf("request: %q", privateOf(req.param(), true))
	}
	// A Q_Key of the program's own does not count with addresses of IP.
	mine := param(0x77, "here")
	le.PutUint32(mine[4:], nic.ManagementQKey)
	p.must(b, newForm("accept", "id", req.id(), "uid", 3, "conn_param", mine), 0)
	e := p.event(a, cma.Established)
	if ud := e.param(); le.Uint32(ud) != 0x77 || le.Uint32(ud[4:]) != cma.QKey || ud[8+29] != 1 || trim(privateOf(ud, true), 4) != "here" {
		t.Errorf("established: % x", ud[:48])
	}
	p.must(a, newForm("disconnect", "id", c), 0)
	d := p.resolved(a, psUDP, uid, port)
	p.must(a, newForm("connect", "id", d, "conn_param", param(0, "who")), 0)
	req = p.event(b, cma.ConnectRequest)
	p.must(b, newForm("reject", "id", req.id(), "private_data_len", 2, "private_data", []byte("no")), 0)
	if e = p.event(a, cma.Unreachable); e.status() == 0 || trim(privateOf(e.param(), true), 2) != "no" {
		t.Errorf("refused with status %d, %q", e.status(), privateOf(e.param(), true))
	}
}

func TestReject(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	_, port := p.listener(b, psTCP, 9, 0)
	c := p.resolved(a, psTCP, uid, port)
	p.must(a, newForm("connect", "id", c, "conn_param", param(1, "")), 0)
	req := p.event(b, cma.ConnectRequest)
	f := newForm("reject", "id", req.id(), "private_data_len", 5, "private_data", []byte("sorry"))
	p.refused("a reason that programs may not give", b, f.with("reason", 1), 0, syscall.EINVAL)
	p.refused("too much", b, f.with("private_data_len", 255), 0, syscall.EINVAL)
	p.must(b, f, 0)
	if e := p.event(a, cma.Rejected); e.status() != 28 || trim(privateOf(e.param(), false), 5) != "sorry" {
		t.Errorf("rejected with status %d, %q", e.status(), privateOf(e.param(), false))
	}
	p.must(a, newForm("disconnect", "id", c), 0) // as in the kernel
}

// rdma_listen(3): the backlog is of requests that the program has not fetched. More are rejected.
func TestBacklog(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	_, port := p.listener(b, psTCP, 9, 1)
	var clients []uint32
	for range 3 {
		clients = append(clients, p.resolved(a, psTCP, uid, port))
	}
	connect := func(i int) {
		p.must(a, newForm("connect", "id", clients[i], "conn_param", param(i+1, "")), 0)
	}
	connect(0)
	eventually(t, "a request", func() bool { return readable(b) })
	connect(1)
	p.event(a, cma.Rejected)
	p.event(b, cma.ConnectRequest)
	connect(2) // though the first has no answer yet
	p.event(b, cma.ConnectRequest)
}

// What happens to a request before it is accepted is not told: the program has no word for the id yet.
func TestRequestThatEndsEarly(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	l, port := p.listener(b, psTCP, 9, 0)
	c := p.resolved(a, psTCP, uid, port)
	p.must(a, newForm("connect", "id", c, "conn_param", param(1, "")), 0)
	req := p.event(b, cma.ConnectRequest)
	p.reported(a, "DESTROY_ID", "destroy_id", c) // gives up, which the server hears of
	// Another request comes behind that.
	c = p.resolved(a, psTCP, uid, port)
	p.must(a, newForm("connect", "id", c, "conn_param", param(2, "")), 0)
	next := p.event(b, cma.ConnectRequest)
	p.reported(b, "DESTROY_ID", "destroy_id", next.id())
	p.event(a, cma.Rejected)
	p.reported(a, "DESTROY_ID", "destroy_id", c)
	p.refused("too late", b, newForm("accept", "id", req.id(), "uid", 3, "conn_param", param(2, "")), 0, syscall.EINVAL)
	if readable(b) {
		t.Error("an event without a word")
	}
	if n := p.reported(b, "DESTROY_ID", "destroy_id", req.id()); n != 0 {
		t.Errorf("%d events of an id that has had none", n)
	}
	// Requests that nobody has fetched go with their listener.
	c = p.resolved(a, psTCP, uid, port)
	p.must(a, newForm("connect", "id", c, "conn_param", param(3, "")), 0)
	eventually(t, "a request", func() bool { return readable(b) })
	if n := p.reported(b, "DESTROY_ID", "destroy_id", l); n != 2 {
		t.Errorf("%d events of the listener", n)
	}
	p.event(a, cma.Rejected)
	if readable(b) {
		t.Error("the request is still there")
	}
	if p.mgr.IDs() != 1 {
		t.Errorf("%d ids, want the client's", p.mgr.IDs())
	}
}

// An id moves with its events, in their order and before those that come later; the listener's requests with it.
func TestMigrate(t *testing.T) {
	p := newProgram(t)
	a, b, other := p.open(), p.open(), p.open()
	l, port := p.listener(b, psTCP, 9, 8)
	c := p.id(a, psTCP, uid)
	p.must(a, p.resolveForm(c, port), 0)
	p.must(a, newForm("resolve_route", "id", c), 0)
	move := newForm("migrate_id", "id", c, "fd", a)
	p.refused("of a file that has it not", other, move.with("fd", b), 4, syscall.EINVAL)
	p.refused("of no file", other, move.with("fd", 999), 4, syscall.EBADF)
	if n := le.Uint32(p.must(other, move, 4)); n != 0 {
		t.Errorf("%d events", n)
	}
	if readable(a) || !readable(other) {
		t.Error("the events did not move")
	}
	p.event(other, cma.AddrResolved)
	p.refused("by its old file", a, newForm("connect", "id", c, "conn_param", param(1, "")), 0, syscall.EINVAL)
	p.must(other, newForm("connect", "id", c, "conn_param", param(1, "")), 0)
	p.event(other, cma.RouteResolved)
	if n := le.Uint32(p.must(other, move.with("fd", other), 4)); n != 2 {
		t.Errorf("to its own file: %d events", n)
	}
	eventually(t, "a request", func() bool { return readable(b) })
	p.must(other, newForm("migrate_id", "id", l, "fd", b), 4)
	req := p.event(other, cma.ConnectRequest)
	p.must(other, newForm("accept", "id", req.id(), "uid", 5, "conn_param", param(2, "")), 0)
	p.event(other, cma.ConnectResponse)
}

func TestMulticast(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	c := p.id(a, psUDP, uid)
	group := netip.MustParseAddr("239.1.2.3")
	if p.addr.Is6() {
		group = netip.MustParseAddr("ff0e::1:3")
	}
	s := sockaddr(group, 0)
	f := newForm("join_mcast", "uid", 31, "id", c, "addr_size", len(s), "addr", s)
	p.refused("of an id of no NIC", a, f, 4, syscall.EINVAL)
	p.must(a, newForm("bind", "id", c, "addr_size", len(sockaddr(p.addr, 0)), "addr", sockaddr(p.addr, 0)), 0)
	p.refused("no group", a, f.with("addr", sockaddr(p.addr, 0)), 4, syscall.EINVAL)
	p.refused("flags", a, f.with("join_flags", 2), 4, syscall.EINVAL)
	p.refused("nowhere to answer", a, f.with("response", uint64(nowhere)), 4, syscall.EFAULT)
	if readable(a) {
		t.Error("an event of a membership that nobody knows")
	}
	m := le.Uint32(p.must(a, f, 4))
	old := formOf("JOIN_IP_MCAST", "join_ip_mcast", "uid", 32, "id", c, "addr", s)
	n := le.Uint32(p.must(a, old, 4))
	e := p.event(a, cma.MulticastJoin)
	if e.uid() != 31 || e.id() != m || le.Uint32(e.param()) != 0xffffff || le.Uint32(e.param()[4:]) != cma.QKey {
		t.Errorf("event %#x of %d: % x", e.uid(), e.id(), e.param()[:40])
	}
	leave := formOf("LEAVE_MCAST", "destroy_id", "id", m)
	p.refused("of another file", b, leave, 4, syscall.EINVAL)
	p.refused("an id", a, leave.with("id", c), 4, syscall.ENOENT)
	if r := le.Uint32(p.must(a, leave, 4)); r != 1 {
		t.Errorf("%d events", r)
	}
	p.refused("again", a, leave, 4, syscall.ENOENT)
	if r := p.reported(a, "LEAVE_MCAST", "destroy_id", n); r != 0 || readable(a) {
		t.Errorf("%d events, and one is left: %v", r, readable(a))
	}
	p.must(a, f, 4) // one that goes with its id
	if r := p.reported(a, "DESTROY_ID", "destroy_id", c); r != 1 || readable(a) {
		t.Errorf("%d events of the id", r)
	}
}

func TestGetEvent(t *testing.T) {
	p := newProgram(t)
	fd := p.open()
	start := func() *call {
		at := p.space()
		c := p.call(fd)
		p.write(c, at, commandNumbers["GET_EVENT"], newForm("get_event", "response", at+responseAt).b, sizeEvent)
		return c
	}
	event := newForm("get_event")
	p.refused("none, and the file does not block", fd, event, sizeEvent, syscall.EAGAIN)
	waits, second := start(), start()
	if waits.answers.Load() != 0 {
		t.Fatal("answered without an event")
	}
	c := p.id(fd, psTCP, uid)
	p.must(fd, p.resolveForm(c, 1), 0)
	p.must(fd, newForm("resolve_route", "id", c), 0)
	if waits.wait(); waits.errno != 0 {
		t.Error(waits.errno)
	}
	if second.wait(); second.errno != 0 {
		t.Error(second.errno)
	}
	if readable(fd) {
		t.Error("readable without an event")
	}
	for name, end := range map[string]func(*call){"a signal": func(c *call) { c.signal.Store(true) }, "the thread is gone": func(c *call) { c.invalid.Store(true) }} {
		w := start()
		end(w)
		if w.wait(); w.errno != syscall.EINTR {
			t.Errorf("%s: %v", name, w.errno)
		}
	}
	// An event that cannot be given stays the oldest, and does not count twice.
	d := p.id(fd, psTCP, uid)
	p.must(fd, p.resolveForm(d, 1), 0)
	p.must(fd, newForm("resolve_route", "id", d), 0)
	p.refused("no room", fd, event, sizeEvent-sizeEventTail-1, syscall.ENOSPC)
	for range 2 {
		p.refused("nowhere to put it", fd, event.with("response", uint64(nowhere)), sizeEvent, syscall.EFAULT)
	}
	if !readable(fd) {
		t.Error("not readable with an event")
	}
	b := p.must(fd, event, sizeEvent-sizeEventTail) // as old libraries ask
	if event_(b).id() != d || event_(b).typ() != cma.AddrResolved {
		t.Errorf("event %v of id %d", event_(b).typ(), event_(b).id())
	}
	p.refused("nowhere to put it", fd, event.with("response", uint64(nowhere)), sizeEvent, syscall.EFAULT)
	if n := p.reported(fd, "DESTROY_ID", "destroy_id", d); n != 1 || readable(fd) {
		t.Errorf("%d events, and one is left: %v", n, readable(fd))
	}
	// Another thread closes the descriptor: the call goes on until its thread ends.
	w := start()
	p.close(fd)
	eventually(t, "the end of the file", func() bool { f, _ := p.drv.Contexts(); return f == 0 })
	time.Sleep(2 * patience)
	if w.answers.Load() != 0 {
		t.Errorf("answered: %v", w.errno)
	}
	w.invalid.Store(true)
	if w.wait(); w.errno != syscall.EINTR {
		t.Error(w.errno)
	}
}

// The driver ends while calls wait: they are answered before.
func TestCloseWhileCallsWait(t *testing.T) {
	p := newProgram(t)
	fd := p.open()
	c := p.call(fd)
	p.write(c, p.space(), commandNumbers["GET_EVENT"], newForm("get_event", "response", p.space()).b, sizeEvent)
	p.end()
	if c.answers.Load() != 1 || c.errno != syscall.EINTR {
		t.Errorf("answered %d times: %v", c.answers.Load(), c.errno)
	}
}

// The end of a file takes everything in it; the sandbox forgets it; ports are free again.
func TestEndOfAFile(t *testing.T) {
	p := newProgram(t)
	a, b := p.open(), p.open()
	_, port := p.listener(b, psTCP, 9, 0)
	_, lookups := p.listener(b, psUDP, 9, 0)
	p.connected(a, b, port)
	c := p.resolved(a, psTCP, uid, port)
	p.must(a, newForm("connect", "id", c, "conn_param", param(11, "")), 0)
	d := p.resolved(a, psUDP, uid, lookups)
	p.must(a, newForm("connect", "id", d, "conn_param", param(12, "")), 0)
	eventually(t, "requests", func() bool { _, ids := p.drv.Contexts(); return ids == 3+3+2 })
	p.close(b)
	eventually(t, "the end of the file", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.gone == 1 })
	eventually(t, "the end of its ids", func() bool { _, i := p.drv.Contexts(); return i == 3 && p.mgr.IDs() == 3 })
	again := p.open()
	num := p.id(again, psTCP, 1)
	p.must(again, newForm("bind", "id", num, "addr_size", len(sockaddr(p.addr, 0)), "addr", sockaddr(p.addr, port)), 0)
	seen := map[cma.EventType]bool{}
	for range 3 {
		e := event_(p.fetch(a))
		seen[e.typ()] = true
	}
	if !seen[cma.Disconnected] || !seen[cma.Rejected] || !seen[cma.Unreachable] {
		t.Errorf("the client saw %v", seen)
	}
}

// fetch waits for any event.
func (p *program) fetch(fd int) []byte {
	p.t.Helper()
	at := p.space()
	c := p.call(fd)
	p.write(c, at, commandNumbers["GET_EVENT"], newForm("get_event", "response", at+responseAt).b, sizeEvent)
	if c.wait(); c.errno != 0 {
		p.t.Fatal(c.errno)
	}
	return p.get(at+responseAt, sizeEvent)
}

// connected makes a connection of file a with the listener at a port of file b.
func (p *program) connected(a, b, port int) (client, server uint32) {
	p.t.Helper()
	client = p.resolved(a, psTCP, uid, port)
	p.must(a, newForm("connect", "id", client, "conn_param", param(1, "")), 0)
	server = p.event(b, cma.ConnectRequest).id()
	p.must(b, newForm("accept", "id", server, "uid", 78, "conn_param", param(2, "")), 0)
	p.event(a, cma.ConnectResponse)
	p.must(a, newForm("accept", "id", client), 0)
	p.event(b, cma.Established)
	return client, server
}
