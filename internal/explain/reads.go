package explain

import (
	"slices"

	"rnic/internal/roce"
)

// reads is what the responses of READs tell.
type reads struct {
	readNext    roce.PSN // responses: the next, within one READ
	inRead      bool
	readSeen    bool // readNext is set
	readRounds  int  // what the requester had sent again then
	readGaps    []readGap
	lostRead    refs // responses that are missing here
	lateReads   refs // and that were overtaken
	readTrouble int  // gaps in responses
}

// readGap are responses of a READ that were not seen, though later ones were.
type readGap struct {
	from, to roce.PSN
	at       ref
	rounds   int // what the requester had sent again when they were missing
}

// response watches the responses of a READ, in the flow that carries them.
func (f *flow) response(p *Packet) {
	psn := p.BTH.PSN()
	if p.Info.Kind != roce.KindReadResponse {
		return
	}
	rounds := 0
	if f.peer != nil {
		rounds = f.peer.resent.count
	}
	d := roce.Diff(psn, f.readNext)
	switch {
	case d >= 0 || !f.readSeen:
	case f.lateResponse(p, psn, rounds):
		return
	case p.Info.Middle || p.Info.Last || f.peer != nil && rounds == f.readRounds: // what is asked for again begins with a first one
		f.readGaps = nil // it has come, or comes
		return
	}
	if f.readSeen && d > 0 && (f.inRead || p.Info.Middle || p.Info.Last) {
		f.readTrouble++
		f.lostRead.addPSN(p.ref(), f.readNext)
		if len(f.readGaps) == keptGaps {
			f.readGaps = slices.Delete(f.readGaps, 0, 1)
		}
		f.readGaps = append(f.readGaps, readGap{f.readNext, psn, p.ref(), rounds})
	}
	f.readSeen, f.readRounds = true, rounds
	f.readNext, f.inRead = psn.Add(1), !p.Info.Ends()
}

// lateResponse takes a response that was missing, if nobody has asked for it again.
func (f *flow) lateResponse(p *Packet, psn roce.PSN, rounds int) bool {
	for i := range f.readGaps {
		g := &f.readGaps[i]
		if roce.Diff(psn, g.from) < 0 || roce.Diff(g.to, psn) <= 0 || g.rounds != rounds {
			continue
		}
		f.lateReads.addPSN(p.ref(), psn)
		if psn == g.from {
			g.from = psn.Add(1)
		}
		if psn == g.to.Add(-1) && g.from != g.to {
			g.to = psn
		}
		if g.from == g.to { // all have come
			f.lostRead.forget(g.at.n)
			f.readGaps = slices.Delete(f.readGaps, i, i+1)
		}
		return true
	}
	return false
}
