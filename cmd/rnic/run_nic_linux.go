package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"rnic/internal/cma"
	"rnic/internal/device"
	"rnic/internal/join"
	"rnic/internal/nic"
	"rnic/internal/rdmanl"
	"rnic/internal/uverbs"
)

// ownNIC is a NIC of this process.
type ownNIC struct {
	nic  nicConfig
	dev  *device.Device
	drv  *uverbs.Driver // this run's
	host *join.Host

	index  int // among the run's NICs
	mgr    *cma.Manager
	scopes *scopes // of runs that join
}

// make makes the NIC, unless another run is doing so: join.ErrTaken.
func (r *supervised) make(n *nicConfig, index int) error {
	host, err := join.Listen(n.key(), Version)
	if err != nil {
		return err
	}
	o := &ownNIC{nic: *n, host: host, index: index}
	if err := o.open(r, index); err != nil {
		o.close()
		return err
	}
	r.own = append(r.own, o)
	if r.reach == nil {
		r.reach = reach(r.c.Command)
	}
	r.reach.add(o.dev)
	r.devices[index] = o.drv
	return nil
}

func (o *ownNIC) open(r *supervised, index int) (err error) {
	n := &o.nic
	var policy nic.Policy
	if n.DCQCN {
		policy.Congestion = nic.CongestionDCQCN
	}
	if o.dev, err = device.New(device.Config{Policy: policy, Name: n.Name, Interface: n.Interface, Addrs: n.Addrs, MTU: n.MTU, Units: n.Units,
		Seed: n.Seed, Faults: n.Faults, Scenario: n.Scenario.parsed(), Capture: n.Capture, Report: selfReport(n.Name)}); err != nil {
		return o.explain(err)
	}
	o.drv, err = newDriver(o.dev, r.s, r.s, uverbs.Config{Name: n.Name, Index: index, CMIDs: func() []rdmanl.CMID { return cmIDs(r.mgr, o.dev) }, CMCounters: func() []rdmanl.Counter { return cmCounters(r.mgr, o.dev) }, NoIoctl: r.c.NoIoctl, Trace: r.traced, Watch: r.watch}, logf)
	return err
}

// selfReport says what a NIC has found wrong with itself.
func selfReport(name string) func(string) {
	return func(what string) { logf("%s: self-check: %s", name, what) }
}

// explain adds, where addresses are in use, which NICs of this user have them.
func (o *ownNIC) explain(err error) error {
	keys, _ := join.Keys()
	var others []string
	for _, k := range keys {
		if k != o.nic.key() {
			others = append(others, k)
		}
	}
	if len(others) == 0 {
		return err
	}
	return fmt.Errorf("%w; runs of yours have NICs here (%s): to join one, name the same addresses, or none", err, strings.Join(others, "; "))
}

// newDriver makes the front of a run on a NIC, with its files.
func newDriver(dev *device.Device, sup uverbs.Forgetter, t uverbs.Tree, cfg uverbs.Config, say func(string, ...any)) (*uverbs.Driver, error) {
	cfg.Version, cfg.Warnf = firmware(Version), say
	if cfg.Watch.Commands && cfg.Watch.JSON == nil {
		cfg.Logf = say
	}
	drv, err := uverbs.New(dev, sup, cfg)
	if err != nil {
		return nil, err
	}
	if err := drv.AddTo(t); err != nil {
		drv.Close()
		return nil, fmt.Errorf("building the device's files: %w", err)
	}
	return drv, nil
}

// admit lets another run in.
func (o *ownNIC) admit(r *join.Run) (join.Front, error) {
	var q joinRequest
	if err := json.Unmarshal(r.Config(), &q); err != nil {
		return nil, err
	}
	if err := o.nic.joinable(&q.NIC); err != nil {
		return nil, err
	}
	if o.dev.Removed() {
		return nil, errors.New("it has been removed (rdma link delete): wait until the runs that use it have ended, or name other addresses: --addr")
	}
	cfg := uverbs.Config{Name: q.NIC.Name, Index: q.Index, NoIoctl: q.NoIoctl, Programs: r, CMIDs: func() []rdmanl.CMID { return cmIDs(o.mgr, o.dev) },
		CMCounters: func() []rdmanl.Counter { return cmCounters(o.mgr, o.dev) }}
	if err := q.outputs(r, &cfg); err != nil {
		return nil, err
	}
	say := func(format string, args ...any) { fmt.Fprintf(r.Log(), "rnic: "+format+"\n", args...) }
	drv, err := newDriver(o.dev, r, r, cfg, say)
	if err != nil {
		return nil, err
	}
	f := joinedFront{Driver: drv, leave: o.scopes.enter(q.Run, o.dev)}
	if q.Index == 0 {
		if f.cm, err = newCM(o.mgr, o.scopes.of(q.Run), r, r, drv); err != nil {
			f.leave()
			drv.Close()
			return nil, err
		}
	}
	return f, nil
}

// outputs are where a run that joins wants to be told of its commands.
func (q *joinRequest) outputs(r *join.Run, cfg *uverbs.Config) error {
	files := r.Files()
	next := func() (f *os.File) {
		if len(files) > 1 {
			f, files = files[1], files[1:]
		}
		return f
	}
	cfg.Watch = uverbs.Watch{Text: r.Log(), Commands: q.Verbose, Pedantic: q.Pedantic}
	var trace, out *os.File
	if q.Trace {
		if trace = next(); trace == nil {
			return errors.New("no file for --trace was passed")
		}
		cfg.Trace = patientTrace(trace)
	}
	switch {
	case !q.JSON:
	case !q.JSONFile:
		cfg.Watch.Text, cfg.Watch.JSON = nil, r.Log()
	default:
		if out = next(); out == nil {
			return errors.New("no file for --json was passed")
		}
		cfg.Watch.JSON = patientJSON(out)
	}
	return nil
}

// close gives back what there is of the NIC; its name last, so that whoever takes that finds the port free.
func (o *ownNIC) close() {
	if o.drv != nil {
		o.drv.Close()
	}
	if o.mgr != nil {
		o.mgr.Settle() // peers have heard of the last disconnections
	}
	if o.dev != nil {
		if err := o.dev.Close(); err != nil { // of a capture, most likely: a disk that is full
			logf("closing NIC %s: %v", o.nic.Name, err)
		}
	}
	o.host.Close()
}

// firmware is the version as the device reports it.
func firmware(version string) (v [3]uint16) {
	for i, part := range strings.SplitN(version, ".", 3) {
		n, _ := strconv.ParseUint(part, 10, 16)
		v[i] = uint16(n)
	}
	return v
}
