package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// The tables and plots stand between these lines of the document.
const (
	beginMarker = "<!-- begin of what make bench writes -->"
	endMarker   = "<!-- end of what make bench writes -->"
)

// document puts tables and plots into a document, between its markers.
func (r *results) document(name string) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("\n")
	r.write(&b)
	links, err := r.plots(name)
	if err != nil {
		return err
	}
	b.WriteString(links)
	text, err := between(old, b.String())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, text, 0o644)
}

// between replaces what is between the markers.
func between(document []byte, text string) ([]byte, error) {
	begin, end := bytes.Index(document, []byte(beginMarker)), bytes.Index(document, []byte(endMarker))
	if begin < 0 || end < begin {
		return nil, fmt.Errorf("the lines %q and %q are needed, in this order", beginMarker, endMarker)
	}
	return slices.Concat(document[:begin+len(beginMarker)], []byte("\n"+text+"\n"), document[end:]), nil
}

// write prints everything as markdown.
func (r *results) write(w io.Writer) {
	rounds := len(r.loads)
	fmt.Fprintf(w, "%s, %d processors, Linux %s, %s; %d rounds. Load averages (1, 5, 15 minutes) after each round: %s.\n",
		processor(), runtime.NumCPU(), kernelRelease(), runtime.Version(), rounds, strings.Join(r.loads, "; "))
	if n := len(r.errs); n > 0 {
		fmt.Fprintf(w, "%d measurements failed and are left out.\n", n)
	}
	r.table(w, "Bandwidth in GB/s (10^9 bytes a second), one connection: median (lower to upper quartile)", gigabytes, bandwidthSizes)
	r.table(w, "Latency in us, half a round trip: median of the rounds (lower to upper quartile)", microseconds, latencySizes)
	r.single(w)
	r.verdicts(w)
}

// seriesOf are the series that have figures in a unit, in the order of their appearance.
func (r *results) seriesOf(unit string) (names []string) {
	for _, m := range r.metrics {
		if m.unit == unit && m.series != "" && !slices.Contains(names, m.series) {
			names = append(names, m.series)
		}
	}
	return names
}

// table writes one row for each series, one column for each size.
func (r *results) table(w io.Writer, title, unit string, sizes []int) {
	names := r.seriesOf(unit)
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n\n| |", title)
	for _, size := range sizes {
		fmt.Fprintf(w, " %s |", sizeName(size))
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(sizes)))
	for _, name := range names {
		fmt.Fprintf(w, "| %s |", name)
		for _, size := range sizes {
			figures := r.figures[at(name, unit, size).name]
			if len(figures) == 0 {
				fmt.Fprint(w, " |")
				continue
			}
			q := quartiles(figures)
			fmt.Fprintf(w, " **%s** (%s to %s) |", digits(q[1]), digits(q[0]), digits(q[2]))
		}
		fmt.Fprintln(w)
	}
}

// digits writes three significant digits where four decimals hold them.
func digits(v float64) string {
	switch {
	case v < 0.1:
		return fmt.Sprintf("%.4f", v)
	case v < 1:
		return fmt.Sprintf("%.3f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// single writes the metrics that belong to no series.
func (r *results) single(w io.Writer) {
	head := "\n| | unit | lower quartile | median | upper quartile |\n|---|---|---|---|---|\n"
	for _, m := range r.metrics {
		if m.series == "" {
			q := quartiles(r.figures[m.name])
			fmt.Fprintf(w, "%s| %s | %s | %s | **%s** | %s |\n", head, m.name, m.unit, digits(q[0]), digits(q[1]), digits(q[2]))
			head = ""
		}
	}
}

// verdicts writes what became of the targets.
func (r *results) verdicts(w io.Writer) {
	fmt.Fprintf(w, "\n| target | of medians | quartiles of the rounds | |\n|---|---|---|---|\n")
	for _, t := range targets {
		value, rounds, ok := r.value(t)
		if !ok {
			fmt.Fprintf(w, "| %s | | | not measured |\n", t)
			continue
		}
		verdict := "missed"
		if t.met(value) {
			verdict = "met"
		}
		q := quartiles(rounds)
		fmt.Fprintf(w, "| %s | %.2f | %.2f, %.2f, %.2f | %s |\n", t, value, q[0], q[1], q[2], verdict)
	}
}
