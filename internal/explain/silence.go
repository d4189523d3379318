package explain

import (
	"fmt"
	"strings"

	"rnic/internal/roce"
)

// longSilence is how long a capture goes on behind a connection's last packet until that is worth a word.
const longSilence = 1_000_000_000

// oneWay says what can be said of requests whose answers the capture does not have. False: they really seem to have had none.
func (a *Analyzer) oneWay(f *flow, add adder) bool {
	answered := f.quiet.tries == 0
	for _, s := range f.silences {
		answered = answered || roce.Diff(f.next, s.psn) > 0 // it went on behind that
	}
	if f.quiet.tries > 0 && f.quiet.tries < 3 && f.newestAt.n > f.quiet.last.n {
		answered = true
	}
	if !answered || f.rounds.count == 0 && f.requests < 2 {
		return answered
	}
	text := fmt.Sprintf("The capture has no packet from %s to %s: one direction is missing, with the answers", f.key.dst, f.key.src)
	at, severity := refs{list: []int{f.first.n}, count: f.requests}, Info
	if f.rounds.count > 0 {
		at, severity = f.rounds, Warning
		text += fmt.Sprintf(". Requests were sent again %s, from PSN %s on, and it went on behind them, so they were answered; whether packets were lost, or their acknowledgements, or were late, this capture cannot tell",
			times(f.rounds.count), psns(f.rounds.psns, f.rounds.count))
	}
	add(CodeOneDirection, severity, &at, text+".", "Capture where both directions pass.")
	return true
}

// answersOnly says that requests are missing.
func (a *Analyzer) answersOnly(f *flow, add adder) {
	if f.answers == 0 || f.requests > 0 || a.seen[addrs{f.key.dst, f.key.src}] {
		return
	}
	add(CodeOneDirection, Info, &refs{list: []int{f.first.n}, count: f.answers}, fmt.Sprintf("The capture has answers, and no packet from %s to %s: one direction is missing, with the requests, so that less can be said.", f.key.dst, f.key.src), "Capture where both directions pass.")
}

// silent says what a connection leaves open whose requester sends no more. A responder has no timer: it never learns.
func (a *Analyzer) silent(f *flow, add adder) {
	quiet := a.last.nanos - f.last.nanos
	if !f.started || f.quiet.tries > 0 || len(f.fatal) > 0 || f.rnrOpen || f.ended || quiet < longSilence || f.cm != nil && f.cm.disconnect.n != 0 {
		return
	}
	open := f.asked.n != 0 && f.ackSeen && roce.Diff(f.askedPSN, f.acked) >= 0
	at := refs{list: []int{f.lastAt.n}, count: 1}
	switch {
	case f.unfinished:
		var what strings.Builder
		fmt.Fprintf(&what, "The last packet, with PSN %d, is in the middle of a message, and nothing more comes for %s to the end of the capture: the requester's process or host has ended, or the way from it is cut.", uint32(f.lastPSN), duration(quiet))
		what.WriteString(" The responder never learns of it: it has no timer, gets no completion for the message, and keeps the queue pair as it is.")
		add(CodeSilent, Warning, &at, what.String(), "Look at the requester. Programs that only receive find out by a heartbeat of their own, or by the connection manager's disconnection.")
	case open:
		at.list = []int{f.asked.n}
		add(CodeNoAck, Warning, &at, fmt.Sprintf("The request with PSN %d asks for an answer, and has none until the end of the capture, %s later; it was not sent again either.", uint32(f.askedPSN), duration(a.last.nanos-f.asked.nanos)),
			"The requester has no timer (a timeout of 0 waits for ever), or its process has ended; the answer was lost, or the responder has stopped. Look at both.")
	}
}
