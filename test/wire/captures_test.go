package wire

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rnic/internal/device"
	"rnic/internal/explain"
	"rnic/verbs"
)

var update = flag.Bool("update", false, "write the captures of package explain's testdata anew")

// prepared is where explain keeps captures.
const prepared = "../../internal/explain/testdata"

// trouble is one thing that goes wrong between NIC 1, which asks, and NIC 2.
type trouble struct {
	name   string
	at     byte // whose capture
	fault  func(a, b *device.Config)
	config verbs.QPConfig
	ao, bo verbs.ConnectOptions
	run    func(t *testing.T, a, b *side)
	edit   func(b []byte) []byte // of the capture
	want   string                // code of a finding
	text   []string              // that its text has
}

// small keeps captures small. Its local ACK timeout, a second, is for a machine that is busy.
var small = verbs.ConnectOptions{MTU: 256, Timeout: 18}

func timeout(code int) verbs.ConnectOptions { return verbs.ConnectOptions{MTU: 256, Timeout: code} }

func sendFault(text string) func(a, b *device.Config) {
	return func(a, _ *device.Config) { a.SendFault = spec(text) }
}

func recvFault(text string) func(a, b *device.Config) {
	return func(a, _ *device.Config) { a.RecvFault = spec(text) }
}

func writes(n, size int) func(t *testing.T, a, b *side) {
	return func(t *testing.T, a, b *side) {
		for range n {
			a.ok(t, a.to(b, verbs.OpWrite, size))
		}
	}
}

var troubles = []trouble{
	{name: "lost", at: 1, fault: sendFault("psn=1002,nth=1"), ao: small, bo: small, want: explain.CodeLost, text: []string{"PSN 1002"},
		run: writes(2, 1500)},
	{name: "reordered", at: 2, fault: sendFault("reorder=100%:2,psn=1002,times=1"), ao: small, bo: small, want: explain.CodeReordered, text: []string{"1 packet overtaken", "PSN 1002 came in packet", "NAK"},
		run: writes(2, 1500)},
	{name: "copied", at: 2, fault: sendFault("dup=100%,psn=1002,times=1"), ao: small, bo: small, want: explain.CodeCopies, text: []string{"PSN 1002", "the network has made copies"},
		run: writes(2, 1500)},
	{name: "tail-lost", at: 1, fault: sendFault("nth=4"), ao: timeout(14), bo: small, run: writes(2, 512), want: explain.CodeNoAck, text: []string{"PSN 100"}},
	{name: "ack-lost", at: 2, fault: recvFault("nth=2,op=RC_ACKNOWLEDGE"), ao: timeout(14), bo: small, run: writes(3, 64), want: explain.CodeAckLost, text: []string{"PSN 1001"}},
	{name: "rnr-storm", at: 1, ao: verbs.ConnectOptions{MTU: 256, RNRRetry: 6, Timeout: 18}, bo: verbs.ConnectOptions{MTU: 256, RNRTimer: 1}, want: explain.CodeRNRStorm, text: []string{"7 times", "PSN 1000"},
		run: func(t *testing.T, a, _ *side) { a.do(t, verbs.SendWR{Opcode: verbs.OpSend, SGE: a.MR.Slice(0, 64)}) }},
	{name: "wrong-key", at: 1, ao: small, bo: small, want: explain.CodeAccess, text: []string{"R_Key", "200 bytes", "PSN 1000"},
		run: func(t *testing.T, a, b *side) {
			wr := a.to(b, verbs.OpRead, 200)
			wr.RKey ^= 0x5500
			a.do(t, wr)
		}},
	{name: "mtu-mismatch", at: 1, ao: verbs.ConnectOptions{MTU: 1024, Timeout: 18}, bo: verbs.ConnectOptions{MTU: 512}, want: explain.CodeMTU, text: []string{"1024 bytes"},
		run: func(t *testing.T, a, b *side) { a.do(t, a.to(b, verbs.OpWrite, 4000)) }},
	{name: "no-answer", at: 1, fault: sendFault("drop=100%"), ao: timeout(8), bo: small, want: explain.CodeNoAnswer, text: []string{"8 times", "Nothing at all comes"},
		run: func(t *testing.T, a, b *side) { a.do(t, a.to(b, verbs.OpWrite, 64)) }},
	{name: "peer-dead", at: 1, ao: timeout(8), bo: small, want: explain.CodeRetries, text: []string{"8 times", "given up"},
		run: func(t *testing.T, a, b *side) {
			a.ok(t, a.to(b, verbs.OpWrite, 64))
			check(b.QP.Close())
			a.do(t, a.to(b, verbs.OpWrite, 64))
		}},
	{name: "corrupt", at: 2, fault: sendFault("corrupt=20%,seed=7"), ao: timeout(14), bo: small, run: writes(8, 600), want: explain.CodeICRC, text: []string{"damaged"}},
	{name: "translated", at: 1, ao: small, bo: small, run: writes(3, 300), want: explain.CodeTranslation, text: []string{"translated", "the source was 127."}, edit: translate},
	{name: "uc-lost", at: 2, config: verbs.QPConfig{Type: verbs.UC}, fault: sendFault("nth=3"), ao: small, bo: small, want: explain.CodeUCLost, text: []string{"PSN 1002"},
		run: func(t *testing.T, a, b *side) {
			b.receive(t, 1)
			writes(2, 600)(t, a, b)
			a.ok(t, a.to(b, verbs.OpWriteImm, 8))
			b.Next()
		}},
	{name: "well", at: 1, ao: timeout(-1), bo: small, run: writes(3, 700)},
}

// translate has the packets of NIC 1 come from 192.168.7.7 behind an address translation.
func translate(b []byte) []byte {
	var from []byte // whose packet is the first
	for i := 0; i+8 <= len(b); {
		n := int(binary.LittleEndian.Uint32(b[i+4:]))
		if binary.LittleEndian.Uint32(b[i:]) == 6 { // a packet: its IPv4 header is behind 28 bytes of the block and 14 of Ethernet
			ip := b[i+28+14:]
			if from == nil {
				from = bytes.Clone(ip[12:16])
			}
			if bytes.Equal(ip[12:16], from) {
				copy(ip[12:16], []byte{203, 0, 113, 9})
			}
		}
		i += n
	}
	return b
}

// Each trouble is really made, between two NICs; explain names it in the capture. With -update the captures become those that
// package explain keeps.
func TestExplainNamesTheCause(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			b := c.make(t)
			if *update {
				check(os.WriteFile(filepath.Join(prepared, c.name+".pcapng"), b, 0o644))
			}
			report, err := explain.Explain(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			c.judge(t, report)
		})
	}
}

func (c *trouble) judge(t *testing.T, r *explain.Report) {
	t.Helper()
	var all strings.Builder
	_ = r.Write(&all)
	if c.want == "" {
		if !r.OK() {
			t.Errorf("nothing went wrong, and the report is\n%s", all.String())
		}
		return
	}
	i := slices.IndexFunc(r.Findings, func(f explain.Finding) bool { return f.Code == c.want })
	if i < 0 {
		t.Fatalf("%s is not among the findings:\n%s", c.want, all.String())
	}
	for _, text := range c.text {
		if !strings.Contains(r.Findings[i].Text, text) {
			t.Errorf("%s does not say %q:\n%s", c.want, text, all.String())
		}
	}
	if len(r.Findings[i].Packets) == 0 {
		t.Errorf("%s names no packet", c.want)
	}
}

// make lets it happen, and returns the capture.
func (c *trouble) make(t *testing.T) []byte {
	file := captureFile(t, c.name)
	files := [3]string{}
	files[c.at] = file
	var cfg [3]device.Config
	if c.fault != nil {
		c.fault(&cfg[1], &cfg[2])
	}
	change := func(n int) func(*device.Config) {
		return func(d *device.Config) {
			d.SendFault, d.RecvFault, d.Policy.NoEarlyResend = cfg[n].SendFault, cfg[n].RecvFault, true
		}
	}
	da, db := open(t, 1, files[1], change(1)), open(t, 2, files[2], change(2))
	config := c.config
	config.MaxInline = 0
	a, b := newSide(t, da, config), newSide(t, db, config)
	connect(a, b, c.ao, c.bo)
	c.run(t, a, b)
	check(da.Close())
	check(db.Close())
	data := must(os.ReadFile(file))
	if c.edit != nil {
		data = c.edit(data)
	}
	return data
}
