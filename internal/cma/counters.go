package cma

import (
	"rnic/internal/device"
	"rnic/internal/ibcm"
)

// Counters are what the connection manager of a NIC has not taken from the network at its word.
type Counters struct {
	Malformed    uint64 // no message of the connection manager: another length, class or version, not from queue pair 1, or a request that makes no sense
	Unknown      uint64 // of no connection, or out of place
	Foreign      uint64 // of a connection, but from another address or with other ids
	Duplicates   uint64 // that had come before, answered again
	BacklogDrops uint64 // requests that found the listener's backlog full
}

// Counters are those of a NIC; zero if the manager is not of it.
func (m *Manager) Counters(dev *device.Device) (c Counters) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.ports {
		if p.dev == dev {
			c = countersOf(p.cm.Stats())
			c.Malformed += p.strange
		}
	}
	return c
}

func countersOf(s ibcm.Stats) Counters {
	return Counters{Malformed: s.Malformed, Unknown: s.Unknown, Foreign: s.Foreign, Duplicates: s.Duplicates, BacklogDrops: s.BacklogDrops}
}
