package rdmanl

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var caller = Caller{PortID: 4711}

// sample has two devices; the second has nothing.
func sample() *System {
	res := Resources{
		Contexts: []Context{{Number: 1, PID: 100}},
		PDs:      []PD{{Number: 1, Context: 1, PID: 100, Users: 3}},
		CQs:      []CQ{{Number: 1, Context: 1, PID: 100, CQE: 511, Users: 2}},
		QPs: []QP{
			{Number: 17, PD: 1, PID: 100, Port: 1, Type: 2, State: 3, RemoteNumber: 18, RQPSN: 5, SQPSN: 6, SRQ: 1},
			{Number: 18, PD: 1, PID: 100, Type: 4, SQPSN: 9, SRQ: 1},
			{Number: 30, PD: 1, Port: 1, Type: 3, State: 1, MigState: 2, SRQ: 1},
		},
		MRs:   []MR{{Number: 9, PD: 1, PID: 100, LKey: 0x206, RKey: 0x207, Length: 1 << 40}},
		SRQs:  []SRQ{{Number: 1, PD: 1, PID: 100, Type: 1}},
		CMIDs: []CMID{{Number: 2, PID: 100, Port: 1, QP: 17, QPType: 2, PortSpace: 0x106, State: 7, Src: netip.MustParseAddrPort("10.7.0.2:7174"), Dst: netip.MustParseAddrPort("[fd00::1]:4791")}},
	}
	return &System{Devices: []Device{{
		Index: 3, Name: "mlx5_7", Firmware: "1.2.3", NodeType: 1, CapFlags: 1 << 40, NodeGUID: [8]byte{0x52, 0x54, 0, 0xff, 0xfe, 0, 0, 2},
		SysImageGUID: [8]byte{7: 1}, Protocol: "roce", Ports: []Port{{State: 4, PhysState: 5, IfIndex: 2, IfName: "eth0"}},
		Chardevs:  []Chardev{{Type: "uverbs", Name: "uverbs0", Major: 231, Minor: 192, ABI: 2, DriverID: 14}, {Type: "big", Name: "b", Major: 0x123, Minor: 0x456}},
		Resources: func() Resources { return res },
		Counters:  func(uint32) []Counter { return []Counter{{"sent_pkts", 12}, {"rcvd_pkts", 1 << 33}} },
	}, {Index: 4, Name: "none", Protocol: "roce"}}}
}

// one is the only datagram of an answer.
func one(t *testing.T, answers [][]byte) decoded {
	t.Helper()
	if len(answers) != 1 {
		t.Fatalf("%d datagrams: %x", len(answers), answers)
	}
	d := decode(t, answers[0])
	if d.seq != 77 || d.portID != caller.PortID {
		t.Errorf("sequence number %d, port ID %d", d.seq, d.portID)
	}
	return d
}

// dumped is what comes before the end of a dump that ends without an error.
func dumped(t *testing.T, answers [][]byte) (list []decoded) {
	t.Helper()
	for i, b := range answers {
		d := decode(t, b)
		if d.flags&flagMulti == 0 {
			t.Errorf("datagram %d of a dump without NLM_F_MULTI", i)
		}
		if last := i == len(answers)-1; last != (d.typ == typeDone) {
			t.Fatalf("datagram %d of %d has type %d", i, len(answers), d.typ)
		} else if last && errorOf(t, b) != 0 {
			t.Fatalf("the dump ends with error %d", errorOf(t, b))
		}
		list = append(list, d)
	}
	return list[:len(list)-1]
}

func TestDevices(t *testing.T) {
	check := func(d decoded) {
		t.Helper()
		a := attrsOf(t, d.body)
		if d.typ != 5<<10|1 || number(t, a, attrDevIndex) != 3 || text(t, a, attrDevName) != "mlx5_7" || number(t, a, attrPortIndex) != 1 ||
			number(t, a, attrCapFlags) != 1<<40 || text(t, a, attrFWVersion) != "1.2.3" || number(t, a, attrNodeGUID) != 0x525400fffe000002 ||
			number(t, a, attrSysImageGUID) != 1 || number(t, a, attrNodeType) != 1 || text(t, a, attrDevProtocol) != "roce" {
			t.Errorf("device: %v", a)
		}
	}
	check(one(t, sample().Answer(ask(opGet, 0, u32(attrDevIndex, 3)), caller)))
	list := dumped(t, sample().Answer(ask(opGet, flagDump), caller))
	check(list[0])
	if a := attrsOf(t, list[1].body); len(list) != 2 || text(t, a, attrDevName) != "none" || has(a, attrFWVersion) {
		t.Errorf("second device: %v", a)
	}
}

func TestPorts(t *testing.T) {
	check := func(d decoded) {
		t.Helper()
		a := attrsOf(t, d.body)
		if number(t, a, attrDevIndex) != 3 || number(t, a, attrPortIndex) != 1 || number(t, a, attrPortState) != 4 || number(t, a, attrPortPhys) != 5 ||
			number(t, a, attrNdevIndex) != 2 || text(t, a, attrNdevName) != "eth0" {
			t.Errorf("port: %v", a)
		}
	}
	check(one(t, sample().Answer(ask(opPortGet, 0, u32(attrDevIndex, 3), u32(attrPortIndex, 1)), caller)))
	check(dumped(t, sample().Answer(ask(opPortGet, flagDump, u32(attrDevIndex, 3)), caller))[0])
	s := sample()
	s.Devices[0].Ports[0].IfIndex = 0
	if a := attrsOf(t, one(t, s.Answer(ask(opPortGet, 0, u32(attrDevIndex, 3), u32(attrPortIndex, 1)), caller)).body); has(a, attrNdevIndex) || has(a, attrNdevName) {
		t.Errorf("a port without an interface: %v", a)
	}
}

// The number is that of makedev(3), which libibverbs compares with that of the file.
func TestChardev(t *testing.T) {
	a := attrsOf(t, one(t, sample().Answer(ask(opGetChardev, 0, u32(attrDevIndex, 3), str(attrChardevType, "uverbs")), caller)).body)
	if number(t, a, attrChardev) != 231<<8|192 || text(t, a, attrChardevName) != "uverbs0" || number(t, a, attrChardevABI) != 2 || number(t, a, attrDriverID) != 14 {
		t.Errorf("uverbs: %v", a)
	}
	a = attrsOf(t, one(t, sample().Answer(ask(opGetChardev, 0, u32(attrDevIndex, 3), str(attrChardevType, "big")), caller)).body)
	if number(t, a, attrChardev) != 0x412356 || has(a, attrDriverID) {
		t.Errorf("big: %v", a)
	}
}

func TestSystem(t *testing.T) {
	a := attrsOf(t, one(t, sample().Answer(ask(opSysGet, 0), caller)).body)
	if number(t, a, attrNetnsMode) != 1 || number(t, a, attrCopyOnFork) != 1 {
		t.Errorf("%v", a)
	}
}

func TestSummary(t *testing.T) {
	list := dumped(t, sample().Answer(ask(opResGet, flagDump), caller))
	list[1] = one(t, sample().Answer(ask(opResGet, 0, u32(attrDevIndex, 3)), caller))
	for _, d := range list {
		got := ""
		for _, e := range attrsOf(t, get(t, attrsOf(t, d.body), attrResSummary)) {
			a := attrsOf(t, e.b)
			got += text(t, a, attrResSummaryName) + " " + strconv.FormatUint(number(t, a, attrResSummaryCurr), 10) + " "
		}
		if got != "pd 1 cq 1 qp 3 cm_id 1 mr 1 ctx 1 srq 1 " {
			t.Errorf("%q", got)
		}
	}
}

// entries are those of the table in a dump of resources, each of which names the device.
func entries(t *testing.T, list []decoded, table, entry uint16) (out [][]nlattr) {
	t.Helper()
	for _, d := range list {
		a := attrsOf(t, d.body)
		if number(t, a, attrDevIndex) != 3 || text(t, a, attrDevName) != "mlx5_7" {
			t.Errorf("resources of %v", a)
		}
		for _, e := range attrsOf(t, get(t, a, table)) {
			if e.typ != entry {
				t.Errorf("entry of type %d, want %d", e.typ, entry)
			}
			out = append(out, attrsOf(t, e.b))
		}
	}
	return out
}

// resource asks for all of a kind, and for the first by its number; both answers hold the same.
func resource(t *testing.T, op, table, entry, id uint16, port bool) [][]nlattr {
	t.Helper()
	all := entries(t, dumped(t, sample().Answer(ask(op, flagDump, u32(attrDevIndex, 3)), caller)), table, entry)
	req := []nlattr{u32(attrDevIndex, 3), u32(id, uint32(number(t, all[0], id)))}
	if port {
		req = append(req, u32(attrPortIndex, 1))
	}
	single := attrsOf(t, one(t, sample().Answer(ask(op, 0, req...), caller)).body)[2:] // behind index and name
	if !slices.EqualFunc(single, all[0], func(a, b nlattr) bool { return a.typ == b.typ && string(a.b) == string(b.b) }) {
		t.Errorf("one by its number is %v, in a dump %v", single, all[0])
	}
	return all
}

func TestQueuePairs(t *testing.T) {
	q := resource(t, opResQPGet, attrResQP, attrResQPEntry, attrResLQPN, true)
	if len(q) != 3 {
		t.Fatalf("%d queue pairs", len(q))
	}
	for typ, want := range map[uint16]uint64{attrPortIndex: 1, attrResLQPN: 17, attrResPDN: 1, attrResPID: 100, attrResRQPN: 18, attrResRQPSN: 5,
		attrResSQPSN: 6, attrResMigState: 0, attrResType: 2, attrResState: 3} {
		if got := number(t, q[0], typ); got != want {
			t.Errorf("attribute %d is %d, want %d", typ, got, want)
		}
	}
	for _, typ := range []uint16{attrPortIndex, attrResRQPN, attrResRQPSN, attrResMigState} { // UD, in RESET
		if has(q[1], typ) {
			t.Errorf("UD has attribute %d", typ)
		}
	}
	if number(t, q[2], attrResMigState) != 2 || has(q[2], attrResPID) || !has(q[2], attrResKern) {
		t.Errorf("UC: %v", q[2])
	}
	one := entries(t, dumped(t, sample().Answer(ask(opResQPGet, flagDump, u32(attrDevIndex, 3), u32(attrPortIndex, 1)), caller)), attrResQP, attrResQPEntry)
	if len(one) != 2 {
		t.Errorf("%d queue pairs on port 1", len(one))
	}
}

func TestResources(t *testing.T) {
	for _, c := range []struct {
		name                 string
		op, table, entry, id uint16
		port                 bool
		want                 map[uint16]uint64
	}{
		{"cq", opResCQGet, attrResCQ, attrResCQEntry, attrResCQN, false,
			map[uint16]uint64{attrResCQE: 511, attrResUsers: 2, attrResCQN: 1, attrResCTXN: 1, attrResPID: 100}},
		{"mr", opResMRGet, attrResMR, attrResMREntry, attrResMRN, false,
			map[uint16]uint64{attrResRKey: 0x207, attrResLKey: 0x206, attrResMRLen: 1 << 40, attrResMRN: 9, attrResPDN: 1, attrResPID: 100}},
		{"pd", opResPDGet, attrResPD, attrResPDEntry, attrResPDN, false,
			map[uint16]uint64{attrResUsers: 3, attrResPDN: 1, attrResCTXN: 1, attrResPID: 100}},
		{"ctx", opResCtxGet, attrResCtx, attrResCtxEntry, attrResCTXN, false, map[uint16]uint64{attrResCTXN: 1, attrResPID: 100}},
		{"srq", opResSRQGet, attrResSRQ, attrResSRQEntry, attrResSRQN, false,
			map[uint16]uint64{attrResSRQN: 1, attrResType: 1, attrResPDN: 1, attrResPID: 100}},
		{"cm_id", opResCMIDGet, attrResCMID, attrResCMIDEntry, attrResCMN, true,
			map[uint16]uint64{attrPortIndex: 1, attrResLQPN: 17, attrResType: 2, attrResPS: 0x106, attrResState: 7, attrResCMN: 2, attrResPID: 100}},
	} {
		got := resource(t, c.op, c.table, c.entry, c.id, c.port)
		if len(got) != 1 {
			t.Errorf("%s: %d of them", c.name, len(got))
		}
		for typ, want := range c.want {
			if v := number(t, got[0], typ); v != want {
				t.Errorf("%s: attribute %d is %d, want %d", c.name, typ, v, want)
			}
		}
	}
}

func TestAddresses(t *testing.T) {
	id := resource(t, opResCMIDGet, attrResCMID, attrResCMIDEntry, attrResCMN, true)[0]
	src, dst := get(t, id, attrResSrcAddr), get(t, id, attrResDstAddr)
	if len(src) != 128 || string(src[:8]) != "\x02\x00\x1c\x06\x0a\x07\x00\x02" {
		t.Errorf("struct sockaddr_in: %x", src)
	}
	if len(dst) != 128 || string(dst[:4]) != "\x0a\x00\x12\xb7" || dst[8] != 0xfd || dst[23] != 1 {
		t.Errorf("struct sockaddr_in6: %x", dst)
	}
}

// Numbers that follow each other are told as a range.
func TestQueuePairsOfASharedReceiveQueue(t *testing.T) {
	s := resource(t, opResSRQGet, attrResSRQ, attrResSRQEntry, attrResSRQN, false)[0]
	list := attrsOf(t, get(t, s, attrResQP))
	if len(list) != 2 {
		t.Fatalf("%d entries", len(list))
	}
	a, b := attrsOf(t, list[0].b), attrsOf(t, list[1].b)
	if number(t, a, attrMinRange) != 17 || number(t, a, attrMaxRange) != 18 || number(t, b, attrResLQPN) != 30 {
		t.Errorf("%v, %v", a, b)
	}
}

func TestCounters(t *testing.T) {
	req := []nlattr{u32(attrDevIndex, 3), u32(attrPortIndex, 1)}
	got := ""
	for _, op := range []uint16{opStatGet, opStatStatus} {
		a := attrsOf(t, one(t, sample().Answer(ask(op, 0, req...), caller)).body)
		for _, e := range attrsOf(t, get(t, a, attrStatCounters)) {
			c := attrsOf(t, e.b)
			typ := uint16(attrStatCounterValue)
			if op == opStatStatus {
				typ = attrStatIndex
			}
			got += text(t, c, attrStatCounterName) + " " + strconv.FormatUint(number(t, c, typ), 10) + " "
		}
	}
	if want := "sent_pkts 12 rcvd_pkts 8589934592 sent_pkts 0 rcvd_pkts 1 "; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if d := dumped(t, sample().Answer(ask(opStatGet, flagDump, u32(attrDevIndex, 3), u32(attrStatRes, attrResQP)), caller)); len(d) != 0 {
		t.Errorf("counters of queue pairs: %v", d)
	}
	mr := entries(t, dumped(t, sample().Answer(ask(opStatGet, flagDump, u32(attrDevIndex, 3), u32(attrStatRes, attrResMR)), caller)), attrResMR, attrResMREntry)
	if len(mr) != 1 || number(t, mr[0], attrResMRN) != 9 {
		t.Errorf("counters of regions: %v", mr)
	}
	a := attrsOf(t, one(t, sample().Answer(ask(opStatGet, 0, append(req, u32(attrStatRes, attrResQP), u32(attrStatMode, 0))...), caller)).body)
	if number(t, a, attrStatMode) != 0 {
		t.Errorf("mode: %v", a)
	}
}

func TestErrors(t *testing.T) {
	dev, port := u32(attrDevIndex, 3), u32(attrPortIndex, 1)
	bad := []byte{3, 0, 1, 0} // an attribute shorter than its header
	for what, c := range map[string]struct {
		req   []byte
		admin bool
		want  errno
	}{
		"no device named":         {ask(opGet, 0), false, einval},
		"no such device":          {ask(opGet, 0, u32(attrDevIndex, 9)), false, einval},
		"short index":             {ask(opGet, 0, nlattr{attrDevIndex, []byte{1, 0, 0}}), false, einval},
		"nothing but rubbish":     {ask(opGet, 0, nlattr{0, bad}), false, einval},
		"no port named":           {ask(opPortGet, 0, dev), false, einval},
		"port 0":                  {ask(opPortGet, 0, dev, u32(attrPortIndex, 0)), false, einval},
		"no such port":            {ask(opPortGet, 0, dev, u32(attrPortIndex, 1<<31)), false, einval},
		"no type of node":         {ask(opGetChardev, 0, dev), false, einval},
		"type without end":        {ask(opGetChardev, 0, dev, nlattr{attrChardevType, []byte("uverbs")}), false, einval},
		"unknown type of node":    {ask(opGetChardev, 0, dev, str(attrChardevType, "umad")), false, eopnotsupp},
		"node of no device":       {ask(opGetChardev, 0, str(attrChardevType, "rdma_cm")), false, eopnotsupp},
		"node of a port":          {ask(opGetChardev, 0, str(attrChardevType, "issm"), port), false, einval},
		"no such queue pair":      {ask(opResQPGet, 0, dev, port, u32(attrResLQPN, 19)), false, enoent},
		"queue pair, no port":     {ask(opResQPGet, 0, dev, u32(attrResLQPN, 17)), false, einval},
		"region, with port":       {ask(opResMRGet, 0, dev, port, u32(attrResMRN, 9)), false, einval},
		"region without number":   {ask(opResMRGet, 0, dev), false, einval},
		"counters of no port":     {ask(opStatGet, 0, dev), false, einval},
		"counters of none":        {ask(opStatGet, 0, u32(attrDevIndex, 4), port), false, einval},
		"counters of protection":  {ask(opStatGet, 0, dev, port, u32(attrStatRes, attrResPD)), false, einval},
		"unknown operation":       {ask(8, 0), false, einval},
		"operation of the future": {ask(999, 0), true, einval},
		"dump of one thing":       {ask(opSysGet, flagDump), false, einval},
		"rename":                  {ask(opSet, 0, dev, str(attrDevName, "x")), false, eperm},
		"rename by root":          {ask(opSet, 0, dev, str(attrDevName, "x")), true, eopnotsupp},
		"new link by root":        {ask(opNewLink, 0), true, eopnotsupp},
		"delete no link":          {ask(opDelLink, 0), false, einval},
		"delete another link":     {ask(opDelLink, 0, u32(attrDevIndex, 9)), false, einval},
		"delete what stays":       {ask(opDelLink, 0, u32(attrDevIndex, 4)), false, eopnotsupp},
		"namespaces":              {ask(opSysSet, 0), false, eperm},
		"raw queue pair":          {ask(opResQPGetRaw, flagDump, dev), true, eopnotsupp},
	} {
		d := one(t, sample().Answer(c.req, Caller{caller.PortID, c.admin}))
		if d.typ != typeError {
			t.Errorf("%s: type %d", what, d.typ)
			continue
		}
		if got := errno(-int32(le.Uint32(d.body))); got != c.want {
			t.Errorf("%s: error %d, want %d", what, got, c.want)
		}
		if string(d.body[4:]) != string(c.req) {
			t.Errorf("%s: the error repeats %x, not the request %x", what, d.body[4:], c.req)
		}
	}
}

// RDMA_NLDEV_CMD_DELLINK takes the device away that it names.
func TestDeleteLink(t *testing.T) {
	s, removed := sample(), 0
	s.Devices[0].Remove = func() { removed++ }
	answers := s.Answer(ask(opDelLink, flagAck, u32(attrDevIndex, 3)), caller)
	if d := one(t, answers); d.typ != typeError || errorOf(t, answers[0]) != 0 || removed != 1 {
		t.Errorf("type %d, error %d, removed %d times", d.typ, errorOf(t, answers[0]), removed)
	}
}

// An error that is found while dumping stands in the message that ends the dump, as the kernel's does.
func TestErrorOfADump(t *testing.T) {
	for what, req := range map[string][]byte{
		"ports of no device":     ask(opPortGet, flagDump),
		"queue pairs of none":    ask(opResQPGet, flagDump, u32(attrDevIndex, 9)),
		"queue pairs of no port": ask(opResQPGet, flagDump, u32(attrDevIndex, 3), u32(attrPortIndex, 2)),
		"counters of no kind":    ask(opStatGet, flagDump, u32(attrDevIndex, 3)),
	} {
		answers := sample().Answer(req, caller)
		if d := one(t, answers); d.typ != typeDone || errorOf(t, answers[0]) != einval {
			t.Errorf("%s: type %d, error %d", what, d.typ, errorOf(t, answers[0]))
		}
	}
}

func TestAcknowledgements(t *testing.T) {
	req := ask(opGet, flagAck, u32(attrDevIndex, 3))
	answers := sample().Answer(req, caller)
	if len(answers) != 2 || decode(t, answers[1]).typ != typeError || errorOf(t, answers[1]) != 0 {
		t.Fatalf("%x", answers)
	}
	if d := decode(t, answers[1]); d.flags != flagCapped || len(d.body) != 20 {
		t.Errorf("flags %#x, %d bytes", d.flags, len(d.body))
	}
	dumped(t, sample().Answer(ask(opGet, flagDump|flagAck), caller)) // its end is enough
	quiet := ask(opGet, 0, u32(attrDevIndex, 3))
	le.PutUint16(quiet[6:], 0) // no NLM_F_REQUEST
	if answers := sample().Answer(quiet, caller); len(answers) != 0 {
		t.Errorf("what is no request is answered: %x", answers)
	}
	long := ask(opGet, 0, nlattr{200, make([]byte, 8000)})
	if d := one(t, sample().Answer(long, caller)); d.flags != flagCapped || len(d.body) != 20 {
		t.Errorf("error of a long request: flags %#x, %d bytes", d.flags, len(d.body))
	}
	other := ask(opGet, 0)
	le.PutUint16(other[4:], 4<<10) // RDMA_NL_LS
	if d := one(t, sample().Answer(other, caller)); d.typ != typeError {
		t.Errorf("another client: type %d", d.typ)
	}
}

func TestManyRequestsInOneDatagram(t *testing.T) {
	req := slices.Concat(ask(opSysGet, 0), ask(opGet, flagDump), ask(opResGet, flagDump), ask(opSysGet, 0))
	answers := sample().Answer(req, caller)
	if len(answers) != 6 { // system, two devices and the end, EBUSY, system
		t.Fatalf("%d datagrams", len(answers))
	}
	if e := errorOf(t, answers[4]); e != ebusy {
		t.Errorf("a second dump: error %d, want EBUSY", e)
	}
	// Resources are looked up once, however many ask.
	s, calls := sample(), 0
	s.Devices[0].Resources = func() Resources { calls++; return Resources{} }
	s.Answer(slices.Concat(ask(opResGet, 0, u32(attrDevIndex, 3)), ask(opResGet, 0, u32(attrDevIndex, 3))), caller)
	if calls != 1 {
		t.Errorf("resources were looked up %d times", calls)
	}
}

func TestLongDump(t *testing.T) {
	s := sample()
	var res Resources
	for i := range uint32(10000) {
		res.QPs = append(res.QPs, QP{Number: 2*i + 100, PD: 1, PID: 1, Port: 1, Type: 2, State: 3, SRQ: 1})
	}
	res.SRQs = []SRQ{{Number: 1}}
	s.Devices[0].Resources = func() Resources { return res }
	list := dumped(t, s.Answer(ask(opResQPGet, flagDump, u32(attrDevIndex, 3)), caller))
	all := entries(t, list, attrResQP, attrResQPEntry)
	if len(all) != len(res.QPs) {
		t.Fatalf("%d of %d queue pairs in %d datagrams", len(all), len(res.QPs), len(list))
	}
	for i, q := range all {
		if number(t, q, attrResLQPN) != uint64(res.QPs[i].Number) {
			t.Fatalf("number %d is %d", i, number(t, q, attrResLQPN))
		}
	}
	// What does not fit into one message is not told, and the message is whole.
	dumped(t, s.Answer(ask(opResSRQGet, flagDump, u32(attrDevIndex, 3)), caller))
	s.Devices[0].Resources = nil
	if list := dumped(t, s.Answer(ask(opResQPGet, flagDump, u32(attrDevIndex, 3)), caller)); len(list) != 0 {
		t.Errorf("no queue pairs are %d messages", len(list))
	}
}

// Whatever is asked, datagrams are well-formed and fit into a page, and few bytes do not make many.
func FuzzAnswer(f *testing.F) {
	dev, port := u32(attrDevIndex, 3), u32(attrPortIndex, 1)
	for op := range uint16(26) {
		f.Add(ask(op, 0, dev, port, u32(attrResLQPN, 17), u32(attrResMRN, 9)), true)
		f.Add(ask(op, flagDump|flagAck, dev, u32(attrStatRes, attrResMR)), false)
	}
	f.Add([]byte("\x13\x00\x00\x00\x05\x15\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x01\x01"), false) // of 19 bytes
	f.Add(slices.Concat(ask(opGet, flagDump), ask(opGetChardev, 0, dev, str(attrChardevType, "uverbs"))), false)
	f.Fuzz(func(t *testing.T, b []byte, admin bool) {
		answers := sample().Answer(b, Caller{PortID: 1, Admin: admin})
		total := 0
		for _, a := range answers {
			d := decode(t, a)
			if d.typ>>10 == clientNLDEV {
				attrsOf(t, d.body)
			}
			total += len(a)
		}
		if total > 4096+len(b)*64 {
			t.Errorf("%d bytes are answered by %d", len(b), total)
		}
	})
}

// The numbers are those of the kernel's header.
func TestNumbersAgainstTheHeader(t *testing.T) {
	const name = "/usr/include/rdma/rdma_netlink.h"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Skipf("%v: apt-get install linux-libc-dev", err)
	}
	header := enums(string(b))
	for name, got := range map[string]int{
		"RDMA_NL_NLDEV": clientNLDEV, "CMD_GET": opGet, "CMD_SET": opSet, "CMD_NEWLINK": opNewLink, "CMD_DELLINK": opDelLink,
		"CMD_PORT_GET": opPortGet, "CMD_SYS_GET": opSysGet, "CMD_SYS_SET": opSysSet, "CMD_RES_GET": opResGet, "CMD_RES_QP_GET": opResQPGet,
		"CMD_RES_CM_ID_GET": opResCMIDGet, "CMD_RES_CQ_GET": opResCQGet, "CMD_RES_MR_GET": opResMRGet, "CMD_RES_PD_GET": opResPDGet,
		"CMD_GET_CHARDEV": opGetChardev, "CMD_STAT_SET": opStatSet, "CMD_STAT_GET": opStatGet, "CMD_STAT_DEL": opStatDel,
		"CMD_RES_QP_GET_RAW": opResQPGetRaw, "CMD_RES_CQ_GET_RAW": opResCQGetRaw, "CMD_RES_MR_GET_RAW": opResMRGetRaw,
		"CMD_RES_CTX_GET": opResCtxGet, "CMD_RES_SRQ_GET": opResSRQGet, "CMD_STAT_GET_STATUS": opStatStatus,
		"ATTR_DEV_INDEX": attrDevIndex, "ATTR_DEV_NAME": attrDevName, "ATTR_PORT_INDEX": attrPortIndex, "ATTR_CAP_FLAGS": attrCapFlags,
		"ATTR_FW_VERSION": attrFWVersion, "ATTR_NODE_GUID": attrNodeGUID, "ATTR_SYS_IMAGE_GUID": attrSysImageGUID,
		"ATTR_PORT_STATE": attrPortState, "ATTR_PORT_PHYS_STATE": attrPortPhys, "ATTR_DEV_NODE_TYPE": attrNodeType,
		"ATTR_RES_SUMMARY": attrResSummary, "ATTR_RES_SUMMARY_ENTRY": attrResSummaryEntry, "ATTR_RES_SUMMARY_ENTRY_NAME": attrResSummaryName,
		"ATTR_RES_SUMMARY_ENTRY_CURR": attrResSummaryCurr, "ATTR_RES_QP": attrResQP, "ATTR_RES_QP_ENTRY": attrResQPEntry,
		"ATTR_RES_LQPN": attrResLQPN, "ATTR_RES_RQPN": attrResRQPN, "ATTR_RES_RQ_PSN": attrResRQPSN, "ATTR_RES_SQ_PSN": attrResSQPSN,
		"ATTR_RES_PATH_MIG_STATE": attrResMigState, "ATTR_RES_TYPE": attrResType, "ATTR_RES_STATE": attrResState, "ATTR_RES_PID": attrResPID, "ATTR_RES_KERN_NAME": attrResKern,
		"ATTR_RES_CM_ID": attrResCMID, "ATTR_RES_CM_ID_ENTRY": attrResCMIDEntry, "ATTR_RES_PS": attrResPS, "ATTR_RES_SRC_ADDR": attrResSrcAddr,
		"ATTR_RES_DST_ADDR": attrResDstAddr, "ATTR_RES_CQ": attrResCQ, "ATTR_RES_CQ_ENTRY": attrResCQEntry, "ATTR_RES_CQE": attrResCQE,
		"ATTR_RES_USECNT": attrResUsers, "ATTR_RES_MR": attrResMR, "ATTR_RES_MR_ENTRY": attrResMREntry, "ATTR_RES_RKEY": attrResRKey,
		"ATTR_RES_LKEY": attrResLKey, "ATTR_RES_MRLEN": attrResMRLen, "ATTR_RES_PD": attrResPD, "ATTR_RES_PD_ENTRY": attrResPDEntry,
		"ATTR_NDEV_INDEX": attrNdevIndex, "ATTR_NDEV_NAME": attrNdevName, "ATTR_RES_PDN": attrResPDN, "ATTR_RES_CQN": attrResCQN,
		"ATTR_RES_MRN": attrResMRN, "ATTR_RES_CM_IDN": attrResCMN, "ATTR_RES_CTXN": attrResCTXN, "SYS_ATTR_NETNS_MODE": attrNetnsMode,
		"ATTR_DEV_PROTOCOL": attrDevProtocol, "ATTR_CHARDEV_TYPE": attrChardevType, "ATTR_CHARDEV_NAME": attrChardevName,
		"ATTR_CHARDEV_ABI": attrChardevABI, "ATTR_CHARDEV": attrChardev, "ATTR_UVERBS_DRIVER_ID": attrDriverID, "ATTR_STAT_MODE": attrStatMode,
		"ATTR_STAT_RES": attrStatRes, "ATTR_STAT_COUNTER_ID": attrStatCounterID, "ATTR_STAT_HWCOUNTERS": attrStatCounters,
		"ATTR_STAT_HWCOUNTER_ENTRY": attrStatCounterEntry, "ATTR_STAT_HWCOUNTER_ENTRY_NAME": attrStatCounterName,
		"ATTR_STAT_HWCOUNTER_ENTRY_VALUE": attrStatCounterValue, "ATTR_DEV_DIM": attrDevDIM, "ATTR_RES_CTX": attrResCtx,
		"ATTR_RES_CTX_ENTRY": attrResCtxEntry, "ATTR_RES_SRQ": attrResSRQ, "ATTR_RES_SRQ_ENTRY": attrResSRQEntry, "ATTR_RES_SRQN": attrResSRQN,
		"ATTR_MIN_RANGE": attrMinRange, "ATTR_MAX_RANGE": attrMaxRange, "SYS_ATTR_COPY_ON_FORK": attrCopyOnFork,
		"ATTR_STAT_HWCOUNTER_INDEX": attrStatIndex,
	} {
		if want, ok := header[name]; !ok {
			t.Logf("%s is not in this header", name)
		} else if got != want {
			t.Errorf("%s is %d here, %d in the header", name, got, want)
		}
	}
}

// enums reads the constants of a C header's enumerations, without their RDMA_NLDEV_.
func enums(text string) map[string]int {
	out := map[string]int{}
	for {
		from := strings.Index(text, "/*")
		if from < 0 {
			break
		}
		text = text[:from] + text[from+strings.Index(text[from:], "*/")+2:]
	}
	for _, body := range strings.Split(text, "enum")[1:] {
		_, body, _ = strings.Cut(body, "{")
		body, _, _ = strings.Cut(body, "}")
		next := 0
		for _, item := range strings.Split(body, ",") {
			if strings.TrimSpace(item) == "" {
				continue
			}
			name, value, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(item), "RDMA_NLDEV_", ""), "=")
			if v, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
				next = v
			} else if v, ok := out[strings.TrimSpace(value)]; ok {
				next = v
			}
			out[strings.TrimSpace(name)] = next
			next++
		}
	}
	return out
}
