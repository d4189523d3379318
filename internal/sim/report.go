package sim

import (
	"fmt"
	"io"
	"time"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// Report prints what the runs came to, and wall, how long they took.
func (s *Summary) Report(out io.Writer, wall time.Duration) {
	c := &s.Counters
	line := func(what, format string, args ...any) {
		fmt.Fprintf(out, "%-20s %s\n", what, fmt.Sprintf(format, args...))
	}
	line("seeds", "%d (%.0f a second)", c.Runs, float64(c.Runs)/max(wall.Seconds(), 1e-9))
	line("packets", "%d, %d bytes, hash %016x", c.Packets, c.PacketBytes, s.Hash)
	line("links", "%d dropped, %d lost in outages, %d corrupted, %d duplicated, %d reordered, %d delayed, %d marked (%d notifications)",
		c.Dropped, c.Outage, c.Corrupted, c.Duplicated, c.Reordered, c.Delayed, c.Marked, c.CNPs)
	var ops string
	for op := ring.SendOpcode(0); op < ring.SendOpcode(len(c.Posted)); op++ {
		if name := OpNames[op]; name != "" {
			ops += fmt.Sprintf("%d %s, ", c.Posted[op], name)
		}
	}
	line("operations", "%s%d datagrams (%d copies for members of groups), %d of unreliable connections (%d delivered, %d dropped with a shared receive), %d over XRC, %d receives, %d shared ones (%d limit events), %d queues resized, %d regions reregistered, %d queue pairs moved", ops, c.PostedUD, c.MulticastCopies, c.PostedUC, c.DeliveredUC, c.DroppedShared, c.PostedXRC, c.PostedRecvs,
		c.SharedRecvs, c.Limits, c.Resizes, c.Reregistered, c.Moves)
	line("connections", "%d, with %d intended errors", c.Connections, c.Intended)
	line("managers", "%d connections asked for by communication managers, %d of them made for good, %d datagrams, %d forged ones",
		c.CMConnections, c.CMMade, c.CMDatagrams, c.CMForged)
	line("paths", "%d silences, %d port changes, %d connections with alternate paths: %d times armed, %d migrations asked for, %d when retries were used up, %d impossible",
		c.Silences, c.PortChanges, c.Migrating, c.Armed, c.Migrations, c.Failovers, c.PathErrors)
	line("completions", "%d, of these %d errors and %d flushed; %d events", c.Completions, c.Errors, c.Flushed, c.Events)
	line("recovery", "%d packets retransmitted, %d timeouts, %d early resends, %d sequence NAKs, %d RNR NAKs, %d duplicate requests",
		c.Retransmitted, c.Timeouts, c.EarlyResends, c.SequenceNAKs, c.RNRNAKs, c.Duplicates)
	met, of := s.Coverage.Share()
	line("coverage", "%.1f%% of %d combinations of an operation, the state of its queue pair and a fault", 100*float64(met)/float64(of), of)
	line("time", "%s virtual, %s wall", time.Duration(c.VirtualNanos).Round(time.Millisecond), wall.Round(time.Millisecond))
}

// ReportFailure prints what was violated, the steps before it, and how to repeat the run.
func (r *Result) ReportFailure(out io.Writer, p nic.Planted) {
	for _, l := range r.Violation.Tail {
		fmt.Fprintln(out, l)
	}
	fmt.Fprintf(out, "\nseed %d: %v\nrepeat with: %s\n", r.Seed, r.Violation, r.Replay(p))
}
