package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rnic/internal/nic"
)

// writeSeries writes a run as a table, one line a step: microseconds, bytes in the queue, each sender's rate.
func writeSeries(t *testing.T, name string, r *IncastResult) {
	t.Helper()
	var b strings.Builder
	b.WriteString("us,queue_bytes")
	for i := range r.Rates {
		fmt.Fprintf(&b, ",sender%d_bytes_per_s", i)
	}
	for k := range r.Queue {
		fmt.Fprintf(&b, "\n%d,%d", int64(k)*r.Step/1000, r.Queue[k])
		for i := range r.Rates {
			fmt.Fprintf(&b, ",%.0f", r.Rates[i][k])
		}
	}
	file := filepath.Join(t.ArtifactDir(), name)
	if err := os.WriteFile(file, []byte(b.String()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("the series is in %s (kept with go test -artifacts)", file)
}

// Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", section 5: eight senders that begin one after the other
// at line rate, through one port that marks, come to equal shares of it, without loss, and the port stays in use.
func TestIncastConvergesWithDCQCN(t *testing.T) {
	cfg := IncastConfig{Seed: 1, Policy: nic.Policy{Congestion: nic.CongestionDCQCN}}
	if raceEnabled { // one goroutine does it all: the race detector has nothing to find, and is slow
		cfg.Nanos, cfg.Stagger = 24_000_000, 500_000
	}
	r, err := Incast(cfg)
	if err != nil {
		t.Fatal(err)
	}
	writeSeries(t, "incast-dcqcn.csv", r)
	n := len(r.Queue)
	jain, goodput := r.Jain(n*2/3, n), r.Goodput(n*2/3, n)
	t.Logf("last third: Jain index %.4f, %.2f GB/s of 5; %d marked, %d dropped", jain, goodput/1e9, r.Marked, r.Dropped)
	if jain < 0.95 {
		t.Errorf("Jain index %.4f in the last third: the shares are not equal", jain)
	}
	if goodput < 0.85*5e9 {
		t.Errorf("%.2f GB/s in the last third: the port is not in use", goodput/1e9)
	}
	if r.Dropped != 0 || r.Marked == 0 || r.Receiver.CNPsSent == 0 {
		t.Errorf("%d dropped, %d marked, receiver %+v", r.Dropped, r.Marked, r.Receiver)
	}
	for i, s := range r.Stats {
		if s.CNPsReceived == 0 || s.RetransmittedPackets != 0 || s.Timeouts != 0 {
			t.Errorf("sender %d: %+v", i, s)
		}
	}
	if raceEnabled {
		return
	}
	// Windows alone share as well, but only as the queue is full all the time.
	windows, err := Incast(IncastConfig{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	writeSeries(t, "incast-window.csv", windows)
	median := func(r *IncastResult) int {
		q := slices.Clone(r.Queue[n*2/3:])
		slices.Sort(q)
		return q[len(q)/2]
	}
	t.Logf("median of the longest queues: %d bytes, with windows alone %d", median(r), median(windows))
	if q := median(r); q > 200_000 || 4*q > median(windows) {
		t.Errorf("the queue is as long as %d bytes, with windows alone %d", q, median(windows))
	}
	again, err := Incast(cfg)
	if err != nil || again.Hash != r.Hash {
		t.Errorf("the same run again gives %x, then %x, %v", r.Hash, again.Hash, err)
	}
}
