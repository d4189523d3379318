package verbs

import (
	"net/netip"
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
	Local     bool         // no sockets: only queue pairs of this NIC reach each other
}

// Device is a NIC.
type Device struct{ dev *device.Device }

// NewDevice makes a NIC and starts it. It fails if UDP port 4791 of an address is taken.
func NewDevice(cfg DeviceConfig) (*Device, error) {
	return newDevice(device.Config{Name: cfg.Name, Interface: cfg.Interface, Addrs: cfg.Addrs, MTU: cfg.MTU,
		Seed: cfg.Seed, Local: cfg.Local})
}

func newDevice(cfg device.Config) (*Device, error) {
	d, err := device.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Device{d}, nil
}

// Wrap makes a Device of one that this module's commands configured themselves.
func Wrap(d *device.Device) *Device { return &Device{d} }

// Close stops the NIC and closes everything on it.
func (d *Device) Close() error { return d.dev.Close() }

// GID is a global identifier: an IPv6 address, or an IPv4 address mapped into one.
type GID = roce.GID

// GIDEntry is an entry of the GID table.
type GIDEntry = device.GIDEntry

// GIDs are the device's addresses with their indices.
func (d *Device) GIDs() []GIDEntry { return d.dev.GIDs() }

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

// Event is an asynchronous event (enum ibv_event_type).
type Event struct {
	Type nic.EventType
	QP   *QP // of a queue pair, else nil
	CQ   *CQ // of a completion queue, else nil
}

// Context is an open device: what is created through it lives until it is closed.
type Context struct {
	dev    *Device
	ctx    *device.Context
	events chan Event

	mu     sync.Mutex
	closed bool
	mrs    map[*MR]struct{}
}

// eventBacklog bounds the asynchronous events that nobody has read; further ones are dropped.
const eventBacklog = 256

// Open opens the device.
func (d *Device) Open() *Context {
	c := &Context{dev: d, events: make(chan Event, eventBacklog), mrs: map[*MR]struct{}{}}
	c.ctx = d.dev.Open(sink{c})
	return c
}

// Events are the asynchronous events of the context's objects.
func (c *Context) Events() <-chan Event { return c.events }

// Device is the device that c is open on.
func (c *Context) Device() *Device { return c.dev }

// Close destroys everything that was created through c, and unpins its memory.
func (c *Context) Close() error {
	c.ctx.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for m := range c.mrs {
		m.release()
	}
	clear(c.mrs)
	return nil
}

// sink hands events to the program's goroutines. It is called with the NIC held.
type sink struct{ c *Context }

func (s sink) Completion(cq *device.CQ) {
	if q, ok := cq.Cookie.(*CQ); ok {
		q.wake()
	}
}

func (s sink) Async(e device.AsyncEvent) {
	ev := Event{Type: e.Type}
	if e.QP != nil {
		ev.QP, _ = e.QP.Cookie.(*QP)
	}
	if e.CQ != nil {
		ev.CQ, _ = e.CQ.Cookie.(*CQ)
	}
	select {
	case s.c.events <- ev:
	default:
	}
}
