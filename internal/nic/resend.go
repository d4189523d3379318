package nic

import "rnic/internal/roce"

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
	backoff uint8 // doublings of the wait, until a round trip has been measured (RFC 6298, 5.7: Karn)
	state   resendState
	probe   bool     // to be sent
	upTo    roce.PSN // what was out when the probe was decided on ends here
}

type resendState uint8

const (
	resendIdle    resendState = iota
	resendProbed              // a probe is out
	resendSuspect             // it was answered, and something that was out then still is
)

// Defaults and bounds, nanoseconds.
const (
	defaultMinResend = 1e6
	firstResend      = 20e6 // before any round trip has been measured: a peer may be slow
	maxResend        = 1e9
	maxBackoff       = 10
)

func (e *earlyResend) start(now int64) {
	e.since = now
	if e.state == resendSuspect {
		e.state = resendIdle
	}
}

// progress is called for what the peer acknowledged, up to una. measured: it gave a
// round trip. Without one the answer may be to the packet as it was first sent, after a round trip
// longer than the wait, and a wait made short again would have every packet sent twice, none measured.
// known: one was measured before.
func (e *earlyResend) progress(now int64, una roce.PSN, measured, known bool) {
	e.since, e.probe = now, false
	switch {
	case measured:
		e.backoff = 0
	case known: // losses prevent measuring, rather than the wait
		e.backoff = min(e.backoff, 1)
	default: // more than this is loss too: probes must remain for what is lost next
		e.backoff = min(e.backoff, 2)
	}
	switch {
	case e.state != resendIdle && !e.upTo.After(una):
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
		most = max(least, timeout/4)
	}
	wait := max(least, firstResend)
	if rtt.smoothed != 0 {
		wait = max(least, rtt.smoothed+4*rtt.deviation)
		if e.state == resendSuspect {
			wait = max(least/2, rtt.smoothed)
		}
	}
	return e.since + min(min(most, wait)<<e.backoff, most)
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
