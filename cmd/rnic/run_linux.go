package main

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"rnic/internal/cma"
	"rnic/internal/join"
	"rnic/internal/sandbox"
	"rnic/internal/ucm"
	"rnic/internal/uverbs"
)

// supervise makes the run's NICs, or joins those that other runs have, and serves the program's calls until it has
// ended. NICs of this process stay for as long as another run uses them.
func supervise(s *sandbox.Supervisor, c *runConfig) error {
	r := &supervised{s: s, c: c, name: rand.Text()}
	err := r.open()
	if err == nil {
		s.OnEnd(r.judge)
		err = s.Serve()
	}
	r.leave(err)
	return err
}

// supervised is one run, in its supervisor.
type supervised struct {
	s      *sandbox.Supervisor
	c      *runConfig
	name   string // that no other run has
	trace  *os.File
	traced io.Writer // trace, for all NICs of this process: records of several do not mix
	watch  uverbs.Watch
	own    []*ownNIC
	reach  *reachable   // lets commands reach own
	mgr    *cma.Manager // of own, for all runs that use them
	cm     *ucm.Driver  // this run's
	guests []*join.Guest

	devices []uverbs.Described // in the order of the options
	over    atomic.Bool        // the programs are gone
	asked   atomic.Bool        // a program has asked which devices there are
	undo    []func()
}

func (r *supervised) open() error {
	if r.c.Trace != "" {
		f, err := create("--trace", r.c.Trace)
		if err != nil {
			return err
		}
		r.trace, r.traced = f, patientTrace(f)
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
	r.devices = make([]uverbs.Described, len(r.c.NICs))
	for _, i := range attachOrder(r.c.NICs) {
		if err := r.attach(i); err != nil {
			return err
		}
	}
	slices.SortFunc(r.own, func(a, b *ownNIC) int { return cmp.Compare(a.index, b.index) })
	if err := r.answerNetlink(); err != nil {
		return err
	}
	return r.openCM()
}

// answerNetlink lets programs and the rdma tool find the devices by netlink.
func (r *supervised) answerNetlink() error {
	answer := uverbs.Netlink(r.devices...)
	err := r.s.AnswerNetlink(func(datagram []byte, port uint32, admin bool) [][]byte {
		r.asked.Store(true)
		return answer(datagram, port, admin)
	})
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
		select {
		case <-r.s.Over():
			return errors.New("ended while it waited for a NIC")
		default:
		}
		err = r.make(n, index)
		if !errors.Is(err, join.ErrTaken) {
			return err
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("NIC %s: another run is about to start or end it, for %v now, or a process that is no run of yours holds its name "+
				"(it is in /proc/net/unix, as @rnic/%d/%s; as root, ss -xap names the process): end that, or use another address, as --addr 127.0.0.2: %w",
				n.key(), patience, os.Geteuid(), n.key(), err)
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
	Run              string // the run, whichever of its NICs it is about
	Index            int
	Verbose, NoIoctl bool

	Pedantic, JSON  bool
	Trace, JSONFile bool // there is a file for it, behind standard error and in this order
}

func (r *supervised) join(key string, n *nicConfig, index int) error {
	wanted := *n
	if wanted.Scenario != nil { // that there is one is all that matters there, and its text may be too long for a message
		wanted.Scenario = &scenarioFile{Name: wanted.Scenario.Name}
	}
	blob, err := json.Marshal(joinRequest{NIC: wanted, Run: r.name, Index: index, Verbose: r.c.Verbose, NoIoctl: r.c.NoIoctl, Pedantic: r.c.Pedantic, JSON: r.c.JSON.On,
		Trace: r.trace != nil, JSONFile: r.c.JSON.Path != ""})
	if err != nil {
		return err
	}
	q := join.Request{Version: Version, Config: blob, Files: []*os.File{os.Stderr}, FilesOnly: r.c.FilesOnly, Over: r.s.Over()}
	if r.trace != nil {
		q.Files = append(q.Files, r.trace)
	}
	if f, ok := r.watch.JSON.(*patientFile); ok && r.c.JSON.Path != "" {
		q.Files = append(q.Files, f.File)
	}
	g, err := join.Dial(key, q, r.s)
	if err != nil {
		return err
	}
	r.guests = append(r.guests, g)
	r.devices[index] = uverbs.Remote{Name: n.Name, Ask: g.Ask}
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
	if r.reach != nil {
		defer r.reach.close()
	}
	var last sync.WaitGroup
	for _, o := range wanted { // each NIC ends with its own last run
		last.Go(func() { o.host.Finish(); o.close() })
	}
	last.Wait()
}
