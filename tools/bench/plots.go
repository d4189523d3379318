package main

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"rnic/tools/internal/plot"
)

// plots draws the figures of the series beside a document, as SVG and PNG, and returns the lines that show them there.
func (r *results) plots(document string) (links string, err error) {
	var b strings.Builder
	for _, f := range []struct {
		file, title, label, unit string
		sizes                    []int
	}{
		{"bench-bandwidth", "Bandwidth of one connection", "GB/s", gigabytes, bandwidthSizes},
		{"bench-latency", "Half a round trip", "us", microseconds, latencySizes},
	} {
		figure := r.figure(f.title, f.label+"; whiskers: quartiles", f.unit, f.sizes)
		if err := figure.WriteFiles(filepath.Join(filepath.Dir(document), f.file)); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n![%s, in %s, over the size of the messages](%s.svg) ([PNG](%[3]s.png))\n", f.title, f.label, path.Base(f.file))
	}
	return b.String(), nil
}

// figure is a diagram of all series of a unit, both axes logarithmic: the sizes and the figures span four decades.
func (r *results) figure(title, label, unit string, sizes []int) *plot.Figure {
	x := plot.Axis{Label: "bytes of a message", Min: float64(sizes[0]) / 1.5, Max: float64(sizes[len(sizes)-1]) * 1.5, Log: true}
	for _, size := range sizes {
		if size != 64 || sizes[0] == 64 { // 8 B and 64 B are close
			x.Ticks = append(x.Ticks, plot.Tick{At: float64(size), Label: sizeName(size)})
		}
	}
	panel := plot.Panel{Title: title, X: x, Y: plot.Axis{Label: label, Log: true}, Height: 300}
	for _, name := range r.seriesOf(unit) {
		s := plot.Series{Name: name, Marks: true}
		for _, size := range sizes {
			if figures := r.figures[at(name, unit, size).name]; len(figures) > 0 {
				q := quartiles(figures)
				s.X, s.Y = append(s.X, float64(size)), append(s.Y, q[1])
				s.Low, s.High = append(s.Low, q[0]), append(s.High, q[2])
			}
		}
		panel.Series = append(panel.Series, s)
	}
	return &plot.Figure{Panels: []plot.Panel{panel}}
}
