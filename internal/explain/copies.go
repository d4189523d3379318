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
	sum     uint64
}

const (
	fewPrints  = 16
	manyPrints = 512 // of the latest packets of a flow; a power of two

	// copyNanos is within what time the same bytes are a copy, where identifications do not tell: no requester's timer is that short.
	copyNanos = 300_000
	// countedNanos is less than any sender needs for 65,536 packets of a connection.
	countedNanos = 1_000_000_000
	// strangers is how many packets in a row that were never seen at a flow's place are one too many: the flow takes another way now.
	strangers = 16
)

// idents is how a flow's IPv4 identifications behave.
type idents struct {
	last         uint16
	any          bool
	steps, other int // forward by a little, and else
}

// ident is the IPv4 identification; ok: there is one.
func (p *Packet) ident() (id uint16, ok bool) {
	if len(p.ip) < 20 || p.ip[0]>>4 != 4 {
		return 0, false
	}
	return be.Uint16(p.ip[4:]), true
}

// sum is the same for copies of a packet, wherever they are seen: it leaves out what routers change (lifetime, marks).
func (p *Packet) sum() uint64 {
	var head [8]byte
	if id, ok := p.ident(); ok {
		be.PutUint16(head[:], id)
	}
	be.PutUint16(head[2:], p.SrcPort)
	be.PutUint32(head[4:], uint32(p.Size))
	var bth [roce.BTHSize]byte
	copy(bth[:], p.BTH)
	bth[4] = 0 // FECN and BECN
	rest := p.whole[min(len(p.whole), roce.BTHSize):]
	// (CRC-32 of what ends with its own CRC is a constant: another polynomial.)
	high := crc32.Update(crc32.Update(0, castagnoli, head[:]), castagnoli, bth[:])
	return uint64(high)<<32 | uint64(crc32.Update(high, castagnoli, rest))
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
	case f.prints == nil:
		f.prints = make([]print, fewPrints)
	case len(f.prints) == fewPrints && f.packets > fewPrints:
		few := f.prints
		f.prints = make([]print, manyPrints)
		for i := range few {
			if x := &few[i]; x.used {
				f.prints[int(x.psn)&(manyPrints/2-1)|i&(fewPrints/2)<<5] = *x
			}
		}
	}
	half := len(f.prints) / 2
	at := int(p.BTH.PSN()) & (half - 1)
	if p.Info != nil && !p.Info.Request {
		at |= half
	}
	return &f.prints[at]
}

// copied tells whether the packet is a copy of one that was seen before, or was seen at another place than the flow's others, and so is not to be
// taken for one that was sent again.
func (f *flow) copied(p *Packet) bool {
	s := f.slot(p)
	now := print{at: p.ref(), vantage: p.Vantage, psn: p.BTH.PSN(), used: true, sum: p.sum()}
	same := s.used && s.psn == now.psn && s.sum == now.sum
	if p.Vantage != f.vantage {
		f.copies++
		if same {
			return true
		}
		*s = now
		if f.strange++; f.strange < strangers {
			return true
		}
		f.vantage, f.moved = p.Vantage, true
	}
	f.strange = 0
	same = same && s.vantage == p.Vantage
	id, ok := p.ident()
	if same && f.isCopy(p, s.at) {
		f.copiedHere.addPSN(p.ref(), now.psn)
		return true
	}
	*s = now
	if ok && !same {
		f.idents.note(id)
	}
	return false
}

// isCopy judges a packet with the same bytes as one before.
func (f *flow) isCopy(p *Packet, before ref) bool {
	waited := p.Nanos - before.nanos
	switch {
	case strings.HasPrefix(p.Comment, "retransmitted"):
		return false
	case f.idents.counting():
		return waited < countedNanos
	case p.Info != nil && !p.Info.Request && f.peer != nil && f.peer.lastAt.n > before.n: // a request that came again has the same answer
		return false
	case f.nakAt.n > before.n: // it was asked for
		return false
	}
	return waited < copyNanos
}

// notCopies says what the copies are.
func (a *Analyzer) notCopies(f *flow, add adder) {
	n := f.copiedHere.count
	switch {
	case n == 0:
	case n*4 >= f.packets*3: // f.packets: without them
		add(CodeCopies, Info, &f.copiedHere, plural(n, "packet")+" came twice, byte for byte, nearly all of this direction: the capture has seen them at several places, as interfaces of a bridge, or it was made of several. "+
			"Nobody has sent them again: the copies are left out here.", "")
	default:
		why := "with the same IP identification, which a sender counts up"
		if !f.idents.counting() {
			why = "faster than anybody waits before sending again"
		}
		add(CodeCopies, Info, &f.copiedHere, plural(n, "packet")+" of "+plural(f.packets, "packet")+" came twice, byte for byte and "+why+": the network has made copies (PSN "+psns(f.copiedHere.psns, n)+"). "+
			"Nobody has sent them again; receivers take them for duplicates, and they do no harm.", "")
	}
}
