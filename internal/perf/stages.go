package perf

import (
	"fmt"
	"io"

	"rnic/internal/device"
)

// Stage is one part of the way of a message, from the program that posts it to the program that sees it.
type Stage struct {
	Name    string  `json:"name"`
	Latency Latency `json:"latency_ns"`
}

// stageNames name the parts by what ends them.
var stageNames = [...]string{"doorbell seen", "sent", "received", "written", "completion seen"}

// stages collects the times of messages between two NICs of this process, which have one clock.
type stages struct {
	dev    *device.Device // for its clock
	client device.Stages
	server device.Stages
	posted int64
	parts  [len(stageNames)][]int64
	// unclear counts messages whose times do not follow each other: something else passed in between.
	unclear int
}

// record begins recording; the function returned ends it.
func (s *stages) record(client, server *endpoint) (end func()) {
	s.dev = client.dev.Unwrap()
	s.dev.Record(&s.client)
	server.dev.Unwrap().Record(&s.server)
	return func() {
		s.dev.Record(nil)
		server.dev.Unwrap().Record(nil)
	}
}

func (s *stages) post() {
	if s != nil {
		s.posted = s.dev.Now()
	}
}

// seen ends a message: the peer's program has seen it.
func (s *stages) seen() {
	if s == nil {
		return
	}
	at := [...]int64{s.posted, s.client.Doorbell.Load(), s.client.Sent.Load(), s.server.Received.Load(), s.server.Written.Load(), s.dev.Now()}
	for i := range stageNames {
		if at[i+1] < at[i] {
			s.unclear++
			return
		}
	}
	for i := range stageNames {
		s.parts[i] = append(s.parts[i], at[i+1]-at[i])
	}
}

// forget drops what was collected: it was for warming up.
func (s *stages) forget() {
	if s == nil {
		return
	}
	for i := range s.parts {
		s.parts[i] = s.parts[i][:0]
	}
	s.unclear = 0
}

// result fills in the stages of a result.
func (s *stages) result(r *Result) {
	if s == nil {
		return
	}
	r.UnclearStages = s.unclear
	for i, name := range stageNames {
		if l := summary(s.parts[i]); l != nil {
			r.Stages = append(r.Stages, Stage{name, *l})
		}
	}
}

// printStages writes the stages behind the row of a result.
func printStages(w io.Writer, r *Result) {
	if r.Stages == nil {
		return
	}
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	fmt.Fprintf(w, "  %-24s %9s %9s %9s %9s %9s\n", "each from the one before", "min[us]", "p50[us]", "p99[us]", "p99.9[us]", "max[us]")
	for _, s := range r.Stages {
		l := s.Latency
		fmt.Fprintf(w, "  ... %-20s %9.2f %9.2f %9.2f %9.2f %9.2f\n", s.Name, us(l.Min), us(l.P50), us(l.P99), us(l.P999), us(l.Max))
	}
	if r.UnclearStages > 0 {
		fmt.Fprintf(w, "  %d messages are left out: others passed between their stages\n", r.UnclearStages)
	}
}
