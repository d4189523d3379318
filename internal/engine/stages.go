package engine

import (
	"sync/atomic"

	"rnic/internal/link"
	"rnic/internal/roce"
)

// Stages are the times (Now) at which the latest message passed the stages of its way through a unit: what a
// measurement of latency with one message at a time needs. Packets of this NIC's own loop do not count, nor do
// acknowledgements and other responses.
type Stages struct {
	Doorbell atomic.Int64 // the unit had seen the doorbell
	Sent     atomic.Int64 // the link had taken the packets of the request
	Received atomic.Int64 // the link had delivered packets of a request
	Written  atomic.Int64 // and their bytes and completions were in the program's memory
}

// passed notes the time in one of the stages, if the packets have a request among them.
func passed(at *atomic.Int64, pkts []link.Packet) bool {
	for i := range pkts {
		if len(pkts[i].Data) == 0 {
			continue
		}
		if info := roce.Opcode(pkts[i].Data[0]).Info(); info != nil && info.Request {
			at.Store(Now())
			return true
		}
	}
	return false
}
