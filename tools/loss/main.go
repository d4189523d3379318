// Command loss measures what rnic perf moves over the loopback device while packets are lost at random, going back N and repeating
// selectively, in interleaved rounds, and plots medians and quartiles.
//
//	go run ./tools/loss -o docs/loss
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"rnic/tools/internal/plot"
)

var (
	losses     = []float64{0, 0.1, 0.5, 1, 2, 5, 10} // percent, each way
	operations = []string{"write-bw", "read-bw"}
	modes      = []string{"go-back-n", "selective"}
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("loss: ")
	out := flag.String("o", "docs/loss", "the plots, without .svg and .png")
	rounds := flag.Int("runs", 5, "number of interleaved `rounds`")
	each := flag.Duration("D", time.Second, "how long each measurement takes")
	flag.Parse()
	if err := run(*out, *rounds, *each); err != nil {
		log.Fatal(err)
	}
}

// point is one measurement's place in the results.
type point struct {
	operation, mode string
	loss            float64
}

func run(out string, rounds int, each time.Duration) error {
	dir, err := os.MkdirTemp("", "rnic-loss-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "rnic")
	build := exec.Command("go", "build", "-o", binary, "./cmd/rnic")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build rnic: %w", err)
	}
	figures := make(map[point][]float64)
	for round := range rounds {
		for _, loss := range losses {
			for _, op := range operations {
				for _, mode := range modes {
					rate, err := measure(binary, point{op, mode, loss}, round, each)
					if err != nil {
						return err
					}
					figures[point{op, mode, loss}] = append(figures[point{op, mode, loss}], rate)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
	}
	table(figures)
	return figure(figures).WriteFiles(out)
}

// measure is the goodput in GB/s. A run with an error, or that repeats otherwise than was asked, is none.
func measure(binary string, p point, round int, each time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second+each)
	defer cancel()
	args := []string{"perf", p.operation, "--loopback", "--addr", addr(1), "--addr", addr(2), "--json", "-D", each.String(), "--resend", p.mode}
	if p.loss > 0 {
		args = append(args, "--fault", fmt.Sprintf("drop=%g%%,seed=%d", p.loss, round+1))
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("rnic %v: %w", args, err)
	}
	var r struct {
		Rate   float64 `json:"bytes_per_second"`
		Errors int     `json:"errors"`
		Resend string  `json:"resend"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return 0, fmt.Errorf("rnic %v: %w", args, err)
	}
	if r.Errors != 0 || r.Resend != p.mode {
		return 0, fmt.Errorf("rnic %v: %d errors, resend %q", args, r.Errors, r.Resend)
	}
	return r.Rate / 1e9, nil
}

// addr is a loopback address that only this process uses: others may be at work on the usual ones.
func addr(n int) string {
	return fmt.Sprintf("127.%d.%d.%d", 90+os.Getpid()>>14&7, os.Getpid()>>6&255, os.Getpid()&63<<2|n)
}

// quartiles of a sample, interpolated.
func quartiles(v []float64) (low, median, high float64) {
	v = slices.Sorted(slices.Values(v))
	at := func(q float64) float64 {
		x := q * float64(len(v)-1)
		i := int(x)
		return v[i] + (v[min(i+1, len(v)-1)]-v[i])*(x-float64(i))
	}
	return at(0.25), at(0.5), at(0.75)
}

func table(figures map[point][]float64) {
	fmt.Println("| lost each way | WRITE, go-back-N | WRITE, selective | READ, go-back-N | READ, selective |\n|---|---|---|---|---|")
	for _, loss := range losses {
		fmt.Printf("| %g %% |", loss)
		for _, op := range operations {
			for _, mode := range modes {
				low, median, high := quartiles(figures[point{op, mode, loss}])
				fmt.Printf(" %.2f (%.2f to %.2f) |", median, low, high)
			}
		}
		fmt.Println()
	}
}

func figure(figures map[point][]float64) *plot.Figure {
	// The losses stand at equal distances: 0 has no place on a logarithmic axis.
	x := plot.Axis{Label: "packets lost each way", Max: float64(len(losses) - 1)}
	for i, loss := range losses {
		x.Ticks = append(x.Ticks, plot.Tick{At: float64(i), Label: fmt.Sprintf("%g %%", loss)})
	}
	f := &plot.Figure{}
	for _, op := range operations {
		p := plot.Panel{Title: "rnic perf " + op + ", 64 KiB: medians and quartiles", X: x, Y: plot.Axis{Label: "goodput, GB/s"}}
		for _, mode := range modes {
			s := plot.Series{Name: mode, Marks: true}
			for i, loss := range losses {
				low, median, high := quartiles(figures[point{op, mode, loss}])
				s.X, s.Y, s.Low, s.High = append(s.X, float64(i)), append(s.Y, median), append(s.Low, low), append(s.High, high)
			}
			p.Series = append(p.Series, s)
		}
		f.Panels = append(f.Panels, p)
	}
	return f
}
