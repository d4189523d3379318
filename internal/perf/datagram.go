package perf

import (
	"rnic/verbs"
)

// A UD message is one packet, goes to the queue pair that its work request names, and arrives behind the GRH, for
// which the receive has room (InfiniBand vol. 1, 10.2.5 and 11.4.1.2).

// qkey is what messages between the two sides bear.
const qkey = 0x726e6963

// grhSize is the room for the GRH before each message.
const grhSize = 40

// grh is how much room a receive has before the message.
func (o *Options) grh() int {
	if o.datagrams() {
		return grhSize
	}
	return 0
}

// checkDatagrams is the part of Validate that is about UD.
func (o *Options) checkDatagrams() error {
	switch {
	case o.Kind.Verb != "send":
		return usage("%s: UD has send only", o.Kind)
	case o.Size > 4096 || o.MTU != 0 && o.Size > o.MTU && !o.AllSizes:
		return usage("size %d: a datagram holds at most the MTU, and that is 4096 at most", o.Size)
	}
	return nil
}

// destination is where the messages of a queue pair go.
type destination struct {
	ah  *verbs.AH
	qpn uint32
}

// activate makes a queue pair ready, for messages to and from the peer's.
func (e *endpoint) activate(q *verbs.QP, peer verbs.Endpoint) error {
	if err := q.Activate(qkey); err != nil {
		return err
	}
	ah, err := e.pd.AHTo(peer.GID, e.gid)
	if err != nil {
		return err
	}
	e.dest = append(e.dest, destination{ah, peer.QPN})
	return nil
}

// address completes a work request of queue pair q with where it goes.
func (e *endpoint) address(wr *verbs.SendWR, q int) {
	if e.dest != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.dest[q].ah, e.dest[q].qpn, qkey
	}
}

// fitsMTU refuses datagrams that the path does not carry.
func (e *endpoint) fitsMTU() error {
	if e.o.datagrams() && e.o.Size > e.mtu {
		return usage("size %d: a datagram holds at most the MTU of the path, %d", e.o.Size, e.mtu)
	}
	return nil
}
