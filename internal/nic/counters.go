package nic

import (
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// QPCounters are one queue pair's own, for those who ask for them when it is made (QPInit.Counters): the unit that
// drives it counts, so they are read with the units held. They go on over a reset.
type QPCounters struct {
	SentMessages, SentBytes         uint64 // requests of this side that have completed well; bytes of the messages, READ and atomic included
	ReceivedMessages, ReceivedBytes uint64 // SEND and WRITE of the peer, executed; bytes of payload
	ReadsServed, ReadServedBytes    uint64 // READ requests of the peer, of which a long READ may have several
	AtomicsServed                   uint64 // atomics, ATOMIC WRITE and FLUSH of the peer
	TxPackets, RxPackets            uint64 // acknowledgements and responses included
	Retransmitted                   uint64 // packets, or packets of a READ's response that are asked for again: once for each request
	Timeouts                        uint64 // of the local ACK timer
	Duplicates                      uint64 // requests received again
	RNRSent, RNRReceived            uint64 // RNR NAKs
	SeqNAKsSent, SeqNAKsReceived    uint64
	NAKsSent, NAKsReceived          uint64 // all others, which end the connection
	Dropped                         uint64 // UD and UC: messages without a receive, too long, or incomplete
	Failed                          uint64 // requests of this side that have completed with an error of their own, not flushed

	// What hardware takes amiss.
	ReceivesTaken    uint64
	LateReceives     uint64 // RNR NAKs before the first receive that was ever there
	UnsignalledRun   uint32 // requests since the last signalled one
	Overruns         uint64 // requests that came when that many without a signal fill the send queue
	UnknownKeys      uint64 // remote keys of no region, or of one that is gone; UnknownKey is the last
	UnknownKey       uint32
	UnknownLKey      uint32 // the same of local keys
	UnknownLKeys     uint64
	UnalignedAtomics uint64 // requested by this side
	UnalignedAddr    uint64 // the last one's address
	TooManyReads     uint64 // READs and atomics of the peer beyond MaxDestRDAtomic
}

// Add adds the sums of another queue pair.
func (c *QPCounters) Add(o *QPCounters) {
	for _, s := range [...]struct {
		to   *uint64
		from uint64
	}{
		{&c.SentMessages, o.SentMessages}, {&c.SentBytes, o.SentBytes}, {&c.ReceivedMessages, o.ReceivedMessages}, {&c.ReceivedBytes, o.ReceivedBytes},
		{&c.ReadsServed, o.ReadsServed}, {&c.ReadServedBytes, o.ReadServedBytes}, {&c.AtomicsServed, o.AtomicsServed},
		{&c.TxPackets, o.TxPackets}, {&c.RxPackets, o.RxPackets}, {&c.Retransmitted, o.Retransmitted}, {&c.Timeouts, o.Timeouts},
		{&c.Duplicates, o.Duplicates}, {&c.RNRSent, o.RNRSent}, {&c.RNRReceived, o.RNRReceived}, {&c.SeqNAKsSent, o.SeqNAKsSent},
		{&c.SeqNAKsReceived, o.SeqNAKsReceived}, {&c.NAKsSent, o.NAKsSent}, {&c.NAKsReceived, o.NAKsReceived}, {&c.Dropped, o.Dropped},
		{&c.Failed, o.Failed},
	} {
		*s.to += s.from
	}
}

// Counters are the queue pair's own; nil if it was made without.
func (q *QP) Counters() *QPCounters { return q.count }

func (q *QP) countRetransmitted() {
	q.resent++
	q.nic.stats.RetransmittedPackets++
	if c := q.count; c != nil {
		c.Retransmitted++
	}
}

func (q *QP) countDropped() {
	if c := q.count; c != nil {
		c.Dropped++
	}
}

func (c *QPCounters) requestDone(w *sendRequest, status ring.Status) {
	if status != ring.StatusSuccess {
		c.Failed++
		return
	}
	if !w.local() {
		c.SentMessages++
		c.SentBytes += uint64(w.length)
	}
}

// requestFetched looks at a request that the program has posted. A NIC in hardware lets go of a send queue's slots
// when the program polls the completion of a signalled request behind them: with a queue full of requests without
// a signal no other can be posted.
func (c *QPCounters) requestFetched(q *QP, w *sendRequest) {
	if c.UnsignalledRun >= q.sq.Capacity() {
		c.Overruns++
		c.UnsignalledRun = 0
	}
	if c.UnsignalledRun++; q.sigAll || w.flags&ring.SendSignaled != 0 {
		c.UnsignalledRun = 0
	}
	if (w.op == ring.OpCompareSwap || w.op == ring.OpFetchAdd || w.op == ring.OpAtomicWrite) && w.raddr&7 != 0 {
		c.UnalignedAtomics++
		c.UnalignedAddr = w.raddr
	}
}

func (c *QPCounters) received(last bool, bytes uint32) {
	c.ReceivedBytes += uint64(bytes)
	if last {
		c.ReceivedMessages++
	}
}

func (c *QPCounters) nakSent(s roce.Syndrome) {
	switch {
	case s == roce.NAKSequence:
		c.SeqNAKsSent++
	case s.Kind() == roce.SyndromeRNRNAK:
		c.RNRSent++
	default:
		c.NAKsSent++
	}
}

func (c *QPCounters) nakReceived(s roce.Syndrome) {
	switch {
	case s == roce.NAKSequence:
		c.SeqNAKsReceived++
	case s.Kind() == roce.SyndromeRNRNAK:
		c.RNRReceived++
	default:
		c.NAKsReceived++
	}
}

func (c *QPCounters) unknownKey(key uint32) {
	c.UnknownKeys++
	c.UnknownKey = key
}
