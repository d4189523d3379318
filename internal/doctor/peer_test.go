package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"rnic/internal/roce"
)

var (
	here  = netip.MustParseAddrPort("10.0.0.1:4791")
	there = netip.MustParseAddrPort("10.0.0.2:4791")
)

// arrived is a direction in which everything arrives as it was sent, but for what change makes of it; a probe for which
// change returns false is lost.
func arrived(change func(probe, *observation, *header) bool) direction {
	d := direction{name: "to the peer", sender: "here", receiver: "at the peer", claimed: here, dest: there, ttl: probeTTL, refused: map[int]string{}}
	d.arrivals.Raw = true
	for _, p := range plan() {
		o := observation{Seq: p.seq, Src: here, Dst: there.Addr(), TOS: p.tos, TTL: probeTTL - 2, Size: p.size(), ICRC: true}
		h := header{Seq: p.seq, DF: true}
		if change == nil || change(p, &o, &h) {
			d.arrivals.Seen = append(d.arrivals.Seen, o)
			d.arrivals.Headers = append(d.arrivals.Headers, h)
		}
	}
	return d
}

func TestUndisturbedWay(t *testing.T) {
	d := arrived(nil)
	var checks []string
	for _, f := range d.judge() {
		checks = append(checks, f.Check)
		if f.Level != OK || f.Means != "" || f.Fix != nil {
			t.Errorf("%+v", f)
		}
	}
	if got := strings.Join(checks, ", "); got != "reachability, address translation, ICRC, path MTU, ECN, DSCP, UDP checksum 0, TTL" {
		t.Error(got)
	}
}

// Each disturbance of the way is named for what it is, and nothing else is.
func TestDisturbedWay(t *testing.T) {
	always := func(f func(*observation, *header)) func(probe, *observation, *header) bool {
		return func(_ probe, o *observation, h *header) bool { f(o, h); return true }
	}
	for _, test := range []struct {
		name   string
		change func(probe, *observation, *header) bool
		want   string // level, check and part of the text, of each that is not ok
	}{
		{"nothing arrives", func(probe, *observation, *header) bool { return false }, "problem reachability: status 12"},
		{"some are lost", func(p probe, _ *observation, _ *header) bool { return p.kind != kindPlain || p.seq%4 != 0 }, "warning reachability: 12 of 16"},
		{"source address", always(func(o *observation, _ *header) {
			o.Src, o.ICRC = netip.MustParseAddrPort("192.0.2.9:4791"), false
		}), "problem address translation: from 192.0.2.9:4791; problem ICRC: address translation"},
		{"source port", always(func(o *observation, _ *header) {
			o.Src, o.ICRC = netip.MustParseAddrPort("10.0.0.1:50000"), false
		}), "problem address translation: arrives as 50000; problem ICRC: address translation"},
		{"destination address", always(func(o *observation, _ *header) {
			o.Dst, o.ICRC = netip.MustParseAddr("172.17.0.2"), false
		}), "problem address translation: arrive at 172.17.0.2; problem ICRC: address translation"},
		{"contents", always(func(o *observation, _ *header) { o.ICRC = false }), "problem ICRC: wrong in 43 of 43"},
		{"DF cleared", always(func(_ *observation, h *header) { h.DF = false }), "warning ICRC: do not fragment"},
		{"identification", always(func(_ *observation, h *header) { h.Ident = 7 }), "warning ICRC: 0 becomes 7"},
		{"narrow way", func(p probe, _ *observation, _ *header) bool { return p.mtu < 2048 }, "warning path MTU: rnic run --mtu 1024"},
		{"no path MTU at all", func(p probe, _ *observation, _ *header) bool { return p.mtu == 0 }, "problem path MTU: Not even the smallest"},
		{"ECN cleared", always(func(o *observation, _ *header) { o.TOS &^= 3 }), "warning ECN: arrive as 00"},
		{"ECN dropped", func(p probe, _ *observation, _ *header) bool { return p.kind != kindECN }, "warning ECN: firewall drops them"},
		{"DSCP cleared", always(func(o *observation, _ *header) { o.TOS &= 3 }), "warning DSCP: arrives as 0"},
		{"checksum 0", func(p probe, _ *observation, _ *header) bool { return p.kind != kindNoChecksum }, "warning UDP checksum 0: Soft-RoCE"},
		{"congestion", always(func(o *observation, _ *header) {
			if o.TOS&3 != 0 {
				o.TOS |= 3
			}
		}), ""},
	} {
		d := arrived(test.change)
		if test.name == "contents" {
			test.want = strings.Replace(test.want, "43 of 43", "49 of 49", 1)
		}
		var bad []string
		wants := strings.Split(test.want, "; ")
		for _, f := range d.judge() {
			if f.Level == OK {
				continue
			}
			text := f.Level.String() + " " + f.Check + ": " + f.Found + " " + f.Means + " " + strings.Join(f.Fix, " ")
			bad = append(bad, text)
			head, part := "", ""
			if n := len(bad) - 1; n < len(wants) {
				head, part, _ = strings.Cut(wants[n], ": ")
			}
			if head == "" || !strings.HasPrefix(text, head+": ") || !strings.Contains(text, part) || f.Means == "" {
				t.Errorf("%s: %s", test.name, text)
			}
		}
		if n := len(bad); test.want == "" && n != 0 || test.want != "" && n != len(wants) {
			t.Errorf("%s: %d findings %q, want %q", test.name, n, bad, test.want)
		}
	}
}

// A packet that the sender's own interface refuses is no fault of the way: the NIC does not offer such a path MTU.
func TestRefusedBySender(t *testing.T) {
	d := arrived(func(p probe, _ *observation, _ *header) bool { return p.mtu < 2048 })
	for _, p := range plan() {
		if p.mtu >= 2048 {
			d.refused[p.seq] = "message too long"
		}
	}
	for _, f := range d.judge() {
		if f.Level != OK {
			t.Errorf("%+v", f)
		}
	}
	d = arrived(func(probe, *observation, *header) bool { return false })
	for _, p := range plan() {
		d.refused[p.seq] = "network is unreachable"
	}
	if f := d.judge(); len(f) != 1 || f[0].Level != Problem || !strings.Contains(f[0].Found, "network is unreachable") || !strings.Contains(f[0].Fix[0], "ip route get 10.0.0.2") {
		t.Errorf("%+v", f)
	}
}

// A probe is a RoCEv2 packet with a right ICRC, as long as the longest of its path MTU, and known again.
func TestProbes(t *testing.T) {
	path := roce.Path{Src: here.Addr(), Dst: there.Addr(), SrcPort: here.Port()}
	for _, p := range plan() {
		b := p.marshal(path, 99)
		if ident, ok := roce.Verify(&path, b); !ok || ident != 0 {
			t.Errorf("probe %d: ICRC %v, identification %d", p.seq, ok, ident)
		}
		if seq, ok := parseProbe(b, 99); !ok || seq != p.seq {
			t.Errorf("probe %d is taken for %d, %v", p.seq, seq, ok)
		}
		if _, ok := parseProbe(b, 98); ok {
			t.Error("a probe of another session is taken")
		}
		for n := range probeMinimum {
			if _, ok := parseProbe(b[:n], 99); ok {
				t.Fatalf("%d bytes are taken for a probe", n)
			}
		}
		if p.mtu > 0 && len(b) != 12+16+4+p.mtu+4 {
			t.Errorf("probe of path MTU %d: %d bytes", p.mtu, len(b))
		}
	}
}

// What a peer claims to have seen is checked: places outside the plan, and more than one arrival of a probe.
func TestHostileObservations(t *testing.T) {
	got := dedupe([]observation{{Seq: -1}, {Seq: 3}, {Seq: 3}, {Seq: 1 << 30}, {Seq: 0}})
	if len(got) != 2 || got[0].Seq != 3 || got[1].Seq != 0 {
		t.Errorf("%+v", got)
	}
}
