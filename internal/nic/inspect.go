package nic

// What the device service tells those who list a device's resources. Like all of the core it is called with the NIC
// held.

// Users is how many objects are in the protection domain.
func (p *PD) Users() int { return p.refs }

// Users is how many queues complete to the completion queue: a queue pair has two.
func (c *CQ) Users() int { return c.refs }

// Capacity is how many completions the queue holds.
func (c *CQ) Capacity() uint32 { return c.ring.Capacity() }

// PD is the region's protection domain, Length its length in bytes.
func (m *MR) PD() *PD        { return m.pd }
func (m *MR) Length() uint64 { return m.length }

// PD is the queue pair's protection domain, SRQ its shared receive queue or nil.
func (q *QP) PD() *PD   { return q.pd }
func (q *QP) SRQ() *SRQ { return q.srq }

// PD is the shared receive queue's protection domain.
func (s *SRQ) PD() *PD { return s.pd }

// OfXRC tells whether the queue is in a domain of XRC.
func (s *SRQ) OfXRC() bool { return s.xrcd != nil }

// Objects is how many there are of each kind.
type Objects struct{ PDs, CQs, QPs, MRs, MWs, AHs, SRQs int }

// Sum is how many there are.
func (o Objects) Sum() int { return o.PDs + o.CQs + o.QPs + o.MRs + o.MWs + o.AHs + o.SRQs }

// Objects counts the device's objects.
func (s *shared) Objects() Objects {
	regions := 0
	for _, m := range s.mrs {
		if m.window == nil {
			regions++
		}
	}
	return Objects{s.pds, s.cqs, len(s.qps), regions, s.mws, len(s.ahs), s.srqs}
}
