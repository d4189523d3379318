package device

import "rnic/internal/engine"

// Now is the NIC's clock in nanoseconds: what the times of completions are of. It is monotonic, starts
// with the process, and is the same for every NIC of it.
func (d *Device) Now() int64 { return engine.Now() }

// Stages are the times of a message's way through a NIC; see engine.Stages.
type Stages = engine.Stages

// Record has the NIC keep the times of its messages in s; nil ends that.
func (d *Device) Record(s *Stages) { d.engine.Record(s) }
