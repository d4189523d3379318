package perf

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
)

// Bucket counts the samples of From and more nanoseconds, and less than To.
type Bucket struct {
	From  int64 `json:"from"`
	To    int64 `json:"to"`
	Count int   `json:"count"`
}

// Histogram is a distribution of latencies in nanoseconds. Buckets without samples are left out.
type Histogram struct {
	P50     int64    `json:"p50"`
	P90     int64    `json:"p90"`
	P99     int64    `json:"p99"`
	P999    int64    `json:"p999"`
	P9999   int64    `json:"p9999"`
	Buckets []Bucket `json:"buckets"`
}

// bucketOf is the bucket that v falls into: each power of two has four, of a width of at most a quarter of what they hold.
func bucketOf(v int64) (from, to int64) {
	if v < 4 {
		return v, v + 1
	}
	shift := bits.Len64(uint64(v)) - 3
	from = v >> shift << shift
	return from, from + 1<<shift
}

// histogram is that of samples, which are sorted; nil of none.
func histogram(samples []int64) *Histogram {
	if len(samples) == 0 {
		return nil
	}
	h := &Histogram{P50: percentile(samples, 0.5), P90: percentile(samples, 0.9), P99: percentile(samples, 0.99),
		P999: percentile(samples, 0.999), P9999: percentile(samples, 0.9999)}
	for _, v := range samples {
		if last := len(h.Buckets) - 1; last >= 0 && v < h.Buckets[last].To {
			h.Buckets[last].Count++
			continue
		}
		from, to := bucketOf(v)
		h.Buckets = append(h.Buckets, Bucket{from, to, 1})
	}
	return h
}

// barWidth is how long the bar of the fullest bucket is.
const barWidth = 40

// print writes the histogram as text: a row each bucket, dots where buckets without samples lie between, then the percentiles.
func (h *Histogram) print(w io.Writer) {
	if h == nil {
		return
	}
	total, fullest := 0, 0
	for _, b := range h.Buckets {
		total, fullest = total+b.Count, max(fullest, b.Count)
	}
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	fmt.Fprintf(w, "  %10s %11s %10s %9s\n", "from[us]", "below[us]", "messages", "up to")
	sum := 0
	for i, b := range h.Buckets {
		if i > 0 && b.From != h.Buckets[i-1].To {
			fmt.Fprintf(w, "  %10s\n", "...")
		}
		sum += b.Count
		bar := strings.Repeat("#", b.Count*barWidth/fullest)
		if bar == "" {
			bar = "."
		}
		fmt.Fprintf(w, "  %10.3f %11.3f %10d %8.3f%% %s\n", us(b.From), us(b.To), b.Count, 100*float64(sum)/float64(total), bar)
	}
	fmt.Fprintf(w, "  percentiles[us]: 50%% %.2f, 90%% %.2f, 99%% %.2f, 99.9%% %.2f, 99.99%% %.2f\n", us(h.P50), us(h.P90), us(h.P99), us(h.P999), us(h.P9999))
}
