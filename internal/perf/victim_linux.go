package perf

import (
	"errors"
	"fmt"
	"time"

	"rnic/internal/dma"
	"rnic/internal/hostmem"
	"rnic/verbs"
)

// victimWatch drives several queue pairs with fresh contents in every message, of which one is
// going to fail, and remembers what each slot must hold.
type victimWatch struct {
	*bandwidth
	victim   int
	order    [][]int // of each queue pair: slots in flight, in the order of posting
	held     [][]int // of each slot: the last message that completed, -1 none
	failed   int     // slot of the message that failed, -1 none
	status   verbs.Status
	before   int // messages of the victim that completed before it
	flushed  int
	others   int
	scratch2 []byte
}

func newVictimWatch(b *bandwidth, victim int) *victimWatch {
	v := &victimWatch{bandwidth: b, victim: victim, failed: -1, order: make([][]int, len(b.qps))}
	for range b.qps {
		held := make([]int, b.o.slots())
		for i := range held {
			held[i] = -1
		}
		v.held = append(v.held, held)
	}
	return v
}

// run posts for at least d and drains. When the victim has failed the others go on for as long again.
func (v *victimWatch) run(d time.Duration) error {
	end := time.Now().Add(d)
	limit := time.Now().Add(stallTimeout)
	inFlight := 0
	for {
		now := time.Now()
		for q := range v.qps {
			if q == v.victim && v.failed >= 0 {
				continue
			}
			for len(v.free[q]) > 0 && (now.Before(end) || q == v.victim) {
				s := v.free[q][len(v.free[q])-1]
				if err := v.post(q, true); err != nil {
					return err
				}
				v.order[q] = append(v.order[q], s)
				inFlight++
			}
		}
		if inFlight == 0 {
			return nil
		}
		n, err := v.cq.Poll(v.wc)
		if err != nil {
			return err
		}
		for i := range v.wc[:n] {
			inFlight--
			failed := v.failed
			if err := v.take(&v.wc[i]); err != nil {
				return err
			}
			if failed < 0 && v.failed >= 0 {
				end = time.Now().Add(d)
			}
		}
		if err := v.o.interrupted(); err != nil {
			return err
		}
		if now.After(limit) {
			return fmt.Errorf("after %v the unmapped page has not been noticed, or %d messages did not complete", stallTimeout, inFlight)
		}
	}
}

// take checks one completion: in order, and with the status that is due.
func (v *victimWatch) take(wc *verbs.WC) error {
	q, s := fromWRID(wc.ID)
	if v.order[q][0] != s {
		return fmt.Errorf("queue pair %d: slot %d completed, slot %d was due: completions are out of order", q, s, v.order[q][0])
	}
	v.order[q] = v.order[q][1:]
	err := wc.Err()
	switch {
	case err == nil && (q != v.victim || v.failed < 0):
		v.held[q][s] = v.slot[q][s].message
		v.free[q] = append(v.free[q], s)
		if q == v.victim {
			v.before++
		} else {
			v.others++
		}
		return nil
	case q != v.victim:
		return fmt.Errorf("queue pair %d, whose buffer is whole, failed: %w", q, err)
	case v.failed < 0:
		v.failed, v.status = s, wc.Status
		return nil
	case errors.Is(err, verbs.ErrFlushed):
		v.flushed++
		return nil
	case err == nil:
		return fmt.Errorf("queue pair %d: a message behind the failed one completed with success", q)
	}
	return fmt.Errorf("queue pair %d: behind the failed message a completion is not flushed: %w", q, err)
}

// judge checks the outcome against the memory of the target process.
func (v *victimWatch) judge(o *Options, hole int, space *dma.Process, base uint64) (string, error) {
	switch {
	case v.failed < 0:
		return "", errors.New("no message failed although a page of its target is unmapped")
	case v.failed != hole:
		return "", fmt.Errorf("the message into slot %d failed with %q, the page of slot %d is unmapped", v.failed, v.status, hole)
	case v.status != verbs.ErrRemoteAccess:
		return "", fmt.Errorf("the message into the unmapped page completed with %q, remote access error is due (InfiniBand vol. 1, 9.7.5.2)", v.status)
	}
	verified := 0
	for q := range v.qps {
		for s, message := range v.held[q] {
			if message < 0 || q == v.victim && s == hole {
				continue
			}
			if len(v.scratch2) < o.Size {
				v.scratch2 = make([]byte, o.Size)
			}
			b := v.scratch2[:o.Size]
			seg := []hostmem.Segment{{Space: space, Addr: base + uint64(v.off(q, s)), Buf: b}}
			if _, err := space.ReadV(seg); err != nil {
				return "", fmt.Errorf("reading back slot %d of queue pair %d: %w", s, q, err)
			}
			if err := verify(b, q, message, &v.scratch); err != nil {
				return "", err
			}
			verified++
		}
	}
	return fmt.Sprintf("one page of queue pair %d's buffer unmapped in mid-run: after %d good messages the first that touched it completed with %q, "+
		"%d behind it were flushed; %d messages of the other %d queue pairs completed; %d buffers verified", v.victim, v.before, v.status,
		v.flushed, v.others, len(v.qps)-1, verified), nil
}
