package perf

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Rate limits what a side sends in a bandwidth measurement, over all its queue pairs. The zero value is no limit.
type Rate struct {
	PerSecond float64 `json:"per_second"`
	Bytes     bool    `json:"bytes"` // of bytes, else of messages
}

// rateUnits are what --rate takes before "/s". Decimal as GB/s in the results, binary with an i.
var rateUnits = map[string]struct {
	factor float64
	bytes  bool
}{
	"": {1, false}, "k": {1e3, false}, "M": {1e6, false}, "G": {1e9, false},
	"B": {1, true}, "kB": {1e3, true}, "KB": {1e3, true}, "MB": {1e6, true}, "GB": {1e9, true},
	"KiB": {1 << 10, true}, "MiB": {1 << 20, true}, "GiB": {1 << 30, true},
}

// maxRate keeps intervals and sums far from the limits of their types.
const maxRate = 1e15

// ParseRate reads "100MB/s", "10000/s" and the like. "" is no limit.
func ParseRate(s string) (Rate, error) {
	if s == "" {
		return Rate{}, nil
	}
	text, ok := strings.CutSuffix(s, "/s")
	number := strings.TrimRight(text, "kKMGiB")
	unit, known := rateUnits[text[len(number):]]
	v, err := strconv.ParseFloat(number, 64)
	v *= unit.factor
	switch {
	case !ok || !known || err != nil || math.IsNaN(v):
		return Rate{}, usage("--rate %q: messages or bytes a second are needed, like 10000/s or 100MB/s", s)
	case v < 0.01 || v > maxRate:
		return Rate{}, usage("--rate %q: 0.01 to 10^15 a second are possible", s)
	}
	return Rate{v, unit.bytes}, nil
}

// messages is the limit in messages of so many bytes a second; 0: none.
func (r Rate) messages(size int) float64 {
	if r.Bytes {
		return r.PerSecond / float64(max(size, 1))
	}
	return r.PerSecond
}

// maxDebt is how far a pacer that was held up catches up: so long the rate may be exceeded after a pause of the
// program, for the average to hold, and no longer.
const maxDebt = 100 * time.Millisecond

// pacer says when the next message is due. Message n is due n intervals after the start and not before, so that
// the average up to the completion of any message is below the limit.
type pacer struct {
	interval float64 // nanoseconds
	start    time.Time
	sent     float64 // messages due so far since start
}

// newPacer is nil where nothing is limited.
func newPacer(messages float64, now time.Time) *pacer {
	if messages <= 0 {
		return nil
	}
	return &pacer{interval: 1e9 / messages, start: now}
}

// wait is how long the next message has to wait: 0 or less, it is due.
func (p *pacer) wait(now time.Time) time.Duration {
	due := (p.sent + 1) * p.interval
	at := float64(now.Sub(p.start))
	if most := max(float64(maxDebt), p.interval); at-due > most {
		// Begin anew: what was missed before is missed.
		p.start, p.sent = now.Add(-time.Duration(most)), 0
		due, at = p.interval, most
	}
	return time.Duration(math.Ceil(min(due-at, float64(time.Hour))))
}

// take counts a message that is sent.
func (p *pacer) take() { p.sent++ }
