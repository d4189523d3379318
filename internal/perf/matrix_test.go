package perf

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// possible is the table of docs/perf.md: whether an option goes with an operation over a transport.
func possible(kind Kind, transport, option string) bool {
	bw, send, reliable := !kind.Latency, kind.Verb == "send", transport == "RC" || transport == "XRC"
	pingPong := kind.Latency && (send || kind.Verb == "write")
	switch {
	case transport == "UC" && (kind.Verb == "read" || kind.Verb == "atomic"), transport == "UD" && !send, transport == "XRC" && pingPong:
		return false
	}
	switch option {
	case "--check":
		return reliable || kind.Verb != "write" || kind.Latency
	case "-I":
		return send || kind.Verb == "write"
	case "-q", "--rate":
		return bw
	case "--bidirectional":
		return bw && kind.Verb != "atomic" && transport != "XRC"
	case "--srq":
		return send && transport != "XRC"
	case "--histogram":
		return !bw
	case "--stages":
		return pingPong
	case "--multicast":
		return transport == "UD"
	}
	return true
}

// Each option with each operation over each transport: it works, or a usage error says in one line what it goes with.
func TestMatrix(t *testing.T) {
	set := map[string]func(*Options){
		"none":            func(*Options) {},
		"--check":         func(o *Options) { o.Check = true },
		"-q":              func(o *Options) { o.QueuePairs = 3 },
		"--rate":          func(o *Options) { o.Rate = Rate{1e5, false} },
		"--bidirectional": func(o *Options) { o.Both = true },
		"--srq":           func(o *Options) { o.SRQ = true },
		"--histogram":     func(o *Options) { o.Histogram = true },
		"--stages":        func(o *Options) { o.Stages = true },
		"--multicast":     func(o *Options) { o.Group, o.Members = testGroup, 1 },
		"--units":         func(o *Options) { o.Units = 2 },
		"-I":              func(o *Options) { o.Inline = 64 },
		"-m":              func(o *Options) { o.MTU = 512 },
	}
	pairs := make(chan []netip.Addr, 8) // addresses of runs at the same time
	for n := range cap(pairs) {
		pairs <- apart(loopback(), 100+n)
	}
	for _, kind := range kinds {
		for _, transport := range []string{"RC", "UC", "UD", "XRC"} {
			for option, change := range set {
				o := &Options{Kind: kind, Transport: transport, Loopback: true, Size: 64, Iterations: 20, QueuePairs: 1, GIDIndex: -1, Inline: -1}
				if kind.Verb == "atomic" {
					o.Size = 8
				}
				change(o)
				what := fmt.Sprintf("%s -c %s %s", kind, transport, option)
				err := o.Validate()
				if !possible(kind, transport, option) {
					if !errors.Is(err, ErrUsage) || strings.Contains(err.Error(), "\n") {
						t.Errorf("%s: %v, want one line that is a usage error", what, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				if option == "none" && transport == "RC" {
					continue // other tests have it
				}
				t.Run(what, func(t *testing.T) {
					t.Parallel() // unreliable ones wait most of the time
					o.Addrs = <-pairs
					defer func() { pairs <- o.Addrs }()
					for _, r := range runJSON(t, o) {
						want := float64(o.Iterations * o.QueuePairs * o.directions())
						n := r["iterations"].(float64)
						late := o.multicast() && kind.Latency && n > 0 && n < want // than a round waits for: the machine may be busy
						if n != want && !late || r["errors"] != 0. || r["transport"] != transport {
							t.Errorf("%v", r)
						}
					}
				})
			}
		}
	}
}
