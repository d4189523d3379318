package nic

// event adds an event to those that the next Events hands out.
func (n *NIC) event(e Event) { n.events = append(n.events, e) }

// Events takes the events since the last call, in order. Valid until the next call into the NIC.
// The caller drives all else first: what completion queues overflowed is dealt with here, and may
// give the NIC more to do.
func (n *NIC) Events() []Event {
	if len(n.overruns) > 0 && n.mayBeAlone() {
		n.failOverruns(n.now)
	}
	taken := n.events
	live := taken[:0]
	for _, e := range taken {
		// After an object's destruction nothing of it is reported (vol. 1, 11.2, Destroy Completion Queue).
		if (e.CQ == nil || !e.CQ.dead) && (e.QP == nil || !e.QP.dead) && (e.SRQ == nil || !e.SRQ.dead) {
			live = append(live, e)
		}
	}
	clear(taken[len(live):])
	clear(n.spare)
	n.events, n.spare = n.spare[:0], live
	return live
}
