package cma

import (
	"syscall"

	"rnic/internal/nic"
)

// Attr is what the queue pair of the id is to be moved to a state with: attributes and their mask, as the kernel's
// rdma_init_qp_attr says.
func (i *ID) Attr(to nic.State) (a nic.Attr, mask nic.AttrMask, err error) {
	defer i.lock()()
	a.State = to
	mask = nic.AttrState
	if i.port == nil {
		return a, 0, refuse(syscall.EINVAL, "attributes for a queue pair", "the id is of no NIC yet")
	}
	switch {
	case i.datagrams():
		return i.datagramAttr(a, mask)
	case to == nic.Init:
		a.Port, a.AccessFlags = 1, i.access()
		return a, mask | nic.AttrPort | nic.AttrPKeyIndex | nic.AttrAccessFlags, nil
	case i.conn == nil || i.conn.Peer() == nil:
		return a, 0, refuse(syscall.EINVAL, "attributes for a queue pair", "the id is %v", i.state)
	case to == nic.RTR:
		a.AH, a.PathMTU, a.DestQPN, a.RQPSN = i.vector(), i.pathMTU, i.peer.QPN, i.psn
		mask |= nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN
		if i.typ != nic.UC {
			a.MaxDestRDAtomic = i.responder
			a.MinRNRTimer = 0 // 655 ms, the longest (9.7.5.2.8), as the kernel has it: a program that can be faster says so itself
			mask |= nic.AttrMaxDestRDAtomic | nic.AttrMinRNRTimer
		}
	case to == nic.RTS:
		a.SQPSN = i.peer.StartingPSN // the peer says where we begin (12.7.31)
		mask |= nic.AttrSQPSN
		if i.typ != nic.UC {
			a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRDAtomic = i.ackTimeout, i.retry, i.rnrRetry, i.initiator
			mask |= nic.AttrTimeout | nic.AttrRetryCnt | nic.AttrRNRRetry | nic.AttrMaxRDAtomic
		}
	default:
		return a, 0, refuse(syscall.EINVAL, "attributes for a queue pair", "state %v", to)
	}
	return a, mask, nil
}

// access is what the peer may do. As the kernel has it, nothing before the peer is known of, and READs and atomics only if some have been
// agreed to: libraries move the queue pair from INIT to INIT again when the connection is made.
func (i *ID) access() nic.Access {
	switch {
	case i.conn == nil:
		return 0
	case i.resources() == 0:
		return nic.AccessRemoteWrite
	}
	return nic.AccessRemoteWrite | nic.AccessRemoteRead | nic.AccessRemoteAtomic
}

// resources is the number of the peer's READs and atomics that are answered at once.
func (i *ID) resources() uint8 {
	if i.active && i.conn.Peer() == nil { // what it has asked for
		return i.param.ResponderResources
	}
	return i.responder
}

func (i *ID) datagramAttr(a nic.Attr, mask nic.AttrMask) (nic.Attr, nic.AttrMask, error) {
	switch a.State {
	case nic.Init:
		a.Port, a.QKey = 1, QKey
		mask |= nic.AttrPort | nic.AttrPKeyIndex | nic.AttrQKey
	case nic.RTR:
	case nic.RTS:
		mask |= nic.AttrSQPSN
	default:
		return a, 0, refuse(syscall.EINVAL, "attributes for a queue pair", "state %v", a.State)
	}
	return a, mask, nil
}
