package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"rnic/internal/cma"
	"rnic/internal/device"
	"rnic/internal/join"
	"rnic/internal/nic"
	"rnic/internal/rdmanl"
	"rnic/internal/sandbox"
	"rnic/internal/ucm"
	"rnic/internal/uverbs"
)

// supervise makes the run's NICs, or joins those that other runs have, and serves the program's calls until it has
// ended. NICs of this process stay for as long as another run uses them.
func supervise(s *sandbox.Supervisor, c *runConfig) error {
	r := &supervised{s: s, c: c}
	err := r.open()
	if err == nil {
		err = s.Serve()
	}
	r.leave(err)
	return err
}

// supervised is one run, in its supervisor.
type supervised struct {
	s      *sandbox.Supervisor
	c      *runConfig
	trace  *os.File
	watch  uverbs.Watch
	own    []*ownNIC
	mgr    *cma.Manager // of own, for all runs that use them
	cm     *ucm.Driver  // this run's
	guests []*join.Guest

	devices []uverbs.Described // in the order of the options
	over    atomic.Bool        // the programs are gone
	undo    []func()
}

// ownNIC is a NIC of this process.
type ownNIC struct {
	nic  nicConfig
	dev  *device.Device
	drv  *uverbs.Driver // this run's
	host *join.Host

	index int // among the run's NICs
	mgr   *cma.Manager
}

func (r *supervised) open() error {
	if r.c.Trace != "" {
		f, err := create("--trace", r.c.Trace)
		if err != nil {
			return err
		}
		r.trace = f
		r.undo = append(r.undo, func() { f.Close() })
	}
	w, done, err := r.c.watch()
	if err != nil {
		return err
	}
	r.watch, r.undo = w, append(r.undo, done)
	if r.c.Profile != "" {
		f, err := create("--profile", r.c.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		r.undo = append(r.undo, func() { pprof.StopCPUProfile(); f.Close() })
	}
	for i := range r.c.NICs {
		if err := r.attach(i); err != nil {
			return err
		}
	}
	if err := r.answerNetlink(); err != nil {
		return err
	}
	return r.openCM()
}

// openCM makes the connection manager of this process's NICs, and gives it to the run, and to those that join. A run's connection
// manager is that of the process which has its first NIC.
func (r *supervised) openCM() (err error) {
	if len(r.own) == 0 {
		return nil
	}
	var devs []*device.Device
	for _, o := range r.own {
		devs = append(devs, o.dev)
	}
	if r.mgr, err = cma.New(devs...); err != nil {
		return err
	}
	if r.own[0].index == 0 {
		if r.cm, err = newCM(r.mgr, r.s, r.s, r.c.Verbose, logf); err != nil {
			return err
		}
	}
	for _, o := range r.own {
		o.mgr = r.mgr
		o.host.Serve(o.admit)
	}
	return nil
}

// newCM makes the front of a run on a connection manager, with its files.
func newCM(mgr *cma.Manager, sup ucm.Forgetter, t ucm.Tree, verbose bool, say func(string, ...any)) (*ucm.Driver, error) {
	var cfg ucm.Config
	if verbose {
		cfg.Logf, cfg.Trace = say, say
	}
	d, err := ucm.New(mgr, sup, cfg)
	if err != nil {
		return nil, err
	}
	if err := d.AddTo(t); err != nil {
		d.Close()
		return nil, fmt.Errorf("building the connection manager's files: %w", err)
	}
	return d, nil
}

// cmIDs are the connection manager's ids of a device, and of none, for those who list resources.
func cmIDs(mgr *cma.Manager, dev *device.Device) (list []rdmanl.CMID) {
	if mgr == nil {
		return nil
	}
	for _, i := range mgr.List() {
		if i.Device != nil && i.Device != dev {
			continue
		}
		c := rdmanl.CMID{Number: i.Number, PID: uint32(i.PID), QP: i.QPN, QPType: uint8(i.Type), PortSpace: uint32(i.Space), State: i.State, Src: i.Src, Dst: i.Dst}
		if i.Device != nil {
			c.Port = 1
		}
		list = append(list, c)
	}
	return list
}

// joinedFront is what a run that joins gets: the device, and the connection manager if it is the run's first.
type joinedFront struct {
	*uverbs.Driver
	cm *ucm.Driver
}

func (f joinedFront) Close() error {
	if f.cm != nil {
		f.cm.Close()
	}
	return f.Driver.Close()
}

// answerNetlink lets programs and the rdma tool find the devices by netlink.
func (r *supervised) answerNetlink() error {
	err := r.s.AnswerNetlink(uverbs.Netlink(r.devices...))
	if err == nil {
		return nil
	}
	for _, n := range r.c.NICs {
		if !strings.HasPrefix(n.Name, "rxe") {
			return fmt.Errorf("--name %s: without netlink programs only find devices whose names begin with rxe: %w", n.Name, err)
		}
	}
	if r.c.Verbose {
		logf("the rdma tool does not work: %v", err)
	}
	return nil
}

// optionsError is an error in what the user asked for: nothing is wrong with the machine.
type optionsError struct{ error }

func (e optionsError) Is(target error) bool { return target == sandbox.ErrOptions }
func (e optionsError) Unwrap() error        { return e.error }

// patience bounds how long a run waits for another that is just starting or ending its NIC.
const patience = 10 * time.Second

// attach joins the NIC if another run has it, or makes it. Of runs that start at the same time the one that takes
// the name makes it.
func (r *supervised) attach(index int) error {
	n := &r.c.NICs[index]
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		key, err := n.choose()
		if err != nil {
			return err
		}
		err = r.join(key, n, index)
		if errors.Is(err, join.ErrRefused) {
			return optionsError{err}
		}
		if !errors.Is(err, join.ErrNone) {
			return err
		}
		err = r.make(n, index)
		if !errors.Is(err, join.ErrTaken) {
			return err
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("NIC %s: another run is about to start or end it, for %v now: %w", n.key(), patience, err)
		}
	}
}

// choose is the key of the NIC that a run uses if it exists. A run that says nothing of addresses takes the one that there is.
func (n *nicConfig) choose() (string, error) {
	if key := n.key(); key != keyAny {
		return key, nil
	}
	keys, err := join.Keys()
	if err != nil || len(keys) == 0 {
		return keyAny, err
	}
	for _, k := range keys {
		if k == keyAny {
			return keyAny, nil
		}
	}
	if len(keys) > 1 {
		return "", optionsError{fmt.Errorf("several NICs run here (%s): say which one to use, or the addresses of a new one, with --addr or --interface",
			strings.Join(keys, "; "))}
	}
	return keys[0], nil
}

// joinRequest is what a run tells the NIC's process.
type joinRequest struct {
	NIC              nicConfig
	Index            int
	Verbose, NoIoctl bool

	Pedantic, JSON  bool
	Trace, JSONFile bool // there is a file for it, behind standard error and in this order
}

func (r *supervised) join(key string, n *nicConfig, index int) error {
	blob, err := json.Marshal(joinRequest{NIC: *n, Index: index, Verbose: r.c.Verbose, NoIoctl: r.c.NoIoctl, Pedantic: r.c.Pedantic, JSON: r.c.JSON.On,
		Trace: r.trace != nil, JSONFile: r.c.JSON.Path != ""})
	if err != nil {
		return err
	}
	q := join.Request{Version: Version, Config: blob, Files: []*os.File{os.Stderr}, FilesOnly: r.c.FilesOnly}
	if r.trace != nil {
		q.Files = append(q.Files, r.trace)
	}
	if f, ok := r.watch.JSON.(*os.File); ok && r.c.JSON.Path != "" {
		q.Files = append(q.Files, f)
	}
	g, err := join.Dial(key, q, r.s)
	if err != nil {
		return err
	}
	r.guests = append(r.guests, g)
	r.devices = append(r.devices, uverbs.Remote{Name: n.Name, Ask: g.Ask})
	if r.c.Verbose && (!r.c.JSON.On || r.c.JSON.Path != "") {
		logf("joined NIC %s of process %d", key, g.Host())
	}
	go func() {
		<-g.Died()
		if !r.over.Load() {
			r.s.Abort(fmt.Errorf("the NIC (%s), process %d of another run, has died: the program and all its descendants were killed", key, g.Host()))
		}
	}()
	return nil
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
	r.devices = append(r.devices, o.drv)
	return nil
}

func (o *ownNIC) open(r *supervised, index int) (err error) {
	n := &o.nic
	var policy nic.Policy
	if n.DCQCN {
		policy.Congestion = nic.CongestionDCQCN
	}
	if o.dev, err = device.New(device.Config{Policy: policy, Name: n.Name, Interface: n.Interface, Addrs: n.Addrs, MTU: n.MTU, Units: n.Units,
		Seed: n.Seed, SendFault: n.SendFault, RecvFault: n.RecvFault, Capture: n.Capture}); err != nil {
		return o.explain(err)
	}
	var trace io.Writer
	if r.trace != nil {
		trace = r.trace
	}
	o.drv, err = newDriver(o.dev, r.s, r.s, uverbs.Config{Name: n.Name, Index: index, CMIDs: func() []rdmanl.CMID { return cmIDs(r.mgr, o.dev) }, NoIoctl: r.c.NoIoctl, Trace: trace, Watch: r.watch}, logf)
	return err
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
	cfg := uverbs.Config{Name: q.NIC.Name, Index: q.Index, NoIoctl: q.NoIoctl, Programs: r, CMIDs: func() []rdmanl.CMID { return cmIDs(o.mgr, o.dev) }}
	if err := q.outputs(r, &cfg); err != nil {
		return nil, err
	}
	say := func(format string, args ...any) { fmt.Fprintf(r.Log(), "rnic: "+format+"\n", args...) }
	drv, err := newDriver(o.dev, r, r, cfg, say)
	if err != nil {
		return nil, err
	}
	f := joinedFront{Driver: drv}
	if q.Index == 0 {
		if f.cm, err = newCM(o.mgr, r, r, q.Verbose, say); err != nil {
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
		cfg.Trace = trace
	}
	switch {
	case !q.JSON:
	case !q.JSONFile:
		cfg.Watch.Text, cfg.Watch.JSON = nil, r.Log()
	default:
		if out = next(); out == nil {
			return errors.New("no file for --json was passed")
		}
		cfg.Watch.JSON = out
	}
	return nil
}

// leave ends the run. If others use its NICs, the front returns at once, with the program's exit code or failed, and this process
// stays until they have ended too.
func (r *supervised) leave(failed error) {
	r.over.Store(true)
	for _, g := range r.guests {
		g.Close()
	}
	if r.cm != nil {
		r.cm.Close()
	}
	var wanted []*ownNIC
	if r.mgr != nil {
		defer r.mgr.Close()
	}
	for _, o := range r.own {
		o.drv.Close()
		o.drv = nil
		if o.host.FinishIdle() {
			o.close()
		} else {
			wanted = append(wanted, o)
		}
	}
	for _, f := range r.undo {
		f()
	}
	if len(wanted) > 0 {
		r.s.Leave(failed)
	}
	var last sync.WaitGroup
	for _, o := range wanted { // each NIC ends with its own last run
		last.Go(func() { o.host.Finish(); o.close() })
	}
	last.Wait()
}

// close gives back what there is of the NIC; its name last, so that whoever takes that finds the port free.
func (o *ownNIC) close() {
	if o.drv != nil {
		o.drv.Close()
	}
	if o.dev != nil {
		o.dev.Close()
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
