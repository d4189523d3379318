package explain

import (
	"hash/crc32"
	"strings"

	"rnic/internal/roce"
)

// A packet that comes a second time was sent again, or it is a copy: of a network that duplicates, or of a capture that sees
// one packet at several places. Nothing on the way changes the IPv4 identification, which senders count up: a packet with another one was
// sent again, and one with the same is a copy. Over IPv6, and from senders that do not count, time has to tell: what was sent again was waited for.

// print is what a packet is known by again, at whatever place it is seen.
type print struct {
	at      ref
	vantage Vantage
	psn     roce.PSN
	used    bool
	answer  bool
	sum     uint64
	id      uint16
}

const (
	fewPrints  = 2 * maxPieces // until a flow has some packets; powers of two
	manyPrints = 512           // of the latest packets of a flow, half of them of answers

	// copyNanos is within what time the same bytes are a copy, where identifications do not tell, and nextNanos if no other packet came between:
	// no requester's timer is that short.
	copyNanos = 300_000
	nextNanos = 900_000
	// askedNanos is within what time a NAK is answered.
	askedNanos = 10_000_000
	// countedNanos is less than any sender needs for 65,536 packets of a connection.
	countedNanos = 1_000_000_000
	// strangers is how many packets in a row that were never seen at a flow's place are one too many: the flow takes another way now.
	strangers = 8
)

// idents is how a flow's IPv4 identifications behave.
type idents struct {
	last         uint16
	any          bool
	steps, other int // forward by a little, and else
}

// sightings are where a flow's packets are seen, and which.
type sightings struct {
	vantage       Vantage // where they are seen; what is seen elsewhere are copies
	strange       int     // packets seen elsewhere, in a row, of which no copy was seen here
	moved         bool    // to another vantage, just now
	only          print   // of the first packet
	prints        []print // of the latest packets, from the second one on
	idents        idents
	copiedHere    refs
	answered      bool     // topAnswer is set
	topAnswer     roce.PSN // the highest of an answer
	copiedAnswers int      // of which it is not sure
}

// ident is the IPv4 identification; ok: there is one.
func (p *Packet) ident() (id uint16, ok bool) {
	if len(p.ip) < 20 || p.ip[0]>>4 != 4 {
		return 0, false
	}
	return be.Uint16(p.ip[4:]) + p.piece, true
}

// sum is the same for copies of a packet, wherever they are seen, and for one that is sent again without a change: it leaves out what routers
// change (lifetime, marks), the identification, and the ICRC, which covers that.
func (p *Packet) sum() uint64 {
	var head [6]byte
	be.PutUint16(head[:], p.SrcPort)
	be.PutUint32(head[2:], uint32(p.Size))
	var bth [roce.BTHSize]byte
	copy(bth[:], p.BTH)
	bth[4] = 0 // FECN and BECN
	rest := p.whole
	if len(p.ip)+len(rest) == p.Size {
		rest = rest[:len(rest)-roce.ICRCSize]
	}
	rest = rest[min(len(rest), roce.BTHSize):]
	high := crc32.Update(crc32.Update(0, castagnoli, head[:]), castagnoli, bth[:])
	return uint64(high)<<32 | uint64(crc32.Update(high, crc32.IEEETable, rest))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// note takes the identification of a packet that was not seen before.
func (i *idents) note(id uint16) {
	if i.any {
		if d := int16(id - i.last); d > 0 && d < 1<<12 {
			i.steps++
		} else {
			i.other++
		}
	}
	i.last, i.any = id, true
}

// counting tells whether the sender counts, so that no two packets have the same. Packets that overtake each other step back.
func (i *idents) counting() bool { return i.steps >= 4 && i.other <= i.steps/8 }

// slot is where the print of a packet is kept. Requests and answers have PSNs of their own.
func (f *flow) slot(p *Packet) *print {
	switch {
	case f.prints == nil && f.packets == 0:
		return &f.only
	case f.prints == nil:
		f.prints = make([]print, fewPrints)
		if x := &f.only; x.used {
			f.prints[f.place(x.psn, x.answer)] = *x
		}
	case len(f.prints) == fewPrints && f.packets > fewPrints/4:
		few := f.prints
		f.prints = make([]print, manyPrints)
		for i := range few {
			if x := &few[i]; x.used {
				f.prints[f.place(x.psn, x.answer)] = *x
			}
		}
	}
	return &f.prints[f.place(p.BTH.PSN(), p.Info != nil && !p.Info.Request)]
}

// place spreads PSNs, which may be those of READs, many apart.
func (f *flow) place(psn roce.PSN, answer bool) int {
	half := len(f.prints) / 2
	at := int(uint32(psn)*0x9e3779b1>>8) & (half - 1)
	if answer {
		at += half
	}
	return at
}

// seen is when a request was seen last, if it was lately.
func (f *flow) seen(psn roce.PSN) ref {
	if len(f.prints) == 0 {
		return ref{}
	}
	if s := &f.prints[f.place(psn, false)]; s.used && s.psn == psn && s.vantage == f.vantage {
		return s.at
	}
	return ref{}
}

// copied tells whether the packet is a copy of one that was seen before, or was seen at another place than the flow's others, and so is not to be
// taken for one that was sent again.
func (f *flow) copied(p *Packet) bool {
	s := f.slot(p)
	now := print{at: p.ref(), vantage: p.Vantage, psn: p.BTH.PSN(), used: true, answer: p.Info != nil && !p.Info.Request, sum: p.sum()}
	id, hasID := p.ident()
	now.id = id
	same := s.used && s.psn == now.psn && s.sum == now.sum
	elsewhere := same && (s.id == id || !hasID || !f.idents.counting())
	if p.Vantage != f.vantage {
		f.copies++
		if elsewhere {
			return true
		}
		if f.behind(p) { // a copy of what is not remembered any more
			return true
		}
		*s = now
		if f.strange++; f.strange < strangers {
			return true
		}
		f.vantage, f.moved = p.Vantage, true
	}
	f.strange = 0
	if p.Info != nil && !p.Info.Request && (!f.answered || roce.Diff(now.psn, f.topAnswer) > 0) {
		f.answered, f.topAnswer = true, now.psn
	}
	same = same && s.vantage == p.Vantage
	if same && f.isCopy(p, s) {
		if p.Info != nil && !p.Info.Request && !f.idents.counting() { // who gets a copy answers it
			f.copiedAnswers++
			if f.peer != nil {
				f.peer.answeredTwice(now.psn)
			}
		} else {
			f.copiedHere.addPSN(p.ref(), now.psn)
		}
		return true
	}
	*s = now
	if hasID && !same {
		f.idents.note(id)
	}
	return false
}

// behind tells whether a packet seen elsewhere is no news: the flow was seen farther on.
func (f *flow) behind(p *Packet) bool {
	switch psn := p.BTH.PSN(); {
	case f.key.transport == roce.TransportUD || p.Info == nil:
		return false
	case p.Info.Request:
		return f.started && roce.Diff(psn, f.next) < 0
	default:
		return f.answered && roce.Diff(psn, f.topAnswer) <= 0
	}
}

// responds tells whether an operation has responses, or is one: those are asked for again as soon as a later one comes, without a NAK.
func responds(k roce.Kind) bool {
	switch k {
	case roce.KindReadRequest, roce.KindReadResponse, roce.KindCmpSwap, roce.KindFetchAdd, roce.KindAtomicAck, roce.KindAtomicWrite, roce.KindFlush:
		return true
	}
	return false
}

// isCopy judges a packet with the same bytes as one before.
func (f *flow) isCopy(p *Packet, s *print) bool {
	before, waited := s.at, p.Nanos-s.at.nanos
	id, _ := p.ident()
	switch {
	case strings.HasPrefix(p.Comment, "retransmitted"):
		return false
	case f.idents.counting():
		return id == s.id && waited < countedNanos
	case p.Info != nil && !p.Info.Request && f.peer != nil && f.peer.lastAt.n > before.n: // a request that came again has the same answer
		return false
	case f.nakAt.n > before.n: // it was asked for
		return false
	case f.last.n == before.n:
		return waited < nextNanos
	case f.nakAt.n != 0 && p.BTH.PSN() == f.nakPSN && p.Nanos-f.nakAt.nanos < askedNanos: // before it came first, late
		return false
	case f.held.on && p.BTH.PSN() == f.held.psn.Add(f.held.span): // then that one was not late: all from there on is sent again
		return false
	case p.Info != nil && p.Info.Request && responds(p.Info.Kind) && f.peer != nil && f.peer.last.n > before.n: // its response did not suit
		return false
	case p.Info != nil && !p.Info.Request && responds(p.Info.Kind):
		return f.last.n == before.n && waited < copyNanos/3 && id == s.id
	case p.Info != nil && p.Info.Request && responds(p.Info.Kind): // asked for again as soon as something is missing
		return f.last.n == before.n && f.lastPSN == p.BTH.PSN() && waited < copyNanos/3 && id == s.id
	case f.rounds.last.n != 0 && f.rounds.last.n == f.lastAt.n && p.BTH.PSN() == f.lastPSN.Add(1): // with those before it
		return false
	}
	return waited < copyNanos
}

// notCopies says what the copies are.
func (a *Analyzer) notCopies(f *flow, add adder) {
	at := f.copiedHere
	n := at.count
	switch all := n + f.copiedAnswers; {
	case all > 1 && all*4 >= f.packets*3: // f.packets: without them
		at.count, n = all, all
		if at.list == nil {
			at.list = []int{f.first.n}
		}
		add(CodeCopies, Info, &at, plural(n, "packet")+" came twice, byte for byte, nearly all of this direction: the capture has seen them at several places, as interfaces of a bridge, or it was made of several. "+
			"Nobody has sent them again: the copies are left out here.", "")
	case n > 0:
		why := "with the same IP identification, which a sender counts up"
		if !f.idents.counting() {
			why = "faster than anybody waits before sending again"
		}
		add(CodeCopies, Info, &at, plural(n, "packet")+" of "+plural(f.packets, "packet")+" came twice, byte for byte and "+why+": the network has made copies (PSN "+psns(at.psns, n)+"). "+
			"Nobody has sent them again; receivers take them for duplicates, and they do no harm.", "")
	}
}
