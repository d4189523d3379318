package explain

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"rnic/internal/roce"
)

const kernels = "../roce/testdata/" // recorded between Soft-RoCE of two kernels

// prepared are captures in which something went wrong. Those of testdata are made by
//
//	go test ./test/wire -run TestExplainNamesTheCause -update
var prepared = []struct {
	file, code string
	severity   Severity
	text       []string // of the finding
	packets    []int    // that it names, among others
}{
	{kernels + "nak.pcap", CodeLost, Warning, []string{"PSN 4099", "packet 25", "NAK in packet 28", "sent again in packet 29", "acknowledged in packet 36"}, []int{25, 28, 29}},
	{kernels + "nak.pcap", CodeNoAck, Warning, []string{"PSN 4099 was sent again once"}, []int{29, 33}},
	{kernels + "rping.pcap", CodeRejected, Failure, []string{"10.7.0.2 rejected", "invalid service ID"}, []int{52, 53}},
	{kernels + "raw.pcap", CodeRNRStorm, Failure, []string{"7 times", "PSN 4096", "RNR retry counter exceeded"}, []int{91, 104}},
	{kernels + "raw.pcap", CodeAccess, Failure, []string{"PSN 4096", "64 bytes", "R_Key 0x4e5"}, []int{125, 126}},
	{"testdata/lost.pcapng", CodeLost, Warning, []string{"1 packet lost", "PSN 1002", "sent again"}, []int{3}},
	{"testdata/reordered.pcapng", CodeReordered, Warning, []string{"1 packet overtaken", "PSN 1002 came in packet", "NAK"}, []int{3}},
	{"testdata/copied.pcapng", CodeCopies, Info, []string{"PSN 1002", "the network has made copies"}, nil},
	{"testdata/tail-lost.pcapng", CodeNoAck, Warning, []string{"PSN 1002"}, nil},
	{"testdata/ack-lost.pcapng", CodeAckLost, Warning, []string{"PSN 1001"}, nil},
	{"testdata/rnr-storm.pcapng", CodeRNRStorm, Failure, []string{"7 times", "PSN 1000"}, []int{2, 14}},
	{"testdata/wrong-key.pcapng", CodeAccess, Failure, []string{"PSN 1000", "READ", "200 bytes"}, []int{1, 2}},
	{"testdata/mtu-mismatch.pcapng", CodeMTU, Failure, []string{"1024 bytes"}, []int{1}},
	{"testdata/no-answer.pcapng", CodeNoAnswer, Failure, []string{"PSN 1000 was sent 8 times", "Nothing at all comes"}, []int{1, 8}},
	{"testdata/peer-dead.pcapng", CodeRetries, Failure, []string{"PSN 1001 was sent 8 times", "given up"}, nil},
	{"testdata/corrupt.pcapng", CodeICRC, Warning, []string{"damaged"}, nil},
	{"testdata/translated.pcapng", CodeTranslation, Failure, []string{"the source was 127."}, []int{1}},
	{"testdata/uc-lost.pcapng", CodeUCLost, Warning, []string{"PSN 1002"}, nil},
	{"testdata/well.pcapng", "", "", nil, nil},
}

func explainBytes(t *testing.T, b []byte) *Report {
	t.Helper()
	r, err := Explain(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func text(r *Report) string {
	var b strings.Builder
	_ = r.Write(&b)
	return b.String()
}

func find(r *Report, code string) *Finding {
	if i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Code == code }); i >= 0 {
		return &r.Findings[i]
	}
	return nil
}

// rnic explain names the cause, with the packets that show it.
func TestPreparedCaptures(t *testing.T) {
	for _, c := range prepared {
		t.Run(strings.TrimSuffix(c.file[strings.LastIndex(c.file, "/")+1:], ".pcapng")+" "+c.code, func(t *testing.T) {
			r := explainBytes(t, readFile(t, c.file))
			if c.code == "" {
				if len(r.Findings) != 0 || !strings.Contains(text(r), "Nothing went wrong") {
					t.Errorf("nothing went wrong, and the report is\n%s", text(r))
				}
				return
			}
			f := find(r, c.code)
			if f == nil {
				t.Fatalf("no %s in\n%s", c.code, text(r))
			}
			if f.Severity != c.severity || f.Connection == "" {
				t.Errorf("severity %s, connection %q", f.Severity, f.Connection)
			}
			for _, want := range c.text {
				if !strings.Contains(f.Text, want) {
					t.Errorf("it does not say %q:\n%s", want, f.Text)
				}
			}
			for _, n := range c.packets {
				if !slices.Contains(f.Packets, n) {
					t.Errorf("packet %d is not among %v", n, f.Packets)
				}
			}
			if f.Severity != Info && f.Advice == "" {
				t.Error("no advice")
			}
		})
	}
}

// What went well is not taken for a fault: whole runs of the kernel have the findings above, and no others that matter.
func TestNothingElseIsSaid(t *testing.T) {
	for file, codes := range map[string][]string{
		kernels + "nak.pcap": {CodeLost, CodeNoAck}, kernels + "rping.pcap": {CodeRejected}, kernels + "raw.pcap": {CodeRNRStorm, CodeAccess},
	} {
		for _, f := range explainBytes(t, readFile(t, file)).Findings {
			if f.Severity != Info && !slices.Contains(codes, f.Code) {
				t.Errorf("%s: %s %s", file, f.Code, f.Text)
			}
		}
	}
}

// frames are the Ethernet frames of a capture, with their times.
func frames(t *testing.T, b []byte) (list []Frame) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for {
		f, err := r.Next()
		if err != nil {
			return list
		}
		f.Data = slices.Clone(f.Data)
		list = append(list, f)
	}
}

// pcap writes frames in the classic format.
func pcap(order binary.AppendByteOrder, nanos bool, link LinkType, list []Frame) []byte {
	magic, unit := uint32(magicMicro), int64(1000)
	if nanos {
		magic, unit = magicNano, 1
	}
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(order.AppendUint16(b, 2), 4)
	b = append(b, make([]byte, 8)...)
	b = order.AppendUint32(order.AppendUint32(b, 1<<18), uint32(link))
	for _, f := range list {
		b = order.AppendUint32(b, uint32(f.Nanos/1e9))
		b = order.AppendUint32(b, uint32(f.Nanos%1e9/unit))
		b = order.AppendUint32(order.AppendUint32(b, uint32(len(f.Data))), uint32(f.Length))
		b = append(b, f.Data...)
	}
	return b
}

// pcapng writes frames in the format of today, with units of 2^-20 seconds and an offset.
func pcapng(order binary.AppendByteOrder, link LinkType, list []Frame) []byte {
	block := func(kind uint32, body []byte) []byte {
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		n := uint32(len(body) + 12)
		b := order.AppendUint32(order.AppendUint32(nil, kind), n)
		return order.AppendUint32(append(b, body...), n)
	}
	head := order.AppendUint32(nil, magicOrder)
	head = append(order.AppendUint16(order.AppendUint16(head, 1), 0), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	b := block(magicNG, head)
	idb := order.AppendUint32(order.AppendUint16(order.AppendUint16(nil, uint16(link)), 0), 0)
	idb = append(order.AppendUint16(order.AppendUint16(idb, optUnits), 1), 0x80|20, 0, 0, 0)
	idb = order.AppendUint64(order.AppendUint16(order.AppendUint16(idb, optOffset), 8), 1000)
	b = append(b, block(blockInterface, order.AppendUint32(idb, 0))...)
	for _, f := range list {
		stamp := uint64(f.Nanos/1e9-1000)<<20 + uint64(f.Nanos%1e9)<<20/1e9
		p := order.AppendUint32(nil, 0)
		p = order.AppendUint32(order.AppendUint32(p, uint32(stamp>>32)), uint32(stamp))
		p = order.AppendUint32(order.AppendUint32(p, uint32(len(f.Data))), uint32(f.Length))
		b = append(b, block(blockPacket, append(p, f.Data...))...)
	}
	return b
}

// relink gives frames another link layer.
func relink(list []Frame, head func(f Frame) []byte) []Frame {
	var out []Frame
	for _, f := range list {
		h := head(f)
		f.Data = append(h, f.Data[14:]...)
		f.Length += len(h) - 14
		out = append(out, f)
	}
	return out
}

// The same traffic in every format says the same.
func TestFormats(t *testing.T) {
	list := frames(t, readFile(t, kernels+"raw.pcap"))
	want := explainBytes(t, pcap(binary.LittleEndian, false, LinkEthernet, list))
	proto := func(f Frame) []byte { return f.Data[12:14] }
	vlan := relink(list, func(f Frame) []byte {
		return append(append(slices.Clone(f.Data[:12]), 0x88, 0xa8, 0, 5, 0x81, 0, 0, 7), proto(f)...)
	})
	cooked := relink(list, func(f Frame) []byte { return append(make([]byte, 14), proto(f)...) })
	cooked2 := relink(list, func(f Frame) []byte { return append(slices.Clone(proto(f)), make([]byte, 18)...) })
	ip := slices.DeleteFunc(slices.Clone(list), func(f Frame) bool {
		return !bytes.Equal(proto(f), []byte{8, 0}) && !bytes.Equal(proto(f), []byte{0x86, 0xdd})
	})
	raw := relink(ip, func(Frame) []byte { return nil })
	null := relink(ip, func(Frame) []byte { return []byte{2, 0, 0, 0} })
	for name, b := range map[string][]byte{
		"big-endian":        pcap(binary.BigEndian, false, LinkEthernet, list),
		"nanoseconds":       pcap(binary.LittleEndian, true, LinkEthernet, list),
		"nanoseconds, big":  pcap(binary.BigEndian, true, LinkEthernet, list),
		"pcapng":            pcapng(binary.LittleEndian, LinkEthernet, list),
		"pcapng big-endian": pcapng(binary.BigEndian, LinkEthernet, list),
		"VLAN":              pcap(binary.LittleEndian, false, LinkEthernet, vlan),
		"cooked":            pcap(binary.LittleEndian, false, LinkSLL, cooked),
		"cooked 2":          pcapng(binary.LittleEndian, LinkSLL2, cooked2),
		"raw IP":            pcap(binary.LittleEndian, false, LinkRaw, raw),
		"loopback":          pcap(binary.LittleEndian, false, LinkNull, null),
		"two sections":      append(pcapng(binary.BigEndian, LinkEthernet, list[:100]), pcapng(binary.LittleEndian, LinkEthernet, nil)...),
	} {
		got := explainBytes(t, b)
		if name == "two sections" {
			if got.Frames != 100 {
				t.Errorf("%s: %d frames", name, got.Frames)
			}
			continue
		}
		if got.RoCE != want.RoCE || len(got.Findings) != len(want.Findings) || got.Seconds < want.Seconds-0.01 || got.Seconds > want.Seconds+0.01 && !strings.Contains("raw IP loopback", name) {
			t.Errorf("%s: %d packets, %d findings in %v s; %d, %d in %v s are right\n%s", name, got.RoCE, len(got.Findings), got.Seconds, want.RoCE, len(want.Findings), want.Seconds, text(got))
			continue
		}
		for i := range want.Findings {
			if got.Findings[i].Code != want.Findings[i].Code || !strings.Contains("raw IP loopback", name) && !slices.Equal(got.Findings[i].Packets, want.Findings[i].Packets) {
				t.Errorf("%s: finding %+v, want %+v", name, got.Findings[i], want.Findings[i])
			}
		}
	}
}

// A capture of one direction: what can be said is said, and nothing is taken for a failure that is not.
func TestOneDirection(t *testing.T) {
	list := frames(t, readFile(t, "testdata/well.pcapng"))
	src := list[0].Data[26:30]
	there := slices.DeleteFunc(slices.Clone(list), func(f Frame) bool { return !bytes.Equal(f.Data[26:30], src) })
	back := slices.DeleteFunc(slices.Clone(list), func(f Frame) bool { return bytes.Equal(f.Data[26:30], src) })
	for _, l := range [][]Frame{there, back} {
		r := explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, l))
		if !r.OK() {
			t.Errorf("%s", text(r))
		}
	}
	if r := explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, there)); find(r, CodeOneDirection) == nil {
		t.Errorf("it does not say that answers are missing:\n%s", text(r))
	}
	// The loss shows in the NAK alone, and in the packets alone.
	list = frames(t, readFile(t, kernels+"nak.pcap"))
	for _, side := range []byte{2, 3} {
		half := slices.DeleteFunc(slices.Clone(list), func(f Frame) bool { return f.Data[29] == side })
		if r := explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, half)); r.OK() && side == 2 {
			t.Errorf("without what comes from 10.7.0.%d:\n%s", side, text(r))
		}
	}
}

// A tap may see a packet twice: leaving one interface and entering another. That is no retransmission.
func TestSeenTwice(t *testing.T) {
	list := frames(t, readFile(t, kernels+"rping.pcap"))
	var twice []Frame
	for _, f := range relink(list, func(f Frame) []byte { return append(make([]byte, 14), f.Data[12:14]...) }) {
		g := f
		g.Data = slices.Clone(f.Data)
		g.Data[1] = 4 // outgoing
		twice = append(twice, g, f)
	}
	r := explainBytes(t, pcap(binary.LittleEndian, false, LinkSLL, twice))
	for _, f := range r.Findings {
		if f.Code != CodeRejected {
			t.Errorf("%s: %s", f.Code, f.Text)
		}
	}
}

// Cut packets are read as far as they go.
func TestTruncated(t *testing.T) {
	list := frames(t, readFile(t, kernels+"raw.pcap"))
	for i := range list {
		list[i].Data = list[i].Data[:min(len(list[i].Data), 96)]
	}
	r := explainBytes(t, pcap(binary.LittleEndian, false, LinkEthernet, list))
	if r.Truncated == 0 || find(r, CodeRNRStorm) == nil || find(r, CodeAccess) == nil || find(r, CodeICRC) != nil {
		t.Errorf("%s", text(r))
	}
}

// ether is a frame of IPv4 from 10.0.0.1 to 10.0.0.2.
func ether(proto byte, flags uint16, body []byte) Frame {
	b := append(make([]byte, 12), 8, 0, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(20+len(body)))
	b = binary.BigEndian.AppendUint16(append(b, 0, 1), flags)
	b = append(b, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	b = append(b, body...)
	return Frame{Data: b, Length: len(b)}
}

func TestTroubleOfTheNetwork(t *testing.T) {
	udp := append([]byte{0x12, 0xb7, 0x12, 0xb7, 0, 8, 0, 0}, make([]byte, 40)...)
	inner := ether(17, 0x4000, udp).Data[14:]
	icmp := func(typ, code byte, mtu uint16) Frame {
		return ether(1, 0, append(binary.BigEndian.AppendUint16([]byte{typ, code, 0, 0, 0, 0}, mtu), inner...))
	}
	arp := Frame{Data: append(make([]byte, 12), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9)}
	arp.Length = len(arp.Data)
	for _, c := range []struct {
		code, text string
		list       []Frame
	}{
		{CodeUnreachable, "port unreachable", []Frame{icmp(3, 3, 0)}},
		{CodeUnreachable, "firewall", []Frame{icmp(3, 13, 0)}},
		{CodePathMTU, "carries 1500 bytes", []Frame{icmp(3, 4, 1500)}},
		{CodeFragments, "fragments", []Frame{ether(17, 0x2000, udp)}},
		{CodeFragments, "fragments", []Frame{icmp(11, 1, 0)}},
		{CodeUnreachable, "circle", []Frame{icmp(11, 0, 0)}},
		{CodeNeighbour, "10.0.0.9", []Frame{arp, arp, arp}},
	} {
		f := find(explainBytes(t, pcap(binary.LittleEndian, false, LinkEthernet, c.list)), c.code)
		if f == nil || f.Severity != Failure || !strings.Contains(f.Text+f.Advice, c.text) {
			t.Errorf("%s: %+v", c.code, f)
		}
	}
}

// Who probes whether his own address is free gets no answer if all is well; and of what others ask, the answers go to them alone.
func TestQuestionsOfOthers(t *testing.T) {
	arp := func(from byte) Frame {
		f := Frame{Data: append(make([]byte, 12), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0, from, 0, 0, from, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9)}
		f.Length = len(f.Data)
		return f
	}
	with := func(list ...Frame) *Report {
		return explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, append(list, frames(t, readFile(t, "testdata/well.pcapng"))...)))
	}
	if f := find(with(arp(0), arp(0), arp(0)), CodeNeighbour); f != nil {
		t.Errorf("a probe: %+v", f)
	}
	if f := find(with(arp(10), arp(10)), CodeNeighbour); f == nil || f.Severity != Info {
		t.Errorf("a question of somebody else: %+v", f)
	}
}

// Two packets that the system has not cut yet are no longer than one may be: their ICRCs do not count, and nothing is missing.
func TestShortSegments(t *testing.T) {
	list := frames(t, readFile(t, "testdata/well.pcapng"))
	var merged []Frame
	for _, f := range list {
		const head = 14 + 20 + 8
		if n := len(merged) - 1; n >= 0 && bytes.Equal(merged[n].Data[26:34], f.Data[26:34]) && merged[n].Data[head] == 6 && f.Data[head] == 7 && // WRITE first, and middle
			roce.BTH(merged[n].Data[head:]).PSN().Add(1) == roce.BTH(f.Data[head:]).PSN() {
			merged[n].Data = append(merged[n].Data, f.Data[head:]...)
			merged[n].Length = len(merged[n].Data)
			binary.BigEndian.PutUint16(merged[n].Data[16:], uint16(len(merged[n].Data)-14))
			continue
		}
		merged = append(merged, f)
	}
	if len(merged) == len(list) {
		t.Fatal("no two packets follow each other")
	}
	want, got := explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, list)), explainBytes(t, pcap(binary.LittleEndian, true, LinkEthernet, merged))
	if !got.OK() || find(got, CodeSegments) == nil || got.RoCE != want.RoCE {
		t.Errorf("%d packets of %d:\n%s", got.RoCE, want.RoCE, text(got))
	}
}

// Of an unreliable connection, packets that were overtaken, or came twice, are not missing.
func TestUnreliableOutOfOrder(t *testing.T) {
	var f flow
	for i, psn := range []roce.PSN{0xfffffe, 0xffffff, 1, 0, 2, 2, 3, 1, 4, 6} {
		p := Packet{Number: i + 1, BTH: make(roce.BTH, roce.BTHSize), Info: roce.UCSendOnly.Info()}
		p.BTH.Encode(&roce.BTHFields{PSN: psn})
		f.unreliable(&p)
	}
	if len(f.gaps) != 1 || f.gaps[0].from != 5 || f.missing != 1 {
		t.Errorf("%d missing: %+v", f.missing, f.gaps)
	}
}

// A NAK, invalid request, is not taken for a difference of path MTUs where the responder's own packets are as large.
func TestInvalidRequest(t *testing.T) {
	for mtu, code := range map[int]string{0: CodeMTU, 2048: CodeMTU, 1024: CodeRequest} {
		f := &flow{peer: &flow{mtu: mtu}}
		x := &refusal{syndrome: roce.NAKInvalidRequest, found: true, packet: sent{op: roce.RCWriteFirst, payload: 1024}}
		NewAnalyzer().invalidRequest(f, x, refs{}, "", func(got string, _ Severity, _ *refs, text, advice string) {
			if got != code || !strings.Contains(text, "access flags") || !strings.Contains(advice, "qp_access_flags") {
				t.Errorf("path MTU %d: %s: %s %s", mtu, got, text, advice)
			}
		})
	}
}

// A packet that was just sent again when the capture ended is not one whose requester has given up.
func TestEndBehindARepeat(t *testing.T) {
	a := NewAnalyzer()
	f := &flow{requester: requester{quiet: silence{psn: 7, tries: 1, first: ref{1, 1e9}, last: ref{2, 1e9 + 1e5}}}}
	a.last = ref{3, 1e9 + 1e6}
	a.unanswered(f, func(_ string, s Severity, _ *refs, text, _ string) {
		if s != Info || strings.Contains(text, "given up") {
			t.Errorf("%s: %s", s, text)
		}
	})
}

// The difference of two CRCs tells which word of the header was changed, and from what.
func TestChangedWord(t *testing.T) {
	for _, f := range frames(t, readFile(t, kernels+"rping.pcap")) {
		var d Dissected
		if Dissect(&f, &d); len(d.Packets) != 1 || !d.Packets[0].Src.Is4() {
			continue
		}
		if d.Packets[0].ICRC != Good {
			t.Fatalf("packet %d: ICRC %v", f.Number, d.Packets[0].ICRC)
		}
		for at, behind := range map[int]int{12: 12, 16: 8, 20: 4} { // source, destination, ports
			was := [4]byte(f.Data[14+at:])
			copy(f.Data[14+at:], []byte{1, 2})
			Dissect(&f, &d)
			x := changedWord(d.Packets[0].delta, behind)
			for i := range x {
				x[i] ^= f.Data[14+at+i]
			}
			if d.Packets[0].ICRC != Bad || x != was {
				t.Fatalf("packet %d, word at %d: %v, was %v", f.Number, at, x, was)
			}
			copy(f.Data[14+at:], was[:])
		}
	}
}

func TestJSON(t *testing.T) {
	b, err := json.Marshal(explainBytes(t, readFile(t, "testdata/wrong-key.pcapng")))
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		RoCE     int `json:"roce_packets"`
		Findings []struct {
			Code, Severity, Connection, Text, Advice string
			Packets                                  []int
		}
	}
	if err := json.Unmarshal(b, &r); err != nil || r.RoCE != 2 || r.Findings[0].Code != CodeAccess || r.Findings[0].Packets == nil {
		t.Errorf("%v, %s", err, b)
	}
}

func TestNoCapture(t *testing.T) {
	for _, b := range []string{"", "abc", "hello, world, this is text", "\x1f\x8b\x08\x00zipped and so on"} {
		if _, err := Explain(strings.NewReader(b)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", b, err)
		}
	}
}

// A hostile file with ever new connections, comments and addresses ends with bounded state, and says that it left something out.
func TestBounded(t *testing.T) {
	list := frames(t, readFile(t, "testdata/lost.pcapng"))
	a := NewAnalyzer()
	var d Dissected
	f := list[0]
	for i := range maxFlows + 5000 {
		f.Number = i + 1
		binary.BigEndian.PutUint32(f.Data[14+12:], uint32(i)*7)
		binary.BigEndian.PutUint32(f.Data[14+20+8+4:], uint32(i))
		a.Frame(&f, &d)
	}
	r := a.Report()
	if len(a.flows) != maxFlows || r.Ignored != 5000 || len(r.Findings) > maxFindings || len(r.Connections) > maxConnections {
		t.Errorf("%d flows, %d ignored, %d findings", len(a.flows), r.Ignored, len(r.Findings))
	}
}

func FuzzExplain(f *testing.F) {
	for _, name := range []string{kernels + "nak.pcap", kernels + "rping.pcap", kernels + "raw.pcap", "testdata/corrupt.pcapng", "testdata/uc-lost.pcapng", "testdata/translated.pcapng"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 8<<10)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _ := Explain(bytes.NewReader(b))
		if r == nil {
			return
		}
		for _, c := range text(r) {
			if c != '\n' && c != 'µ' && (c < ' ' || c > '~') {
				t.Fatalf("the report has the character %q", c)
			}
		}
		for _, x := range r.Findings {
			for _, n := range x.Packets {
				if n < 1 || n > r.Frames+len(b)/12 {
					t.Fatalf("%s names packet %d of %d", x.Code, n, r.Frames)
				}
			}
		}
	})
}
