package perf

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Buckets follow each other without gap or overlap, and none is wider than a quarter of what it holds.
func TestBucketsFollowEachOther(t *testing.T) {
	end := int64(0)
	for end < math.MaxInt64/4 {
		from, to := bucketOf(end)
		if from != end || to <= from || to > 8 && to-from > from/4 {
			t.Fatalf("%d falls into [%d, %d)", end, from, to)
		}
		if f, _ := bucketOf(to - 1); f != from {
			t.Fatalf("%d does not fall into [%d, %d)", to-1, from, to)
		}
		end = to
	}
}

func TestHistogram(t *testing.T) {
	samples := make([]int64, 0, 10_000)
	for i := range 9_990 {
		samples = append(samples, 1024+int64(i)*512/9_990) // two buckets
	}
	for range 10 {
		samples = append(samples, 1_000_000)
	}
	var r Result
	r.latency(samples)
	h := histogram(samples)
	want := []Bucket{{1024, 1280, 4995}, {1280, 1536, 4995}, {917_504, 1_048_576, 10}}
	if d := cmp.Diff(want, h.Buckets); d != "" {
		t.Errorf("buckets (-want +got):\n%s", d)
	}
	if h.P50 != r.LatencyNS.P50 || h.P99 != r.LatencyNS.P99 || h.P999 != 1_000_000 || h.P9999 != 1_000_000 || h.P90 != samples[9000] {
		t.Errorf("percentiles: %+v, and %+v without histogram", h, r.LatencyNS)
	}
	var out bytes.Buffer
	h.print(&out)
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	if len(lines) != 6 || !strings.HasSuffix(lines[1], strings.Repeat("#", barWidth)) || strings.TrimSpace(lines[3]) != "..." ||
		!strings.HasSuffix(lines[4], "100.000% .") || !strings.Contains(lines[5], "99.99% 1000.00") {
		t.Errorf("text:\n%s", &out)
	}
	if histogram(nil) != nil {
		t.Error("a histogram of no samples")
	}
}

// --histogram adds one field, whose buckets hold every round that is counted.
func TestHistogramOfAMeasurement(t *testing.T) {
	for _, kind := range kinds[4:] {
		r := runJSON(t, options(t, kind, func(o *Options) { o.Histogram = true }))[0]
		var h Histogram
		if err := json.Unmarshal(must(json.Marshal(r["latency_histogram_ns"])), &h); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, b := range h.Buckets {
			n += b.Count
		}
		if n != 100 || float64(h.P50) != r["latency_ns"].(map[string]any)["p50"] || h.P9999 < h.P50 {
			t.Errorf("%v: %d in the buckets of %v", kind, n, r)
		}
	}
}
