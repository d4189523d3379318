package perf

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

// Over UC the last messages are verified by the receiver; what is lost is reported and is no error.
func TestUnreliableConnections(t *testing.T) {
	for _, kind := range []Kind{{"write", false}, {"send", false}, {"write", true}, {"send", true}} {
		for what, change := range map[string]func(*Options){
			"default":        nil,
			"small messages": func(o *Options) { o.Size = 8 },
			"many":           func(o *Options) { o.QueuePairs, o.Depth, o.Size = 7, 3, 10_000 },
			"loss":           func(o *Options) { o.Faults = []string{"drop=1%,dup=1%,reorder=1%:4,seed=7"} },
		} {
			if kind.Latency && (what == "loss" || what == "many") {
				continue // a ping-pong ends with the first packet lost
			}
			o := options(t, kind, func(o *Options) {
				o.Transport, o.Check = "UC", kind.Latency || kind.Verb == "send"
				if change != nil {
					change(o)
				}
			})
			r := runJSON(t, o)[0]
			lost, is := r["lost_packets"].(float64)
			if r["transport"] != "UC" || r["iterations"] != float64(o.Iterations*o.QueuePairs) || r["errors"] != 0. || !is ||
				r["retransmitted_packets"] != 0. {
				t.Errorf("%v, %s: %v", kind, what, r)
			}
			if what == "loss" && lost == 0 {
				t.Errorf("%v, %s: nothing is reported as lost", kind, what)
			}
		}
	}
}

// A receiver that gets nothing of the last messages says so.
func TestUnreliableNothingArrives(t *testing.T) {
	o := options(t, Kind{"send", false}, func(o *Options) { o.Transport, o.Faults = "UC", []string{"drop=100%"} })
	err := Run(context.Background(), o, &Printer{W: &bytes.Buffer{}})
	if err == nil || !strings.Contains(err.Error(), "none of the last messages has arrived") {
		t.Errorf("got %v", err)
	}
}

// The first lost message ends a ping-pong over UC or UD.
func TestUnreliablePingPong(t *testing.T) {
	defer func(d time.Duration) { lossTimeout = d }(lossTimeout)
	lossTimeout = 100 * time.Millisecond
	for transport, verb := range map[string]string{"UC": "write", "UD": "send"} {
		o := options(t, Kind{verb, true}, func(o *Options) { o.Transport, o.Faults = transport, []string{"drop=100%,skip=50"} })
		err := Run(context.Background(), o, &Printer{W: &bytes.Buffer{}})
		if err == nil || !strings.Contains(err.Error(), "one that is lost ends a ping-pong over "+transport) {
			t.Errorf("%s-lat over %s: got %v", verb, transport, err)
		}
	}
}
