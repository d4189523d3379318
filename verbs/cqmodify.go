package verbs

import (
	"fmt"
	"math"
	"time"

	"rnic/internal/ring"
)

// Cap is the number of completions that fit.
func (q *CQ) Cap() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int(q.ring.Capacity())
}

// Resize makes room for at least entries completions (InfiniBand vol. 1, 11.2, Resize Completion Queue). What was not polled
// stays. ErrInvalid, and nothing changes, if that does not fit.
func (q *CQ) Resize(entries int) error {
	if err := q.use("resize completion queue"); err != nil {
		return err
	}
	if limit := int(q.ctx.dev.dev.Limits().MaxCQE); entries < 1 || entries > limit {
		return fmt.Errorf("resize completion queue to %d entries: 1 to %d are possible: %w", entries, limit, ErrInvalid)
	}
	nicSide, own, err := newRing(uint32(entries), ring.CQESize)
	if err != nil {
		return fmt.Errorf("resize completion queue: %v: %w", err, ErrInvalid)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.cq.Resize(nicSide); err != nil {
		return q.told("resize completion queue", err)
	}
	q.ring = own
	return nil
}

// Moderate lets the event that ends a Wait wait itself, until count completions have come or period has
// passed since the first of them, whichever is first (ibv_modify_cq). A completion with an error does not wait.
// With a count below 2, or no period, nothing waits: that is the default. At most 65,535 completions and
// microseconds are possible; parts of a microsecond count as a whole one.
func (q *CQ) Moderate(count int, period time.Duration) error {
	if err := q.use("moderate completion queue"); err != nil {
		return err
	}
	micros := (period + time.Microsecond - 1) / time.Microsecond
	if count < 0 || count > math.MaxUint16 || period < 0 || micros > math.MaxUint16 {
		return fmt.Errorf("moderate completion queue: %d completions, %v: 65535 and 65.535ms are the most: %w", count, period, ErrInvalid)
	}
	return q.told("moderate completion queue", q.cq.Moderate(uint16(count), uint16(micros)))
}

// Moderation is what Moderate has set.
func (q *CQ) Moderation() (count int, period time.Duration, err error) {
	if err := q.use("query completion queue"); err != nil {
		return 0, 0, err
	}
	c, p, err := q.cq.Moderation()
	return int(c), time.Duration(p) * time.Microsecond, err
}

// Now is the NIC's clock in nanoseconds, the one of WC.Time. It is monotonic; where it starts does not
// matter, and it is the same for all devices of the process.
func (d *Device) Now() int64 { return d.dev.Now() }
