package perf

import (
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Progress writes one line a second about a running measurement. A nil Progress writes nothing.
type Progress struct {
	W        io.Writer
	Terminal bool // overwrite the line instead of writing the next

	messages atomic.Int64 // completed so far, of the current measurement
}

// add counts messages that have completed.
func (p *Progress) add(n int) {
	if p != nil {
		p.messages.Add(int64(n))
	}
}

// start begins a measurement; the function returned ends it, and removes the line from a terminal.
func (p *Progress) start(o *Options) (end func()) {
	if p == nil {
		return func() {}
	}
	p.messages.Store(0)
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		begin, last, before := time.Now(), time.Now(), int64(0)
		for {
			select {
			case <-stop:
				return
			case now := <-ticker.C:
				n := p.messages.Load()
				p.write(o.progressLine(now.Sub(begin), now.Sub(last), n, n-before))
				last, before = now, n
			}
		}
	})
	return func() {
		close(stop)
		running.Wait()
		if p.Terminal {
			fmt.Fprint(p.W, "\r\x1b[K")
		}
	}
}

func (p *Progress) write(line string) {
	if p.Terminal {
		fmt.Fprintf(p.W, "\r\x1b[K%s", line)
		return
	}
	fmt.Fprintln(p.W, line)
}

// progressLine says where a measurement stands: messages so far, and recent ones of the last period.
func (o *Options) progressLine(since, period time.Duration, messages, recent int64) string {
	rate := float64(recent) / max(period.Seconds(), 1e-9)
	s := fmt.Sprintf("%s, %d bytes: %d s, %d messages", o.Kind, o.Size, int(since.Seconds()+0.5), messages)
	all := float64(o.Iterations) * float64(o.QueuePairs)
	if o.Loopback { // else the other side counts its own
		all *= float64(o.directions())
	}
	if o.Duration == 0 && all > 0 {
		s += fmt.Sprintf(" (%.0f%%)", min(100, math.Floor(100*float64(messages)/all)))
	}
	s += fmt.Sprintf(", %.0f messages/s", rate)
	if !o.Kind.Latency {
		s += fmt.Sprintf(", %.3f GB/s", rate*float64(o.Size)/1e9)
	}
	return s
}
