// Incast runs the simulated incast of eight senders, with DCQCN and with windows alone, and plots it: the rate of
// each sender, and the queue of the switch port that they share.
//
//	go run ./tools/incast -o docs/dcqcn.svg
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"rnic/internal/nic"
	"rnic/internal/sim"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("incast: ")
	out := flag.String("o", "docs/dcqcn.svg", "the plot")
	seed := flag.Uint64("seed", 1, "seed of the runs")
	flag.Parse()
	svg, err := plot(*seed)
	if err == nil {
		err = os.WriteFile(*out, []byte(svg), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

const step = 400_000 // nanoseconds: shorter ones show single packets rather than rates

func plot(seed uint64) (string, error) {
	dcqcn, err := sim.Incast(sim.IncastConfig{Seed: seed, Step: step, Policy: nic.Policy{Congestion: nic.CongestionDCQCN}})
	if err != nil {
		return "", err
	}
	windows, err := sim.Incast(sim.IncastConfig{Seed: seed, Step: step})
	if err != nil {
		return "", err
	}
	n := len(dcqcn.Queue)
	ms := float64(n) * step / 1e6
	title := func(what string, r *sim.IncastResult) string {
		return fmt.Sprintf("%s: rate of each sender, Gb/s. Last third: Jain index %.3f, together %.1f of 40 Gb/s, %d packets dropped",
			what, r.Jain(n*2/3, n), r.Goodput(n*2/3, n)*8/1e9, r.Dropped)
	}
	rates := func(r *sim.IncastResult) (all []line) {
		for i, v := range r.Rates {
			l := line{color: colors[i%len(colors)]}
			for _, x := range v {
				l.y = append(l.y, x*8/1e9)
			}
			all = append(all, l)
		}
		return all
	}
	queue := func(r *sim.IncastResult, color, label string) line {
		l := line{color: color, label: label}
		for _, b := range r.Queue {
			l.y = append(l.y, float64(b)/1000)
		}
		return l
	}
	p := &picture{ms: ms}
	p.panel(title("DCQCN", dcqcn), 40, 10, rates(dcqcn))
	p.panel(title("Windows alone", windows), 40, 10, rates(windows))
	p.panel("Longest queue of the switch port, kB", 1200, 300,
		[]line{queue(windows, "#b0413e", "windows alone"), queue(dcqcn, "#2f6690", "DCQCN")})
	return p.svg(), nil
}

var colors = []string{"#2f6690", "#e07a1f", "#3a7d44", "#b0413e", "#6b4c9a", "#8c6a3f", "#d16ba5", "#5f6b73"}

type line struct {
	color, label string
	y            []float64
}

// picture is panels one above the other, over one axis of time.
type picture struct {
	b      strings.Builder
	ms     float64
	panels int
}

const (
	width, height   = 760, 170 // of a panel's inside
	left, top       = 52, 30
	distance        = height + 62
	textSize, small = 13, 11
)

// panel draws lines from 0 to most, with a mark at every multiple of tick.
func (p *picture) panel(title string, most, tick float64, lines []line) {
	y0 := float64(top + p.panels*distance + height)
	p.panels++
	y := func(v float64) float64 { return y0 - min(v, most)/most*height }
	fmt.Fprintf(&p.b, `<text x="%d" y="%.0f" font-size="%d">%s</text>`+"\n", left, y0-height-10, textSize, title)
	for v := 0.0; v <= most; v += tick {
		fmt.Fprintf(&p.b, `<path d="M%d %.1fh%d" stroke="#ddd"/><text x="%d" y="%.1f" font-size="%d" text-anchor="end">%.0f</text>`+"\n",
			left, y(v), width, left-6, y(v)+4, small, v)
	}
	for ms := 0.0; ms <= p.ms; ms += 10 {
		fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" font-size="%d" text-anchor="middle">%.0f ms</text>`+"\n",
			left+ms/p.ms*width, y0+16, small, ms)
	}
	for i, l := range lines {
		p.b.WriteString(`<path fill="none" stroke-width="1.5" stroke="` + l.color + `" d="`)
		for k, v := range l.y {
			command := "L"
			if k == 0 {
				command = "M"
			}
			fmt.Fprintf(&p.b, "%s%.1f %.1f", command, left+(float64(k)+0.5)/float64(len(l.y))*width, y(v))
		}
		p.b.WriteString("\"/>\n")
		if l.label != "" {
			fmt.Fprintf(&p.b, `<text x="%d" y="%.1f" font-size="%d" fill="%s" text-anchor="end">%s</text>`+"\n",
				left+width-8, y0-height/2+float64(i*16), textSize, l.color, l.label)
		}
	}
}

func (p *picture) svg() string {
	w, h := left+width+20, top+p.panels*distance-20
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" fill="#222">
<rect width="%[1]d" height="%[2]d" fill="white"/>
%[3]s</svg>
`, w, h, p.b.String())
}
