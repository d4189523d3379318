package perf

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// Every combination of who sends, over what, into which receives: all messages are counted, and what is verified is right.
func TestModes(t *testing.T) {
	var write, read, send = Kind{"write", false}, Kind{"read", false}, Kind{"send", false}
	sendLat := Kind{"send", true}
	loss := []string{"drop=1%,dup=1%,reorder=1%:4,seed=7"}
	for what, c := range map[string]struct {
		kind   Kind
		change func(*Options)
	}{
		"bidirectional write":              {write, func(o *Options) { o.Both = true }},
		"bidirectional read":               {read, func(o *Options) { o.Both = true }},
		"bidirectional send":               {send, func(o *Options) { o.Both = true }},
		"bidirectional, several, loss":     {send, func(o *Options) { o.Both, o.QueuePairs, o.Size, o.Faults = true, 3, 5000, loss }},
		"bidirectional write over UC":      {write, func(o *Options) { o.Both, o.Transport, o.Check, o.Size = true, "UC", false, 5000 }},
		"bidirectional send over UD":       {send, func(o *Options) { o.Both, o.Transport, o.Size = true, "UD", 1000 }},
		"bidirectional, at a rate":         {write, func(o *Options) { o.Both, o.Rate, o.Size = true, Rate{10_000, false}, 100 }},
		"shared receives":                  {send, func(o *Options) { o.SRQ = true }},
		"shared receives, several, loss":   {send, func(o *Options) { o.SRQ, o.QueuePairs, o.Size, o.Faults = true, 5, 5000, loss }},
		"shared receives, not all checked": {send, func(o *Options) { o.SRQ, o.QueuePairs, o.Check = true, 5, false }},
		"shared receives, bidirectional":   {send, func(o *Options) { o.SRQ, o.Both, o.QueuePairs = true, true, 2 }},
		"shared receives of empty ones":    {send, func(o *Options) { o.SRQ, o.Size = true, 0 }},
		"shared receives, latency":         {sendLat, func(o *Options) { o.SRQ = true }},
		"datagrams":                        {send, func(o *Options) { o.Transport = "UD" }},
		"datagrams of the MTU":             {send, func(o *Options) { o.Transport, o.Size = "UD", 4096 }},
		"empty datagrams":                  {send, func(o *Options) { o.Transport, o.Size = "UD", 0 }},
		"datagrams, inline":                {send, func(o *Options) { o.Transport, o.Size, o.Inline = "UD", 100, 100 }},
		"datagrams, several, shared":       {send, func(o *Options) { o.Transport, o.QueuePairs, o.SRQ = "UD", 3, true }},
		"datagrams, loss":                  {send, func(o *Options) { o.Transport, o.Faults = "UD", []string{"drop=5%,seed=7"} }},
		"datagrams, latency":               {sendLat, func(o *Options) { o.Transport = "UD" }},
		"datagrams, shared, latency":       {sendLat, func(o *Options) { o.Transport, o.SRQ, o.Size = "UD", true, 1024 }},
	} {
		t.Run(what, func(t *testing.T) {
			o := options(t, c.kind, func(o *Options) {
				if c.change(o); o.Size == -1 && !o.Kind.Latency && !o.datagrams() {
					o.Size = 9000 // three packets
				}
			})
			r := runJSON(t, o)[0]
			lost, counted := r["lost_packets"].(float64)
			if r["iterations"] != float64(o.Iterations*o.QueuePairs*o.directions()) || r["errors"] != 0. || r["transport"] != o.Transport ||
				counted == o.reliable() || (r["bidirectional"] == true) != o.Both || (r["srq"] == true) != o.SRQ {
				t.Errorf("%v", r)
			}
			if !o.reliable() && len(o.Faults) > 0 && lost == 0 {
				t.Errorf("nothing is reported as lost: %v", r)
			}
			limit := o.Rate.messages(o.Size) * float64(o.directions())
			if rate := r["messages_per_second"].(float64); limit > 0 && rate > limit*(1+1e-9) {
				t.Errorf("%v messages a second, the limit is %v", rate, limit)
			}
		})
	}
}

// A receiver that gets no datagram of the last round says so, in each direction.
func TestNoDatagramArrives(t *testing.T) {
	for _, both := range []bool{false, true} {
		o := options(t, Kind{"send", false}, func(o *Options) { o.Transport, o.Both, o.Faults = "UD", both, []string{"drop=100%"} })
		err := Run(context.Background(), o, &Printer{W: &bytes.Buffer{}})
		if err == nil || err.Error() != "send-bw, 1024 bytes: none of the last messages has arrived" {
			t.Errorf("bidirectional %v: got %v", both, err)
		}
	}
}

// A datagram is one packet (InfiniBand vol. 1, 9.8.3): -a ends with the MTU, and larger ones are refused.
func TestDatagramSizes(t *testing.T) {
	o := options(t, Kind{"send", false}, func(o *Options) { o.Transport, o.AllSizes, o.Iterations, o.MTU = "UD", true, 10, 1024 })
	r := runJSON(t, o)
	if last := r[len(r)-1]["size_bytes"]; len(r) != 10 || last != 1024. {
		t.Errorf("%d sizes, the last is %v; want 10 to 1024", len(r), last)
	}
	for size, mtu := range map[int]int{4097: 0, 1025: 1024} {
		o := &Options{Kind: Kind{"send", false}, Loopback: true, Transport: "UD", Size: size, MTU: mtu, QueuePairs: 1}
		if err := o.Validate(); !errors.Is(err, ErrUsage) {
			t.Errorf("%d bytes at an MTU of %d: %v, want a usage error", size, mtu, err)
		}
	}
}

// The figure of both directions is what both have sent over the time of the slower one.
func TestSumOfDirections(t *testing.T) {
	for own, other := range map[int]int{1: 2, 2: 1} { // seconds
		r := &Result{SizeBytes: 10}
		r.rate(1000, seconds(own))
		r.sum(500, seconds(other))
		if r.Iterations != 1500 || r.MessagesPerSecond != 750 || r.BytesPerSecond != 7500 {
			t.Errorf("1000 in %d s and 500 in %d s: %+v", own, other, r)
		}
	}
}

func TestInterruptOfBoth(t *testing.T) {
	for what, change := range map[string]func(*Options){
		"both":      func(o *Options) { o.Both = true },
		"datagrams": func(o *Options) { o.Transport = "UD" },
		"slow":      func(o *Options) { o.Rate = Rate{0.01, false} },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), seconds(1)/50)
		o := options(t, Kind{"send", false}, change)
		o.Iterations, o.Duration = 0, seconds(3600)
		if err := Run(ctx, o, &Printer{W: &bytes.Buffer{}}); !errors.Is(err, errInterrupted) {
			t.Errorf("%s: %v, want interrupted", what, err)
		}
		cancel()
	}
}
