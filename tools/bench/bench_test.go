package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestQuartilesInterpolate(t *testing.T) {
	for _, test := range []struct {
		figures []float64
		want    [3]float64
	}{
		{[]float64{7}, [3]float64{7, 7, 7}},
		{[]float64{4, 2}, [3]float64{2.5, 3, 3.5}},
		{[]float64{7, 1, 6, 2, 5, 3, 4}, [3]float64{2.5, 4, 5.5}},
	} {
		if got := quartiles(test.figures); got != test.want {
			t.Errorf("quartiles(%v) = %v, want %v", test.figures, got, test.want)
		}
	}
}

// TestRow reads the tables of perftest 4.5.
func TestRow(t *testing.T) {
	const bandwidth = ` #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             4021.12            3987.43		   0.063799
`
	const latency = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       1000          2.21           901.44       12.35     	       19.02       	1.44		65.31  		801.94
`
	if got, err := row(bandwidth, "65536"); err != nil || !slices.Equal(got, []float64{65536, 5000, 4021.12, 3987.43, 0.063799}) {
		t.Errorf("bandwidth: %v, %v", got, err)
	}
	if got, err := row(latency, "8"); err != nil || !slices.Equal(got[4:6], []float64{12.35, 19.02}) {
		t.Errorf("latency: %v, %v", got, err)
	}
	if got, err := row(latency, "64"); err == nil {
		t.Errorf("a size that is not in the table: %v", got)
	}
}

// TestTargets takes a target for missed unless both of its sides were measured.
func TestTargets(t *testing.T) {
	measured := func(own, ucx float64) *results {
		r := newResults()
		for _, tt := range targets {
			value := own
			if !tt.atLeast {
				value = 0.1
			}
			r.add(contender{"x", []metric{{name: tt.metric, unit: gigabytes}}, nil}, 0, []float64{value}, nil)
		}
		for _, name := range []string{ucxPutBW, ucxPutLat} {
			r.add(contender{"ucx", []metric{{name: name, unit: gigabytes}}, nil}, 0, []float64{ucx}, nil)
		}
		return r
	}
	if measured(4, 1).missed() {
		t.Error("four times as fast misses a target")
	}
	if !measured(1.9, 1).missed() {
		t.Error("1.9 times as fast misses no target")
	}
	if !newResults().missed() {
		t.Error("nothing measured misses no target")
	}
	r := newResults()
	r.add(contender{name: "x"}, 0, nil, errors.New("broken"))
	var b strings.Builder
	r.write(&b)
	if len(r.errs) != 1 || strings.Count(b.String(), "not measured") != len(targets) {
		t.Errorf("a broken contender: %v\n%s", r.errs, &b)
	}
}

// TestDocument puts tables and plots between the markers, and only there; again, the same comes out.
func TestDocument(t *testing.T) {
	r := newResults()
	for round := range 3 {
		for _, c := range contenders() {
			figures := make([]float64, len(c.metrics))
			for i := range figures {
				figures[i] = float64(round + 1)
			}
			r.add(c, round, figures, nil)
		}
		r.load("0.1 0.2 0.3")
	}
	if !r.complete() || newResults().complete() {
		t.Error("three rounds of everything are not complete, or nothing is")
	}
	name := filepath.Join(t.TempDir(), "performance.md")
	before, after := "# Text\n\n"+beginMarker+"\n", endMarker+"\nmore\n"
	if err := os.WriteFile(name, []byte(before+"old"+after), 0o644); err != nil {
		t.Fatal(err)
	}
	var last string
	for range 2 {
		if err := r.document(name); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(b), before) || !strings.HasSuffix(string(b), after) || strings.Contains(string(b), "old") {
			t.Fatalf("%v:\n%s", err, b)
		}
		if last != "" && last != string(b) {
			t.Errorf("the second time another text:\n%s", b)
		}
		last = string(b)
	}
	for _, row := range []string{"| " + rnicSeries + " | **2.00** (1.50 to 2.50) |", "| " + sockperfSeries + " | | **2.00** (1.50 to 2.50) |",
		"(bench-bandwidth.svg)", "(bench-latency.png)", "3 rounds"} {
		if !strings.Contains(last, row) {
			t.Errorf("no %q in:\n%s", row, last)
		}
	}
	for _, file := range []string{"bench-bandwidth.svg", "bench-latency.svg"} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(name), file))
		if err != nil || !strings.Contains(string(b), ucxSeries["tcp"]) {
			t.Errorf("%s: %v, no line of UCX in it", file, err)
		}
	}
	if err := os.WriteFile(name, []byte("no markers"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.document(name); err == nil || !strings.Contains(err.Error(), beginMarker) {
		t.Errorf("without markers: %v", err)
	}
}

// TestContenders: names and metrics are unique, so that no figure is taken for another.
func TestContenders(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range contenders() {
		for _, name := range append([]string{c.name}, names(c.metrics)...) {
			if seen[name] {
				t.Errorf("%q twice", name)
			}
			seen[name] = true
		}
	}
	for _, tt := range targets {
		if !seen[tt.metric] || tt.to != "" && !seen[tt.to] {
			t.Errorf("nobody measures target %v", tt)
		}
	}
}

func names(metrics []metric) (n []string) {
	for _, m := range metrics {
		n = append(n, m.name)
	}
	return n
}
