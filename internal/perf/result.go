package perf

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Latency is a distribution in nanoseconds.
type Latency struct {
	Min  int64 `json:"min"`
	P50  int64 `json:"p50"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p999"`
	Max  int64 `json:"max"`
}

// Result is what one measurement found.
type Result struct {
	Operation            string     `json:"operation"`
	SizeBytes            int        `json:"size_bytes"`
	Iterations           int        `json:"iterations"`
	QueuePairs           int        `json:"queue_pairs"`
	Transport            string     `json:"transport"`
	MTUBytes             int        `json:"mtu_bytes"`
	BytesPerSecond       float64    `json:"bytes_per_second"`
	MessagesPerSecond    float64    `json:"messages_per_second"`
	LatencyNS            *Latency   `json:"latency_ns"` // null for bandwidth
	RetransmittedPackets uint64     `json:"retransmitted_packets"`
	Resend               Resend     `json:"resend,omitempty"` // RC: "selective" or "go-back-n", as both sides agreed
	Timeouts             uint64     `json:"timeouts"`
	Errors               uint64     `json:"errors"`
	LostPackets          *uint64    `json:"lost_packets,omitempty"`         // UC and UD only
	Bidirectional        bool       `json:"bidirectional,omitempty"`        // with --bidirectional: rates are the sums of both directions
	SRQ                  bool       `json:"srq,omitempty"`                  // with --srq
	Multicast            *Multicast `json:"multicast,omitempty"`            // with --multicast
	Histogram            *Histogram `json:"latency_histogram_ns,omitempty"` // with --histogram
	Stages               []Stage    `json:"stages,omitempty"`               // with --stages
	UnclearStages        int        `json:"unclear_stages,omitempty"`

	took time.Duration // of the timed part
}

// rate fills in what follows from the number of messages and the time.
func (r *Result) rate(messages int, took time.Duration) {
	s := took.Seconds()
	if s <= 0 {
		s = 1e-9
	}
	r.Iterations, r.took = messages, took
	r.MessagesPerSecond = float64(messages) / s
	r.BytesPerSecond = r.MessagesPerSecond * float64(r.SizeBytes)
}

// latency summarises samples, which it sorts.
func (r *Result) latency(samples []int64) {
	r.LatencyNS = summary(samples)
}

// summary is the distribution of samples, which it sorts; nil of none.
func summary(samples []int64) *Latency {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	return &Latency{samples[0], percentile(samples, 0.5), percentile(samples, 0.99), percentile(samples, 0.999), samples[len(samples)-1]}
}

// percentile is the sample, of sorted ones, below which the share q lies.
func percentile(samples []int64, q float64) int64 {
	return samples[min(len(samples)-1, int(q*float64(len(samples))))]
}

// Printer writes results as a table or as JSON objects, one a line.
type Printer struct {
	W      io.Writer
	JSON   bool
	header bool
}

// Print writes one result.
func (p *Printer) Print(r *Result) error {
	if p.JSON {
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.W, "%s\n", b)
		return err
	}
	resent, lost := "resent", r.RetransmittedPackets
	if r.LostPackets != nil {
		resent, lost = "lost", *r.LostPackets
	}
	rate := "GB/s"
	if r.Bidirectional {
		rate = "GB/s[sum]"
	}
	if !p.header {
		p.header = true
		if r.LatencyNS != nil {
			fmt.Fprintf(p.W, "%-10s %9s %10s %4s %5s %9s %9s %9s %9s %9s %8s %8s %6s%s\n", "operation", "bytes", "iterations", "qps", "mtu",
				"min[us]", "p50[us]", "p99[us]", "p99.9[us]", "max[us]", resent, "timeouts", "errors", r.Resend.column("resend"))
		} else {
			fmt.Fprintf(p.W, "%-10s %9s %10s %4s %5s %10s %12s %8s %8s %6s%s\n", "operation", "bytes", "iterations", "qps", "mtu",
				rate, "messages/s", resent, "timeouts", "errors", r.Resend.column("resend"))
		}
	}
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	var err error
	if l := r.LatencyNS; l != nil {
		_, err = fmt.Fprintf(p.W, "%-10s %9d %10d %4d %5d %9.2f %9.2f %9.2f %9.2f %9.2f %8d %8d %6d%s\n", r.Operation, r.SizeBytes, r.Iterations,
			r.QueuePairs, r.MTUBytes, us(l.Min), us(l.P50), us(l.P99), us(l.P999), us(l.Max), lost, r.Timeouts, r.Errors, r.Resend.column(string(r.Resend)))
	} else {
		_, err = fmt.Fprintf(p.W, "%-10s %9d %10d %4d %5d %10.3f %12.0f %8d %8d %6d%s\n", r.Operation, r.SizeBytes, r.Iterations,
			r.QueuePairs, r.MTUBytes, r.BytesPerSecond/1e9, r.MessagesPerSecond, lost, r.Timeouts, r.Errors, r.Resend.column(string(r.Resend)))
	}
	r.Multicast.print(p.W)
	r.Histogram.print(p.W)
	printStages(p.W, r)
	return err
}
