package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"rnic/internal/device"
	"rnic/internal/ring"
)

// WCOpcode says which operation a completion ends (enum ibv_wc_opcode).
type WCOpcode uint32

// Operations of completions.
const (
	WCSend        = WCOpcode(ring.WCSend)
	WCWrite       = WCOpcode(ring.WCWrite)
	WCRead        = WCOpcode(ring.WCRead)
	WCCompareSwap = WCOpcode(ring.WCCompareSwap)
	WCFetchAdd    = WCOpcode(ring.WCFetchAdd)
	WCBindMW      = WCOpcode(ring.WCBindMW)
	WCLocalInv    = WCOpcode(ring.WCLocalInv)
	WCFlush       = WCOpcode(ring.WCFlush)
	WCAtomicWrite = WCOpcode(ring.WCAtomicWrite)
	WCRecv        = WCOpcode(ring.WCRecv)
	WCRecvImm     = WCOpcode(ring.WCRecvImm) // the receive that a WRITE with immediate consumed
)

// WC is a work completion (struct ibv_wc). When Status is not StatusSuccess only ID, Status, QPN and VendorErr mean anything.
type WC struct {
	ID        uint64 // of the work request
	Status    Status
	Opcode    WCOpcode
	VendorErr uint32
	ByteLen   int    // bytes received; the 40 bytes of the GRH included on UD queue pairs
	Imm       uint32 // immediate data, if HasImm
	HasImm    bool
	HasInv    bool   // the message was a SEND with invalidate
	InvRKey   uint32 // and the key that it has invalidated
	HasGRH    bool   // the first 40 bytes of the buffer hold the GRH (UD)
	QPN       uint32
	SrcQP     uint32 // UD: the sender's queue pair number
	Time      int64  // when the NIC made the completion: nanoseconds of Device.Now
}

// Err is nil for a successful completion; else it wraps the Status.
func (w WC) Err() error {
	if w.Status == StatusSuccess {
		return nil
	}
	return fmt.Errorf("work request %#x of QP %#x: %w", w.ID, w.QPN, w.Status)
}

// CQ is a completion queue.
type CQ struct {
	lifetime
	cq      *device.CQ
	notify  chan struct{} // holds one token after a completion event
	waiters atomic.Int32
	done    chan struct{} // closed with the completion queue
	overrun chan struct{} // closed when it has overflowed
	once    sync.Once     // of that

	mu   sync.Mutex
	ring *ring.Queue
}

// CreateCQ creates a completion queue for at least entries completions.
func (c *Context) CreateCQ(entries int) (*CQ, error) { return c.CreateCQOnVector(entries, 0) }

// CreateCQOnVector is CreateCQ with a completion vector (ibv_create_cq's comp_vector), from 0 to Device.Units()-1: the queue
// pairs that receive into the queue are placed on the processing unit with the vector's number. With vector 0 the device
// chooses. ErrInvalid: there is no such vector.
func (c *Context) CreateCQOnVector(entries, vector int) (*CQ, error) {
	if limit := int(c.dev.dev.Limits().MaxCQE); entries < 1 || entries > limit {
		return nil, fmt.Errorf("create completion queue of %d entries: 1 to %d are possible: %w", entries, limit, ErrInvalid)
	}
	nicSide, own, err := newRing(uint32(entries), ring.CQESize)
	if err != nil {
		return nil, fmt.Errorf("create completion queue: %v: %w", err, ErrInvalid)
	}
	q := &CQ{lifetime: lifetime{ctx: c}, notify: make(chan struct{}, 1), done: make(chan struct{}), overrun: make(chan struct{}), ring: own}
	if q.cq, err = c.ctx.CreateCQ(device.CQInit{Ring: nicSide, Vector: vector, Cookie: q}); err != nil {
		return nil, err
	}
	return q, nil
}

// newRing makes a queue in memory of this program: the NIC's view and the program's.
func newRing(entries, elemSize uint32) (nicSide, own *ring.Queue, err error) {
	g, err := ring.GeometryFor(entries, elemSize)
	if err != nil {
		return nil, nil, err
	}
	buf := make([]byte, g.Size())
	if nicSide, err = ring.Format(buf, g); err != nil {
		return nil, nil, err
	}
	return nicSide, ring.View(buf, g), nil
}

// Close destroys the completion queue; ErrBusy while a queue pair uses it. Who waits for completions gets
// ErrClosed.
func (q *CQ) Close() error {
	first, err := q.close(q.cq.Destroy)
	if first {
		close(q.done)
	}
	return err
}

// dead is ErrOverrun if the queue has overflowed.
func (q *CQ) dead(op string) error {
	select {
	case <-q.overrun:
		return fmt.Errorf("%s: %w", op, ErrOverrun)
	default:
		return nil
	}
}

// Poll takes up to len(wc) completions, oldest first. It never blocks; 0 means none. ErrOverrun: the queue has overflowed, and what
// had found room has been taken.
func (q *CQ) Poll(wc []WC) (int, error) {
	if err := q.use("poll completion queue"); err != nil {
		return 0, err
	}
	n := q.take(wc)
	if n == 0 && q.cq.Progress() {
		n = q.take(wc)
	}
	if n == 0 && len(wc) > 0 {
		if err := q.dead("poll completion queue"); err != nil && !q.pending() {
			return 0, err
		}
	}
	return n, nil
}

func (q *CQ) take(wc []WC) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(int(q.ring.Pending()), len(wc))
	for i := range n {
		var e ring.CQE
		q.ring.LoadCQE(q.ring.Position(), &e)
		_ = q.ring.Consume()
		wc[i] = WC{ID: e.WRID, Status: Status(e.Status), Opcode: WCOpcode(e.Opcode), VendorErr: e.VendorErr,
			ByteLen: int(e.ByteLen), Imm: immFromRing(e.Imm), HasImm: e.Flags&ring.WCWithImm != 0,
			HasInv: e.Flags&ring.WCWithInv != 0, InvRKey: e.Imm, HasGRH: e.Flags&ring.WCGRH != 0, QPN: e.QPN, SrcQP: e.SrcQP, Time: int64(e.Time)}
	}
	return n
}

// pending tells whether a completion is there.
func (q *CQ) pending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ring.Pending() > 0
}

// Wait returns when the completion queue holds a completion, with ctx's error, or with ErrClosed or ErrOverrun. It
// sleeps; a program that wants the least latency polls instead.
func (q *CQ) Wait(ctx context.Context) error { return q.wait(ctx, false) }

// WaitSolicited is Wait, but only a solicited or failed completion ends the sleep.
func (q *CQ) WaitSolicited(ctx context.Context) error { return q.wait(ctx, true) }

func (q *CQ) wait(ctx context.Context, solicited bool) error {
	if err := q.use("wait for completions"); err != nil {
		return err
	}
	q.waiters.Add(1)
	defer func() {
		// One event wakes one waiter. What it leaves in the queue is the next one's.
		if q.waiters.Add(-1) > 0 {
			q.wake()
		}
	}()
	for !q.pending() {
		select {
		case <-q.notify: // left over from an earlier wait
		default:
		}
		if err := q.cq.Arm(solicited); err != nil {
			return err
		}
		// What completed before the queue was armed gives no event.
		if q.pending() {
			return nil
		}
		q.ctx.dev.dev.StopPolling()
		select {
		case <-q.notify:
		case <-ctx.Done():
			return ctx.Err()
		case <-q.overrun:
			if q.pending() {
				return nil
			}
			return q.dead("wait for completions")
		case <-q.done:
			return q.use("wait for completions")
		case <-q.ctx.done:
			return q.use("wait for completions")
		case <-q.ctx.ctx.Done(): // the device has been taken away
			return fmt.Errorf("wait for completions: %w", ErrClosed)
		}
	}
	return nil
}

// Next polls and, while nothing is there, waits. ErrInvalid: wc has no room.
func (q *CQ) Next(ctx context.Context, wc []WC) (int, error) {
	if len(wc) == 0 {
		return 0, fmt.Errorf("next completion: no room for one: %w", ErrInvalid)
	}
	for {
		if n, err := q.Poll(wc); n > 0 || err != nil {
			return n, err
		}
		if err := q.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

func (q *CQ) wake() {
	select {
	case q.notify <- struct{}{}:
	default:
	}
}

// overflowed ends those who wait. It may be told more than once.
func (q *CQ) overflowed() {
	q.once.Do(func() { close(q.overrun) })
}
