package nic

// Nobody acknowledges what an unreliable connection sends, so no window can bound it. It is paced instead: the
// unreliable connections to one peer address share a rate, and a burst that its socket holds.
//
// The rate is kept by a virtual clock (as in the generic cell rate algorithm): every byte moves it on, and it
// may run ahead of the time by one burst. A queue pair takes a chunk of bytes at once. When the clock
// is too far ahead, it takes the next chunk nevertheless and sleeps until that is its own: those that
// wait are served in the order in which they asked, each woken once.

// PacePolicy bounds what unreliable connections send to one peer address. The zero value means the defaults.
type PacePolicy struct {
	BytesPerSecond uint64 // payload and overhead. Default 1 GB/s
	Burst          uint32 // bytes. Default 96 KiB
}

const paceChunk = 16 << 10

// paceState is a queue pair's part.
type paceState struct {
	allowance uint32 // bytes it may send
	pending   uint32 // bytes that become its own at until
	until     int64  // 0: it does not wait
}

func (p PacePolicy) withDefaults() PacePolicy {
	if p.BytesPerSecond == 0 {
		p.BytesPerSecond = 1_000_000_000
	}
	if p.Burst == 0 {
		p.Burst = 96 << 10
	}
	return p
}

// nanos is how long the rate takes for so many bytes.
func (p *PacePolicy) nanos(bytes uint32) int64 {
	return int64(uint64(bytes) * 1e9 / p.BytesPerSecond) // 2^32 times 10^9 fits 62 bits
}

// mayPace tells whether q may send cost bytes now; if not, q wakes when it may. Queue pairs of this NIC
// are not paced: nothing lies between them that could overflow.
func (q *QP) mayPace(now int64, cost uint32) bool {
	s := &q.pace
	if q.local || s.allowance >= cost {
		return true
	}
	if s.until != 0 {
		return false
	}
	policy, peer := &q.nic.transport.pace, q.req.peer
	units := max(1, int64(peer.share.units.Load())) // each has its part of the rate and of the burst
	chunk := max(paceChunk, cost)
	ahead := policy.nanos(policy.Burst)
	peer.clock = max(peer.clock, now-ahead) + units*policy.nanos(chunk)
	if peer.clock <= now {
		s.allowance += chunk
		return true
	}
	s.pending, s.until = chunk, peer.clock
	q.rearm()
	return false
}

// paceDue gives q what it waited for.
func (q *QP) paceDue() {
	s := &q.pace
	s.allowance += s.pending
	s.pending, s.until = 0, 0
	q.activate()
}

// returnPace gives back what q does not need: it has nothing more to send.
func (q *QP) returnPace() {
	s := &q.pace
	if n := s.allowance + s.pending; n > 0 && q.req.peer != nil {
		p := q.req.peer
		p.clock -= max(1, int64(p.share.units.Load())) * q.nic.transport.pace.nanos(n)
	}
	*s = paceState{}
}
