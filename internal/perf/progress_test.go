package perf

import (
	"bytes"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	for want, o := range map[string]Options{
		"write-bw, 1000 bytes: 3 s, 5000 messages (25%), 4000 messages/s, 0.004 GB/s": {Kind: Kind{"write", false}, Size: 1000, Iterations: 10_000, QueuePairs: 2},
		"write-bw, 1000 bytes: 3 s, 5000 messages, 4000 messages/s, 0.004 GB/s":       {Kind: Kind{"write", false}, Size: 1000, Duration: time.Minute, QueuePairs: 2},
		"write-bw, 100 bytes: 3 s, 5000 messages (50%), 4000 messages/s, 0.000 GB/s":  {Kind: Kind{"write", false}, Size: 100, Iterations: 10_000, QueuePairs: 1, Both: true},
		"write-bw, 200 bytes: 3 s, 5000 messages (25%), 4000 messages/s, 0.001 GB/s":  {Kind: Kind{"write", false}, Size: 200, Iterations: 10_000, QueuePairs: 1, Both: true, Loopback: true},
		"send-lat, 8 bytes: 3 s, 5000 messages (50%), 4000 messages/s":                {Kind: Kind{"send", true}, Size: 8, Iterations: 10_000, QueuePairs: 1},
	} {
		if got := o.progressLine(3*time.Second, 500*time.Millisecond, 5000, 2000); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// A terminal keeps one line, which is gone at the end; anything else gets lines.
func TestProgressOfATerminal(t *testing.T) {
	for terminal, want := range map[bool]string{true: "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K", false: "one\ntwo\n"} {
		var out bytes.Buffer
		p := &Progress{W: &out, Terminal: terminal}
		end := p.start(&Options{})
		p.write("one")
		p.write("two")
		end()
		if out.String() != want {
			t.Errorf("terminal %v: %q, want %q", terminal, out.String(), want)
		}
	}
}
