package perf

import (
	"fmt"

	"rnic/verbs"
)

// Over XRC the client's queue pairs are initiators, the server's are targets. Each has a shared receive queue of its
// own at the server, so that messages lie where those of one queue pair are expected.

// addTargets creates the server's queue pairs.
func (e *endpoint) addTargets() error {
	d, err := e.ctx.AllocXRCD()
	if err != nil {
		return err
	}
	for range e.o.QueuePairs {
		srq, err := e.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: e.o.recvSlots() + 1, XRCD: d, CQ: e.rcq})
		if err != nil {
			return err
		}
		qp, err := d.CreateTarget()
		if err != nil {
			return err
		}
		e.srqs = append(e.srqs, srq)
		e.addQP(qp)
	}
	return nil
}

// srqNums are the numbers of the server's shared receive queues; nil without XRC, and at the client.
func (e *endpoint) srqNums() (nums []uint32) {
	for _, s := range e.srqs {
		nums = append(nums, s.Num())
	}
	return nums
}

// learnSRQs takes the server's numbers.
func (e *endpoint) learnSRQs(nums []uint32) error {
	if e.o.Transport == "XRC" && e.srqs == nil && len(nums) != len(e.qps) {
		return fmt.Errorf("the peer has %d shared receive queues, not %d: give both sides the same options", len(nums), len(e.qps))
	}
	e.remoteSRQs = nums
	return nil
}

// remoteSRQ is the shared receive queue that a queue pair's requests are for; 0 without XRC.
func (e *endpoint) remoteSRQ(qp int) uint32 {
	if e.remoteSRQs == nil {
		return 0
	}
	return e.remoteSRQs[qp]
}
