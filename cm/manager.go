package cm

import (
	"fmt"
	"sync"

	"rnic/internal/cma"
	"rnic/verbs"
)

// Manager is the connection manager of one NIC.
type Manager struct {
	dev *verbs.Device
	cma *cma.Manager

	once   sync.Once // of Close
	mu     sync.Mutex
	closed bool
	gone   bool // the NIC is closed, or about to be
	owners map[*cma.ID]owner
	open   map[closer]struct{} // connections and listeners
	queue  []cma.Event         // that have not been handed out
	wake   chan struct{}
	stop   chan struct{}

	noHook func() // ends portChanged

	streams streams
	work    sync.WaitGroup // goroutines that end by themselves
	loop    sync.WaitGroup // that which hands out events
}

// owner takes the events of an id, in order, from one goroutine.
type owner interface{ event(cma.Event) }

type closer interface{ Close() error }

// New makes the connection manager of a NIC, of which there can be one. The NIC stays the caller's: close the manager first.
func New(dev *verbs.Device) (*Manager, error) {
	c, err := cma.New(dev.Unwrap())
	if err != nil {
		return nil, fmt.Errorf("cm: %w", err)
	}
	m := &Manager{dev: dev, cma: c, owners: map[*cma.ID]owner{}, open: map[closer]struct{}{}, wake: make(chan struct{}, 1), stop: make(chan struct{}), streams: streams{idle: streamIdle}}
	m.loop.Add(1)
	go m.dispatch()
	m.noHook = dev.Unwrap().OnPortChange(m.portChanged)
	return m, nil
}

// portChanged closes the listeners, if the NIC is being closed: nothing will come to them any more. Connections learn of it by an event.
func (m *Manager) portChanged() {
	if !m.dev.Unwrap().Removed() {
		return
	}
	var listeners []*Listener
	m.mu.Lock()
	m.gone = true
	for c := range m.open {
		if l, ok := c.(*Listener); ok {
			listeners = append(listeners, l)
		}
	}
	m.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
}

// Device is the NIC.
func (m *Manager) Device() *verbs.Device { return m.dev }

// Close closes all connections, streams and listeners, and the manager. It waits until streams have delivered what was written, for up
// to 5 seconds. To close it again does nothing but wait for that.
func (m *Manager) Close() (err error) {
	m.once.Do(func() { err = m.close() })
	return err
}

func (m *Manager) close() error {
	m.mu.Lock()
	m.closed = true
	var all []closer
	for c := range m.open {
		all = append(all, c)
	}
	m.mu.Unlock()
	m.noHook()
	for _, c := range all {
		_ = c.Close()
	}
	m.work.Wait()
	close(m.stop)
	m.loop.Wait()
	err := m.cma.Close()
	m.streams.close()
	return err
}

// sink queues an event: it is called with the connection manager held, and must not block.
func (m *Manager) sink(e cma.Event) {
	m.mu.Lock()
	m.queue = append(m.queue, e)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *Manager) dispatch() {
	defer m.loop.Done()
	for {
		select {
		case <-m.stop:
			return
		case <-m.wake:
		}
		for {
			m.mu.Lock()
			if len(m.queue) == 0 {
				m.queue = nil
				m.mu.Unlock()
				break
			}
			e := m.queue[0]
			m.queue = m.queue[1:]
			to := m.owners[e.ID]
			if e.Type == cma.ConnectRequest {
				to = m.owners[e.Listen]
			}
			m.mu.Unlock()
			switch {
			case to != nil:
				to.event(e)
			case e.Type == cma.ConnectRequest: // of a listener that has been closed meanwhile
				e.ID.Destroy()
			}
		}
	}
}

// register makes o the receiver of an id's events, and c what Close closes.
func (m *Manager) register(id *cma.ID, o owner, c closer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case m.gone:
		return fmt.Errorf("NIC: %w", verbs.ErrClosed)
	}
	m.owners[id] = o
	if c != nil {
		m.open[c] = struct{}{}
	}
	return nil
}

// forget ends what register began, and the id.
func (m *Manager) forget(id *cma.ID, c closer) {
	id.Destroy() // first: what it still tells finds an owner
	m.mu.Lock()
	delete(m.owners, id)
	delete(m.open, c)
	m.mu.Unlock()
}

// start runs f, for which Close waits; false: the manager is closed.
func (m *Manager) start(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.work.Go(f)
	return true
}
