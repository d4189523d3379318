package nic

import "rnic/internal/roce"

// What the unit finds wrong with itself. Check is called about once a second: it compares with what the call before has seen.

// TroubleKind says what is wrong.
type TroubleKind uint8

const (
	// TroubleStalled: a queue pair has work, and nothing would ever have made the unit look at it: no timer, no turn, no doorbell.
	// Check has given it a turn.
	TroubleStalled TroubleKind = iota
	// TroubleRepeats: most of what the unit sends it has sent before, for three calls in a row.
	TroubleRepeats
	// TroubleNotReady: the same, because peers have no receive posted.
	TroubleNotReady
)

// Trouble is one finding. Count is, of repeats, the queue pair's packets sent again in the last interval; of not ready, its RNR NAKs.
type Trouble struct {
	Kind  TroubleKind
	QP    *QP
	Count uint32
}

// seen is what Check remembers of a queue pair.
type seen struct {
	at           int64
	una          roce.PSN
	head, tail   uint32
	waits        uint8  // looks that have found it so, waiting for nothing
	resent, rnrs uint32 // as of the last call; QP.resent and QP.rnrs go on
}

// storm is what Check remembers of the unit's counters.
type storm struct {
	tx, resent, rnrs   uint64
	repeats, notReady  int
	saidRepeats, saidN bool
}

const (
	checkedAtOnce = 512         // queue pairs that one call looks at: they are others each time
	stalledAfter  = 900_000_000 // nanoseconds between two looks that count
	stalledLooks  = 3           // of those: between two of them everybody may have been stopped, or the machine asleep
	stormPackets  = 500         // in one interval
	stormRatio    = 2           // of what is sent, at least one in so many is a repeat
	stormRNRs     = 100
	stormCalls    = 3
)

// Check appends to found what is wrong, each storm once until it has passed.
func (n *NIC) Check(now int64, found []Trouble) []Trouble {
	n.now = max(n.now, now)
	looked := 0
	var worst, idlest Trouble
	for _, q := range n.qps {
		if looked++; looked > checkedAtOnce {
			break
		}
		if q.nic != n {
			continue
		}
		if q.stalled(now) {
			found = append(found, Trouble{Kind: TroubleStalled, QP: q})
			q.activate()
		}
		if c := q.resent - q.seen.resent; c > worst.Count {
			worst = Trouble{TroubleRepeats, q, c}
		}
		if c := q.rnrs - q.seen.rnrs; c > idlest.Count {
			idlest = Trouble{TroubleNotReady, q, c}
		}
		q.seen.resent, q.seen.rnrs = q.resent, q.rnrs
	}
	return n.checkStorms(now, found, worst, idlest)
}

func (n *NIC) checkStorms(now int64, found []Trouble, worst, idlest Trouble) []Trouble {
	s, st := &n.storm, &n.stats
	tx, resent, rnrs := st.TxPackets-s.tx, st.RetransmittedPackets-s.resent, st.RNRNAKsReceived-s.rnrs
	s.tx, s.resent, s.rnrs = st.TxPackets, st.RetransmittedPackets, st.RNRNAKsReceived
	notReady := rnrs >= stormRNRs && rnrs*stormRatio >= resent
	repeats := !notReady && resent >= stormPackets && resent*stormRatio >= tx
	if s.count(&s.notReady, &s.saidN, notReady, idlest.QP) {
		found = append(found, idlest)
	}
	if s.count(&s.repeats, &s.saidRepeats, repeats, worst.QP) {
		found = append(found, worst)
	}
	return found
}

// count counts calls with a storm, and tells when to speak of it: once its queue pair is among those looked at.
func (*storm) count(calls *int, said *bool, is bool, q *QP) bool {
	if !is {
		*calls, *said = 0, false
		return false
	}
	if *calls++; *calls < stormCalls || *said || q == nil {
		return false
	}
	*said = true
	return true
}

// stalled tells whether the queue pair has been waiting for nothing for some looks, and has not moved.
func (q *QP) stalled(now int64) bool {
	s, r := &q.seen, &q.req
	switch {
	case !q.waitsForNothing():
		s.waits = 0
	case s.waits == 0 || s.una != r.una || s.head != r.head || s.tail != r.tail:
		s.at, s.una, s.head, s.tail, s.waits = now, r.una, r.head, r.tail, 1
	case now-s.at >= stalledAfter:
		s.at = now
		s.waits++
	}
	if s.waits < stalledLooks {
		return false
	}
	s.waits = 0
	return true
}

// waitsForNothing tells whether the queue pair has requests, and is on no list and has no timer that would bring it on.
func (q *QP) waitsForNothing() bool {
	r := &q.req
	if q.state != RTS || r.stopped || r.failing || q.typ == XRCTGT {
		return false
	}
	for i := range q.sched.links {
		if q.sched.links[i].on {
			return false
		}
	}
	inFlight := r.head != r.tail
	if q.deadline() != 0 || inFlight && q.reliable() && q.ackTimeoutNanos() == 0 {
		return false // without a local ACK timer it waits for its peer for ever (9.7.6.1.3)
	}
	return inFlight || q.sq.PendingFrom(r.fetchPos) > 0
}
