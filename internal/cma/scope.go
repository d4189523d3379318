package cma

import (
	"slices"
	"sync"

	"rnic/internal/device"
)

// Scope says which of the manager's NICs ids may use: those of the run that their owner belongs to. A nil Scope is all of them.
type Scope struct {
	mu   sync.Mutex
	devs []*device.Device
}

// Add lets ids of the scope use a NIC, from now on.
func (s *Scope) Add(d *device.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devs = append(s.devs, d)
}

// Remove takes back what Add gave, for what ids do from now on.
func (s *Scope) Remove(d *device.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.devs, d); i >= 0 {
		s.devs = slices.Delete(s.devs, i, i+1)
	}
}

// has tells whether ids of the scope may use a NIC.
func (s *Scope) has(d *device.Device) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.devs, d)
}

// meets tells whether there is a NIC that ids of both may use.
func (s *Scope) meets(o *Scope, ports []*port) bool {
	return s == o || slices.ContainsFunc(ports, func(p *port) bool { return s.has(p.dev) && o.has(p.dev) })
}
