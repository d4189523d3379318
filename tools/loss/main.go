// Command loss measures goodput against loss, for go-back-N and for selective repeat, by `rnic perf` over loopback: runs
// of both interleaved, medians and quartiles. It draws docs/loss.svg and docs/loss.png and prints a table.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"

	"rnic/tools/internal/plot"
)

var losses = []string{"0", "0.1%", "0.5%", "1%", "2%", "5%", "10%"}

var modes = []string{"go-back-n", "selective"}

var operations = []string{"write-bw", "read-bw"}

func main() {
	rnic := flag.String("rnic", "./rnic", "the binary to measure")
	runs := flag.Int("runs", 3, "runs of each")
	seconds := flag.String("D", "1s", "length of a run")
	base := flag.String("o", "docs/loss", "the pictures, without .svg and .png")
	flag.Parse()
	figures := map[string][]float64{}
	for run := range *runs {
		for _, loss := range losses {
			for _, op := range operations {
				for _, mode := range modes {
					v, err := measure(*rnic, op, mode, loss, *seconds, run)
					if err != nil {
						log.Fatal(err)
					}
					figures[op+mode+loss] = append(figures[op+mode+loss], v)
				}
			}
		}
	}
	if err := report(figures, *base); err != nil {
		log.Fatal(err)
	}
}

// measure is the goodput of one run, in GB/s.
func measure(rnic, op, mode, loss, seconds string, run int) (float64, error) {
	args := []string{"perf", op, "--loopback", "--json", "-D", seconds, "--resend", mode}
	if loss != "0" {
		args = append(args, "--fault", fmt.Sprintf("drop=%s,seed=%d", loss, run+1))
	}
	c := exec.Command(rnic, args...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return 0, fmt.Errorf("rnic %s: %w", strings.Join(args, " "), err)
	}
	var r struct {
		BytesPerSecond float64 `json:"bytes_per_second"`
		Resend         string  `json:"resend"`
		Errors         int     `json:"errors"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, err
	}
	if r.Resend != mode || r.Errors != 0 {
		return 0, fmt.Errorf("rnic %s: resend %s, %d errors", strings.Join(args, " "), r.Resend, r.Errors)
	}
	return r.BytesPerSecond / 1e9, nil
}

func report(figures map[string][]float64, base string) error {
	c := plot.Chart{Title: "Goodput against loss: rnic perf over loopback, 64 KiB messages, one queue pair", X: "packets lost, each way", Y: "GB/s"}
	for i, l := range losses {
		c.Ticks = append(c.Ticks, plot.Tick{At: float64(i), Label: l})
	}
	fmt.Printf("| loss |")
	for _, op := range operations {
		for _, mode := range modes {
			s := plot.Series{Name: op + ", " + mode}
			fmt.Printf(" %s, %s |", op, mode)
			for i, loss := range losses {
				q := quartiles(figures[op+mode+loss])
				s.Points = append(s.Points, plot.Point{X: float64(i), Y: q[1], Low: q[0], High: q[2]})
			}
			c.Series = append(c.Series, s)
		}
	}
	fmt.Printf("\n|---|%s\n", strings.Repeat("---:|", len(c.Series)))
	for i, loss := range losses {
		fmt.Printf("| %s |", loss)
		for _, s := range c.Series {
			p := s.Points[i]
			fmt.Printf(" %.2f (%.2f to %.2f) |", p.Y, p.Low, p.High)
		}
		fmt.Println()
	}
	return c.WriteFiles(base)
}

// quartiles are the first, the median and the third.
func quartiles(v []float64) [3]float64 {
	v = slices.Sorted(slices.Values(v))
	at := func(part float64) float64 { return v[int(part*float64(len(v)-1)+0.5)] }
	return [3]float64{at(0.25), at(0.5), at(0.75)}
}
