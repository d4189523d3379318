package cm

import (
	"time"

	"rnic/verbs"
)

// streamIdle is how often a stream looks whether anything has come; if not since the last look, the peer is asked whether it is there, as Go's
// TCP connections do: after once to twice this time. The NIC repeats
// the question by the queue pair's retries, some seconds in all, before it gives the connection up.
const streamIdle = 15 * time.Second

// probeID is the id of the question, an RDMA WRITE of no bytes: the peer's NIC acknowledges it, without key, receive or completion there
// (InfiniBand vol. 1, C9-88: of a length of 0 no key is checked).
const probeID = 1 << 33

// alive is what is known of the peer's life. Guarded by the stream's mu.
type alive struct {
	timer   *time.Timer
	idle    time.Duration
	heard   bool // something since the last look
	asking  bool // a question is not answered
	answers int
}

// look asks the peer if nothing has been heard since the last look. A failure is seen as that of any message is: the queue pair's receives are
// flushed.
func (s *Stream) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	s.pollSends()
	if !s.heard && !s.asking {
		_, err := s.c.qp.PostSend(&verbs.SendWR{ID: probeID, Opcode: verbs.OpWrite, Flags: verbs.Signaled})
		s.asking = err == nil
	}
	s.heard = false
	s.timer.Reset(s.idle)
}

// answered takes the completion of a question.
func (s *Stream) answered(err error) {
	s.asking = false
	if err == nil {
		s.answers++
	}
}
