package device

import (
	"slices"
	"sync"

	"rnic/internal/engine"
	"rnic/internal/fault"
	"rnic/internal/nic"
)

// faults are what goes wrong at this device, on purpose.
type faults struct {
	set *fault.Set

	mu     sync.Mutex
	ports  []bool // the port goes down (true) and up, in order, not carried out yet
	signal chan struct{}
	stop   chan struct{}
	done   chan struct{}
}

// open makes the set of what the configuration asks for.
func (f *faults) open(cfg *Config) {
	specs := slices.Clone(cfg.Faults)
	add := func(s *fault.Spec, d fault.Direction) {
		if s != nil {
			c := *s
			c.Direction = d
			specs = append(specs, c)
		}
	}
	add(cfg.SendFault, fault.Send)
	add(cfg.RecvFault, fault.Recv)
	f.set = fault.NewSet(specs...)
	f.set.Guard(new(sync.Mutex))
	f.signal, f.stop, f.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	f.set.OnPort(f.port)
}

// port takes note of what the port is to do. The set is locked, and a unit perhaps held.
func (f *faults) port(down bool) {
	f.mu.Lock()
	f.ports = append(f.ports, down)
	f.mu.Unlock()
	select {
	case f.signal <- struct{}{}:
	default:
	}
}

// startFaults lets the faults begin. The NIC works already.
func (d *Device) startFaults() {
	go d.followFaults()
	d.engine.Do(func(_ *nic.NIC, now int64) {
		d.faults.set.Start(now)
		if d.cfg.Scenario != nil {
			d.faults.set.Play(now, d.cfg.Scenario)
		}
	})
}

// followFaults takes the port down and up as the faults say.
func (d *Device) followFaults() {
	defer close(d.faults.done)
	for {
		select {
		case <-d.faults.stop:
			return
		case <-d.faults.signal:
		}
		d.faults.mu.Lock()
		ports := d.faults.ports
		d.faults.ports = nil
		d.faults.mu.Unlock()
		for _, down := range ports {
			d.forcePort(down)
		}
	}
}

func (f *faults) close() {
	close(f.stop)
	<-f.done
}

// AddFault plants a fault, and returns its number.
func (d *Device) AddFault(spec fault.Spec) (id int, err error) {
	d.engine.Do(func(_ *nic.NIC, now int64) { id, err = d.faults.set.Add(now, spec) })
	return id, err
}

// Faults are those that are planted.
func (d *Device) Faults() []fault.Status { return d.faults.set.List(engine.Now()) }

// ClearFault takes the fault of a number away; the error wraps fault.ErrRule if there is none.
func (d *Device) ClearFault(id int) (err error) {
	d.engine.Do(func(_ *nic.NIC, now int64) { err = d.faults.set.Clear(now, id) })
	return err
}

// ClearFaults takes all away, and returns how many there were.
func (d *Device) ClearFaults() (n int) {
	d.engine.Do(func(_ *nic.NIC, now int64) { n = d.faults.set.ClearAll(now) })
	return n
}

// Judge tells what Config.Scenario has come to; nil without one. value is asked for what expectations are about: see fault.Set.Judge.
func (d *Device) Judge(value func(subject, counter string) uint64) *fault.Result {
	return d.faults.set.Judge(engine.Now(), value)
}

// Injected counts the faults of what was sent and received.
func (d *Device) Injected() (send, recv fault.Counters) { return d.faults.set.Counters() }

// front is what a link of a unit has to know to refuse a request. The unit is held.
func (p *port) front(unit int, qp uint32) (f fault.Front, ok bool) {
	if unit >= len(p.cores) {
		return f, false
	}
	f.Unacknowledged, f.Expected, f.MSN, f.Peer, ok = p.cores[unit].Front(qp)
	return f, ok
}
