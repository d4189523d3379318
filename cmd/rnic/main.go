// Command rnic is an RDMA NIC in software: it runs stock RDMA programs on a NIC of their own
// (rnic run), looks for what a machine lacks for that (rnic doctor), measures it (rnic perf) and tests its
// core under seeded faults (rnic sim).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/alecthomas/kong"

	"rnic/internal/doctor"
	"rnic/internal/perf"
)

// Version of the program, and firmware version of the devices.
const Version = "0.1.0"

// exitUsage is the exit code for bad arguments.
const exitUsage = 2

var cli struct {
	Run     RunCmd           `cmd:"" help:"Run a stock RDMA program on a NIC of its own."`
	Doctor  DoctorCmd        `cmd:"" help:"Look for what keeps rnic run from working here, or between two machines."`
	Perf    PerfCmd          `cmd:"" help:"Measure bandwidth and latency between two NICs."`
	Fault   FaultCmd         `cmd:"" help:"Plant faults into a running NIC, list them, clear them."`
	NICs    NICsCmd          `cmd:"" name:"nics" help:"List the NICs that run here."`
	Capture CaptureCmd       `cmd:"" help:"Record the packets of a NIC that runs, with what it decided about them."`
	Explain ExplainCmd       `cmd:"" help:"Tell what went wrong in a capture of RoCEv2 packets."`
	Sim     SimCmd           `cmd:"" help:"Run the NIC's core in a seeded simulation with faults, and check everything."`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

func main() {
	startHelpers()
	doctor.MaybeChild()
	if len(os.Args) == 3 && os.Args[1] == perf.ChildCommand {
		os.Exit(perfChild(os.Args[2]))
	}
	parser := kong.Must(&cli, kong.Name("rnic"), kong.Description("An RDMA NIC in software, with its driver."),
		kong.Vars{"version": "rnic " + Version}, kong.UsageOnError(), kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	k, err := parser.Parse(arguments(os.Args[1:]))
	if err != nil {
		fail(exitUsage, withHelp(err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k.BindTo(ctx, (*context.Context)(nil))
	if err := k.Run(); err != nil {
		code := 1
		var with interface{ ExitCode() int }
		switch {
		case errors.Is(err, perf.ErrUsage):
			code = exitUsage
		case errors.As(err, &with):
			code = with.ExitCode()
		}
		fail(code, err)
	}
}

// arguments lets rnic help CMD be rnic CMD --help.
func arguments(args []string) []string {
	if len(args) > 0 && args[0] == "help" {
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

// withHelp says in an error of the command line where to look.
func withHelp(err error) error {
	command := "rnic"
	var wrong *kong.ParseError
	if errors.As(err, &wrong) && wrong.Context != nil {
		if n := wrong.Context.Selected(); n != nil {
			command += " " + n.Path()
		}
	}
	return fmt.Errorf("%w (%s --help)", err, command)
}

// fail prints one line and ends.
func fail(code int, err error) {
	if s := err.Error(); s != "" {
		fmt.Fprintf(os.Stderr, "rnic: %s\n", s)
	}
	os.Exit(code)
}

func perfChild(size string) int {
	n, err := strconv.Atoi(size)
	if err == nil {
		err = perf.RunChild(n, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "rnic %s: %v\n", perf.ChildCommand, err)
		return 1
	}
	return 0
}
