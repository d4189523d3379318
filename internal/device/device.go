// Package device is the device service: one NIC with its links and address table, the programs that have it
// open, who owns what, events, and cleanup. Every front end (the kernel's user ABI, the Go package
// verbs) calls this package and nothing below it. It is safe for concurrent use.
//
// Errors of commands wrap a nic.Errno (errors.As), the number that the kernel's ABI answers.
package device

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"rnic/internal/engine"
	"rnic/internal/fault"
	"rnic/internal/link"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// Config is what a device is made with. The zero value takes every address of the machine.
type Config struct {
	Name      string       // for messages and captures. Default "rnic0"
	Interface string       // use this interface's addresses only
	Addrs     []netip.Addr // use these addresses only
	MTU       int          // path MTU in bytes, 256..4096. Default: what the interfaces carry
	Seed      uint64       // of keys and queue pair numbers; 0: from the system
	Local     bool         // no sockets: only queue pairs of this NIC reach each other

	Faults               []fault.Spec    // planted from the beginning, behind these:
	SendFault, RecvFault *fault.Spec     // faults planted into what is sent, and received
	Scenario             *fault.Scenario // what goes wrong one after the other
	Capture              string          // write every packet to this pcapng file
	SocketBuffer         int             // bytes of the receive socket; 0: as much as allowed
	PlainSockets         bool            // what other systems than Linux have, on Linux too: udp.Plain
	Units                int             // processing units, each with a thread and sockets of its own. Default 1; at most nic.MaxUnits

	Limits nic.Limits
	Policy nic.Policy
	Waking engine.Waking

	// Report, if set, is told in words of what the device finds wrong with itself: see selfcheck.go. It must not call the device.
	Report func(string)

	Planted nic.Planted // tests only
}

// GIDEntry is one entry of the GID table: always RoCE v2.
type GIDEntry struct {
	Index   int
	GID     roce.GID
	IfIndex int
	IfName  string
}

// ackDelay is how long acknowledgements may wait for a quiet moment, in nanoseconds.
const ackDelay = 100_000

// Device is one NIC.
type Device struct {
	cfg    Config
	engine *engine.Engine
	port   port // links and addresses
	taps   taps // captures
	faults faults
	guid   [8]byte
	mtu    int
	limit  nic.Limits

	portMu sync.Mutex // held while the port or the table changes
	watch  watch
	check  chan struct{} // closed: no self-check any more
	checks sync.WaitGroup
	leaked atomic.Uint64
	// leakedSaid is what findLeaks has reported.
	leakedSaid int
	state      atomic.Pointer[portState]
	hookMu     sync.Mutex // held while hooks are called
	hooks      []*func()
	told       bool // hooks have been called since the device was removed; guarded by hookMu
	// removed: the device is being closed, or was taken away (Remove).
	removed   atomic.Bool
	portDowns atomic.Uint64 // how often the port went down

	mu       sync.Mutex
	contexts map[*Context]struct{}
	closed   bool
	away     bool // Remove has been called

	queuePairs []int // of each unit; guarded by the units
	numbers    numbers
}

// New makes a NIC: its links, its processing unit, its address table.
func New(cfg Config) (*Device, error) {
	if cfg.Name == "" {
		cfg.Name = "rnic0"
	}
	cfg.Units = min(max(1, cfg.Units), nic.MaxUnits)
	d := &Device{cfg: cfg, contexts: map[*Context]struct{}{}}
	d.port.taps = &d.taps
	if err := d.captureToFile(); err != nil {
		return nil, fmt.Errorf("opening NIC %s: %w", cfg.Name, err)
	}
	d.faults.open(&d.cfg)
	d.port.faults = d.faults.set
	if err := d.port.open(&d.cfg); err != nil {
		d.taps.close()
		return nil, fmt.Errorf("opening NIC %s: %w", cfg.Name, err)
	}
	d.guid, d.mtu = d.port.guid, d.port.mtu
	if cfg.Policy.AckDelayNanos == 0 {
		cfg.Policy.AckDelayNanos = ackDelay
	}
	core := nic.New(nic.Config{Seed: seedOf(cfg.Seed), Limits: cfg.Limits, MTU: uint32(d.mtu), LocalMTU: maxPathMTU, Policy: cfg.Policy, Planted: cfg.Planted, Units: d.cfg.Units, NewLock: func() nic.Lock { return new(sync.Mutex) }})
	d.limit = core.Limits()
	core.SetCompletionDelay(d.faults.set.CompletionDelay)
	d.port.cores = core.Units()
	for _, g := range d.port.gids {
		core.SetGID(g.Index, g.GID)
	}
	e, err := engine.New(engine.Config{Core: core, Links: d.port.links, Steer: d.port.steer, Event: d.dispatch, Waking: cfg.Waking, Report: cfg.Report, Stopped: stopped})
	if err != nil {
		d.port.close()
		d.taps.close()
		return nil, fmt.Errorf("opening NIC %s: %w", cfg.Name, err)
	}
	d.taps.start(e)
	d.engine, d.queuePairs = e, make([]int, d.cfg.Units)
	d.startWatch()
	d.startFaults()
	d.check = make(chan struct{})
	d.checks.Go(func() { d.selfCheck(d.check) })
	return d, nil
}

// Close closes every context and the links.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	open := d.openContexts()
	d.mu.Unlock()
	close(d.check)
	d.checks.Wait()
	d.watch.stop()
	d.faults.close()
	if !d.removed.Swap(true) {
		d.callHooks()
	}
	d.engine.Drain() // what was posted before, a connection manager's last word for instance, has left
	for _, c := range open {
		c.Close()
	}
	d.engine.Close()
	err := d.port.close()
	if e := d.taps.close(); err == nil {
		err = e
	}
	return err
}

// Name is the device's name.
func (d *Device) Name() string { return d.cfg.Name }

// Limits are the device's.
func (d *Device) Limits() nic.Limits { return d.limit }

// GIDs are the entries of the GID table that hold something, by index. They change with the machine's addresses:
// see AsyncEvent, nic.EventGIDChange. The caller does not change them.
func (d *Device) GIDs() []GIDEntry { return d.state.Load().gids }

// NodeGUID is stable across restarts, and never zero.
func (d *Device) NodeGUID() [8]byte { return d.guid }

// MTU is the active path MTU in bytes.
func (d *Device) MTU() int { return d.mtu }

// SocketBuffer is the size of the receive socket in bytes; 0 without one.
func (d *Device) SocketBuffer() int { return d.port.buffer() }

// Stats are the NIC's counters.
func (d *Device) Stats() (s nic.Stats) {
	d.engine.Lock()
	defer d.engine.Unlock()
	for _, u := range d.engine.Core().Units() {
		s.Add(u.Stats())
	}
	s.HandoverDrops = d.engine.HandoverDrops()
	return s
}

// Settle returns when every transfer has ended that was under way when it was called.
func (d *Device) Settle() { d.engine.Do(func(*nic.NIC, int64) {}) }

// LinkStats are the counters of the network links and of the loops.
func (d *Device) LinkStats() (net, loop link.Stats) {
	d.engine.Lock()
	defer d.engine.Unlock()
	for _, l := range d.port.links {
		if l.Net != nil {
			net.Add(l.Net.Stats())
		}
		loop.Add(l.Loop.Stats())
	}
	return net, loop
}

// UnitCounters tell what the processing units did: rounds of work, sleeps, and rounds that callers drove.
func (d *Device) UnitCounters() (steps, sleeps, callerSteps uint64) { return d.engine.Counters() }

// Progress lets the calling goroutine drive the NIC for a moment, all its units: see engine.Engine.Progress. Who polls a
// completion queue drives those that it needs: CQ.Progress.
func (d *Device) Progress() bool { return d.engine.Progress(allUnits) }

const allUnits = ^uint64(0)

// StopPolling says that the calling goroutine goes to sleep and does not drive the NIC any more.
func (d *Device) StopPolling() { d.engine.StopPolling() }

// dispatch hands one of the NIC's events to its owner. A unit is held.
func (d *Device) dispatch(e nic.Event) {
	var ctx *Context
	a := AsyncEvent{Type: e.Type}
	if e.CQ != nil {
		a.CQ, _ = e.CQ.Owner.(*CQ)
	}
	if e.QP != nil {
		a.QP, _ = e.QP.Owner.(*QP)
	}
	if e.SRQ != nil {
		a.SRQ, _ = e.SRQ.Owner.(*SRQ)
	}
	switch {
	case a.QP != nil:
		ctx = a.QP.ctx
	case a.CQ != nil:
		ctx = a.CQ.ctx
	case a.SRQ != nil:
		ctx = a.SRQ.ctx
	default:
		return
	}
	switch {
	case ctx.sink == nil:
	case e.Type == nic.EventCompletion:
		ctx.sink.Completion(a.CQ)
	default:
		ctx.sink.Async(a)
	}
}
