package cm

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"rnic/internal/ibcm"
)

// Errors, for errors.Is.
var (
	ErrRejected     = errors.New("cm: the peer has rejected the connection")
	ErrUnreachable  = errors.New("cm: the peer cannot be reached") // it does not answer, or no address of the NIC is on the way to it
	ErrDisconnected = errors.New("cm: the connection has ended")
	ErrClosed       = net.ErrClosed
)

// Reason says why a connection was rejected (InfiniBand vol. 1, 12.6.7.2).
type Reason = ibcm.Reason

// Reasons that programs meet or give.
const (
	ReasonNoResources = ibcm.RejNoResources
	ReasonTimeout     = ibcm.RejTimeout          // the peer has waited long enough
	ReasonNoListener  = ibcm.RejInvalidServiceID // nobody listens at the port
	ReasonTransport   = ibcm.RejInvalidTransport
	ReasonStale       = ibcm.RejStale
	ReasonMTU         = ibcm.RejInvalidMTU
	ReasonConsumer    = ibcm.RejConsumer // the program at the port says no: the default
)

// RejectError is the rejection by a peer. It is ErrRejected, and, since a program then finds nobody to talk to, syscall.ECONNREFUSED.
type RejectError struct {
	Reason  Reason
	Private []byte // of the peer's Reject: 148 bytes, those behind its data are 0
}

func (e *RejectError) Error() string {
	switch e.Reason {
	case ReasonNoListener:
		return "rejected: nobody listens at this port (reason 8)"
	case ReasonConsumer:
		return "rejected by the program at the port (reason 28)"
	case ReasonStale:
		return "rejected: the connection is one of an earlier life (reason 10)"
	case ReasonTimeout:
		return "rejected: the peer has waited long enough (reason 4)"
	}
	return fmt.Sprintf("rejected for reason %d", e.Reason)
}

// Is makes it ErrRejected and syscall.ECONNREFUSED.
func (e *RejectError) Is(target error) bool {
	return target == ErrRejected || target == syscall.ECONNREFUSED
}
