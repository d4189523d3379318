// Package pipe is the Link in memory: packets arrive in the order in which
// they were sent, none is lost, no ICRC is computed. Two ends join two NICs in
// a test; a loop joins two queue pairs of one NIC.
package pipe

import (
	"net"
	"sync"
	"sync/atomic"

	"rnic/internal/link"
	"rnic/internal/roce"
)

// DefaultCapacity is how many packets wait in one direction at most.
const DefaultCapacity = 1024

// Config says how packets are carried.
type Config struct {
	// Capacity in packets, DefaultCapacity when 0. Send accepts no more
	// until Recv makes room.
	Capacity int

	// Reference hands the sender's own bytes to the receiver instead of a
	// copy. The sender then must not overwrite them until the receiver, after
	// the Recv that returned them, has called Recv again: this is more than
	// link.Link promises, and right for one unit that does both; a decorator
	// that reuses buffers says so with Copy.
	Reference bool
}

// End is one end. Its Send and Recv may run on two goroutines, as may the
// two ends of a pair.
type End struct {
	in, out *queue

	sent, sentBytes         atomic.Uint64
	received, receivedBytes atomic.Uint64
	closed                  atomic.Bool
}

var _ link.Link = (*End)(nil)

// Pair returns two ends: what one sends the other receives.
func Pair(cfg Config) (a, b *End) {
	ab, ba := newQueue(cfg), newQueue(cfg)
	return &End{in: ba, out: ab}, &End{in: ab, out: ba}
}

// Loop returns an end that receives what it sends.
func Loop(cfg Config) *End {
	q := newQueue(cfg)
	return &End{in: q, out: q}
}

// queue is one direction: a ring of packets. Those before free have been
// handed out and given back, those before next are the receiver's until its
// next Recv, those before tail wait.
type queue struct {
	copies, always bool // what is sent is copied: now, and whatever Copy says

	badICRC, malformed atomic.Uint64 // dropped on arrival

	mu   sync.Mutex
	ring []slot
	// Positions count up; the slot is the position modulo the length.
	free, next, tail uint64
}

type slot struct {
	pkt link.Packet
	buf []byte // backing of pkt.Data, kept for the next packet here
}

func newQueue(cfg Config) *queue {
	n := cfg.Capacity
	if n <= 0 {
		n = DefaultCapacity
	}
	return &queue{copies: !cfg.Reference, always: !cfg.Reference, ring: make([]slot, n)}
}

func (q *queue) at(position uint64) *slot { return &q.ring[position%uint64(len(q.ring))] }

// put appends p's packet without its room for the ICRC, or drops it as the
// receiver of a wrong ICRC would; false if the queue is full.
func (q *queue) put(p *link.Packet) bool {
	switch {
	case len(p.Data) < link.MinPacketSize+roce.ICRCSize:
		q.malformed.Add(1)
		return true
	case p.Corrupt != 0:
		q.badICRC.Add(1)
		return true
	case q.tail-q.free == uint64(len(q.ring)):
		return false
	}
	s := q.at(q.tail)
	q.tail++
	n := len(p.Data) - roce.ICRCSize
	data := p.Data[:n:n]
	if q.copies {
		s.buf = append(s.buf[:0], data...)
		data = s.buf[:n:n]
	}
	s.pkt = link.Packet{Path: p.Path, Data: data}
	return true
}

// Send implements link.Link.
func (e *End) Send(pkts []link.Packet) (int, error) {
	if e.closed.Load() {
		return 0, &link.Error{Op: "send", Link: "pipe", Err: net.ErrClosed}
	}
	q := e.out
	n, bytes := 0, 0
	q.mu.Lock()
	for n < len(pkts) && q.put(&pkts[n]) {
		bytes += len(pkts[n].Data)
		n++
	}
	q.mu.Unlock()
	e.sent.Add(uint64(n))
	e.sentBytes.Add(uint64(bytes))
	return n, nil
}

// Recv implements link.Link.
func (e *End) Recv(pkts []link.Packet) (int, error) {
	if e.closed.Load() {
		return 0, &link.Error{Op: "receive", Link: "pipe", Err: net.ErrClosed}
	}
	q := e.in
	n, bytes := 0, 0
	q.mu.Lock()
	q.free = q.next // what the last Recv handed out
	for n < len(pkts) && q.next < q.tail {
		pkts[n] = q.at(q.next).pkt
		bytes += len(pkts[n].Data) + roce.ICRCSize
		q.next++
		n++
	}
	q.mu.Unlock()
	e.received.Add(uint64(n))
	e.receivedBytes.Add(uint64(bytes))
	return n, nil
}

// Copy says whether what is sent from now on is copied, whatever Config.Reference says: what is sent lies in buffers
// that are used again.
func (e *End) Copy(on bool) {
	e.out.mu.Lock()
	e.out.copies = on || e.out.always
	e.out.mu.Unlock()
}

// FDs is nil: nothing to poll.
func (e *End) FDs() []int { return nil }

// NextDelayed is 0: nothing is delayed here.
func (e *End) NextDelayed() int64 { return 0 }

// SetNow does nothing: no clock is needed here.
func (e *End) SetNow(int64) {}

// Stats returns the counters of this end.
func (e *End) Stats() link.Stats {
	return link.Stats{
		Sent: e.sent.Load(), SentBytes: e.sentBytes.Load(),
		Received: e.received.Load(), ReceivedBytes: e.receivedBytes.Load(),
		BadICRC: e.in.badICRC.Load(), Malformed: e.in.malformed.Load(),
	}
}

// Close closes this end; the other keeps what has been sent.
func (e *End) Close() error {
	e.closed.Store(true)
	return nil
}
