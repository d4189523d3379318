package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/internal/sandbox"
)

// RunCmd is rnic run.
type RunCmd struct {
	Name       string   `default:"rxe0" help:"Name of the RDMA device."`
	NIC        []string `name:"nic" sep:"none" placeholder:"SPEC" help:"A NIC of this run, as rxe1,addr=10.0.0.2,mtu=4096. Repeatable: a device each."`
	Addr       []string `placeholder:"ADDRESS" help:"Use this address of the machine only. Repeatable."`
	Interface  string   `placeholder:"NAME" help:"Use the addresses of this network interface only."`
	MTU        int      `placeholder:"BYTES" help:"Path MTU: 256, 512, 1024, 2048 or 4096. Default: what the interfaces carry."`
	Fault      []string `placeholder:"SPEC" sep:"none" help:"Plant faults into what the NIC sends, as drop=1%,seed=7; recv:SPEC for what it receives, both:SPEC. Repeatable. See docs/faults.md."`
	Scenario   string   `placeholder:"FILE" type:"existingfile" help:"Let go wrong what this file lists, one after the other, and end with status 121 if what it expects is not met. See docs/faults.md."`
	Capture    string   `placeholder:"FILE" type:"path" help:"Write every packet to this pcapng file."`
	Seed       uint64   `placeholder:"N" help:"Seed of keys and queue pair numbers. Default: random."`
	Congestion string   `enum:"window,dcqcn" default:"window" help:"How connections react to congestion: window, or dcqcn (the network must mark packets, ECN)."`
	Units      int      `default:"1" placeholder:"N" help:"Processing units of the NIC: threads with sockets of their own, for machines with cores to spare."`
	Nice       bool     `default:"true" negatable:"" help:"Start the program at nice 19 where cores are few, so that programs that poll do not hold up the NIC."`
	Verbose    bool     `short:"v" help:"Tell on standard error of each command of the program with its answer, of events, and of what ends: strace for RDMA."`
	JSON       jsonFile `name:"json" placeholder:"FILE" help:"Write a summary of what was done as JSON at the end, to standard error or to FILE; with -v every command too."`
	Pedantic   bool     `help:"Warn of what works here and fails on hardware."`
	Trace      string   `placeholder:"FILE" type:"path" help:"Write every command of the program, with its attributes and answers, to this file."`
	Profile    string   `hidden:"" placeholder:"FILE" type:"path" help:"Write a CPU profile of the NIC to this file."`
	FilesOnly  bool     `hidden:"" help:"Where this run joins another's NIC: let that reach the programs' memory by passed files, whatever its rights are."`
	NoIoctl    bool     `hidden:"" help:"Refuse the ioctl of current libraries, so that they send commands as old ones do."`

	Command []string `arg:"" optional:"" passthrough:"" help:"The program and its arguments."`
}

// runConfig is what the supervisor gets of the options.
type runConfig struct {
	NICs                        []nicConfig
	Trace, Profile              string
	Verbose, NoIoctl, FilesOnly bool
	Pedantic                    bool
	JSON                        jsonFile
	Command                     []string // what rnic nics shows
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

// Help is printed by rnic run --help.
func (*RunCmd) Help() string {
	return `The program, and whatever it starts, finds an RDMA device, without hardware, kernel module or root. A second run of the same user joins the NIC of the first.

Examples:

    rnic run -- ibv_devinfo -v
    rnic run -- ib_write_bw                           in one terminal
    rnic run -- ib_write_bw 127.0.0.1                 in another
    rnic run --fault drop=1%,seed=7 -- ./my-test      with losses, the same each time
    rnic run -v -- ./my-program                       each verbs command and its answer
    rnic run -- bash                                  a shell in which every program has the device

The exit code is the program's; 128 and the number of a signal that ended it; 127 if it was not found, 126 if it cannot be executed, 125 if the NIC could not be made (rnic doctor looks for the reason), 121 if a scenario was not met, 2 for a bad option.`
}

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
	if r.Scenario != "" && err == nil && code == exitScenario {
		return &runError{1, fmt.Errorf("the program has ended with status %d, which with --scenario says that an expectation was not met: the status is 1 instead", code)}
	}
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

// config checks the options.
func (r *RunCmd) config() (*runConfig, error) {
	c := &runConfig{Verbose: r.Verbose, Trace: r.Trace, Profile: r.Profile, NoIoctl: r.NoIoctl, FilesOnly: r.FilesOnly, Pedantic: r.Pedantic, JSON: r.JSON, Command: r.command()}
	if len(r.command()) == 0 {
		return nil, errors.New("run: no program given, as in rnic run -- ibv_devinfo (rnic run --help)")
	}
	if strings.HasPrefix(r.Command[0], "-") && r.Command[0] != "--" {
		return nil, fmt.Errorf("run: unknown option %s", r.Command[0])
	}
	nics, err := r.nics()
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	c.NICs = nics
	return c, nil
}

// maxNICs bounds the devices of a run.
const maxNICs = 32

// nics are the NICs that the options describe.
func (r *RunCmd) nics() ([]nicConfig, error) {
	if len(r.NIC) > 0 {
		return r.severalNICs()
	}
	c := nicConfig{Name: r.Name, Interface: r.Interface, MTU: r.MTU, Units: r.Units, Capture: r.Capture, Seed: r.Seed, DCQCN: r.Congestion == "dcqcn"}
	if r.Units < 1 {
		return nil, fmt.Errorf("--units %d: 1 to %d are possible", r.Units, nic.MaxUnits)
	}
	for _, s := range r.Addr {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("--addr %q: no IP address", s)
		}
		c.Addrs = append(c.Addrs, a)
	}
	var err error
	if c.Faults, err = fault.ParseRules(r.Fault); err != nil {
		return nil, fmt.Errorf("--fault: %w", err)
	}
	if c.Scenario, err = readScenario(r.Scenario); err != nil {
		return nil, err
	}
	return []nicConfig{c}, c.check()
}

// severalNICs are those of --nic. Faults are planted into all of them.
func (r *RunCmd) severalNICs() ([]nicConfig, error) {
	if r.Interface != "" || len(r.Addr) > 0 || r.MTU != 0 || r.Units != 1 || r.Capture != "" || r.Seed != 0 || r.Congestion != "window" || r.Name != "rxe0" {
		return nil, errors.New("--nic says everything of a NIC: --name, --addr, --interface, --mtu, --units, --seed, --congestion and --capture belong into it")
	}
	if len(r.NIC) > maxNICs {
		return nil, fmt.Errorf("--nic %d times: %d are possible", len(r.NIC), maxNICs)
	}
	faults, err := fault.ParseRules(r.Fault)
	if err != nil {
		return nil, fmt.Errorf("--fault: %w", err)
	}
	scenario, err := readScenario(r.Scenario)
	if err != nil {
		return nil, err
	}
	if scenario != nil && len(r.NIC) > 1 {
		return nil, errors.New("--scenario is about one NIC: give --nic once")
	}
	var list []nicConfig
	for i, spec := range r.NIC {
		c, err := parseNIC(spec, i)
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			if o.Name == c.Name {
				return nil, fmt.Errorf("--nic %q: the name %s is used twice", spec, c.Name)
			}
			if o.key() == c.key() {
				return nil, fmt.Errorf("--nic %q: %s has the same addresses: each NIC needs its own", spec, o.Name)
			}
		}
		c.Faults, c.Scenario = faults, scenario
		list = append(list, c)
	}
	return list, nil
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
