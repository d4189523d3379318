package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rnic/internal/testnet"
	"rnic/verbs"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loopback are two addresses that only this process uses.
func loopback() []netip.Addr {
	return []netip.Addr{testnet.Loopback(180, 1), testnet.Loopback(180, 2)}
}

var kinds = []Kind{{"write", false}, {"read", false}, {"send", false}, {"atomic", false},
	{"write", true}, {"read", true}, {"send", true}, {"atomic", true}}

// options are valid ones of a short loopback run that verifies every message.
func options(t *testing.T, kind Kind, change func(*Options)) *Options {
	t.Helper()
	o := &Options{Kind: kind, Loopback: true, Addrs: loopback(), Size: -1, Iterations: 100, QueuePairs: 1, GIDIndex: -1, Inline: -1, Check: true}
	if change != nil {
		change(o)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return o
}

// run runs and takes the JSON objects apart.
func runJSON(t *testing.T, o *Options) []map[string]any {
	t.Helper()
	var out bytes.Buffer
	if err := Run(context.Background(), o, &Printer{W: &out, JSON: true}); err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	for d := json.NewDecoder(&out); d.More(); {
		var m map[string]any
		if err := d.Decode(&m); err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}

func keys(m map[string]any) (k []string) {
	d := json.NewDecoder(strings.NewReader(string(must(json.Marshal(m)))))
	_, _ = d.Token()
	for d.More() {
		key := must(d.Token()).(string)
		k = append(k, key)
		var skip json.RawMessage
		_ = d.Decode(&skip)
	}
	return k // sorted, as Marshal sorts
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestEveryOperation(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			for what, change := range map[string]func(*Options){
				"default":          nil,
				"small messages":   func(o *Options) { o.Size = 8 },
				"small MTU, depth": func(o *Options) { o.MTU, o.Depth = 256, 3 },
				"lists":            func(o *Options) { o.PostList, o.Depth = 5, 7 },
				"not verified":     func(o *Options) { o.Check = false },
				"no early resend":  func(o *Options) { o.NoEarly = true },
			} {
				o := options(t, kind, change)
				r := runJSON(t, o)
				if len(r) != 1 {
					t.Fatalf("%s: %d results", what, len(r))
				}
				testResult(t, what, o, r[0])
			}
		})
	}
}

// testResult checks the fields and what can be known of their values.
func testResult(t *testing.T, what string, o *Options, r map[string]any) {
	t.Helper()
	want := []string{"bytes_per_second", "errors", "iterations", "latency_ns", "messages_per_second", "mtu_bytes", "operation",
		"queue_pairs", "resend", "retransmitted_packets", "size_bytes", "timeouts", "transport"}
	if d := cmp.Diff(want, keys(r)); d != "" {
		t.Errorf("%s: fields (-want +got):\n%s", what, d)
	}
	mtu := 4096
	if o.MTU != 0 {
		mtu = o.MTU
	}
	for field, v := range map[string]any{"operation": o.Kind.String(), "size_bytes": float64(o.Size), "iterations": float64(o.Iterations * o.QueuePairs),
		"queue_pairs": float64(o.QueuePairs), "transport": "RC", "mtu_bytes": float64(mtu), "errors": 0.} {
		if r[field] != v {
			t.Errorf("%s: %s is %v, want %v", what, field, r[field], v)
		}
	}
	if m, b := r["messages_per_second"].(float64), r["bytes_per_second"].(float64); m <= 0 || b != m*float64(o.Size) {
		t.Errorf("%s: %v messages and %v bytes a second of %d bytes each", what, m, b, o.Size)
	}
	l, is := r["latency_ns"].(map[string]any)
	if is != o.Kind.Latency {
		t.Fatalf("%s: latency_ns is %v", what, r["latency_ns"])
	}
	if !is {
		return
	}
	if d := cmp.Diff([]string{"max", "min", "p50", "p99", "p999"}, keys(l)); d != "" {
		t.Errorf("%s: fields of latency_ns (-want +got):\n%s", what, d)
	}
	last := 0.
	for _, f := range []string{"min", "p50", "p99", "p999", "max"} {
		if v := l[f].(float64); v <= 0 || v < last {
			t.Errorf("%s: latencies %v are not in order", what, l)
		} else {
			last = v
		}
	}
}

// At 1% loss each way nothing is lost, doubled or out of place, and no completion fails.
func TestLossIsInvisible(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			for _, faults := range [][]string{
				{"drop=1%,seed=7"},
				{"drop=2%,dup=1%,reorder=1%:4,corrupt=1%,seed=8", "recv:drop=1%,seed=9"},
			} {
				o := options(t, kind, func(o *Options) { o.Faults = faults; o.Iterations = 150 })
				testResult(t, faults[0], o, runJSON(t, o)[0])
			}
		})
	}
}

func TestSeveralQueuePairs(t *testing.T) {
	for _, kind := range kinds[:4] {
		o := options(t, kind, func(o *Options) { o.QueuePairs = 5; o.Size = 8; o.Iterations = 200 })
		testResult(t, kind.String(), o, runJSON(t, o)[0])
	}
}

func TestDuration(t *testing.T) {
	for _, kind := range []Kind{{"write", false}, {"send", false}, {"send", true}} {
		o := options(t, kind, func(o *Options) { o.Iterations, o.Duration = 0, 50*time.Millisecond })
		if r := runJSON(t, o)[0]; r["iterations"].(float64) < 1 {
			t.Errorf("%s: %v iterations", kind, r["iterations"])
		}
	}
}

func TestAllSizes(t *testing.T) {
	o := options(t, Kind{"write", false}, func(o *Options) { o.AllSizes = true; o.Iterations = 1; o.Depth = 2; o.Check = false })
	results := runJSON(t, o)
	if len(results) != 23 {
		t.Fatalf("%d sizes, want 23: 2 bytes to 8 MiB", len(results))
	}
	for i, r := range results {
		if r["size_bytes"] != float64(int(2)<<i) {
			t.Errorf("size %d is %v", i, r["size_bytes"])
		}
	}
}

func TestBadOptions(t *testing.T) {
	write := Kind{"write", false}
	for what, o := range map[string]Options{
		"negative size":           {Kind: write, Size: -2, QueuePairs: 1},
		"size of a GiB and more":  {Kind: write, Size: 1<<30 + 1, QueuePairs: 1},
		"atomic size":             {Kind: Kind{"atomic", false}, Size: 16, QueuePairs: 1},
		"iterations":              {Kind: write, Iterations: -1, QueuePairs: 1},
		"duration":                {Kind: write, Duration: -1, QueuePairs: 1},
		"post list":               {Kind: write, PostList: 8193, QueuePairs: 1},
		"depth":                   {Kind: write, Depth: 8193, QueuePairs: 1},
		"queue pairs":             {Kind: write, QueuePairs: 10001},
		"no queue pair":           {Kind: write},
		"inline":                  {Kind: write, QueuePairs: 1, Inline: 513},
		"MTU":                     {Kind: write, QueuePairs: 1, MTU: 1500},
		"port":                    {Kind: write, QueuePairs: 1, TCPPort: 65536},
		"socket buffer":           {Kind: write, QueuePairs: 1, Buffer: -1},
		"process of reads":        {Kind: Kind{"read", false}, QueuePairs: 1, Process: true, Loopback: true, Size: 65536},
		"process over network":    {Kind: write, QueuePairs: 1, Process: true, Size: 65536},
		"process, all sizes":      {Kind: write, QueuePairs: 1, Process: true, Loopback: true, Size: 65536, AllSizes: true},
		"process, capture":        {Kind: write, QueuePairs: 1, Process: true, Loopback: true, Size: 65536, Capture: "file"},
		"process, small":          {Kind: write, QueuePairs: 1, Process: true, Loopback: true, Size: 64},
		"server and loopback":     {Kind: write, QueuePairs: 1, Servers: []string{"host"}, Loopback: true},
		"one address":             {Kind: write, QueuePairs: 1, Loopback: true, Addrs: loopback()[:1]},
		"addresses of two sorts":  {Kind: write, QueuePairs: 1, Loopback: true, Addrs: []netip.Addr{loopback()[0], netip.IPv6Loopback()}},
		"IPv6 of IPv4 addresses":  {Kind: write, QueuePairs: 1, Loopback: true, Addrs: loopback(), IPv6: true},
		"IPv4 of IPv6 addresses":  {Kind: write, QueuePairs: 1, Loopback: true, Addrs: []netip.Addr{netip.IPv6Loopback(), netip.MustParseAddr("fd00::1")}, IPv4: true},
		"interface of loopback":   {Kind: write, QueuePairs: 1, Loopback: true, Interface: "lo"},
		"interface and address":   {Kind: write, QueuePairs: 1, Interface: "lo", Addrs: loopback()},
		"all sizes of atomics":    {Kind: Kind{"atomic", false}, Size: 8, QueuePairs: 1, AllSizes: true},
		"transport":               {Kind: write, QueuePairs: 1, Transport: "UX"},
		"read over UC":            {Kind: Kind{"read", false}, QueuePairs: 1, Transport: "UC"},
		"atomic over UC":          {Kind: Kind{"atomic", true}, QueuePairs: 1, Transport: "UC"},
		"checked write over UC":   {Kind: write, QueuePairs: 1, Transport: "UC", Check: true},
		"process over UC":         {Kind: write, QueuePairs: 1, Transport: "UC", Process: true, Loopback: true, Size: 65536},
		"rate of a latency":       {Kind: Kind{"send", true}, QueuePairs: 1, Rate: Rate{5, false}},
		"rate of what is empty":   {Kind: Kind{"send", false}, QueuePairs: 1, Rate: Rate{5, true}},
		"negative rate":           {Kind: write, QueuePairs: 1, Rate: Rate{-5, false}},
		"rate, process":           {Kind: write, QueuePairs: 1, Rate: Rate{5, false}, Process: true, Loopback: true, Size: 65536},
		"both, latency":           {Kind: Kind{"write", true}, QueuePairs: 1, Both: true},
		"both, atomic":            {Kind: Kind{"atomic", false}, QueuePairs: 1, Both: true},
		"both, process":           {Kind: write, QueuePairs: 1, Both: true, Process: true, Loopback: true, Size: 65536},
		"both, XRC":               {Kind: write, QueuePairs: 1, Both: true, Transport: "XRC"},
		"SRQ of writes":           {Kind: write, QueuePairs: 1, SRQ: true},
		"SRQ, XRC":                {Kind: Kind{"send", false}, QueuePairs: 1, SRQ: true, Transport: "XRC"},
		"histogram of bandwidth":  {Kind: write, QueuePairs: 1, Histogram: true},
		"write over UD":           {Kind: write, QueuePairs: 1, Transport: "UD"},
		"read latency over UD":    {Kind: Kind{"read", true}, QueuePairs: 1, Transport: "UD"},
		"members, no group":       {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Members: 2},
		"cm over UC":              {Kind: write, QueuePairs: 1, Transport: "UC", CM: true},
		"cm and loopback":         {Kind: write, QueuePairs: 1, Loopback: true, CM: true},
		"cm and MTU":              {Kind: write, QueuePairs: 1, MTU: 1024, CM: true},
		"servers, no group":       {Kind: write, QueuePairs: 1, Servers: []string{"a", "b"}},
		"group of writes":         {Kind: write, QueuePairs: 1, Group: testGroup, Members: 1},
		"group over RC":           {Kind: Kind{"send", false}, QueuePairs: 1, Group: testGroup, Members: 1},
		"no group address":        {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: loopback()[0], Members: 1},
		"mapped group":            {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: netip.MustParseAddr("::ffff:239.1.1.1"), Members: 1},
		"group, IPv6":             {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: testGroup, Members: 1, IPv6: true},
		"group, bidirectional":    {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: testGroup, Members: 1, Both: true},
		"group, SRQ":              {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: testGroup, Members: 1, SRQ: true},
		"group, -lat, several":    {Kind: Kind{"send", true}, QueuePairs: 2, Transport: "UD", Group: testGroup, Members: 1},
		"group, no member":        {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: testGroup},
		"group, one server twice": {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: testGroup, Members: 1, Servers: []string{"a", "a"}},
		"group, many members":     {Kind: Kind{"send", false}, QueuePairs: 1, Transport: "UD", Group: testGroup, Members: 1001},
		"fault":                   {Kind: write, QueuePairs: 1, Faults: []string{"drop=1%", "recv:lose=1%"}},
		"selective over XRC":      {Kind: write, QueuePairs: 1, Transport: "XRC", Resend: ResendSelective},
	} {
		err := o.Validate()
		if !errors.Is(err, ErrUsage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line that is a usage error", what, err)
		}
	}
	for _, s := range []string{"", "write", "write-", "write-bw-lat", "-bw", "udp-bw", "WRITE-BW"} {
		if k, err := ParseKind(s); !errors.Is(err, ErrUsage) {
			t.Errorf("operation %q is %v, %v; want a usage error", s, k, err)
		}
	}
	for _, k := range kinds {
		if got, err := ParseKind(k.String()); got != k || err != nil {
			t.Errorf("operation %q is %v, %v", k, got, err)
		}
	}
}

// The addresses of two NICs in one process say the IP version, which nobody needs to repeat.
func TestFamilyOfAddresses(t *testing.T) {
	o := options(t, Kind{"write", false}, func(o *Options) {
		o.Addrs = []netip.Addr{netip.IPv6Loopback(), netip.MustParseAddr("fd00::1")}
	})
	if !o.IPv6 {
		t.Error("IPv4 is chosen for IPv6 addresses")
	}
	if o := options(t, Kind{"write", false}, nil); o.IPv6 {
		t.Error("IPv6 is chosen for IPv4 addresses")
	}
}

// What the options ask for and the NIC does not have.
func TestOptionsThatDoNotFitTheNIC(t *testing.T) {
	for what, change := range map[string]func(*Options){
		"GID index":  func(o *Options) { o.GIDIndex = 77 },
		"no address": func(o *Options) { o.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.77"), o.Addrs[0]} },
	} {
		o := options(t, Kind{"write", false}, change)
		if err := Run(context.Background(), o, &Printer{W: &bytes.Buffer{}}); !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v, want a usage error", what, err)
		}
	}
}

func TestInterrupt(t *testing.T) {
	for _, k := range kinds {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		o := options(t, k, func(o *Options) { o.Iterations, o.Duration = 0, time.Hour })
		if err := Run(ctx, o, &Printer{W: &bytes.Buffer{}}); !errors.Is(err, errInterrupted) {
			t.Errorf("%s: %v, want interrupted", k, err)
		}
		cancel()
	}
	// A server to which no client comes.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	o := options(t, kinds[0], func(o *Options) { o.Loopback, o.Addrs = false, o.Addrs[:1] })
	if err := Run(ctx, o, &Printer{W: &bytes.Buffer{}}); !errors.Is(err, errInterrupted) {
		t.Errorf("server: %v, want interrupted", err)
	}
}

func TestFillAndVerify(t *testing.T) {
	var scratch []byte
	for n := range 70 {
		b := make([]byte, n)
		fill(b, 3, 1000)
		if err := verify(b, 3, 1000, &scratch); err != nil {
			t.Fatal(err)
		}
		if n < 4 {
			continue // a few bytes may be equal by chance
		}
		for what, err := range map[string]error{"other message": verify(b, 3, 1001, &scratch), "other queue pair": verify(b, 4, 1000, &scratch)} {
			if err == nil {
				t.Errorf("%d bytes: %s is not noticed", n, what)
			}
		}
		for i := range b {
			b[i] ^= 0x10
			if verify(b, 3, 1000, &scratch) == nil {
				t.Errorf("%d bytes: a wrong bit in byte %d is not noticed", n, i)
			}
			b[i] ^= 0x10
		}
	}
}

func TestPercentiles(t *testing.T) {
	samples := make([]int64, 1000)
	for i := range samples {
		samples[i] = int64(1000 - i) // 1..1000, not in order
	}
	var r Result
	r.latency(samples)
	if d := cmp.Diff(&Latency{Min: 1, P50: 501, P99: 991, P999: 1000, Max: 1000}, r.LatencyNS); d != "" {
		t.Errorf("latencies (-want +got):\n%s", d)
	}
	r = Result{}
	r.latency([]int64{5})
	if d := cmp.Diff(&Latency{5, 5, 5, 5, 5}, r.LatencyNS); d != "" {
		t.Errorf("one sample (-want +got):\n%s", d)
	}
}

// Of several own addresses the one is used that the connection to the peer shows to lead there.
func TestGIDOfTheConnection(t *testing.T) {
	addrs := loopback()
	dev, err := verbs.NewDevice(verbs.DeviceConfig{Addrs: addrs})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for _, c := range []struct {
		o    Options
		want int
	}{
		{Options{GIDIndex: -1}, 0},
		{Options{GIDIndex: -1, near: addrs[0]}, 0},
		{Options{GIDIndex: -1, near: addrs[1]}, 1},
		{Options{GIDIndex: 0, near: addrs[1]}, 0},
		{Options{GIDIndex: -1, near: netip.MustParseAddr("192.0.2.1")}, 0},
	} {
		c.o.followConnection(dev)
		if got, err := c.o.pickGID(dev); err != nil || got != c.want || c.o.IPv6 {
			t.Errorf("near %v, index %d: %d, %v, IPv6 %v; want index %d", c.o.near, c.o.GIDIndex, got, err, c.o.IPv6, c.want)
		}
	}
	six := Options{GIDIndex: -1, IPv6: true, near: addrs[1]}
	if got, err := six.pickGID(dev); err == nil {
		t.Errorf("an IPv6 GID of a NIC without any: index %d", got)
	}
}

// A ping-pong over a connection that fails ends with the reason, whichever side it concerns, and does not wait for ever.
func TestPingPongFails(t *testing.T) {
	for _, verb := range []string{"write", "send"} {
		for _, fault := range []string{"nak=100%:remote-access,skip=60", "recv:nak=100%:remote-access,skip=60"} {
			o := options(t, Kind{verb, true}, func(o *Options) { o.Faults = []string{fault} })
			if err := Run(context.Background(), o, &Printer{W: &bytes.Buffer{}}); !errors.Is(err, verbs.ErrRemoteAccess) {
				t.Errorf("%s-lat with %s: %v, want a remote access error", verb, fault, err)
			}
		}
	}
}

// Messages that take long make a measurement last no longer than was asked for, but for those in flight.
func TestDurationOfSlowMessages(t *testing.T) {
	o := options(t, Kind{"write", false}, func(o *Options) {
		o.Iterations, o.Duration, o.Depth, o.Faults = 0, time.Millisecond, 1, []string{"delay=50ms"}
	})
	if n := runJSON(t, o)[0]["iterations"].(float64); n < 1 || n > 8 {
		t.Errorf("%v messages in a millisecond and what was in flight, one at a time, each of which takes 50 ms", n)
	}
}

// As many rounds as anybody may ask for need no memory before there are any.
func TestManyIterations(t *testing.T) {
	o := options(t, Kind{"write", true}, func(o *Options) { o.Iterations = math.MaxInt })
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := Run(ctx, o, &Printer{W: &bytes.Buffer{}}); !errors.Is(err, errInterrupted) {
		t.Errorf("got %v", err)
	}
}
