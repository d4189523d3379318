// Incast runs the simulated incast of eight senders, with DCQCN and with windows alone, and plots it: the rate of
// each sender, and the queue of the switch port that they share.
//
//	go run ./tools/incast -o docs/dcqcn
package main

import (
	"flag"
	"fmt"
	"log"

	"rnic/internal/nic"
	"rnic/internal/sim"
	"rnic/tools/internal/plot"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("incast: ")
	out := flag.String("o", "docs/dcqcn", "the plots, without .svg and .png")
	seed := flag.Uint64("seed", 1, "seed of the runs")
	flag.Parse()
	f, err := figure(*seed)
	if err == nil {
		err = f.WriteFiles(*out)
	}
	if err != nil {
		log.Fatal(err)
	}
}

const step = 400_000 // nanoseconds: shorter ones show single packets rather than rates

func figure(seed uint64) (*plot.Figure, error) {
	dcqcn, err := sim.Incast(sim.IncastConfig{Seed: seed, Step: step, Policy: nic.Policy{Congestion: nic.CongestionDCQCN}})
	if err != nil {
		return nil, err
	}
	windows, err := sim.Incast(sim.IncastConfig{Seed: seed, Step: step})
	if err != nil {
		return nil, err
	}
	n := len(dcqcn.Queue)
	times := make([]float64, n)
	for i := range times {
		times[i] = (float64(i) + 0.5) * step / 1e6
	}
	x := plot.Axis{Label: "ms", Max: float64(n) * step / 1e6}
	panel := func(what string, r *sim.IncastResult) plot.Panel {
		p := plot.Panel{X: x, Y: plot.Axis{Label: "rate of each sender, Gb/s", Max: 40}, Height: 170,
			Title: fmt.Sprintf("%s. Last third: Jain index %.3f, together %.1f of 40 Gb/s, %d packets dropped",
				what, r.Jain(n*2/3, n), r.Goodput(n*2/3, n)*8/1e9, r.Dropped)}
		for _, v := range r.Rates {
			p.Series = append(p.Series, plot.Series{X: times, Y: scaled(v, 8/1e9)})
		}
		return p
	}
	queue := plot.Panel{Title: "Longest queue of the switch port", X: x, Y: plot.Axis{Label: "kB", Max: 1200}, Height: 170, Series: []plot.Series{
		{Name: "windows alone", X: times, Y: scaled(windows.Queue, 1e-3), Color: "#b0413e"},
		{Name: "DCQCN", X: times, Y: scaled(dcqcn.Queue, 1e-3), Color: "#2f6690"}}}
	return &plot.Figure{Panels: []plot.Panel{panel("DCQCN", dcqcn), panel("Windows alone", windows), queue}}, nil
}

func scaled[T int | int64 | float64](v []T, by float64) (out []float64) {
	for _, x := range v {
		out = append(out, float64(x)*by)
	}
	return out
}
