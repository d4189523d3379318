package fault

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"rnic/internal/roce"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Spec{
		"":                          {},
		"drop=1%":                   {Drop: 0.01},
		"drop=100%":                 {Drop: 1},
		"drop=0%":                   {},
		"drop=.5%":                  {Drop: 0.005},
		"dup=0.1%":                  {Duplicate: 0.001},
		"corrupt=12.5%":             {Corrupt: 0.125},
		"ecn=2.5%":                  {Mark: 0.025},
		"reorder=2%":                {Reorder: 0.02},
		"reorder=2%:16":             {Reorder: 0.02, ReorderDepth: 16},
		"reorder=0%:16":             {},
		"delay=5%:1ms-3ms":          {Delay: 0.05, DelayMin: time.Millisecond, DelayMax: 3 * time.Millisecond},
		"delay=5%:200us":            {Delay: 0.05, DelayMin: 200 * time.Microsecond, DelayMax: 200 * time.Microsecond},
		"nth=3,nth=1,nth=3":         {Nth: []uint64{3, 1}},
		"seed=0xff":                 {Seed: 255},
		"seed=010":                  {Seed: 10},
		" drop=1% , seed=7 ":        {Drop: 0.01, Seed: 7},
		"psn=0x1005,drop=100%":      {Drop: 1, PSNs: []roce.PSN{0x1005}},
		"delay=2ms":                 {Delay: 1, DelayMin: 2 * time.Millisecond, DelayMax: 2 * time.Millisecond},
		"nth=3-5":                   {Nth: []uint64{3, 4, 5}},
		"bandwidth=1.5Mbit/s:64KiB": {Bandwidth: 1_500_000, Queue: 65536},
		"bandwidth=10MB":            {Bandwidth: 80_000_000},
		"rnr=0.5ms":                 {NAK: 1, Syndrome: roce.RNRSyndrome(12)},
		"nak=10%:remote-access":     {NAK: 0.1, Syndrome: roce.NAKRemoteAccess},
		"psn=0xfffff0-0x10,drop=1%": {Drop: 0.01, PSNRanges: []PSNRange{{0xfffff0, 0x10}}},
		"qp=#1,qp=0x12,drop=1%":     {Drop: 0.01, QPs: []QueuePair{{1, true}, {0x12, false}}},
		"peer=192.0.2.7/24,drop=1%": {Drop: 0.01, Peers: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		"aeth=rnr,burst=3,drop=1%":  {Drop: 0.01, Burst: 3, Acks: []roce.SyndromeKind{roce.SyndromeRNRNAK}},
		"down=1s,after=2s":          {Down: time.Second, After: 2 * time.Second},
		"op=atomic,drop=1%":         {Drop: 0.01, Ops: []roce.Opcode{roce.RCCmpSwap, roce.RCFetchAdd, roce.XRCCmpSwap, roce.XRCFetchAdd}},
		"op=RC_ACKNOWLEDGE,op=rc-rdma-write-last,nth=2": {Nth: []uint64{2}, Ops: []roce.Opcode{roce.RCAck, roce.RCWriteLast}},
	} {
		got, err := Parse(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// TestParseErrors: an error is one line that quotes the rule and says what is wanted.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"drop=1":                      `"drop=1": want a rate from 0% to 100%`,
		"drop=":                       `"drop=": want a rate`,
		"drop=%":                      `want a rate`,
		"drop=101%":                   `"drop=101%": want a rate from 0% to 100%`,
		"drop=-1%":                    `want a rate`,
		"drop=1e1%":                   `want a rate`,
		"drop=NaN%":                   `want a rate`,
		"drop=1.2.3%":                 `want a rate`,
		"drop=1%,drop=2%":             `"drop=2%": drop= was given before`,
		"drop":                        `"drop": want one of drop=, dup=`,
		"lose=1%":                     `"lose=1%": want one of drop=`,
		"drop=1%,":                    `"": want one of drop=`,
		"a\nb":                        `"a\nb": want one of`,
		"reorder=1%:0":                `want a number of packets from 1 to 1024 after the colon`,
		"reorder=1%:1025":             `want a number of packets`,
		"delay=5%":                    `"delay=5%": want a time or a range of times up to 1m0s after the colon, such as delay=5%:1ms-3ms`,
		"delay=5%:3":                  `want a time`,
		"delay=5%:3ms-1ms":            `want a time`,
		"delay=5%:-1ms":               `want a time`,
		"delay=5%:2m":                 `want a time`,
		"delay=1":                     `"delay=1": want a rate`,
		"nth=0":                       `"nth=0": want the number of a packet, from 1`,
		"nth=first":                   `want the number of a packet`,
		"op=WRYTE":                    `"op=WRYTE": want the name of an opcode, such as RC_RDMA_WRITE_FIRST or RC_ACKNOWLEDGE, or one of SEND, WRITE`,
		"op=WRITE":                    `only limit other rules`,
		"nth=5-3":                     `"nth=5-3": want the number of a packet, from 1, or a range`,
		"nth=1-2000":                  `at most 1024 of these`,
		"psn=1-":                      `or a range, such as psn=0x10-0x20`,
		"burst=0,drop=1%":             `"burst=0": want a number of packets from 1 to`,
		"burst=3":                     `no rule says what goes wrong`,
		"burst=3,dup=1%":              `add drop= or nth=`,
		"qp=#0,drop=1%":               `want #1 to #64`,
		"qp=0x1000000,drop=1%":        `want the number of a queue pair`,
		"qp=7":                        `no rule says what goes wrong: add one`,
		"peer=host,drop=1%":           `"peer=host": want an IP address or a network`,
		"aeth=no,drop=1%":             `want ack, rnr or nak`,
		"bandwidth=10":                `want bits or bytes a second`,
		"bandwidth=1bit":              `want bits or bytes a second`,
		"bandwidth=1Gbit:0":           `bytes that may wait`,
		"jitter=0s":                   `"jitter=0s": want a time up to 1m0s`,
		"blackhole=forever":           `"blackhole=forever": want a time up to 24h0m0s, such as 500ms`,
		"blackhole=1s,drop=1%":        `blackhole= loses every packet`,
		"blackhole=1s,for=1s":         `exclude each other`,
		"down=1s,drop=1%":             `down= takes the whole port down`,
		"rnr=1s":                      `"rnr=1s": want a rate, a time from 10us to 655.36ms`,
		"nak=no":                      `"nak=no": want sequence, invalid-request`,
		"nak=sequence,rnr=1ms":        `rnr= and nak= exclude each other`,
		"completion-delay=1ms,op=CNP": `completion-delay= is about completions`,
		"skip=0,drop=1%":              `"skip=0": want a number of packets, from 1`,
		"after=1s":                    `no rule says what goes wrong`,
		"psn=0x1000000":               `"psn=0x1000000": want a packet sequence number from 0 to 0xffffff`,
		"seed=-1":                     `"seed=-1": want a whole number of 64 bits`,
		"psn=5":                       `op= and psn= only limit other rules: add one, such as drop=100%`,
		"op=CNP,drop=0%":              `only limit other rules`,
		manyNth(maxListed + 1):        `at most 1024 of these`,
		"seed=18446744073709551616":   `want a whole number`,
	} {
		got, err := Parse(text)
		if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%.40q): %v, want ...%s...", text, err, want)
			continue
		}
		if strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("Parse(%.40q): more than one line: %q", text, err)
		}
		if !reflect.DeepEqual(got, Spec{}) {
			t.Errorf("Parse(%.40q) returns %+v with its error", text, got)
		}
	}
}

func manyNth(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("nth=")
		b.WriteString(strings.Repeat("1", 1+i%15))
		b.WriteString(string(rune('0' + i/15%10)))
		b.WriteString(string(rune('0' + i/150%10)))
	}
	return b.String()
}

func TestString(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"seed=7,drop=1.00%":                 "drop=1%,seed=7",
		"drop=0.0001%,dup=.07%,corrupt=29%": "drop=0.0001%,dup=0.07%,corrupt=29%",
		"delay=100%:1500us-2ms,reorder=10%:3,op=cnp,psn=16,nth=2": "reorder=10%:3,delay=100%:1.5ms-2ms,nth=2,op=CNP,psn=0x10",
	} {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.String(); got != want {
			t.Errorf("Parse(%q).String() = %q, want %q", text, got, want)
		}
	}
}

// FuzzParse: any text gives a Spec or an error; a Spec prints as what reads back to it.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "drop=1%,dup=0.1%,reorder=2%:3,corrupt=.5%,delay=5%:1ms-3ms,seed=7", "nth=3,nth=5,op=RC_ACKNOWLEDGE,psn=0x1005",
		"drop=0.3333333333333333%", "delay=1%:1h", "drop=101%", "op=CNP,drop=100%", "delay=7%:1.000001ms-1m",
		"burst=3,drop=1%,qp=#1,qp=7,peer=::1,aeth=rnr,psn=5-1,skip=2,every=3,times=4,after=1s,for=2s", "blackhole=1s,nth=3-5", "down=1ms,op=SEND",
		"rnr=3%:1ms,bandwidth=1Gbit:9KB,jitter=1us", "nak=sequence,nth=4", "completion-delay=1%:1ms-2ms,qp=5",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrSpec) || strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error %q", err)
			}
			return
		}
		again, err := Parse(s.String())
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%q is %+v, prints as %q, reads back as %+v, %v", text, s, s, again, err)
		}
		in := New(s)
		for i := range 4 {
			in.DecideAt(int64(i)*1e9, &Packet{Data: []byte(text), QP: 7, Front: 3, HasFront: true, Peer: netip.IPv6Loopback()})
		}
	})
}
