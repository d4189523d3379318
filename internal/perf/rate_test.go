package perf

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]Rate{
		"": {}, "10000/s": {10000, false}, "2.5k/s": {2500, false}, "1M/s": {1e6, false}, "100MB/s": {1e8, true}, "1.5GB/s": {1.5e9, true},
		"64kB/s": {64e3, true}, "64KiB/s": {65536, true}, "1GiB/s": {1 << 30, true}, "9B/s": {9, true}, "0.5/s": {0.5, false},
	} {
		if got, err := ParseRate(text); got != want || err != nil {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"100", "100MB", "/s", "MB/s", "-1/s", "0/s", "0.001/s", "NaN/s", "Inf/s", "1e99/s", "10 MB/s", "10Mb/s", "10BM/s", "10/min", "10/s/s", "fast"} {
		if got, err := ParseRate(text); !errors.Is(err, ErrUsage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q is %v, %v; want a usage error of one line", text, got, err)
		}
	}
}

// paced runs a pacer on a clock of its own, which goes on in steps, and returns how many messages were due by when.
func paced(rate float64, took, step time.Duration, pause func(at time.Duration) time.Duration) (messages int, highest float64) {
	start := time.Unix(1000, 0)
	p := newPacer(rate, start)
	for at := time.Duration(0); at < took; at += step {
		if pause != nil {
			at += pause(at)
		}
		for p.wait(start.Add(at)) <= 0 {
			p.take()
			messages++
		}
		highest = max(highest, float64(messages)/max(at.Seconds(), 1e-9))
	}
	return messages, highest
}

// The average meets the limit, and is never above it.
func TestPacerAverage(t *testing.T) {
	for _, rate := range []float64{1, 3, 999, 10_000, 1_234_567} {
		for _, step := range []time.Duration{20 * time.Microsecond, 3 * time.Millisecond} {
			if n, highest := paced(rate, 3*time.Second, step, nil); math.Abs(float64(n)-3*rate) > rate*step.Seconds()+1 || highest > rate*(1+1e-9) {
				t.Errorf("%v/s, looked at every %v: %d messages in 3 s, at most %v/s", rate, step, n, highest)
			}
		}
	}
}

// After a short pause of the program the average is made up for; of a long one no more than maxDebt is.
func TestPacerAfterAPause(t *testing.T) {
	for pause, missed := range map[time.Duration]float64{50 * time.Millisecond: 0, time.Second: 0.9} {
		once := pause
		n, _ := paced(10_000, 3*time.Second, 100*time.Microsecond, func(at time.Duration) (d time.Duration) {
			if at > time.Second {
				d, once = once, 0
			}
			return d
		})
		if want := 10_000 * (3 - missed); math.Abs(float64(n)-want) > 5 {
			t.Errorf("pause of %v: %d messages, want %v", pause, n, want)
		}
	}
}
