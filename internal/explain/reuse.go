package explain

import (
	"fmt"

	"rnic/internal/roce"
)

// Queue pair numbers are used again: a connection ends, and another one with the same number begins, with other PSNs.

const (
	// farAway is by how many PSNs no packet of a connection is from the one before, lost or sent again.
	farAway = 1 << 20
	// beforeFirst is by how many a packet is before the first of a connection, at most: what was sent again of the time before the capture.
	beforeFirst = 1 << 14
)

// another tells whether a packet is not of the flow, but of a later connection to the same queue pair number.
func (f *flow) another(p *Packet) bool {
	if p.Info == nil || p.Malformed || p.ICRC == Bad && f.good > 0 || f.moved {
		return false
	}
	r, psn := &f.requester, p.BTH.PSN()
	switch {
	case f.key.transport == roce.TransportUD || p.Info.Kind == roce.KindCNP:
		return false
	case !p.Info.Request:
		return f.peer != nil && f.peer.started && f.peer.outOfReach(psn)
	case !r.started:
		return false
	case r.advanced < farAway && roce.Diff(psn, r.from) < -beforeFirst:
		return true
	}
	return r.outOfReach(psn)
}

func (r *requester) outOfReach(psn roce.PSN) bool {
	d := int(roce.Diff(psn, r.next))
	return d > farAway+r.slack || d < -farAway
}

// end has the next packets of the connection's queue pairs be of another connection.
func (a *Analyzer) end(f *flow) {
	for _, x := range []*flow{f, f.peer} {
		if x == nil || x.ended {
			continue
		}
		x.ended = true
		if a.flows[x.key] == x {
			delete(a.flows, x.key)
			a.reused[x.key] = true
		}
	}
}

// begins has a message of the connection manager end what was there with the queue pair's number before.
func (a *Analyzer) begins(k flowKey, d *dialogue) {
	if f := a.flows[k]; f != nil && f.first.n < d.requests.list[0] {
		a.end(f)
	}
}

// sameNumber says that a number was another connection's before.
func (a *Analyzer) sameNumber(f *flow, add adder) {
	if !f.again || f.requests == 0 || f.cm != nil {
		return
	}
	add(CodeReused, Info, &refs{list: []int{f.first.n}, count: 1}, fmt.Sprintf("The PSNs go on at %d, far from where they were: another connection with the same queue pair number begins here, it is taken for, or the capture has left much out.", uint32(f.from)), "")
}
