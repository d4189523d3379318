package explain

import (
	"bufio"
	"errors"
	"io"
	"net/netip"
	"slices"

	"rnic/internal/roce"
)

const (
	maxFlows    = 16384
	maxComments = 16 // different ones of a flow
	maxTroubles = 256
	maxWaiting  = 64 // flows that an answer is compared with
)

// Analyzer takes the packets of a capture in order.
type Analyzer struct {
	frames, roce, left int // left: of flows beyond maxFlows
	first, last        ref
	segments           refs
	truncated          refs
	unknown            refs // opcodes

	flows   map[flowKey]*flow
	order   []*flow
	between map[addrs][]*flow // RC requests and where they go
	seen    map[addrs]bool    // addresses between which something went
	pairs   map[flowKey]flowKey
	reused  map[flowKey]bool // another flow had that before
	cm      cm

	troubles map[troubleKey]*troubled
	arp      map[netip.Addr]*arpState
}

type addrs struct{ src, dst netip.Addr }

type troubleKey struct {
	kind           TroubleKind
	src, dst, from netip.Addr
	text           string
	mtu            int
}

type troubled struct{ refs }

type arpState struct {
	asked    refs
	by       []netip.Addr // who asked, the first few
	answered bool
}

// NewAnalyzer makes one.
func NewAnalyzer() *Analyzer {
	return &Analyzer{flows: map[flowKey]*flow{}, between: map[addrs][]*flow{}, seen: map[addrs]bool{}, pairs: map[flowKey]flowKey{}, reused: map[flowKey]bool{}, troubles: map[troubleKey]*troubled{},
		arp: map[netip.Addr]*arpState{}, cm: cm{dialogues: map[cmKey]*dialogue{}}}
}

// Explain reads a whole capture. The report is of what came before an error.
func Explain(r io.Reader) (*Report, error) {
	rd, err := NewReader(bufio.NewReaderSize(r, 256<<10)) // the Reader takes a frame in pieces
	if err != nil {
		return nil, err
	}
	a := NewAnalyzer()
	var d Dissected
	for {
		f, err := rd.Next()
		if errors.Is(err, io.EOF) {
			return a.Report(), nil
		}
		if err != nil {
			return a.Report(), err
		}
		a.Frame(&f, &d)
	}
}

// Frame takes one frame; d is scratch.
func (a *Analyzer) Frame(f *Frame, d *Dissected) {
	a.frames++
	at := ref{f.Number, f.Nanos}
	if a.first.n == 0 {
		a.first = at
	}
	a.last = at
	Dissect(f, d)
	if len(f.Data) < f.Length && len(d.Packets) > 0 {
		a.truncated.add(at)
	}
	if d.Segments {
		a.segments.add(at)
	}
	if d.Trouble != nil {
		a.trouble(at, d.Trouble)
	}
	for i := range d.Packets {
		a.packet(&d.Packets[i])
	}
}

func (a *Analyzer) trouble(at ref, t *Trouble) {
	switch t.Kind {
	case ARPRequest, ARPReply:
		if t.Kind == ARPRequest && (!t.From.IsValid() || t.From.IsUnspecified()) {
			return // somebody looks whether his own address is free: silence is what he wants
		}
		who := t.Dst
		if t.Kind == ARPReply {
			who = t.Src
		}
		s := a.arp[who]
		if s == nil {
			if len(a.arp) >= maxTroubles {
				return
			}
			s = &arpState{}
			a.arp[who] = s
		}
		if t.Kind == ARPReply {
			s.answered = true
		} else {
			s.asked.add(at)
			if len(s.by) < keptRefs && !slices.Contains(s.by, t.From) {
				s.by = append(s.by, t.From)
			}
		}
		return
	}
	k := troubleKey{t.Kind, t.Src, t.Dst, t.From, t.Text, t.MTU}
	if a.troubles[k] == nil {
		if len(a.troubles) >= maxTroubles {
			return
		}
		a.troubles[k] = &troubled{}
	}
	a.troubles[k].add(at)
}

// packet takes one RoCEv2 packet.
func (a *Analyzer) packet(p *Packet) {
	a.roce++
	f := a.flow(p)
	if f == nil {
		a.left++
		return
	}
	if p.Comment != "" {
		f.comment(p)
	}
	if f.copied(p) {
		return
	}
	f.packets++
	f.last = p.ref()
	if a.count(f, p) {
		return
	}
	f.payload += p.Payload
	if (p.Info.First || p.Info.Middle) && f.mtu != p.Payload {
		f.mtu, f.mtuAt = p.Payload, p.ref()
	}
	switch f.key.transport {
	case roce.TransportRC, roce.TransportXRC:
		if p.Info.Request {
			a.note(f)
			f.request(p)
			return
		}
		f.answers++
		f.response(p)
		to := a.answered(f, p)
		if to == nil {
			to = f.withoutRequests()
		}
		to.answer(p)
	case roce.TransportUC:
		f.unreliable(p)
	case roce.TransportUD:
		if p.BTH.DestQP() == 1 {
			a.mad(p)
		}
	}
}

// count counts what is not of the connection's course. True: nothing more is to be had from the packet.
func (a *Analyzer) count(f *flow, p *Packet) bool {
	if p.SrcPort != f.srcPort && f.portChanged.n == 0 {
		f.portChanged, f.newPort = p.ref(), p.SrcPort
	}
	if p.TOS&3 == 3 {
		f.marked.add(p.ref())
	}
	switch p.ICRC {
	case Good:
		f.good++
	case Bad:
		f.badICRC(p)
		if f.good > 0 {
			return true // the receiver drops it
		}
	}
	switch {
	case p.Malformed:
		f.malformed.add(p.ref())
		return true
	case p.Info == nil:
		a.unknown.add(p.ref())
		return true
	case p.Info.Kind == roce.KindCNP:
		f.notified.add(p.ref())
		return true
	}
	return false
}

func (f *flow) badICRC(p *Packet) {
	if f.bad.count == 0 {
		f.delta, f.sameDelta, f.badIP = p.delta, true, append([]byte(nil), p.ip...)
	}
	f.sameDelta = f.sameDelta && f.delta == p.delta
	f.bad.add(p.ref())
}

func (f *flow) comment(p *Packet) {
	if f.comments == nil {
		f.comments = map[string]*refs{}
	}
	r := f.comments[p.Comment]
	if r == nil {
		if len(f.comments) >= maxComments {
			return
		}
		r = &refs{}
		f.comments[p.Comment] = r
	}
	r.add(p.ref())
}

// flow is the one that the packet is of.
func (a *Analyzer) flow(p *Packet) *flow {
	k := flowKey{p.Src, p.Dst, p.BTH.DestQP(), roce.Transport(p.Op >> 5)}
	if k.transport == roce.TransportCNP || p.Op == roce.SelectiveAck { // which are of connections
		k.transport = roce.TransportRC
	}
	f := a.flows[k]
	if f != nil && f.vantage == p.Vantage && f.another(p) {
		a.end(f)
		f = nil
	}
	if f == nil {
		if len(a.order) >= maxFlows {
			return nil
		}
		f = &flow{key: k, again: a.reused[k], sightings: sightings{vantage: p.Vantage}, first: p.ref(), srcPort: p.SrcPort, pkey: p.BTH.PKey()}
		a.flows[k] = f
		a.order = append(a.order, f)
		a.seen[addrs{k.src, k.dst}] = true
		if other, ok := a.pairs[k]; ok {
			a.join(f, a.flows[other])
		}
	}
	return f
}

func (a *Analyzer) join(f, g *flow) {
	if f == nil || g == nil || f == g || f.peer != nil || g.peer != nil || f.ended || g.ended {
		return
	}
	f.peer, g.peer = g, f
	if f.cm == nil {
		f.cm = g.cm
	}
	if g.cm == nil {
		g.cm = f.cm
	}
}

// note makes a flow with requests one that answers are looked for.
func (a *Analyzer) note(f *flow) {
	if f.requests > 0 {
		return
	}
	k := addrs{f.key.src, f.key.dst}
	a.between[k] = append(a.between[k], f)
}

// answered is the flow whose requests p, of flow f, answers; nil if that is not known. Packets do not say where they come from
// but for the address: of those between the same addresses, the flow that waits for this PSN is taken.
func (a *Analyzer) answered(f *flow, p *Packet) *flow {
	if f.peer != nil {
		return f.peer
	}
	var best *flow
	score := 0
	psn := p.BTH.PSN()
	list := a.between[addrs{f.key.dst, f.key.src}]
	for i := len(list) - 1; i >= 0 && i >= len(list)-maxWaiting; i-- {
		g := list[i]
		if g.peer != nil || g.ended || g.key.transport != f.key.transport {
			continue
		}
		s := 0
		d := roce.Diff(g.next, psn)
		switch {
		case g.lastPSN == psn && !g.ackSeen:
			s = 3
		case d > 0 && d <= 4096:
			s = 2
		case d > -1024 && d < 1<<16 && g.slack > 0: // the response of a READ
			s = 1
		}
		if s > score || s == score && s > 0 && best != nil && g.lastAt.n > best.lastAt.n && f.answers > 1 {
			best, score = g, s
		}
	}
	if best != nil {
		a.join(f, best)
	}
	return best
}

// withoutRequests takes the answers to requests that are not in the capture.
func (f *flow) withoutRequests() *flow {
	if f.absent == nil {
		f.absent = &flow{key: flowKey{src: f.key.dst, dst: f.key.src, transport: f.key.transport}, first: f.first, sightings: sightings{vantage: f.vantage}}
	}
	return f.absent
}

// overtaken is by how many packets one may be late, at most; what goes back further is another connection.
const overtaken = 1024

// unreliable watches the PSNs of an unreliable connection.
func (f *flow) unreliable(p *Packet) {
	r := &f.requester
	psn := p.BTH.PSN()
	r.requests++
	if r.started {
		switch d := int(roce.Diff(psn, r.next)); {
		case d < 0 && d > -overtaken: // a later one has overtaken it, or it came twice: the next is still that behind the highest
			if !r.late(psn) {
				return
			}
			r.missing--
			r.wasLate(psn, p.ref(), r.lastAt)
			return
		case d > 0 && !f.moved:
			r.missing += d
			if len(r.gaps) < keptGaps {
				r.gaps = append(r.gaps, gap{from: r.next, to: psn, at: p.ref()})
			}
		}
	}
	if !r.started {
		r.from = psn
	}
	f.moved = false
	r.advanced += max(0, int64(roce.Diff(psn, r.next)))
	r.started, r.next = true, psn.Add(1)
	r.unfinished = p.Info.First || p.Info.Middle
	r.lastPSN, r.lastAt = psn, p.ref()
}

// late takes a packet out of the gap that it has left.
func (r *requester) late(psn roce.PSN) bool {
	for i := range r.gaps {
		g := &r.gaps[i]
		if roce.Diff(psn, g.from) < 0 || roce.Diff(g.to, psn) <= 0 {
			continue
		}
		next, to := psn.Add(1), g.to
		switch {
		case psn == g.from && next == to:
			r.gaps = slices.Delete(r.gaps, i, i+1)
		case psn == g.from:
			g.from = next
		case next == to:
			g.to = psn
		case len(r.gaps) < keptGaps:
			rest := *g
			rest.from, rest.to, rest.filled = next, to, slices.Clone(g.filled)
			g.to = psn
			r.gaps = slices.Insert(r.gaps, i+1, rest)
		default:
			return false
		}
		return true
	}
	return false
}
