package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rnic/verbs"
)

var testGroup = netip.MustParseAddr("239.47.91.77")

// apart are two addresses that no other run of these tests uses, so that runs can go on at the same time.
func apart(own []netip.Addr, n int) (addrs []netip.Addr) {
	for _, a := range own {
		b := a.As4()
		b[1] = 20 + byte(n) // loopback has 180 and more, those of the tests of the command 212 and more
		addrs = append(addrs, netip.AddrFrom4(b))
	}
	return addrs
}

// group is options of a run with a group.
func group(t *testing.T, latency bool, change func(*Options)) *Options {
	t.Helper()
	return options(t, Kind{"send", latency}, func(o *Options) {
		o.Transport, o.Group, o.Members = "UD", testGroup, 2
		if change != nil {
			change(o)
		}
	})
}

// runGroup runs o and returns the result and what became of the group's messages.
func runGroup(t *testing.T, o *Options) (map[string]any, *Multicast) {
	t.Helper()
	r := runJSON(t, o)[0]
	var m Multicast
	if err := json.Unmarshal(must(json.Marshal(r["multicast"])), &m); err != nil {
		t.Fatal(err)
	}
	return r, &m
}

// Every member, of another NIC and of the sender's, receives every message, with the right contents (InfiniBand vol. 1, 10.5).
func TestMulticast(t *testing.T) {
	runs := 0
	for what, change := range map[string]func(*Options){
		"default":                   nil,
		"not all verified":          func(o *Options) { o.Check = false },
		"the sender's NIC too":      func(o *Options) { o.OwnMembers = 3 },
		"the sender's NIC only":     func(o *Options) { o.Members, o.OwnMembers = 0, 2 },
		"datagrams of the MTU":      func(o *Options) { o.Size = 4096 },
		"empty datagrams":           func(o *Options) { o.Size = 0 },
		"inline":                    func(o *Options) { o.Size, o.Inline = 100, 100 },
		"units":                     func(o *Options) { o.Units, o.OwnMembers = 2, 2 },
		"several senders":           func(o *Options) { o.QueuePairs = 3 },
		"at a rate, for a duration": func(o *Options) { o.Rate, o.Iterations, o.Duration = Rate{5000, false}, 0, 20*time.Millisecond },
		"histogram":                 func(o *Options) { o.Histogram = true },
	} {
		for _, latency := range []bool{false, true} {
			if latency && (what == "several senders" || strings.HasPrefix(what, "at a rate")) || !latency && what == "histogram" {
				continue
			}
			o := group(t, latency, change)
			o.Addrs, o.Group = apart(o.Addrs, runs), netip.AddrFrom4([4]byte{239, 47, 92, byte(runs)})
			runs++
			t.Run(o.Kind.String()+", "+what, func(t *testing.T) {
				t.Parallel() // most of the time is waiting
				r, m := runGroup(t, o)
				if r["errors"] != 0. || r["lost_packets"] != 0. || !latency && r["iterations"].(float64) < float64(o.Iterations*o.QueuePairs) || m.Group != o.Group ||
					len(m.Members) != o.Members+o.OwnMembers || m.Sent < 10 {
					t.Errorf("%v", r)
				}
				for i, k := range m.Members {
					own := i >= o.Members
					first := i == 0 || i == o.Members
					if k.Own != own || k.Received != m.Sent || k.Lost != 0 || (k.LatencyNS != nil) != (latency && first) || k.Receiver == "" {
						t.Errorf("member %d of %d messages: %+v", i, m.Sent, k)
					}
				}
			})
		}
	}
}

// What a member has not received is counted as lost for it: of what the other NIC drops, the sender's own members lose nothing.
func TestMulticastLoss(t *testing.T) {
	for _, latency := range []bool{false, true} {
		o := group(t, latency, func(o *Options) {
			o.OwnMembers, o.Faults, o.Iterations = 1, []string{"recv:drop=10%,seed=3"}, 200
			if latency {
				o.Iterations = 60 // each loss costs a time-out
			}
		})
		r, m := runGroup(t, o)
		sum := 0.
		for _, k := range m.Members {
			sum += float64(k.Lost)
			if k.Received+k.Lost != m.Sent || !k.Own && k.Lost == 0 {
				t.Errorf("%v: %d messages: %+v", o.Kind, m.Sent, k)
			}
		}
		if r["lost_packets"] != sum || r["errors"] != 0. {
			t.Errorf("%v: %v lost in all, the members have lost %v", o.Kind, r["lost_packets"], sum)
		}
	}
}

// Where nothing arrives, that is said, with the member and the group.
func TestMulticastNothingArrives(t *testing.T) {
	old := hearTimeout
	hearTimeout = 50 * time.Millisecond
	defer func() { hearTimeout = old }()
	for _, latency := range []bool{false, true} {
		o := group(t, latency, func(o *Options) { o.Faults = []string{"drop=100%"} })
		err := Run(context.Background(), o, &Printer{W: &bytes.Buffer{}})
		if err == nil || !strings.Contains(err.Error(), "not every member at "+o.Addrs[0].String()+" hears what is sent to 239.47.91.77") {
			t.Errorf("%v: %v", o.Kind, err)
		}
	}
}

// The table has a line for each member.
func TestMulticastTable(t *testing.T) {
	var b bytes.Buffer
	m := &Multicast{testGroup, 200, []Member{{"host", 0, false, 150, 50, &Latency{P50: 1500, P99: 2500}}, {"127.0.0.1", 1, true, 200, 0, nil}}}
	m.print(&b)
	want := "  200 messages to 239.47.91.77\n  member 0 of host: 150 received, 50 lost (25.000%), answers p50 1.50 us, p99 2.50 us\n" +
		"  member 1 of 127.0.0.1 (the sender's NIC): 200 received, 0 lost (0.000%)\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}

// Members that cannot be made, here for want of an IPv6 address, are an error, and leave nothing on the NIC.
func TestMulticastMembersFail(t *testing.T) {
	dev, err := verbs.NewDevice(verbs.DeviceConfig{Addrs: loopback()[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	o := group(t, false, nil)
	o.IPv6 = true
	if m, err := newMembers(o, dev, 2, nil); m != nil || err == nil || !strings.Contains(err.Error(), "no IPv6 address") {
		t.Errorf("%v, %v", m, err)
	}
	if n := len(dev.Unwrap().Resources().Contexts); n != 0 {
		t.Errorf("%d contexts are left", n)
	}
}
