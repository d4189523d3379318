package perf

import (
	"fmt"
	"time"

	"rnic/verbs"
)

// Over an unreliable connection the sender learns nothing of what arrives. Each message of the last round, and with
// --check each SEND, carries the number of its slot and its own in immediate data, by which the receiver knows
// what contents it must have. What is lost shows in the counters of the receiving NIC.

// reliable tells whether a completed send has arrived.
func (o *Options) reliable() bool { return o.Transport != "UC" && !o.datagrams() }

// datagrams tells whether messages go without connection.
func (o *Options) datagrams() bool { return o.Transport == "UD" }

// marked tells whether the receiver knows messages by their immediate data: some may be missing, or the queue
// pairs share the buffers.
func (o *Options) marked() bool { return !o.reliable() || o.SRQ }

// receives tells whether the server of a bandwidth measurement takes messages from its receive queues.
func (o *Options) receives() bool { return o.Kind.Verb == "send" || !o.reliable() && !o.Kind.Latency }

// qpType is the type of the client's queue pairs.
func (o *Options) qpType() verbs.QPType {
	switch o.Transport {
	case "UC":
		return verbs.UC
	case "UD":
		return verbs.UD
	case "XRC":
		return verbs.XRCINI
	}
	return verbs.RC
}

// checkTransport is the part of Validate that is about the transport.
func (o *Options) checkTransport() error {
	switch o.Transport {
	case "":
		o.Transport = "RC"
	case "RC", "UC", "XRC":
	case "UD":
		return o.checkDatagrams()
	default:
		return usage("transport %q: RC, UC, UD or XRC is needed", o.Transport)
	}
	switch verb := o.Kind.Verb; {
	case o.Transport == "XRC" && o.Kind.Latency && (verb == "write" || verb == "send"):
		return usage("%s needs requests both ways: XRC has them one way", o.Kind)
	case o.Process && o.Transport != "RC":
		return usage("--memory=process goes with RC")
	case o.reliable():
	case verb == "read" || verb == "atomic":
		return usage("%s needs an answer: UC has none", o.Kind)
	case verb == "write" && o.Check && !o.Kind.Latency:
		return usage("--check: nothing tells when a WRITE over UC has arrived; the last ones are verified in any case")
	}
	return nil
}

// postMarked sends a message that the receiver can verify, whichever are lost. Slots are used in turn.
func (b *bandwidth) postMarked(q int) error {
	s := b.free[q][0]
	b.free[q] = b.free[q][:copy(b.free[q], b.free[q][1:])]
	n := b.posted[q] & 0xffff
	b.posted[q]++
	b.slot[q][s].message = n
	fill(b.source(q, s), q, n)
	b.imm = uint32(s)<<16 | uint32(n)
	op := verbs.OpSendImm
	if b.o.Kind.Verb == "write" {
		op = verbs.OpWriteImm
	}
	return b.postSlot(q, s, op, b.mr)
}

// verifyMarked verifies a message that postMarked has sent.
func (r *receiver) verifyMarked(wc *verbs.WC) error {
	q, s := fromWRID(wc.ID) // of the buffer
	if r.o.Kind.Verb == "write" {
		s = int(wc.Imm >> 16)
	}
	if s >= r.o.recvSlots() {
		return fmt.Errorf("a message for slot %d of %d", s, r.o.recvSlots())
	}
	r.verified++
	return verify(r.target(q, s), r.sender(wc), int(wc.Imm&0xffff), &r.scratch)
}

// settleTime is how long messages that have left may be on their way.
const settleTime = 200 * time.Millisecond

// unverified is the error of a measurement of which nothing at all was seen to arrive.
func (r *receiver) unverified() error {
	if !r.o.marked() || r.o.Size == 0 || r.verified > 0 {
		return nil
	}
	return fmt.Errorf("none of the last messages has arrived")
}

// A tally is the counters of a NIC that a result reports.
type tally struct{ resent, timeouts, errs, lost uint64 }

func (e *endpoint) counters() tally { return countersOf(e.dev) }

func countersOf(dev *verbs.Device) tally {
	s := dev.Stats()
	return tally{s.RetransmittedPackets, s.Timeouts, s.ErrorCompletions, s.UCLost}
}

// since is what was counted after before.
func (t tally) since(before tally) tally {
	return tally{t.resent - before.resent, t.timeouts - before.timeouts, t.errs - before.errs, t.lost - before.lost}
}

// add adds what one of the two NICs has counted.
func (r *Result) add(t tally) {
	r.RetransmittedPackets += t.resent
	r.Timeouts += t.timeouts
	r.Errors += t.errs
	if r.LostPackets != nil {
		*r.LostPackets += t.lost
	}
}
