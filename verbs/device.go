package verbs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// DeviceConfig says how a NIC is made. The zero value uses every address of the machine.
type DeviceConfig struct {
	Name      string       // for messages. Default "rnic0"
	Interface string       // use the addresses of this interface only
	Addrs     []netip.Addr // use these addresses only
	MTU       int          // path MTU in bytes: 256, 512, 1024, 2048 or 4096. Default: what the interfaces carry
	Seed      uint64       // for keys and queue pair numbers; 0: random
	Local     bool         // no sockets: only queue pairs of this NIC reach each other; Interface and Addrs count for nothing
	Units     int          // processing units, each with a thread and sockets of its own. Default 1; 64 at most

	Congestion Congestion  // how RC queue pairs react to congestion. Default CongestionWindow
	DCQCN      DCQCNPolicy // of CongestionDCQCN; zero fields mean the published values

	// Report, if set, is told in words what the NIC finds wrong with itself: a processing unit that died and was replaced, or does not
	// move, storms of retries. It must not call the package.
	Report func(string)
}

// Congestion says how RC queue pairs react to congestion of the network.
type Congestion = nic.Congestion

// Policies of congestion.
const (
	CongestionWindow = nic.CongestionWindow // windows that follow what is acknowledged and what is lost
	CongestionDCQCN  = nic.CongestionDCQCN  // and a rate that follows the network's marks (ECN): see DCQCNPolicy
)

// DCQCNPolicy are the parameters of DCQCN.
type DCQCNPolicy = nic.DCQCNPolicy

// Device is a NIC.
type Device struct {
	dev *device.Device

	once sync.Once // of Close

	mu       sync.Mutex
	closed   bool
	contexts map[*Context]struct{}
}

// NewDevice makes a NIC and starts it. ErrInvalid: what cfg asks for cannot be. The system's error: UDP port 4791 of an
// address is taken.
func NewDevice(cfg DeviceConfig) (*Device, error) {
	switch {
	case cfg.Units < 0 || cfg.Units > nic.MaxUnits:
		return nil, fmt.Errorf("make NIC: %d processing units: %d are possible: %w", cfg.Units, nic.MaxUnits, ErrInvalid)
	case cfg.Congestion != CongestionWindow && cfg.Congestion != CongestionDCQCN:
		return nil, fmt.Errorf("make NIC: no policy of congestion has number %d: %w", cfg.Congestion, ErrInvalid)
	}
	return newDevice(device.Config{Name: cfg.Name, Interface: cfg.Interface, Addrs: cfg.Addrs, MTU: cfg.MTU,
		Seed: cfg.Seed, Local: cfg.Local, Units: cfg.Units, Policy: nic.Policy{Congestion: cfg.Congestion, DCQCN: cfg.DCQCN}, Report: cfg.Report})
}

func newDevice(cfg device.Config) (*Device, error) {
	d, err := device.New(cfg)
	if err != nil {
		return nil, err
	}
	return Wrap(d), nil
}

// Unwrap is the opposite of Wrap.
func (d *Device) Unwrap() *device.Device { return d.dev }

// Wrap makes a Device of one that this module's commands configured themselves.
func Wrap(d *device.Device) *Device {
	return &Device{dev: d, contexts: map[*Context]struct{}{}}
}

// Close closes everything on the NIC and stops it: when it returns, its addresses are free. To close it again does nothing but wait for
// that.
func (d *Device) Close() (err error) {
	d.once.Do(func() { err = d.close() })
	return err
}

func (d *Device) close() error {
	d.mu.Lock()
	d.closed = true
	open := slices.Collect(maps.Keys(d.contexts))
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	return d.dev.Close()
}

// GID is a global identifier: an IPv6 address, or an IPv4 address mapped into one.
type GID = roce.GID

// GIDEntry is an entry of the GID table.
type GIDEntry = device.GIDEntry

// GIDs are the device's addresses with their indices, as they are now: EventGIDChange tells of a change.
func (d *Device) GIDs() []GIDEntry { return d.dev.GIDs() }

// PortActive tells whether the port is up: an interface of it is, and has a carrier. Loopback counts only
// where there is no other. EventPortError and EventPortActive tell of a change.
func (d *Device) PortActive() bool { return d.dev.PortActive() }

// Units is the number of processing units, and of completion vectors.
func (d *Device) Units() int { return d.dev.Units() }

// MTU is the largest path MTU in bytes.
func (d *Device) MTU() int { return d.dev.MTU() }

// Stats are the NIC's counters.
func (d *Device) Stats() nic.Stats { return d.dev.Stats() }

// Limits are the device's limits.
func (d *Device) Limits() nic.Limits { return d.dev.Limits() }

// Progress lets the calling goroutine drive the NIC for a moment. CQ.Poll does so by itself; a
// program that polls memory instead, for the last byte of an RDMA WRITE, saves two changes of
// thread a message by calling Progress between its looks.
func (d *Device) Progress() { d.dev.Progress() }

// EventType says what happened (enum ibv_event_type; InfiniBand vol. 1, 11.6.3).
type EventType = nic.EventType

// Asynchronous events.
const (
	EventCQError          = nic.EventCQErr       // a completion queue has overflowed
	EventQPFatal          = nic.EventQPFatal     // a queue pair cannot go on
	EventQPRequestError   = nic.EventQPReqErr    // the peer sent a request that is not valid
	EventQPAccessError    = nic.EventQPAccessErr // the peer asked for what is not allowed
	EventConnEstablished  = nic.EventCommEst     // a message arrived in state RTR
	EventSendQueueDrained = nic.EventSQDrained
	EventPathMigrated     = nic.EventPathMig    // a queue pair has gone over to its alternate path
	EventPathMigError     = nic.EventPathMigErr // it was to, and its alternate path cannot be used
	EventSRQLimit         = nic.EventSRQLimit   // fewer receives are left in a shared queue than was armed
	EventLastWQE          = nic.EventQPLastWQE  // a queue pair in error completes no other receive of a shared queue
	EventPortActive       = nic.EventPortActive // the port is up again
	EventPortError        = nic.EventPortErr    // every interface of the port is down, or has no carrier
	EventGIDChange        = nic.EventGIDChange  // addresses have come or gone: see Device.GIDs
)

// Event is an asynchronous event (struct ibv_async_event).
type Event struct {
	Type EventType
	QP   *QP  // of a queue pair, else nil
	CQ   *CQ  // of a completion queue, else nil
	SRQ  *SRQ // of a shared receive queue, else nil
	Port int  // of a port, counted from 1, else 0
}

// Context is an open device: what is created through it lives until it is closed.
type Context struct {
	dev    *Device
	ctx    *device.Context
	events chan Event
	done   chan struct{} // closed with the context

	mu  sync.Mutex
	mrs map[*MR]struct{}
}

// eventBacklog bounds the asynchronous events that nobody has read; further ones are dropped.
const eventBacklog = 256

// Open opens the device. On a closed device the context is closed too: its methods return ErrClosed.
func (d *Device) Open() *Context {
	c := &Context{dev: d, events: make(chan Event, eventBacklog), done: make(chan struct{}), mrs: map[*MR]struct{}{}}
	c.ctx = d.dev.Open(sink{c})
	d.mu.Lock()
	closed := d.closed
	d.contexts[c] = struct{}{}
	d.mu.Unlock()
	if closed {
		_ = c.Close()
	}
	return c
}

// Events are the asynchronous events of the context's objects, and of the port. The channel is closed with the context. It holds 256; further ones
// are dropped until they are read.
func (c *Context) Events() <-chan Event { return c.events }

// Device is the device that c is open on.
func (c *Context) Device() *Device { return c.dev }

func (c *Context) isClosed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Close destroys everything that was created through c, and unpins or frees its memory. To close it
// again does nothing.
func (c *Context) Close() error {
	c.ctx.Close() // no event comes afterwards
	c.dev.mu.Lock()
	delete(c.dev.contexts, c)
	c.dev.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() {
		return nil
	}
	close(c.done)
	close(c.events)
	for m := range c.mrs {
		m.release()
	}
	clear(c.mrs)
	return nil
}

// own makes m the context's: its memory is released with it.
func (c *Context) own(m *MR) (*MR, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() {
		m.release()
		return nil, fmt.Errorf("register memory: %w", ErrClosed)
	}
	c.mrs[m] = struct{}{}
	return m, nil
}

func (c *Context) disown(m *MR) {
	c.mu.Lock()
	delete(c.mrs, m)
	c.mu.Unlock()
}

// sink hands events to the program's goroutines. It is called with the NIC held.
type sink struct{ c *Context }

func (s sink) Completion(cq *device.CQ) {
	if q, ok := cq.Cookie.(*CQ); ok {
		q.wake()
	}
}

func (s sink) Async(e device.AsyncEvent) {
	ev := Event{Type: e.Type, Port: int(e.Port)}
	if e.QP != nil {
		ev.QP, _ = e.QP.Cookie.(*QP)
	}
	if e.CQ != nil {
		ev.CQ, _ = e.CQ.Cookie.(*CQ)
	}
	if e.Type == EventCQError && ev.CQ != nil {
		ev.CQ.overflowed()
	}
	if e.SRQ != nil {
		ev.SRQ, _ = e.SRQ.Cookie.(*SRQ)
	}
	select {
	case s.c.events <- ev:
	default:
	}
}
