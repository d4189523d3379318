// Command interop runs the matrix of package test/interop against the kernel's Soft-RoCE in virtual machines, one for
// each kernel, and writes its table into docs/conformance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"rnic/test/guest"
	"rnic/test/interop"
)

// options are those of the command line.
type options struct {
	suites, pattern, rnic, results, document, capture string
	list, verbose, render, full, short                bool
}

func main() {
	var o options
	flag.StringVar(&o.suites, "suites", ",sid", "kernels: `releases` of Debian, comma separated; an empty name is the machine's own")
	flag.StringVar(&o.pattern, "run", "", "run only cases whose id matches this `pattern`; the document is not written")
	flag.BoolVar(&o.list, "list", false, "print the cases and run none")
	flag.BoolVar(&o.full, "full", false, "run every combination, not every pair only")
	flag.BoolVar(&o.short, "short", false, "run those of make test; the document is not written")
	flag.StringVar(&o.capture, "capture", "", "keep the packets of tries that fail in this `directory`")
	flag.BoolVar(&o.verbose, "verbose", false, "print what the programs write")
	flag.BoolVar(&o.render, "render", false, "run nothing: write the table from the results of the last run")
	flag.StringVar(&o.rnic, "rnic", "./rnic", "`binary` to test")
	flag.StringVar(&o.results, "o", "test/interop/results.json", "write results to this `file`")
	flag.StringVar(&o.document, "doc", "docs/conformance.md", "`document` with the table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx, &o)
	if errors.Is(err, guest.ErrUnavailable) {
		fmt.Println("skip, all of them:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// run runs the cases on every kernel and returns how many failed.
func run(ctx context.Context, o *options) (failed int, err error) {
	if o.render {
		report, err := interop.Read(o.results)
		if err != nil {
			return 0, err
		}
		return 0, report.WriteInto(o.document)
	}
	pattern, err := regexp.Compile(o.pattern)
	if err != nil {
		return 0, fmt.Errorf("--run: %w", err)
	}
	var cases []interop.Case
	for _, c := range o.matrix() {
		if pattern.MatchString(c.ID) {
			cases = append(cases, c)
		}
	}
	if o.list {
		for i := range cases {
			fmt.Println(cases[i].ID)
		}
		return 0, nil
	}
	if err := guest.Available(); err != nil {
		return 0, err
	}
	report := &interop.Report{}
	for suite := range strings.SplitSeq(o.suites, ",") {
		k, err := onKernel(ctx, o, suite, cases)
		if k != nil {
			failed += k.Failed()
			report.Kernels = append(report.Kernels, *k)
		}
		if err != nil {
			return failed, errors.Join(err, report.Write(o.results)) // for --render
		}
	}
	if o.pattern != "" || o.short {
		return failed, nil
	}
	if err := report.Write(o.results); err != nil {
		return failed, err
	}
	return failed, report.WriteInto(o.document)
}

// matrix are the cases to choose from.
func (o *options) matrix() []interop.Case {
	switch {
	case o.short:
		return interop.Short()
	case o.full || o.pattern != "":
		return interop.All()
	}
	return interop.Covering()
}

// onKernel boots a machine with the kernel of a release and runs the cases against it. Interrupted, it returns the results so far
// with the error.
func onKernel(ctx context.Context, o *options, suite string, cases []interop.Case) (*interop.Kernel, error) {
	dir, err := os.MkdirTemp("", "rnic-interop-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	rawqp, gopeer := filepath.Join(dir, "rawqp"), filepath.Join(dir, "gopeer")
	if err := command(ctx, "gcc", "-O2", "-o", rawqp, "test/guest/rawqp/rawqp.c", "-libverbs"); err != nil {
		return nil, err
	}
	if err := command(ctx, "go", "build", "-o", gopeer, "./test/interop/gopeer"); err != nil {
		return nil, err
	}
	image, err := guest.BuildImageOf(ctx, suite, dir, rawqp)
	if err != nil {
		return nil, err
	}
	network, err := guest.NewNetwork(ctx)
	if err != nil {
		return nil, err
	}
	defer network.Close()
	machine, err := guest.Boot(ctx, image, network)
	if err != nil {
		return nil, err
	}
	defer func() { machine.Close() }()
	rnic, err := filepath.Abs(o.rnic)
	if err != nil {
		return nil, err
	}
	rig := interop.NewRig(machine, network, guest.Link, rnic, gopeer)
	rig.Capture(o.capture)
	k := &interop.Kernel{Version: image.Version, Chosen: len(cases)}
	begin, failed := time.Now(), 0
	results := make([]*interop.Result, len(cases))
	defer func() {
		k.Seconds = time.Since(begin).Seconds()
		for _, res := range results {
			if res != nil {
				k.Results = append(k.Results, *res)
			}
		}
	}()
	for i, at := range mixed(cases) {
		if i%50 == 0 {
			fmt.Printf("kernel %s: %d of %d cases, %.0f s\n", image.Version, i, len(cases), time.Since(begin).Seconds())
		}
		res, err := rig.Run(ctx, &cases[at])
		if err != nil {
			return k, fmt.Errorf("%s: %w; the guest's console:\n%s", cases[at].ID, err, machine.Console())
		}
		results[at] = &res
		if res.First != "" && res.Pass {
			fmt.Printf("try again %s %s: %s\n", image.Version, res.ID, res.First)
		}
		if !res.Pass {
			failed++
			fmt.Printf("FAIL %s %s (%s): %s\n", image.Version, res.ID, res.Command, res.Reason)
		} else if o.verbose || o.pattern != "" {
			fmt.Printf("pass %s %.1f s\n", res.ID, res.Seconds)
		}
		if o.verbose {
			fmt.Printf("--- server:\n%s--- client:\n%s", res.Server, res.Client)
		}
	}
	fmt.Printf("kernel %s: %d cases, %d failed, %.0f s\n", k.Version, len(cases), failed, time.Since(begin).Seconds())
	return k, nil
}

// mixed is an order of the cases in which a run that is interrupted has seen some of everything; those of one MTU are together
// in each part, as to change the link's takes time.
func mixed(cases []interop.Case) []int {
	order := rand.New(rand.NewPCG(1, 1)).Perm(len(cases))
	for part := range slices.Chunk(order, 60) {
		slices.SortStableFunc(part, func(a, b int) int { return cases[a].MTU - cases[b].MTU })
	}
	return order
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
