package cm

import "rnic/internal/cma"

// Counters are what a manager has not taken from the network at its word.
type Counters = cma.Counters

// Counters are those since the manager was made.
func (m *Manager) Counters() Counters { return m.cma.Counters(m.dev.Unwrap()) }
