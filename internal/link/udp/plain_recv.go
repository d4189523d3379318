package udp

import (
	"errors"
	"net"
	"sync"
	"time"

	"rnic/internal/link"
	"rnic/internal/roce"
)

const (
	// plainDatagrams is how many a link holds that have been received and not been taken by Recv.
	plainDatagrams = 1024

	// readRetry is the wait after errors in a row, which say nothing of what comes next (a network that is down).
	readRetry     = 10 * time.Millisecond
	errorsInARow  = 16
	plainBuffer   = roce.MaxPacketSize + 4 // longer ones are cut, and so seen to be longer
	plainTTL      = defaultTTL             // received packets are said to have: a GRH for UD has a hop limit
	batchReturned = 256
)

// datagram is one that was received.
type datagram struct {
	path roce.Path
	n    int
	data [plainBuffer]byte
}

// plainQueue is what readers have received for one link.
type plainQueue struct {
	wait bool // for room: the only link's readers leave in the socket what does not fit

	mu     sync.Mutex
	room   sync.Cond // free or made has changed, or closed
	free   []*datagram
	made   int
	full   []*datagram // oldest first
	bell   bell        // rings while full is not empty
	heard  func()
	closed bool
}

func (q *plainQueue) init(wait bool) (err error) {
	q.wait = wait
	q.room.L = &q.mu
	q.bell, err = newBell()
	return err
}

func (q *plainQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		q.room.Broadcast()
		q.bell.close()
	}
}

// spare is a datagram to receive into.
func (q *plainQueue) spare() *datagram {
	if k := len(q.free); k > 0 {
		d := q.free[k-1]
		q.free = q.free[:k-1]
		return d
	}
	if q.made < plainDatagrams {
		q.made++
		return new(datagram)
	}
	return nil
}

// put queues d and returns one to go on with, which is d if there is no room for it.
func (q *plainQueue) put(d *datagram) (next *datagram, taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for next = q.spare(); next == nil && q.wait && !q.closed; next = q.spare() {
		q.room.Wait()
	}
	if q.closed || next == nil {
		return d, false
	}
	q.full = append(q.full, d)
	if len(q.full) == 1 {
		q.bell.ring()
		if q.heard != nil {
			q.heard()
		}
	}
	return next, true
}

// take gives back what was lent and takes up to n.
func (q *plainQueue) take(lent []*datagram, n int) []*datagram {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return lent[:0]
	}
	if q.free = append(q.free, lent...); len(lent) > 0 {
		q.room.Broadcast()
	}
	n = min(n, len(q.full))
	lent = append(lent[:0], q.full[:n]...)
	q.full = append(q.full[:0], q.full[n:]...)
	switch {
	case n == 0:
	case len(q.full) == 0:
		q.bell.clear()
	case q.heard != nil: // whoever was told may take this for all there was
		q.heard()
	}
	return lent
}

// read receives from one socket until it is closed.
func (g *plainSockets) read(s *plainSocket) {
	d := new(datagram)
	failed := 0
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(d.data[:])
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if tooLong(err) {
				g.links[0].counters.malformed.Add(1)
				continue
			}
			if failed++; failed >= errorsInARow {
				time.Sleep(readRetry)
			}
			continue
		}
		failed = 0
		d.n = n
		d.path = roce.Path{Src: from.Addr().Unmap().WithZone(""), Dst: s.addr, SrcPort: from.Port(), TTL: plainTTL}
		l := g.linkOf(d.data[:n])
		var taken bool
		if d, taken = l.queue.put(d); !taken {
			l.counters.drops.Add(1)
		}
	}
}

// linkOf is the link of the destination queue pair; the first of what is too short to have one.
func (g *plainSockets) linkOf(data []byte) *Plain {
	if len(g.links) == 1 || len(data) < minPacket {
		return g.links[0]
	}
	num := roce.BTH(data).DestQP()
	if num == multicastQPN {
		return g.links[0]
	}
	if moved := g.moved.Load(); moved != nil {
		if i, ok := (*moved)[num]; ok {
			return g.links[i]
		}
	}
	return g.links[num%uint32(len(g.links))]
}

// Recv implements link.Link.
func (l *Plain) Recv(pkts []link.Packet) (int, error) {
	if err := l.usable("receive"); err != nil {
		return 0, err
	}
	for {
		l.lent = l.queue.take(l.lent, min(len(pkts), batchReturned))
		if len(l.lent) == 0 {
			return 0, nil
		}
		n := 0
		for _, d := range l.lent {
			if l.check(d) {
				end := d.n - roce.ICRCSize
				pkts[n] = link.Packet{Path: d.path, Data: d.data[:end:end]}
				n++
			}
		}
		if n > 0 {
			return n, nil
		}
	}
}

// check verifies a datagram, and counts it.
func (l *Plain) check(d *datagram) bool {
	c := &l.counters
	switch {
	case d.n < minPacket || d.n > roce.MaxPacketSize || d.path.Src.Is4() != d.path.Dst.Is4():
		c.malformed.Add(1)
		l.refuse(&d.path, d.data[:d.n], false)
		return false
	case !l.idents.verifyLone(&d.path, d.data[:d.n]):
		c.badICRC.Add(1)
		l.refuse(&d.path, d.data[:d.n], true)
		return false
	}
	c.received.Add(1)
	c.receivedBytes.Add(uint64(d.n))
	return true
}
