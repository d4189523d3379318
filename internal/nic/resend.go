package nic

// earlyResend notices the loss of a last packet, of an ACK or of a NAK within a few round trips,
// long before the local ACK timer does, which stays the specified last resort. When nothing has
// been acknowledged for the time of the usual round trip, the oldest packet is sent again alone, as
// a probe that asks for an acknowledgement. If that shows progress but not the end, and nothing more
// comes within a round trip, sending goes back. Neither costs a retry or touches the local ACK timer.
//
// Going back at the first answer would be wrong more often than right: when the peer was only
// late, that answer is the first of all those on their way.
type earlyResend struct {
	since   int64 // when the wait began
	backoff uint8
	state   resendState
	probe   bool // to be sent
}

type resendState uint8

const (
	resendIdle    resendState = iota
	resendProbed              // a probe is out
	resendSuspect             // it was answered, and something is still out
)

// Defaults and bounds, nanoseconds.
const (
	defaultMinResend = 1e6
	maxResend        = 1e9
	maxBackoff       = 10
)

func (e *earlyResend) start(now int64) {
	e.since = now
	if e.state == resendSuspect {
		e.state = resendIdle
	}
}

// progress is called for what the peer acknowledged; outstanding: not all has been.
func (e *earlyResend) progress(now int64, outstanding bool) {
	e.since, e.backoff, e.probe = now, 0, false
	switch {
	case !outstanding:
		e.state = resendIdle
	case e.state == resendProbed:
		e.state = resendSuspect
	}
}

// deadline is when something is to be done. Precondition: packets are outstanding. A pause of either
// side may have stretched the estimate of the round trip beyond all use: the local ACK timeout, which
// must not be the first to notice a loss, bounds the wait.
func (e *earlyResend) deadline(n *NIC, rtt *roundTrip, timeout int64) int64 {
	least, most := n.policy.leastResend(), int64(maxResend)
	if timeout > 0 {
		most = max(least, timeout/8)
	}
	if e.state == resendSuspect {
		return e.since + max(least/2, min(most, rtt.smoothed))
	}
	wait := min(most, max(least, rtt.smoothed+4*rtt.deviation))
	return e.since + min(wait<<e.backoff, 2*most)
}

func (p *Policy) leastResend() int64 {
	if p.MinResendNanos > 0 {
		return p.MinResendNanos
	}
	return defaultMinResend
}

// roundTrip is the estimate of RFC 6298, section 2, from packets that were sent once only and asked
// for an acknowledgement.
type roundTrip struct {
	smoothed, deviation int64 // nanoseconds
	sentAt              int64
	psn                 uint32
	timing              bool
}

func (t *roundTrip) sample(nanos int64) {
	if t.smoothed == 0 {
		t.smoothed, t.deviation = max(1, nanos), nanos/2
		return
	}
	d := t.smoothed - nanos
	if d < 0 {
		d = -d
	}
	t.deviation += (d - t.deviation) / 4
	t.smoothed = max(1, t.smoothed+(nanos-t.smoothed)/8)
}
