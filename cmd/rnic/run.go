package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/internal/roce"
	"rnic/internal/sandbox"
)

// RunCmd is rnic run.
type RunCmd struct {
	Name       string   `default:"rxe0" help:"Name of the RDMA device; it must begin with rxe."`
	Addr       []string `placeholder:"ADDRESS" help:"Use this address of the machine only. Repeatable."`
	Interface  string   `placeholder:"NAME" help:"Use the addresses of this network interface only."`
	MTU        int      `placeholder:"BYTES" help:"Path MTU: 256, 512, 1024, 2048 or 4096. Default: what the interfaces carry."`
	Fault      []string `placeholder:"SPEC" sep:"none" help:"Plant faults into what the NIC sends, as drop=1%,seed=7; recv:SPEC for what it receives."`
	Capture    string   `placeholder:"FILE" type:"path" help:"Write every packet to this pcapng file."`
	Seed       uint64   `placeholder:"N" help:"Seed of keys and queue pair numbers. Default: random."`
	Congestion string   `enum:"window,dcqcn" default:"window" help:"How connections react to congestion: window, or dcqcn (the network must mark packets, ECN)."`
	Units      int      `default:"1" placeholder:"N" help:"Processing units of the NIC: threads with sockets of their own, for machines with cores to spare."`
	Nice       bool     `default:"true" negatable:"" help:"Start the program at nice 19 where cores are few, so that programs that poll do not hold up the NIC."`
	Verbose    bool     `short:"v" help:"Say on standard error why commands of the program failed."`
	Trace      string   `placeholder:"FILE" type:"path" help:"Write every command of the program, with its attributes and answers, to this file."`
	Profile    string   `hidden:"" placeholder:"FILE" type:"path" help:"Write a CPU profile of the NIC to this file."`
	NoIoctl    bool     `hidden:"" help:"Refuse the ioctl of current libraries, so that they send commands as old ones do."`

	Command []string `arg:"" passthrough:"" help:"The program and its arguments."`
}

// runConfig is what the supervisor gets of the options.
type runConfig struct {
	Name, Interface         string
	Addrs                   []netip.Addr
	MTU, Units              int
	SendFault               *fault.Spec
	RecvFault               *fault.Spec
	Capture, Trace, Profile string
	Seed                    uint64
	Verbose, NoIoctl, DCQCN bool
}

// fewCores is the number of cores up to which the program starts at a nice value: with two programs that poll there,
// no core is left for the NIC.
const fewCores = 2

// runError carries an exit code of its own. An empty message prints nothing.
type runError struct {
	code int
	err  error
}

func (e *runError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *runError) Unwrap() error { return e.err }

// ExitCode is the exit code of the process.
func (e *runError) ExitCode() int { return e.code }

// Run starts the program under the NIC and ends with its exit code.
func (r *RunCmd) Run(context.Context) error {
	cfg, err := r.config()
	if err != nil {
		return &runError{exitUsage, err}
	}
	blob, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	opts := sandbox.Options{Command: r.command(), Config: blob}
	if r.Nice && runtime.NumCPU() <= fewCores {
		opts.Nice = 19
	}
	code, err := sandbox.Run(opts)
	if err != nil || code != 0 {
		return &runError{code, withDoctor(err)}
	}
	return nil
}

// command is the program with its arguments; the "--" before it is not one of them.
func (r *RunCmd) command() []string {
	if len(r.Command) > 0 && r.Command[0] == "--" {
		return r.Command[1:]
	}
	return r.Command
}

// deviceName is what libibverbs and its rxe provider take (IB_DEVICE_NAME_MAX).
var deviceName = regexp.MustCompile(`^rxe[A-Za-z0-9_-]{0,60}$`)

// config checks the options.
func (r *RunCmd) config() (*runConfig, error) {
	c := &runConfig{Name: r.Name, Interface: r.Interface, MTU: r.MTU, Units: r.Units, Capture: r.Capture, Seed: r.Seed, Verbose: r.Verbose,
		Trace: r.Trace, Profile: r.Profile, NoIoctl: r.NoIoctl, DCQCN: r.Congestion == "dcqcn"}
	if len(r.command()) == 0 {
		return nil, errors.New("run: no program given")
	}
	if strings.HasPrefix(r.Command[0], "-") && r.Command[0] != "--" {
		return nil, fmt.Errorf("run: unknown option %s", r.Command[0])
	}
	if !deviceName.MatchString(r.Name) {
		return nil, fmt.Errorf("run: --name %q: stock libraries look for names that begin with rxe; letters, digits, - and _, 63 at most", r.Name)
	}
	if r.MTU != 0 && roce.MTUCode(r.MTU) == 0 {
		return nil, fmt.Errorf("run: --mtu %d: 256, 512, 1024, 2048 or 4096 are possible", r.MTU)
	}
	if r.Units < 1 || r.Units > nic.MaxUnits {
		return nil, fmt.Errorf("run: --units %d: 1 to %d are possible", r.Units, nic.MaxUnits)
	}
	if r.Interface != "" && len(r.Addr) > 0 {
		return nil, errors.New("run: --interface and --addr exclude each other")
	}
	for _, s := range r.Addr {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("run: --addr %q: no IP address", s)
		}
		c.Addrs = append(c.Addrs, a)
	}
	var err error
	if c.SendFault, c.RecvFault, err = fault.ParseDirections(r.Fault); err != nil {
		return nil, fmt.Errorf("run: --fault: %w", err)
	}
	return c, nil
}

// startHelpers takes over in the processes that rnic run starts of itself, and returns in all others.
func startHelpers() {
	sandbox.MaybeHelper(func(s *sandbox.Supervisor) error {
		var c runConfig
		if err := json.Unmarshal(s.Config(), &c); err != nil {
			return fmt.Errorf("configuration of the supervisor: %w", err)
		}
		return supervise(s, &c)
	})
}

// logf writes a message of the supervisor.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "rnic: "+format+"\n", args...)
}

// create makes the file of an option.
func create(option, path string) (*os.File, error) {
	f, err := os.Create(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", option, err)
	}
	return f, nil
}
