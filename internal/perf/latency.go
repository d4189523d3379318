package perf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"rnic/verbs"
)

// player is one side of a ping-pong.
type player struct {
	*endpoint
	peer    remote
	n       int // messages of this side so far
	flight  int // sends that have not completed
	wr      verbs.SendWR
	sge     [1]verbs.SGE
	recvs   []verbs.WC
	full    bool // whole messages are filled and verified, not only the last byte
	scratch []byte
	stages  *stages // nil: not asked for
	partner *player // the other side, where one goroutine plays both; nil: it plays elsewhere
}

func newPlayer(e *endpoint, peer remote) *player {
	return &player{endpoint: e, peer: peer, recvs: make([]verbs.WC, 1), full: e.o.Check}
}

// mark is the last byte of message n: it is never what it was before.
func mark(n int) byte { return byte(n%255) + 1 }

// send sends message number p.n.
func (p *player) send() error {
	b := p.source(0, 0)
	if p.full && len(b) > 1 {
		fill(b[:len(b)-1], 0, p.n)
	}
	if len(b) > 0 {
		b[len(b)-1] = mark(p.n)
	}
	p.n++
	p.wr = verbs.SendWR{Opcode: opcodes[p.o.Kind.Verb], Flags: verbs.Signaled, RemoteAddr: p.peer.Addr, RKey: p.peer.RKey, RemoteSRQ: p.remoteSRQ(0), CompareAdd: 1}
	switch {
	case len(b) > 0 && len(b) <= p.o.Inline:
		p.wr.Inline = b
	case len(b) > 0:
		p.sge[0] = p.mr.SGE(0, len(b))
		p.wr.SGE = p.sge[:]
	}
	p.address(&p.wr, 0)
	for {
		_, err := p.qps[0].PostSend(&p.wr)
		if err == nil {
			p.flight++
			return nil
		}
		if err := p.reap(1); err != nil {
			return err
		}
	}
}

// lazySends is how many completions of a ping-pong's sends may wait to be polled: looking for them in
// each round would be a part of the round trip.
const lazySends = 64

// reap takes completions of sends: at least n of them; with n = 0 what is there, once it is worth a look.
func (p *player) reap(n int) error {
	if n == 0 && p.flight < lazySends/2 {
		return nil
	}
	for spins := 0; n > 0 || p.flight > 0; {
		k, err := p.cq.Poll(p.wc[:min(len(p.wc), 8)])
		if err != nil {
			return err
		}
		for i := range p.wc[:k] {
			if err := p.wc[i].Err(); err != nil {
				return err
			}
		}
		p.flight -= k
		n -= k
		if k == 0 {
			if n <= 0 {
				return nil
			}
			if spins++; spins&1023 == 0 {
				if err := p.o.interrupted(); err != nil {
					return err
				}
				pause()
			}
		}
	}
	return nil
}

// arrived tells whether the peer's message number n is there.
func (p *player) arrived(n int) (bool, error) {
	if p.o.Kind.Verb == "send" {
		k, err := p.rcq.Poll(p.recvs)
		if k == 0 || err != nil {
			return false, err
		}
		if err := p.recvs[0].Err(); err != nil {
			return false, err
		}
		_, slot := fromWRID(p.recvs[0].ID)
		if err := p.check(n, slot); err != nil {
			return false, err
		}
		return true, p.postRecv(0, slot)
	}
	b := p.target(0, 0)
	if lastByte(b) != mark(n) {
		p.dev.Progress()
		if lastByte(b) != mark(n) {
			return false, nil
		}
	}
	return true, p.check(n, 0)
}

func (p *player) check(n, slot int) error {
	b := p.target(0, slot)
	if !p.full || len(b) < 2 {
		return nil
	}
	return verify(b[:len(b)-1], 0, n, &p.scratch)
}

// lastByte loads the last byte of b, which the NIC may be writing.
func lastByte(b []byte) byte {
	p := unsafe.Pointer(&b[len(b)-1])
	if uintptr(p)&7 == 7 {
		w := atomic.LoadUint64((*uint64)(unsafe.Add(p, -7)))
		return (*[8]byte)(unsafe.Pointer(&w))[7]
	}
	runtime.KeepAlive(b)
	return *(*byte)(p)
}

// lossTimeout is how long a message over UC or UD may take: nothing sends it again. A test shortens it.
var lossTimeout = 10 * time.Second

// late is the error when message n has not come for long.
func (p *player) late(n int, since time.Duration) error {
	switch {
	case since > stallTimeout:
		return fmt.Errorf("message %d of the peer has not come for %v", n, stallTimeout)
	case !p.o.reliable() && since > lossTimeout:
		return fmt.Errorf("message %d of the peer has not come for %v: one that is lost ends a ping-pong over %s", n, lossTimeout, p.o.Transport)
	}
	return nil
}

// await waits for the peer's message number n. stop, if set, ends that; else it lasts a limited time.
func (p *player) await(n int, stop func() bool) error {
	var since time.Time
	for spins := 0; ; spins++ {
		ok, err := p.arrived(n)
		if ok {
			return nil
		}
		if err != nil {
			return p.cause(err)
		}
		if spins&7 == 7 {
			if stop != nil && stop() {
				return errStopped
			}
			if p.partner != nil {
				p.partner.dev.Progress() // nobody else plays the other side
			}
		}
		if spins&1023 != 1023 {
			continue
		}
		if err := p.cause(p.o.interrupted()); err != nil {
			return err
		}
		if since.IsZero() {
			since = time.Now()
		} else if stop == nil {
			if err := p.late(n, time.Since(since)); err != nil {
				return err
			}
		}
		pause()
	}
}

// cause is what has failed: a send of either side that is here, or else err, which may be nil. A send that fails is seen late otherwise: its
// completion may wait, and what it was to bring is not missed before.
func (p *player) cause(err error) error {
	if p.partner == nil {
		return cmp.Or(p.failed(), err)
	}
	return cmp.Or(p.failed(), p.partner.failed(), err)
}

// failed takes the completions of sends that are there.
func (p *player) failed() error {
	for {
		k, err := p.cq.Poll(p.wc)
		if k == 0 || err != nil {
			return err
		}
		p.flight -= k
		for i := range p.wc[:k] {
			if err := p.wc[i].Err(); err != nil {
				return err
			}
		}
	}
}

// pause lets other goroutines run. It is not for every round of a loop that polls: it costs system calls.
func pause() { runtime.Gosched() }

// latency measures. other is the peer's player when it is in this process: then one goroutine plays
// both, in turn. The times are half round trips for WRITE and SEND, whole ones for READ and atomics.
func (p *player) latency(r *Result, other *player) error {
	if other != nil {
		p.partner, other.partner = other, p
	}
	before := p.counters()
	warm := min(1000, max(10, p.o.Iterations/10))
	const most = 1 << 20 // samples that have their room beforehand
	samples := make([]int64, 0, min(p.o.Iterations, most))
	start := time.Now()
	for i := 0; ; i++ {
		if i == warm {
			p.stages.forget()
			start = time.Now()
		}
		if p.o.Duration > 0 && i > warm && time.Since(start) >= p.o.Duration || p.o.Duration == 0 && i == warm+p.o.Iterations {
			break
		}
		if i&63 == 0 {
			if err := p.o.interrupted(); err != nil {
				return err
			}
		}
		t := time.Now()
		if err := p.round(i, other); err != nil {
			return err
		}
		if i >= warm {
			samples = append(samples, int64(time.Since(t)))
			p.o.Progress.add(1)
		}
	}
	r.rate(len(samples), time.Since(start))
	p.stages.result(r)
	if err := p.lastRound(other); err != nil {
		return err
	}
	if p.o.Kind.Verb == "write" || p.o.Kind.Verb == "send" {
		for i := range samples {
			samples[i] /= 2
		}
	}
	r.latency(samples)
	if p.o.Histogram {
		r.Histogram = histogram(samples)
	}
	r.add(p.counters().since(before))
	return nil
}

// lastRound is one more round, which is verified in any case where the peer's side can be told so.
func (p *player) lastRound(other *player) error {
	if other != nil {
		other.full = true
	} else if p.o.Kind.Verb != "read" && p.o.Kind.Verb != "atomic" {
		return nil
	}
	p.full = true
	return p.round(p.n, other)
}

// round is one exchange.
func (p *player) round(i int, other *player) error {
	p.stages.post()
	if err := p.send(); err != nil {
		return err
	}
	if p.o.Kind.Verb == "read" || p.o.Kind.Verb == "atomic" {
		if err := p.reap(1); err != nil {
			return err
		}
		return p.checkLanded(i)
	}
	if other != nil {
		if err := other.answer(i, nil); err != nil {
			return err
		}
	}
	if err := p.await(i, nil); err != nil {
		return err
	}
	return p.reap(0)
}

// checkLanded verifies what a READ or an atomic brought.
func (p *player) checkLanded(i int) error {
	if p.o.Kind.Verb == "atomic" {
		if old := binary.NativeEndian.Uint64(p.source(0, 0)); old != uint64(i) {
			return fmt.Errorf("atomic %d returned %d", i, old)
		}
		return nil
	}
	if !p.full {
		return nil
	}
	return verify(p.source(0, 0), 0, 0, &p.scratch)
}

// answer waits for message i and sends one back.
func (p *player) answer(i int, stop func() bool) error {
	if err := p.await(i, stop); err != nil {
		return err
	}
	p.stages.seen()
	if err := p.send(); err != nil {
		return err
	}
	return p.reap(0)
}
