package perf

import "rnic/verbs"

// sharedReceives is how many receives the shared receive queue of all queue pairs holds: as many as their own would,
// as far as it can.
func (o *Options) sharedReceives(dev *verbs.Device) int {
	return min(o.QueuePairs*o.recvSlots(), int(dev.Limits().MaxSRQWR))
}

// postShared posts the receives that all queue pairs share.
func (e *endpoint) postShared() error {
	if e.srq == nil {
		return nil
	}
	for i := range e.o.sharedReceives(e.dev) {
		if err := e.postRecv(i/e.o.recvSlots(), i%e.o.recvSlots()); err != nil {
			return err
		}
	}
	return nil
}

// sender is the number of the queue pair that a message came by; the buffer may be any other's with --srq.
func (e *endpoint) sender(wc *verbs.WC) int {
	if e.srq != nil {
		return e.from[wc.QPN]
	}
	q, _ := fromWRID(wc.ID)
	return q
}
