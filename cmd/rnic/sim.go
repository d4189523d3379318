package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"rnic/internal/sim"
)

// SimCmd runs the NIC's core in the simulator.
type SimCmd struct {
	Seeds    uint64 `help:"Number of runs, each with a seed of its own." default:"200"`
	Start    uint64 `help:"Seed of the first run." default:"1"`
	Parallel int    `help:"Runs at a time; 0: one a processor." default:"0"`
	Verbose  bool   `short:"v" help:"Print every step of every run to standard error."`
	Coverage bool   `help:"Print which operations met which faults in which states of a queue pair, and which did not."`
	Planted  string `hidden:"" help:"Plant a fault into the NIC, to see it caught."`
}

// Validate refuses what cannot be run, before anything is.
func (c *SimCmd) Validate() error {
	_, err := sim.PlantedByName(c.Planted)
	if err == nil && c.Seeds == 0 {
		err = errors.New("--seeds 0: nothing would be checked")
	}
	if err == nil && c.Parallel < 0 {
		err = fmt.Errorf("--parallel %d: give 0 or more", c.Parallel)
	}
	return err
}

// Run runs the seeds, prints what they came to, and fails if one failed.
func (c *SimCmd) Run() error {
	planted, err := sim.PlantedByName(c.Planted)
	if err != nil {
		return err
	}
	o := sim.Options{Start: c.Start, Seeds: c.Seeds, Planted: planted, Parallel: c.Parallel}
	if c.Verbose {
		o.Trace = io.Writer(os.Stderr)
	}
	began := time.Now()
	sum := sim.RunMany(o)
	sum.Report(os.Stdout, time.Since(began))
	if c.Coverage {
		sum.Coverage.Report(os.Stdout)
	}
	if sum.Failed != nil {
		sum.Failed.ReportFailure(os.Stderr, planted)
		return fmt.Errorf("seed %d broke a promise", sum.Failed.Seed)
	}
	return nil
}
