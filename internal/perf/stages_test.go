package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// The stages of nearly every message are known, and together they are the way of a message.
func TestStages(t *testing.T) {
	for _, kind := range []Kind{{"write", true}, {"send", true}} {
		o := options(t, kind, func(o *Options) { o.Stages, o.Iterations = true, 500 })
		var out bytes.Buffer
		if err := Run(context.Background(), o, &Printer{W: &out, JSON: true}); err != nil {
			t.Fatal(err)
		}
		var r Result
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Stages) != 5 || r.UnclearStages > o.Iterations/2 {
			t.Fatalf("%v: stages %+v, %d messages without", kind, r.Stages, r.UnclearStages)
		}
		least := int64(0)
		for i, s := range r.Stages {
			if s.Name != stageNames[i] || s.Latency.Min < 0 || s.Latency.P50 < s.Latency.Min || s.Latency.Max < s.Latency.P999 {
				t.Errorf("%v: stage %+v", kind, s)
			}
			least += s.Latency.Min
		}
		if least <= 0 || least > 2*r.LatencyNS.Max {
			t.Errorf("%v: %d ns in all stages, half a round trip takes %d at most", kind, least, r.LatencyNS.Max)
		}
		out.Reset()
		if err := (&Printer{W: &out}).Print(&r); err != nil || strings.Count(out.String(), "... ") != 5 {
			t.Errorf("%v: printed, %v:\n%s", kind, err, out.String())
		}
	}
	for _, o := range []Options{{Kind: Kind{"write", false}, Loopback: true}, {Kind: Kind{"read", true}, Loopback: true},
		{Kind: Kind{"write", true}, Servers: []string{"host"}}} {
		o.QueuePairs, o.Stages = 1, true
		if err := o.Validate(); !errors.Is(err, ErrUsage) {
			t.Errorf("%v: %v", o.Kind, err)
		}
	}
}

// A message whose times do not follow each other is left out and counted.
func TestUnclearStages(t *testing.T) {
	o := options(t, Kind{"write", true}, nil)
	dev := must(open(o, o.Addrs[:1], 0))
	defer dev.Close()
	s := &stages{dev: dev.Unwrap()}
	s.post()
	s.client.Doorbell.Store(1) // of an earlier message
	s.seen()
	var r Result
	s.result(&r)
	if r.UnclearStages != 1 || r.Stages != nil {
		t.Errorf("%+v", r)
	}
}
