package sim

import "rnic/internal/ring"

// Counters are what happened in a run, or in many.
type Counters struct {
	Runs                 uint64
	Packets, PacketBytes uint64
	// What the links did to packets.
	Dropped, Outage, Duplicated, Reordered, Delayed, Corrupted uint64
	// Work requests posted by opcode, and receives.
	Posted          [16]uint64
	PostedUD        uint64
	Marked, CNPs    uint64 // packets that links marked, notifications of them
	MulticastCopies uint64 // that reached a host with a member
	PostedUC        uint64
	DeliveredUC     uint64
	DroppedShared   uint64 // with a shared receive that it had taken
	PostedXRC       uint64
	DeliveredXRC    uint64 // that used a receive
	XRCWindows      uint64 // that went through a memory window
	PostedRecvs     uint64
	SharedRecvs     uint64 // of shared receive queues
	Limits          uint64 // events of these
	Resizes         uint64 // of queues
	Reregistered    uint64 // memory regions
	Moves           uint64 // queue pairs, to another unit of their NIC
	Selective       uint64 // ends of connections that repeat selectively
	// Paths.
	Silences    uint64 // that began
	PortChanges uint64 // of addresses, or all of a host's
	Migrating   uint64 // connections with an alternate path
	Armed       uint64 // their ends, each time
	Migrations  uint64 // that a program, a peer or a port asked for
	Failovers   uint64 // when retries were used up
	PathErrors  uint64 // migrations that were impossible
	// Communication managers: connections asked for, made, datagrams, and forged ones.
	CMConnections, CMMade, CMDatagrams, CMForged uint64
	// Completions polled.
	Completions, Errors, Flushed uint64
	Events                       uint64 // completion events
	Connections                  uint64
	Intended                     uint64 // errors that programs intended
	// Of the NICs.
	Retransmitted, Timeouts, EarlyResends, RNRNAKs, SequenceNAKs, Duplicates uint64
	VirtualNanos                                                             int64
}

// OpNames names the opcodes that programs use, in the order of Counters.Posted.
var OpNames = map[ring.SendOpcode]string{
	ring.OpWrite: "write", ring.OpWriteImm: "write with immediate", ring.OpSend: "send",
	ring.OpSendImm: "send with immediate", ring.OpRead: "read", ring.OpCompareSwap: "compare and swap",
	ring.OpFetchAdd: "fetch and add", ring.OpBindMW: "bind", ring.OpLocalInv: "local invalidate",
	ring.OpSendInv: "send with invalidate", ring.OpFlush: "flush", ring.OpAtomicWrite: "atomic write",
}

// Add adds o to c.
func (c *Counters) Add(o *Counters) {
	c.Runs += o.Runs
	c.Packets += o.Packets
	c.PacketBytes += o.PacketBytes
	c.Dropped += o.Dropped
	c.CMConnections += o.CMConnections
	c.CMMade += o.CMMade
	c.CMDatagrams += o.CMDatagrams
	c.CMForged += o.CMForged
	c.Outage += o.Outage
	c.Duplicated += o.Duplicated
	c.Reordered += o.Reordered
	c.Delayed += o.Delayed
	c.Corrupted += o.Corrupted
	for i := range c.Posted {
		c.Posted[i] += o.Posted[i]
	}
	c.PostedUD += o.PostedUD
	c.MulticastCopies += o.MulticastCopies
	c.Marked += o.Marked
	c.CNPs += o.CNPs
	c.PostedUC += o.PostedUC
	c.DeliveredUC += o.DeliveredUC
	c.DroppedShared += o.DroppedShared
	c.PostedXRC += o.PostedXRC
	c.DeliveredXRC += o.DeliveredXRC
	c.XRCWindows += o.XRCWindows
	c.PostedRecvs += o.PostedRecvs
	c.SharedRecvs += o.SharedRecvs
	c.Limits += o.Limits
	c.Resizes += o.Resizes
	c.Reregistered += o.Reregistered
	c.Moves += o.Moves
	c.Selective += o.Selective
	c.Silences += o.Silences
	c.PortChanges += o.PortChanges
	c.Migrating += o.Migrating
	c.Armed += o.Armed
	c.Migrations += o.Migrations
	c.Failovers += o.Failovers
	c.PathErrors += o.PathErrors
	c.Completions += o.Completions
	c.Errors += o.Errors
	c.Flushed += o.Flushed
	c.Events += o.Events
	c.Connections += o.Connections
	c.Intended += o.Intended
	c.Retransmitted += o.Retransmitted
	c.Timeouts += o.Timeouts
	c.EarlyResends += o.EarlyResends
	c.RNRNAKs += o.RNRNAKs
	c.SequenceNAKs += o.SequenceNAKs
	c.Duplicates += o.Duplicates
	c.VirtualNanos += o.VirtualNanos
}
