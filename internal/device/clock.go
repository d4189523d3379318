package device

import "rnic/internal/engine"

// Now is the NIC's clock in nanoseconds: what the times of completions are of. It is monotonic, starts
// with the process, and is the same for every NIC of it.
func (d *Device) Now() int64 { return engine.Now() }
