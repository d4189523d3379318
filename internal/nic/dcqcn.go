package nic

import "rnic/internal/roce"

// Congestion says how a connection reacts to congestion of the network.
type Congestion uint8

const (
	// CongestionWindow: windows that follow what is acknowledged and what is lost; see WindowPolicy. The default.
	CongestionWindow Congestion = iota
	// CongestionDCQCN: beside the windows a rate, which follows the notifications of marked packets (CNP). The
	// network must mark them (RFC 3168): switches that do not leave the connection at line rate.
	CongestionDCQCN
)

// DCQCNPolicy are the parameters of DCQCN as published: Zhu et al., "Congestion Control for Large-Scale RDMA
// Deployments", SIGCOMM 2015, sections 3 and 5. The zero value means its values.
type DCQCNPolicy struct {
	LineRate         uint64 // bytes a second; a connection begins with it. Default 5 GB/s (40 Gb/s)
	MinRate          uint64 // bytes a second. Default 1 MB/s
	Burst            uint32 // bytes that may leave together. Default 64 KiB
	AlphaTimerNanos  int64  // K: alpha decays when so long no notification came. Default 55 us
	GainLog2         uint8  // g = 2^-GainLog2. Default 8
	RateTimerNanos   int64  // T of the rate increase. Default 55 us
	ByteCounter      uint64 // B of the rate increase. Default 10 MB
	FastRecovery     uint32 // F: increases that only halve the way to the target. Default 5
	Additive, Hyper  uint64 // R_AI, R_HAI: bytes a second. Default 5 MB/s (40 Mb/s), 50 MB/s
	CNPIntervalNanos int64  // N: least distance of the notifications of one queue pair. Default 50 us
}

func (p DCQCNPolicy) withDefaults() DCQCNPolicy {
	def(&p.LineRate, 5_000_000_000)
	def(&p.MinRate, 1_000_000)
	def(&p.Burst, 64<<10)
	def(&p.AlphaTimerNanos, 55_000)
	def(&p.GainLog2, 8)
	def(&p.RateTimerNanos, 55_000)
	def(&p.ByteCounter, 10_000_000)
	def(&p.FastRecovery, 5)
	def(&p.Additive, 5_000_000)
	def(&p.Hyper, 50_000_000)
	def(&p.CNPIntervalNanos, 50_000)
	p.MinRate = min(p.MinRate, p.LineRate)
	p.GainLog2 = min(p.GainLog2, 16)
	return p
}

func def[T uint8 | uint32 | uint64 | int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// newRates is the policy that p asks for; nil: connections have no rate.
func newRates(p *Policy) ratePolicy {
	if p.Congestion != CongestionDCQCN {
		return nil
	}
	return &dcqcn{p: p.DCQCN}
}

// A ratePolicy lets connections send at a rate of their own. It is behind an interface as windowPolicy is.
type ratePolicy interface {
	start(r *rate, now int64)
	notified(r *rate, now int64)           // the peer has received a marked packet
	sent(r *rate, now int64, bytes uint32) // and when the next may leave: r.nextAt
}

// rate is a connection's state. Time passes in it only when it is looked at: a connection at rest costs no timer.
type rate struct {
	current, target uint64 // R_C, R_T: bytes a second
	alpha           uint64 // estimate of congestion, 1 is alphaOne
	alphaAt         int64  // when alpha was last changed
	timerAt         int64  // when the timer of the increase last expired
	timers, counts  uint32 // T, BC: expiries of timer and byte counter since the last notification
	bytes           uint64 // of the byte counter
	nextAt          int64  // nothing leaves before
	wakeAt          int64  // something waits for nextAt; 0: nothing
}

const alphaOne = 1 << 24

type dcqcn struct{ p DCQCNPolicy }

func (d *dcqcn) start(r *rate, now int64) {
	*r = rate{current: d.p.LineRate, target: d.p.LineRate, alpha: alphaOne, alphaAt: now, timerAt: now}
}

// notified cuts the rate: section 3.2, "rate decrease".
func (d *dcqcn) notified(r *rate, now int64) {
	d.advance(r, now)
	r.target = r.current
	r.current = max(d.p.MinRate, r.current-r.current*(r.alpha>>8)/(2*alphaOne>>8)) // 2^16 bits are left for the rate
	r.alpha += (alphaOne - r.alpha) >> d.p.GainLog2
	r.alphaAt, r.timerAt = now, now
	r.timers, r.counts, r.bytes = 0, 0, 0
}

func (d *dcqcn) sent(r *rate, now int64, bytes uint32) {
	d.advance(r, now)
	for r.bytes += uint64(bytes); r.bytes >= d.p.ByteCounter; r.bytes -= d.p.ByteCounter {
		r.counts++
		d.increase(r)
	}
	earliest := now - nanosAt(r.current, d.p.Burst)
	r.nextAt = max(r.nextAt, earliest) + nanosAt(r.current, bytes)
}

// nanosAt is how long bytes take at a rate.
func nanosAt(rate uint64, bytes uint32) int64 { return int64(uint64(bytes) * 1e9 / max(1, rate)) }

// advance lets both timers expire as often as they would have since they were last looked at.
func (d *dcqcn) advance(r *rate, now int64) {
	for ; r.alphaAt+d.p.AlphaTimerNanos <= now; r.alphaAt += d.p.AlphaTimerNanos {
		decay := r.alpha >> d.p.GainLog2
		if decay == 0 { // as small as it gets
			r.alphaAt = now
			break
		}
		r.alpha -= decay
	}
	for ; r.timerAt+d.p.RateTimerNanos <= now; r.timerAt += d.p.RateTimerNanos {
		if r.current == d.p.LineRate { // as fast as it gets
			r.timerAt = now
			break
		}
		r.timers++
		d.increase(r)
	}
}

// increase is one step of the rate increase: fast recovery, then additive, then hyper increase (section 3.2, figure 7).
func (d *dcqcn) increase(r *rate) {
	f := d.p.FastRecovery
	switch {
	case max(r.timers, r.counts) < f:
	case min(r.timers, r.counts) > f:
		r.target += uint64(min(min(r.timers, r.counts)-f, 1000)) * d.p.Hyper
	default:
		r.target += d.p.Additive
	}
	r.target = min(r.target, d.p.LineRate)
	if r.current = (r.current + r.target) / 2; r.target-r.current <= 1 {
		r.current = r.target
	}
}

// ---- What the connection does with it.

// startRate makes the connection one of a rate, if the policy is so, and has the network mark its packets
// rather than drop them: ECT(0), RFC 3168, 5.
func (q *QP) startRate(now int64) {
	policy := q.nic.transport.rates
	if policy == nil || q.typ != RC || q.local {
		q.rate = nil
		return
	}
	q.path.TOS = q.path.TOS&^ecnMask | ecnCapable
	if q.rate == nil {
		q.rate = new(rate)
		policy.start(q.rate, now)
	}
}

// The ECN field (RFC 3168, 5).
const (
	ecnMask    = 3
	ecnCapable = 2
	ecnCE      = 3 // congestion experienced
)

// mayLeave tells whether the rate lets a packet leave now; if not, q wakes when it does.
func (q *QP) mayLeave(now int64) bool {
	r := q.rate
	if r == nil || r.nextAt <= now || q.nic.planted == PlantedUnpaced {
		return true
	}
	r.wakeAt = r.nextAt
	q.rearm()
	return false
}

// left counts a packet of so many bytes from the BTH on.
func (q *QP) left(now int64, bytes int) {
	if q.rate != nil {
		q.nic.transport.rates.sent(q.rate, now, uint32(bytes)+outerBytes)
	}
}

// outerBytes is what an IPv4 packet on Ethernet has around BTH to pad: Ethernet header and FCS, IP, UDP, ICRC.
const outerBytes = 18 + 20 + 8 + 4

func (q *QP) rateDeadline() int64 {
	if q.rate == nil {
		return 0
	}
	return q.rate.wakeAt
}

func (q *QP) rateDue(now int64) {
	if r := q.rate; r != nil && r.wakeAt != 0 && r.wakeAt <= now {
		r.wakeAt = 0
		q.activate()
	}
}

// SendRate is the rate at which the connection may send, in bytes a second; 0: no rate bounds it.
func (q *QP) SendRate() uint64 {
	if q.rate == nil {
		return 0
	}
	return q.rate.current
}

// noteMark has a notification sent for a packet that the network has marked, unless one was sent
// a moment ago (A17.9.3; section 3.1 of the paper).
func (q *QP) noteMark(now int64, path *roce.Path) {
	if path.TOS&ecnMask != ecnCE {
		return
	}
	q.nic.stats.ECNMarked++
	r := &q.resp
	if q.typ != RC || r.cnpAt != 0 && now-r.cnpAt < q.nic.policy.DCQCN.CNPIntervalNanos && q.nic.planted != PlantedCNPFlood {
		return
	}
	r.cnpAt, r.cnpDue = now, true
	q.activate()
}

// sendCNP sends the notification: BTH with BECN and 16 bytes of zeros (A17.9.3). False: the batch is full.
func (q *QP) sendCNP(tx *Tx) bool {
	info := roce.CNP.Info()
	pkt := tx.packet(q, &q.path, q.local, info.HeaderLen, 0)
	if pkt == nil {
		return false
	}
	clear(pkt) // the reserved bytes count as header
	b := q.putBTH(pkt, roce.CNP, 0, 0)
	b.SetBECN(true)
	b.SetMigReq(false) // it is not of the connection (A17.9.3)
	q.resp.cnpDue = false
	q.nic.stats.CNPsSent++
	return true
}

// receiveCNP is the notification of congestion on the way to the peer. A connection without a rate takes it for
// a loss.
func (n *NIC) receiveCNP(now int64, rx *RxPacket, p *roce.Packet) {
	q := n.destination(p)
	if q == nil || q.nic != n || q.typ != RC || q.state < RTR || q.state > SQD || rx.Path.Src != q.path.Dst || rx.Path.Dst != q.path.Src ||
		!partitionsMatch(p.BTH.PKey(), n.pkeys[q.attr.PKeyIndex]) {
		n.stats.BadPackets++
		n.noteReceived(whyNoCNP(q, rx, p))
		return
	}
	n.stats.CNPsReceived++
	switch {
	case q.rate != nil:
		n.transport.rates.notified(q.rate, now)
	case q.req.peer != nil:
		q.lossSeen(now)
	}
}
