package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"rnic/internal/roce"
)

// general says what concerns no single connection.
func (a *Analyzer) general(r *Report) {
	for _, k := range sortedTroubles(a.troubles) {
		t := a.troubles[k]
		f := Finding{Severity: Failure, Packets: t.list, Count: t.count, Connection: fmt.Sprintf("%s -> %s", k.src, k.dst)}
		switch k.kind {
		case Unreachable:
			f.Code = CodeUnreachable
			f.Text = fmt.Sprintf("%s says that %s cannot be reached: %s.", k.from, k.dst, k.text)
			f.Advice = "Look at routes, firewalls and whether the peer's NIC is up (rnic doctor examines the way to a peer)."
		case TooBig:
			f.Code = CodePathMTU
			f.Text = fmt.Sprintf("%s says that a packet to %s is too big: the way carries %d bytes.", k.from, k.dst, k.mtu)
			f.Advice = fmt.Sprintf("Set the path MTU of the queue pairs to %s at most, or raise the MTU on the way.", fitting(k.mtu))
		case Fragment:
			f.Code = CodeFragments
			f.Text = "RoCEv2 packets come in IP fragments. RoCEv2 hardware does not put them together: they are lost."
			f.Advice = "The path MTU is larger than what the way carries: set a smaller one, or raise the MTU of the interfaces on the way."
		}
		r.add(f)
	}
	for _, who := range slices.SortedFunc(maps.Keys(a.arp), netip.Addr.Compare) {
		s := a.arp[who]
		if !s.answered && s.asked.count >= 2 && a.concerns(who) {
			severity, text := Failure, fmt.Sprintf("Nobody answers for %s: it was looked for %s (ARP, or neighbour discovery), so packets to it cannot leave.", who, times(s.asked.count))
			if a.roce > 0 && !slices.ContainsFunc(s.by, a.talks) { // requests come to all, answers do not
				severity = Info
				text = fmt.Sprintf("%s looked for %s %s (ARP, or neighbour discovery), and no answer is in this capture. No RoCEv2 packet comes from there: an answer may have gone another way.", s.by[0], who, times(s.asked.count))
			}
			r.add(Finding{Code: CodeNeighbour, Severity: severity, Packets: s.asked.list, Count: s.asked.count,
				Text:   text,
				Advice: "The address is wrong, its host is down, or it is in another network segment."})
		}
	}
	if a.segments.count > 0 {
		r.add(Finding{Code: CodeSegments, Severity: Info, Packets: a.segments.list, Count: a.segments.count,
			Text:   "Frames of several packets: the capture was made before the system cut them. Their ICRCs were not there yet.",
			Advice: "Capture with rnic capture, at the receiver, or on the wire to have them checked."})
	}
	if a.unknown.count > 0 {
		r.add(Finding{Code: CodeOpcode, Severity: Warning, Packets: a.unknown.list, Count: a.unknown.count,
			Text: "Packets with opcodes that the specification does not define: of a manufacturer, or not RoCEv2 at all."})
	}
}

// concerns tells whether an address that nobody answers for belongs to this traffic: packets to it would be seen if they could leave.
func (a *Analyzer) concerns(who netip.Addr) bool { return !a.talks(who) } // else it is alive

// talks tells whether RoCEv2 packets come from an address.
func (a *Analyzer) talks(who netip.Addr) bool {
	for k := range a.seen {
		if k.src == who {
			return true
		}
	}
	return false
}

func sortedTroubles(m map[troubleKey]*troubled) []troubleKey {
	var keys []troubleKey
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y troubleKey) int {
		if d := m[x].list[0] - m[y].list[0]; d != 0 {
			return d
		}
		return strings.Compare(fmt.Sprint(x), fmt.Sprint(y))
	})
	return keys
}

// fitting is the path MTU for packets of n bytes.
func fitting(n int) string {
	const overhead = 40 + 8 + 12 + 16 + 4 // IPv6, UDP, BTH, RETH, ICRC
	for _, mtu := range []int{4096, 2048, 1024, 512, 256} {
		if mtu+overhead <= n {
			return fmt.Sprint(mtu)
		}
	}
	return "256"
}

// connecting says what went wrong when a connection was asked for.
func (a *Analyzer) connecting(r *Report, d *dialogue) {
	name := fmt.Sprintf("%s -> %s, %s", d.key.from, d.key.to, d.serviceName())
	what := "request to connect (CM REQ)"
	if d.key.sidr {
		what = "request to resolve a service (SIDR REQ)"
	}
	switch {
	case d.rejected.n != 0 && d.key.sidr:
		r.add(Finding{Code: CodeRejected, Severity: Failure, Connection: name, Packets: []int{d.rejected.n}, Text: fmt.Sprintf("The service was refused: SIDR status %d.", d.reason)})
	case d.rejected.n != 0:
		reason, ok := rejectReasons[d.reason]
		if !ok {
			reason[0] = "a reason that the specification does not name"
		}
		who := d.key.to
		if !d.byPassive {
			who = d.key.from
		}
		severity := Failure
		if d.disconnect.n != 0 {
			severity = Info
		}
		r.add(Finding{Code: CodeRejected, Severity: severity, Connection: name, Packets: append(slices.Clone(d.requests.list), d.rejected.n), Count: 1,
			Text: fmt.Sprintf("%s rejected the connection: %s (CM REJ, reason %d).", who, reason[0], d.reason), Advice: reason[1]})
	case !d.answered && d.requests.count >= 2 || !d.answered && a.last.nanos-d.requests.last.nanos > 5e9:
		back := a.seen[addrs{d.key.to, d.key.from}]
		text := fmt.Sprintf("The %s was sent %s, and nothing answers.", what, times(d.requests.count))
		if !back {
			text += fmt.Sprintf(" Nothing at all comes from %s.", d.key.to)
		}
		r.add(Finding{Code: CodeCMNoAnswer, Severity: Failure, Connection: name, Packets: d.requests.list, Count: d.requests.count, Text: text,
			Advice: "Does a RoCEv2 NIC run at that address? Do firewalls pass UDP port 4791? rnic doctor examines the way."})
	case d.answered && d.requests.count > 1:
		r.add(Finding{Code: CodeCMNoAnswer, Severity: Warning, Connection: name, Packets: d.requests.list, Count: d.requests.count,
			Text: fmt.Sprintf("The %s had to be sent %s before it was answered: it, or the answer, was lost or late.", what, times(d.requests.count))})
	}
	if addr := d.localGID.Addr(); d.localGID != (roce.GID{}) && addr != d.key.from {
		r.add(Finding{Code: CodeTranslation, Severity: Failure, Connection: name, Packets: d.requests.list, Count: d.requests.count,
			Text: fmt.Sprintf("The request to connect says that it comes from %s, and its packet came from %s: addresses are translated on the way (NAT).", addr, d.key.from),
			Advice: "RoCEv2 does not work through address translation: the invariant CRC covers the addresses, and connections are bound to them. Use addresses " +
				"that both sides see alike, for containers those of the host's network."})
	}
}

// ofFlow says what went wrong in one direction of a connection.
func (a *Analyzer) ofFlow(r *Report, f *flow) {
	add := func(code string, s Severity, at *refs, text, advice string) {
		x := Finding{Code: code, Severity: s, Connection: f.name(), QPN: f.key.qpn, Text: text, Advice: advice}
		if at != nil {
			x.Packets, x.Count = slices.Clone(at.list), at.count
		}
		r.add(x)
	}
	a.integrity(f, add)
	f.settle(f, f.next)
	switch f.key.transport {
	case roce.TransportUC:
		a.unreliableLoss(f, add)
		a.outOfOrder(f, add)
		a.silent(f, add)
	case roce.TransportRC, roce.TransportXRC:
		a.refusals(f, add)
		a.outOfOrder(f, add)
		a.lost(f, add)
		a.unanswered(f, add)
		a.silent(f, add)
		a.notReady(f, add)
		a.mtu(f, add)
	}
	a.answersOnly(f, add)
	a.notCopies(f, add)
	a.sameNumber(f, add)
	a.rest(f, add)
}

type adder func(code string, s Severity, at *refs, text, advice string)

// integrity is about ICRCs and headers.
func (a *Analyzer) integrity(f *flow, add adder) {
	if f.malformed.count > 0 {
		add(CodeMalformed, Warning, &f.malformed, "Packets whose headers contradict their length, or of an unknown version: receivers drop them.", "")
	}
	if f.portChanged.n != 0 {
		add(CodePort, Info, &refs{count: 1, list: []int{f.portChanged.n}}, fmt.Sprintf("The UDP source port changes, from %d to %d: of a NIC that spreads its packets, of another connection to the same queue "+
			"pair, or of a translation of ports on the way. Packets of different ports may overtake each other.", f.srcPort, f.newPort), "")
	}
	if f.bad.count == 0 {
		return
	}
	all := f.good == 0
	switch {
	case all && f.bad.count > 1 && f.sameDelta:
		add(CodeTranslation, Failure, &f.bad, fmt.Sprintf("The ICRC is wrong in all %d packets, and fits other IP and UDP headers than they have now, the same in each: addresses or ports are translated "+
			"on the way (NAT). %sReceivers drop these packets.", f.bad.count, f.original()),
			"RoCEv2 does not work through address translation: the invariant CRC covers addresses and ports. Use addresses that both sides see alike, for containers those of the host's network.")
	case all && f.bad.count > 1:
		add(CodeICRCAll, Failure, &f.bad, fmt.Sprintf("The ICRC is wrong in all %d packets: the sender does not compute it as specified, something on the way changes the packets, or they were captured at the "+
			"sender before its NIC filled it in. Receivers drop such packets.", f.bad.count), "Capture at the receiver to tell these apart.")
	default:
		add(CodeICRC, Warning, &f.bad, fmt.Sprintf("%s of %d with a wrong ICRC: damaged on the way. Receivers drop them silently, and the sender finds out by its timer or a NAK.",
			plural(f.bad.count, "packet"), f.bad.count+f.good), "A cable, an optic, a switch or memory is bad: look at the error counters of the ports on the way.")
	}
}

// original says what the headers were before a translation, as far as the ICRC tells: if one word was changed alone, it is what the difference says.
func (f *flow) original() string {
	if x := changedWord(f.delta, 4); x[2] == 0 && x[3] == 0 {
		return fmt.Sprintf("It was sent from UDP port %d, not %d. ", f.srcPort^be.Uint16(x[:]), f.srcPort)
	}
	if !f.key.src.Is4() || len(f.badIP) != 28 {
		return ""
	}
	word := func(at int) netip.Addr {
		x := changedWord(f.delta, len(f.badIP)-at-4)
		for i := range x {
			x[i] ^= f.badIP[at+i]
		}
		return netip.AddrFrom4(x)
	}
	src, dst := word(12), word(16)
	switch {
	case src.IsPrivate() && !dst.IsPrivate():
		return fmt.Sprintf("If the source address alone was changed, it was %s. ", src)
	case dst.IsPrivate() && !src.IsPrivate():
		return fmt.Sprintf("If the destination address alone was changed, it was %s. ", dst)
	}
	return fmt.Sprintf("If one address alone was changed: the source was %s, or the destination was %s. ", src, dst)
}

func (a *Analyzer) unreliableLoss(f *flow, add adder) {
	if f.missing == 0 {
		return
	}
	at := refs{count: f.missing}
	var lost []string
	for _, g := range f.gaps {
		at.list = append(at.list, g.at.n)
		lost = append(lost, span(g))
	}
	add(CodeUCLost, Warning, &at, fmt.Sprintf("%s lost before this point: PSN %s. An unreliable connection does not send again: the messages are dropped.", plural(f.missing, "packet"), strings.Join(lost[:min(8, len(lost))], ", ")),
		"Use a reliable connection, or send less than the way carries.")
}

func span(g gap) string {
	if last := g.to.Add(-1); last != g.from {
		return fmt.Sprintf("%d to %d", uint32(g.from), uint32(last))
	}
	return fmt.Sprint(uint32(g.from))
}

// refusals are NAKs that end the connection.
func (a *Analyzer) refusals(f *flow, add adder) {
	for i := range f.fatal {
		x := &f.fatal[i]
		at := refs{list: []int{x.packet.at.n, x.at.n}, count: 1}
		request, ok := f.message(x.psn)
		target := ""
		if ok {
			target = fmt.Sprintf(" (%s of %s at address 0x%x with R_Key 0x%x)", request.op, plural(int(request.length), "byte"), request.va, request.rkey)
			if request.at.n != x.packet.at.n {
				at.list = append([]int{request.at.n}, at.list...)
			}
		}
		switch x.syndrome | 0x60 {
		case roce.NAKRemoteAccess:
			add(CodeAccess, Failure, &at, fmt.Sprintf("The responder refused the request with PSN %d%s: NAK, remote access error. The key is wrong or no longer valid, the address or length lies outside "+
				"of its memory region, or region or queue pair do not allow the operation. The connection ends; the requester completes with \"remote access error\".", uint32(x.psn), target),
				"Compare address, length and R_Key with what the peer registered, and the access flags of the region and of the queue pair (remote write, read, atomic).")
		case roce.NAKInvalidRequest:
			a.invalidRequest(f, x, at, target, add)
		default:
			add(CodeOperational, Failure, &at, fmt.Sprintf("The responder could not carry out the request with PSN %d%s: NAK, %s. The connection ends.", uint32(x.psn), target, x.syndrome),
				"The reason is on the responder's side: memory of a receive that is gone, or a fault of its queue pair. Look at its completions.")
		}
	}
}

// invalidRequest: of many reasons, a path MTU that differs is one that the packets show.
func (a *Analyzer) invalidRequest(f *flow, x *refusal, at refs, target string, add adder) {
	info := x.packet.op.Info()
	known := f.peer != nil && f.peer.mtu > 0 // the responder's path MTU
	differs := x.found && info != nil && (info.First || info.Middle) && x.packet.payload > 0 && !(known && f.peer.mtu == x.packet.payload)
	if x.found && info != nil && !differs && known && x.packet.payload > f.peer.mtu {
		differs = true
	}
	if differs {
		text := fmt.Sprintf("The responder refused PSN %d, a %s with %d bytes of payload: NAK, invalid request. The sender cuts messages into packets of %d bytes, and the responder's queue pair has another path MTU", uint32(x.psn), x.packet.op, x.packet.payload, x.packet.payload)
		if f.peer != nil && f.peer.mtu > 0 && f.peer.mtu != x.packet.payload {
			text += fmt.Sprintf(" (%d, as its own packets show)", f.peer.mtu)
		}
		or, compare := "the message does not fit the receive that is posted", "the sizes of receives"
		if info.Kind != roce.KindSend {
			or, compare = "its access flags do not allow the operation", "the responder's qp_access_flags"
		}
		add(CodeMTU, Failure, &at, text+", or "+or+".", "Give both queue pairs the same path MTU (ibv_modify_qp to RTR): the smaller of what the two interfaces carry; then compare "+compare+".")
		return
	}
	add(CodeRequest, Failure, &at, fmt.Sprintf("The responder refused the request with PSN %d%s: NAK, invalid request. The message is longer than the receive that is posted, more READs or atomics are outstanding than agreed on "+
		"(max_dest_rd_atomic), the operation is not offered, the queue pair's access flags do not allow it, or its address is not aligned. The connection ends.", uint32(x.psn), target), "Compare the size of receives, the responder's qp_access_flags, max_rd_atomic with the peer's max_dest_rd_atomic, and the path MTU on both sides.")
}

// lost are packets that NAKs tell of, and responses that are missing.
func (a *Analyzer) lost(f *flow, add adder) {
	if list := f.lostOnes(); len(list) > 0 {
		a.lostRequests(f, list, add)
	}
	if f.lateReads.count > 0 {
		add(CodeReordered, Warning, &f.lateReads, fmt.Sprintf("Responses of READs were overtaken by later ones on the way, not lost: PSN %s. Requesters take them in their order only, and ask for them again.", psns(f.lateReads.psns, f.lateReads.count)),
			"Packets of one connection take several ways: look for links or switches that spread single packets.")
	}
	if f.lostRead.count > 0 {
		add(CodeReadLost, Warning, &f.lostRead, fmt.Sprintf("Responses of READs are missing at this point: PSN %s. The requester asks for them again.", psns(f.lostRead.psns, f.lostRead.count)),
			"Look for drops on the way from the responder.")
	}
	if f.readAgain.count > 0 {
		add(CodeReadLost, Warning, &f.readAgain, fmt.Sprintf("READs or atomics were asked for again though this capture has responses to them, or to later ones: PSN %s. Responses were lost, overtaken by others, or came too late for the requester's timer.", psns(f.readAgain.psns, f.readAgain.count)),
			"Look for drops on the way from the responder to the requester, or capture at the requester.")
	}
	if f.ackLost.count > 0 {
		add(CodeAckLost, Warning, &f.ackLost, fmt.Sprintf("Sent again though this capture has the acknowledgement: PSN %s. Acknowledgements were lost behind this point, or came too late for the requester's timer.", psns(f.ackLost.psns, f.ackLost.count)),
			"Look for drops on the way from the responder to the requester; a local ACK timeout that is shorter than the round trip has the same effect.")
	}
	a.notSeen(f, add)
}

// notSeen are packets that were not seen, though later ones were.
func (a *Analyzer) notSeen(f *flow, add adder) {
	if f.missing <= 0 {
		return
	}
	at := refs{count: f.missing}
	var list []string
	wanted := 0
	for i := range f.gaps {
		g := &f.gaps[i]
		at.list = append(at.list, g.at.n)
		list = append(list, span(*g))
		if g.nak.n != 0 || len(g.filled) > 0 {
			wanted++
		}
	}
	severity := Warning
	text := fmt.Sprintf("%s did not come by this point, though later ones did: PSN %s. They were lost before, or the capture has left them out", plural(f.missing, "packet"), strings.Join(list[:min(8, len(list))], ", "))
	if wanted == 0 {
		severity = Info
		text += "; since nobody asked for them, and they were not sent again, the latter is likely"
	}
	add(CodeNotCaptured, severity, &at, text+".", "")
}

// lostRequests are the packets that NAKs tell of.
func (a *Analyzer) lostRequests(f *flow, list []loss, add adder) {
	var parts []string
	lost := f.pastLost + len(list)
	at := refs{count: lost}
	failed, behind := false, false
	for i := range list {
		l := &list[i]
		at.list = append(at.list, l.sent.n, l.nak.n, l.again.n)
		failed = failed || l.again.n == 0
		behind = behind || l.passed
		if i < 4 {
			parts = append(parts, l.text())
		}
	}
	at.list = slices.DeleteFunc(at.list, func(n int) bool { return n == 0 })
	them := "it with a NAK"
	if lost > 1 {
		them = "them with NAKs"
	}
	or := ""
	if behind && (f.reordered.count > 0 || len(list) < len(f.losses) || f.pastLate > 0) {
		or = ", or overtaken behind this point,"
	}
	text := fmt.Sprintf("%s lost%s on the way to the responder, which asked for %s (PSN sequence error). ", plural(lost, "packet"), or, them) + strings.Join(parts, " ")
	if lost > len(parts) {
		text += fmt.Sprintf(" And %d more.", lost-len(parts))
	}
	severity := Warning
	if failed && f.rounds.count == 0 && f.requests > 0 {
		severity = Failure
		text += " It was not sent again in this capture."
	}
	if f.requests == 0 {
		text += " The requests are not in this capture."
	}
	advice := "Look for drops in switches (no lossless class, no ECN), in the receiver's NIC or socket, and for bad cables."
	if behind {
		advice += " Where packets may take several ways, capture at the responder: there it shows whether they were lost or only overtaken."
	}
	add(CodeLost, severity, &at, text, advice)
}

func (l *loss) text() string {
	s := fmt.Sprintf("PSN %d", uint32(l.psn))
	switch {
	case l.early:
		s += " (sent before the capture began)"
	case l.sent.n != 0:
		s += fmt.Sprintf(" (packet %d, so it was lost behind this point)", l.sent.n)
	case l.round:
		s += " (missing among what was sent again, so it was lost before this point)"
	case l.passed:
		s += " (it passed this point, so it was lost behind it)"
	default:
		s += " (not in this capture, so it was lost before this point)"
	}
	s += fmt.Sprintf(": NAK in packet %d", l.nak.n)
	if l.naks > 1 {
		s += fmt.Sprintf(" and %d more", l.naks-1)
	}
	switch {
	case l.again.n == 0 && l.done.n != 0:
		s += fmt.Sprintf(", acknowledged in packet %d.", l.done.n)
	case l.again.n == 0:
		s += ", not sent again in this capture."
	case l.done.n != 0:
		s += fmt.Sprintf(", sent again in packet %d, acknowledged in packet %d after %s.", l.again.n, l.done.n, duration(l.done.nanos-l.nak.nanos))
	default:
		s += fmt.Sprintf(", sent again in packet %d.", l.again.n)
	}
	return s
}

// unanswered are requests that were sent again because nothing came back.
func (a *Analyzer) unanswered(f *flow, add adder) {
	back := a.seen[addrs{f.key.dst, f.key.src}]
	if !back && f.requests > 0 && a.oneWay(f, add) {
		return
	}
	f.repeats(add)
	q := f.quiet
	if q.tries == 0 {
		return
	}
	at := refs{list: []int{q.first.n, q.last.n}, count: q.tries}
	text := fmt.Sprintf("PSN %d was sent %s in %s (packets %d to %d), and nothing answered until the end of the capture", uint32(q.psn), times(q.tries+1), duration(q.last.nanos-q.first.nanos), q.first.n, q.last.n)
	switch {
	case f.cm != nil && q.tries >= int(f.cm.retries):
		text += fmt.Sprintf(": the requester has used up the %d retries that were agreed on, and completes with \"transport retry counter exceeded\".", f.cm.retries)
	case q.tries == 1 && a.last.nanos-q.last.nanos < 1e9:
		text += ": its answer may be behind that."
	case q.tries >= 7 || a.last.nanos-q.last.nanos > 2*(q.last.nanos-q.first.nanos):
		text += ": the requester has probably given up, and completed with \"transport retry counter exceeded\"."
	default:
		text += "."
	}
	code, advice := CodeRetries, "The responder's queue pair is in error or gone (its process ended?), or packets in one direction are lost."
	if !back {
		code = CodeNoAnswer
		text += fmt.Sprintf(" Nothing at all comes from %s in this capture: nobody is there, packets get lost, or the capture has one direction only.", f.key.dst)
		advice = "Does a RoCEv2 NIC run at that address, do firewalls pass UDP port 4791, is there a route back? rnic doctor examines the way. If the capture has one direction only, capture at the other side."
	}
	severity := Failure
	if q.tries == 1 && a.last.nanos-q.last.nanos < 1e9 {
		severity = Info // the answer may be behind the end of the capture
	}
	if f.biggest > 0 && q.size > f.biggest+64 && q.size > 1000 {
		code = CodePathMTU
		text += fmt.Sprintf(" It has %d bytes, while those that were acknowledged had %d at most: a link on the way may carry less than %d bytes.", q.size, f.biggest, q.size)
		advice = fmt.Sprintf("Compare the MTU of both interfaces and of all switches between with what packets of that size need; try a smaller path MTU than %d.", f.mtu)
	}
	if f.peer != nil && (f.pkey^f.peer.pkey)&0x7fff != 0 {
		code = CodePKey
		text += fmt.Sprintf(" The two directions have different partition keys, 0x%04x and 0x%04x: receivers drop silently what is of another partition.", f.pkey, f.peer.pkey)
		advice = "Give both queue pairs a P_Key index with the same key."
	}
	add(code, severity, &at, text, advice)
}

// repeats are requests that were sent again because nothing had come back in time, and were answered.
func (f *flow) repeats(add adder) {
	if f.ackLate.count > 0 {
		add(CodeLate, Info, &f.ackLate, fmt.Sprintf("Sent again just when the acknowledgement was on its way: PSN %s. It was late, nothing was lost: the responder, or its host, was busy, or the requester's timer is short.", psns(f.ackLate.psns, f.ackLate.count)), "")
	}
	for _, late := range []bool{false, true} {
		at, tries := refs{}, 0
		var parts []string
		for _, s := range f.silences {
			if s.late != late {
				continue
			}
			tries += s.tries
			at.list = append(at.list, s.first.n, s.last.n)
			if len(parts) < 4 {
				part := fmt.Sprintf("PSN %d was sent again %s (packets %d to %d)", uint32(s.psn), times(s.tries), s.first.n, s.last.n)
				if s.ended.n != 0 {
					part += fmt.Sprintf(", answered in packet %d after %s", s.ended.n, duration(s.ended.nanos-s.first.nanos))
				}
				parts = append(parts, part)
			}
		}
		if at.count = tries; tries == 0 {
			continue
		}
		text := fmt.Sprintf("Nothing acknowledged a request in time, so that it was sent again: %s. ", strings.Join(parts, "; "))
		if late {
			add(CodeLate, Info, &at, text+"It had arrived the first time, as what followed shows: the acknowledgement was late, or was made good by a later one.", "")
			continue
		}
		add(CodeNoAck, Warning, &at, text+"The request or its acknowledgement was lost, or the responder was late.",
			"Look for drops in both directions. Where it is always the last packet of a burst, no later one makes the responder send a NAK: only the timer finds out.")
	}
}

// stormOf is how many RNR NAKs for one packet in a row, or in all, are a storm.
const (
	stormOf    = 4
	stormTotal = 10
)

func (a *Analyzer) notReady(f *flow, add adder) {
	if f.rnr.count == 0 {
		return
	}
	advice := "The receiver posts its receives too late, or too few: post them before the connection is made, and keep as many as the sender has messages in flight. A larger min_rnr_timer makes the retries last longer."
	text := fmt.Sprintf("The responder had no receive posted, and said so %s (RNR NAK) for PSN %s; the waits that it asked for add up to %s", times(f.rnr.count), psns(f.rnr.psns, f.rnr.count), duration(f.rnrWait))
	severity, code := Warning, CodeRNR
	if f.rnrMost >= stormOf || f.rnr.count >= stormTotal {
		code = CodeRNRStorm
		text += fmt.Sprintf(", for one packet up to %s in a row", times(f.rnrMost))
	}
	text += "."
	switch {
	case f.rnrOpen && (f.nakFresh || f.rnrMost >= 2):
		severity = Failure
		text += " The last one was not made good in this capture: if the sender's rnr_retry is used up, it completes with \"RNR retry counter exceeded\"."
	case !f.rnrOpen:
		text += " Each was accepted in the end."
	}
	add(code, severity, &f.rnr, text, advice)
}

func (a *Analyzer) mtu(f *flow, add adder) {
	g := f.peer
	if g == nil || f.mtu == 0 || g.mtu == 0 || f.mtu == g.mtu || f.key.src.Compare(g.key.src) > 0 || slices.ContainsFunc(f.fatal, func(x refusal) bool { return x.syndrome == roce.NAKInvalidRequest }) {
		return
	}
	add(CodeMTU, Warning, &refs{list: []int{f.mtuAt.n, g.mtuAt.n}, count: 2}, fmt.Sprintf("The two directions cut messages into packets of different sizes, %d and %d bytes: the queue pairs have different path MTUs.", f.mtu, g.mtu),
		"Give both queue pairs the same path MTU (ibv_modify_qp to RTR).")
}

// rest is what is good to know.
func (a *Analyzer) rest(f *flow, add adder) {
	if f.marked.count > 0 || f.notified.count > 0 {
		at := &f.notified
		if at.count == 0 {
			at = &f.marked
		}
		add(CodeCongestion, Info, at, fmt.Sprintf("The network is congested: %s marked with ECN, and %s (CNP) to this queue pair, whose sender slows down.",
			plural(f.marked.count, "packet"), plural(f.notified.count, "congestion notification")), "")
	}
	var texts []string
	for t := range f.comments {
		if strings.HasPrefix(t, "retransmitted") || strings.HasPrefix(t, "dropped") || strings.HasPrefix(t, "refused") || strings.HasPrefix(t, "not accepted") {
			texts = append(texts, t)
		}
	}
	slices.Sort(texts)
	for _, t := range texts {
		severity := Warning
		if strings.HasPrefix(t, "retransmitted") { // what else is found says the same; this is why
			severity = Info
		}
		add(CodeNIC, severity, f.comments[t], fmt.Sprintf("The NIC that captured says of %s: %s.", plural(f.comments[t].count, "packet"), t), "")
	}
}
