package verbs

import (
	"errors"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// Errors of commands, for errors.Is. They carry the numbers of the kernel's user ABI.
const (
	ErrInvalid      = nic.EINVAL
	ErrNoMemory     = nic.ENOMEM
	ErrBusy         = nic.EBUSY
	ErrNotSupported = nic.EOPNOTSUPP
	ErrFault        = nic.EFAULT
)

// ErrQueueFull says that a send or receive queue has no room: poll completions first.
var ErrQueueFull = errors.New("verbs: the queue is full")

// ErrOverrun says that a completion queue had no room for a completion, and is dead: nothing completes there any more, and its queue
// pairs are in the error state (EventCQError, EventQPFatal). A larger one is needed, or fewer work requests under way.
var ErrOverrun = errors.New("verbs: the completion queue has overflowed")

// ErrClosed says that the object, or what it belongs to, has been closed. It is net.ErrClosed too.
var ErrClosed = device.ErrClosed

// Status is the status of a completion (enum ibv_wc_status). A Status other than StatusSuccess is an error.
type Status ring.Status

// The statuses that a completion can have (InfiniBand vol. 1, 11.6.2).
const (
	StatusSuccess       = Status(ring.StatusSuccess)
	ErrLocalLength      = Status(ring.StatusLocLenErr)
	ErrLocalQPOperation = Status(ring.StatusLocQPOpErr)
	ErrLocalProtection  = Status(ring.StatusLocProtErr)
	ErrFlushed          = Status(ring.StatusWRFlushErr)
	ErrMWBind           = Status(ring.StatusMWBindErr)
	ErrBadResponse      = Status(ring.StatusBadRespErr)
	ErrLocalAccess      = Status(ring.StatusLocAccessErr)
	ErrRemoteInvalid    = Status(ring.StatusRemInvReqErr)
	ErrRemoteAccess     = Status(ring.StatusRemAccessErr)
	ErrRemoteOperation  = Status(ring.StatusRemOpErr)
	ErrRetryExceeded    = Status(ring.StatusRetryExcErr)
	ErrRNRRetryExceeded = Status(ring.StatusRNRRetryExcErr)
	ErrFatal            = Status(ring.StatusFatalErr)
	ErrGeneral          = Status(ring.StatusGeneralErr)
)

func (s Status) Error() string  { return ring.Status(s).String() }
func (s Status) String() string { return ring.Status(s).String() }
