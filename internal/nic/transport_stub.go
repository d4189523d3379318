package nic

// Empty shapes of the transport, so that the objects compile before it is there.

type (
	requester  struct{}
	responder  struct{}
	timerEntry struct{}
	schedEntry struct{}
	transport  struct{}
)

func (t *transport) init(n *NIC) {}

func (q *QP) transportReset()            {}
func (q *QP) transportToRTR(now int64)   {}
func (q *QP) transportToRTS(now int64)   {}
func (q *QP) transportToSQD(now int64)   {}
func (q *QP) transportToError(now int64) {}
func (q *QP) transportDestroy()          {}
