package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"rnic/verbs"
)

// stallTimeout ends a measurement in which nothing completes any more.
const stallTimeout = 60 * time.Second

// slotState is what a client knows of one buffer.
type slotState struct {
	message int  // number of the message in it
	reading bool // --check: what was written is being read back
}

// bandwidth is the client's side of a bandwidth measurement.
type bandwidth struct {
	*endpoint
	peer    remote
	direct  *endpoint // the peer, when it is in this process: its memory is looked at directly
	slot    [][]slotState
	posted  []int // of each queue pair
	ended   []int
	free    [][]int // slots of each queue pair
	scratch []byte
	errs    int
	imm     uint32       // of the next message, where it has any
	between func() error // nil, or what has to happen between the timed part and the last round
	pace    *pacer       // nil: as fast as possible
	turn    int          // paced: queue pair that sends next
	sent    int          // messages posted in all
	list    postList
}

func newBandwidth(e *endpoint, peer remote, direct *endpoint) *bandwidth {
	b := &bandwidth{endpoint: e, peer: peer, direct: direct, posted: make([]int, len(e.qps)), ended: make([]int, len(e.qps)),
		list: newPostList(e.o.PostList)}
	for q := range e.qps {
		b.slot = append(b.slot, make([]slotState, e.o.slots()))
		free := make([]int, 0, e.o.slots())
		for s := e.o.slots() - 1; s >= 0; s-- {
			free = append(free, s)
			b.slot[q][s].message = s
			fill(e.source(q, s), q, s)
		}
		b.free = append(b.free, free)
	}
	return b
}

// source is the buffer that a slot sends from.
func (e *endpoint) source(q, s int) []byte {
	o := e.off(q, s)
	return e.mr.Bytes()[o : o+e.o.Size]
}

// target is the buffer that a slot of the peer's writes to.
func (e *endpoint) target(q, s int) []byte {
	o := e.inOff(q, s)
	return e.in.Bytes()[o+e.o.grh():][:e.o.Size]
}

var opcodes = map[string]verbs.Opcode{"write": verbs.OpWrite, "read": verbs.OpRead, "send": verbs.OpSend, "atomic": verbs.OpFetchAdd}

// run keeps every queue pair full until more says no, and drains. It returns the messages completed.
func (b *bandwidth) run(more func(q, posted int) bool, fresh bool) (int, error) {
	total, inFlight := 0, 0
	last := time.Now()
	for {
		posted, held, err := b.postAll(more, fresh || b.o.Check)
		if err != nil {
			return total, err
		}
		if inFlight += posted; inFlight == 0 {
			if !held {
				return total, nil
			}
			last = time.Now()
			if err := b.idle(); err != nil {
				return total, err
			}
			continue
		}
		if b.direct != nil {
			// What one thread sends and receives stays in one core's caches: faster than two threads.
			b.direct.dev.Progress()
		}
		n, err := b.cq.Poll(b.wc)
		if err != nil {
			return total, err
		}
		done := 0
		for i := range b.wc[:n] {
			again, err := b.completed(&b.wc[i], fresh || b.o.Check)
			if err != nil {
				return total, err
			}
			if !again {
				inFlight--
				total++
				done++
			}
		}
		b.o.Progress.add(done)
		if err := b.o.interrupted(); err != nil {
			return total, err
		}
		if n > 0 {
			last = time.Now()
			continue
		}
		if time.Since(last) > stallTimeout {
			return total, fmt.Errorf("no completion for %v with %d messages in flight", stallTimeout, inFlight)
		}
	}
}

// postAll posts what may be posted now. held: the rate, or a message in flight, holds more back.
func (b *bandwidth) postAll(more func(q, posted int) bool, fresh bool) (posted int, held bool, err error) {
	if b.pace != nil {
		return b.postDue(more, fresh)
	}
	for q := range b.qps {
		b.list.open = true
		for len(b.free[q]) > 0 && more(q, b.posted[q]) {
			if err := b.post(q, fresh); err != nil {
				return posted, false, err
			}
			posted++
		}
		if err := b.list.post(b.qps[q]); err != nil {
			return posted, false, err
		}
	}
	return posted, false, nil
}

// postDue posts the messages that the rate allows, of the queue pairs in turn.
func (b *bandwidth) postDue(more func(q, posted int) bool, fresh bool) (posted int, held bool, err error) {
	for {
		next := -1
		held = false
		for i := range b.qps {
			q := (b.turn + i) % len(b.qps)
			if !more(q, b.posted[q]) {
				continue
			}
			held = true
			if len(b.free[q]) > 0 {
				next = q
				break
			}
		}
		if next < 0 || b.pace.wait(time.Now()) > 0 {
			return posted, held, nil
		}
		if err := b.post(next, fresh); err != nil {
			return posted, held, err
		}
		b.pace.take()
		b.turn = next + 1
		posted++
	}
}

// idle waits while the rate holds back what comes next and nothing is in flight: it sleeps, and leaves the last
// of the time to polling, as the system wakes a program late.
func (b *bandwidth) idle() error {
	const late = 200 * time.Microsecond
	if d := b.pace.wait(time.Now()); d > 2*late {
		time.Sleep(min(d-late, 50*time.Millisecond))
	} else {
		pause()
	}
	return b.o.interrupted()
}

// post sends the next message of a queue pair.
func (b *bandwidth) post(q int, fresh bool) error {
	b.sent++
	if fresh && b.o.marked() {
		return b.postMarked(q)
	}
	s := b.free[q][len(b.free[q])-1]
	b.free[q] = b.free[q][:len(b.free[q])-1]
	st := &b.slot[q][s]
	if fresh {
		st.message = b.posted[q]
		switch b.o.Kind.Verb {
		case "read":
			clear(b.source(q, s)) // what lands must come from the peer
		case "write", "send":
			fill(b.source(q, s), q, st.message)
		}
	}
	st.reading = false
	b.posted[q]++
	if !fresh {
		// Like perftest and UCX: messages that nobody looks at share one buffer.
		return b.postAt(q, s, b.off(q, 0), opcodes[b.o.Kind.Verb], b.mr)
	}
	return b.postSlot(q, s, opcodes[b.o.Kind.Verb], b.mr)
}

// postSlot posts an operation on a slot's own buffers.
func (b *bandwidth) postSlot(q, s int, op verbs.Opcode, local *verbs.MR) error {
	return b.postAt(q, s, b.off(q, s), op, local)
}

// postAt posts an operation of a slot on the buffers at off, on both sides.
func (b *bandwidth) postAt(q, s, off int, op verbs.Opcode, local *verbs.MR) error {
	wr, sge := b.list.next()
	*wr = verbs.SendWR{ID: wrID(q, s), Opcode: op, Flags: verbs.Signaled, Imm: b.imm, RemoteSRQ: b.remoteSRQ(q), RemoteAddr: b.peer.Addr + uint64(off), RKey: b.peer.RKey}
	switch {
	case op == verbs.OpFetchAdd:
		wr.RemoteAddr, wr.CompareAdd = b.peer.Addr+uint64(b.off(q, 0)), 1
	case b.o.Size > 0 && b.o.Size <= b.o.Inline && op != verbs.OpRead:
		wr.Inline = b.source(q, s)
	}
	if wr.Inline == nil && b.o.Size > 0 {
		sge[0] = local.SGE(off, b.o.Size)
		wr.SGE = sge
	}
	b.address(wr, q)
	if b.list.open && !b.list.full() {
		return nil
	}
	return b.list.postNow(b.qps[q])
}

// completed takes one completion; again says that the slot goes on with a READ of what it wrote.
func (b *bandwidth) completed(wc *verbs.WC, check bool) (again bool, err error) {
	q, s := fromWRID(wc.ID)
	if err := wc.Err(); err != nil {
		b.errs++
		return false, err
	}
	st := &b.slot[q][s]
	if check && b.o.Size > 0 && b.o.reliable() {
		switch {
		case b.o.Kind.Verb == "write" && b.direct != nil:
			err = verify(b.direct.target(q, s), q, st.message, &b.scratch)
		case b.o.Kind.Verb == "write" && !st.reading:
			st.reading = true
			clear(b.readBack(q, s))
			return true, b.postSlot(q, s, verbs.OpRead, b.back)
		case b.o.Kind.Verb == "write":
			err = verify(b.readBack(q, s), q, st.message, &b.scratch)
		case b.o.Kind.Verb == "read":
			err = verify(b.source(q, s), q, s, &b.scratch)
		case b.o.Kind.Verb == "atomic":
			if old := binary.NativeEndian.Uint64(b.source(q, s)); old != uint64(b.ended[q]) {
				err = fmt.Errorf("atomic %d of queue pair %d returned %d", b.ended[q], q, old)
			}
		}
	}
	b.ended[q]++
	b.free[q] = append(b.free[q], s)
	return false, err
}

// measure is one bandwidth measurement: the timed part, then one round in fresh contents that is
// verified in any case.
func (b *bandwidth) measure(r *Result) error {
	before := b.counters()
	start := time.Now()
	var more func(q, posted int) bool
	if b.o.Duration > 0 {
		var over atomic.Bool // and not the clock, which would have to be looked at before each message
		defer time.AfterFunc(b.o.Duration, func() { over.Store(true) }).Stop()
		more = func(int, int) bool { return !over.Load() }
	} else {
		more = func(_, posted int) bool { return posted < b.o.Iterations }
	}
	b.pace = newPacer(b.o.Rate.messages(b.o.Size), start)
	n, err := b.run(more, false)
	r.rate(n, time.Since(start))
	b.pace = nil
	if err == nil && b.between != nil {
		err = b.between()
	}
	if err == nil {
		until := make([]int, len(b.qps))
		for q := range until {
			until[q] = b.posted[q] + b.o.slots()
		}
		_, err = b.run(func(q, posted int) bool { return posted < until[q] }, true)
	}
	if err == nil && b.direct != nil && b.o.Kind.Verb == "send" && !b.o.marked() {
		err = b.verifyReceived()
	}
	r.add(b.counters().since(before))
	return err
}

// verifyReceived looks at the last messages in the buffers of the receiver, which is in this process.
func (b *bandwidth) verifyReceived() error {
	for q := range b.qps {
		for n := max(0, b.posted[q]-b.o.slots()); n < b.posted[q]; n++ {
			if err := verify(b.direct.target(q, n%b.o.recvSlots()), q, n, &b.scratch); err != nil {
				return err
			}
		}
	}
	return nil
}

// receiver is the server's side where messages use receives: it takes them until stop, and reposts.
type receiver struct {
	*endpoint
	wc       []verbs.WC // not the endpoint's, which may be sending too
	got      []int      // of each queue pair of the peer's
	verified int        // marked messages
	scratch  []byte
}

func newReceiver(e *endpoint) *receiver {
	return &receiver{endpoint: e, wc: make([]verbs.WC, len(e.wc)), got: make([]int, len(e.qps))}
}

// received is how many messages have come.
func (r *receiver) received() (n uint64) {
	for _, k := range r.got {
		n += uint64(k)
	}
	return n
}

var errStopped = errors.New("stopped")

// run receives until stop is closed. Messages of one queue pair arrive in order and fill the posted
// buffers in order.
func (r *receiver) run(stop <-chan struct{}) error {
	var stopped time.Time
	for {
		n, err := r.rcq.Poll(r.wc)
		if err != nil {
			return err
		}
		for i := range r.wc[:n] {
			wc := &r.wc[i]
			if err := wc.Err(); err != nil {
				return err
			}
			q, s := fromWRID(wc.ID)
			if n := wc.ByteLen - r.o.grh(); n != r.o.Size {
				return fmt.Errorf("received %d bytes, %d were sent", n, r.o.Size)
			}
			switch {
			case r.o.Size == 0:
			case r.o.marked():
				if wc.HasImm {
					if err := r.verifyMarked(wc); err != nil {
						return err
					}
				}
			case r.o.Check:
				if err := verify(r.target(q, s), q, r.got[q], &r.scratch); err != nil {
					return err
				}
			}
			r.got[r.sender(wc)]++
			if err := r.postRecv(q, s); err != nil {
				return err
			}
		}
		if n == 0 {
			select {
			case <-stop:
				if stopped.IsZero() {
					stopped = time.Now()
					continue // what came before the stop may not have been polled yet
				}
				if r.o.reliable() || time.Since(stopped) > settleTime {
					return r.unverified()
				}
			default:
			}
			pause()
		}
	}
}
