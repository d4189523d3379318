package sim

import (
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// randomCongestion has some hosts send at a rate that follows notifications.
func (w *world) randomCongestion(p *nic.Policy) {
	if !w.chance(30) {
		return
	}
	p.Congestion = nic.CongestionDCQCN
	p.DCQCN = nic.DCQCNPolicy{LineRate: pick(w, uint64(100_000_000), 1_000_000_000, 5_000_000_000), MinRate: 20_000_000,
		Burst: uint32(pick(w, 1, 4096, 65536)), CNPIntervalNanos: pick(w, int64(50_000), 5_000)}
}

// marks is how many packets that are ECN capable a link marks (RFC 3168).
func (w *world) randomMarks() float64 {
	if !w.chance(50) {
		return 0
	}
	return w.rng.Float64() * 0.5
}

// congested is what the model knows of a connection's notifications and rate.
type congested struct {
	markedAt int64 // when the first marked packet arrived; 0: none did
	cnps     int64 // notifications sent
	sentFrom int64 // when the first packet with data was sent; 0: none was
	sent     int64 // bytes of packets with data since
}

// observeCNP checks a notification that q sends: what it looks like, that there was a marked packet, and that
// they are not too many (A17.9.3; SIGCOMM 2015, 3.1).
func (w *world) observeCNP(q *qpair, pkt *roce.Packet) {
	w.count.CNPs++
	c := &q.congested
	b := pkt.BTH
	if q.typ != nic.RC || b.DestQP() != q.peer.qp.Num() || !b.BECN() || b.PSN() != 0 {
		w.fail("%v sends a notification to QP %06x with PSN %06x, BECN %v", q, b.DestQP(), uint32(b.PSN()), b.BECN())
	}
	interval := q.h.policy.DCQCN.CNPIntervalNanos
	if interval == 0 {
		interval = 50_000
	}
	c.cnps++
	// They are decided on when a marked packet arrives, and sent some time afterwards.
	if c.markedAt == 0 || c.cnps > 1+(w.now-c.markedAt)/interval {
		w.fail("%v sends notification %d %s after the first marked packet: one in %s is allowed", q, c.cnps, clock(w.now-c.markedAt), clock(interval))
	}
}

// observeRate checks that a connection with a rate does not send faster than its line.
func (w *world) observeRate(q *qpair, pkt *roce.Packet) {
	p := &q.h.policy
	if p.Congestion != nic.CongestionDCQCN || len(pkt.Payload) == 0 || q.peer.h == q.h {
		return
	}
	c := &q.congested
	if c.sentFrom == 0 {
		c.sentFrom = w.now
	}
	c.sent += int64(len(pkt.Payload))
	const probes = 16 << 10 // sent out of turn, and a packet that has begun
	if due := int64(float64(p.DCQCN.LineRate)*float64(w.now-c.sentFrom)/1e9) + int64(p.DCQCN.Burst) + probes; c.sent > due {
		w.fail("%v has sent %d bytes in %s, at %d bytes a second only %d are due", q, c.sent, clock(w.now-c.sentFrom), p.DCQCN.LineRate, due)
	}
}
