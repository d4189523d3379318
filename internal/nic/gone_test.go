package nic

import (
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
)

// goneSpace is the memory of a program that has ended.
type goneSpace struct{}

func (goneSpace) ReadV([]hostmem.Segment) (int, error)  { return 0, hostmem.ErrGone }
func (goneSpace) WriteV([]hostmem.Segment) (int, error) { return 0, hostmem.ErrGone }
func (goneSpace) Atomic(uint64, hostmem.AtomicOp, uint64, uint64) (uint64, error) {
	return 0, hostmem.ErrGone
}
func (goneSpace) Check(uint64, uint64, bool) error { return hostmem.ErrGone }

// A program that has ended is not cleaned up at once. Its peers must not learn that their requests were wrong, for they
// were not: nobody answers any more, as when its queue pairs are destroyed.
func TestPeerOfAProgramThatIsGone(t *testing.T) {
	for name, request := range map[string]func(a, b *end) *ring.SendWQE{
		"WRITE":  func(a, b *end) *ring.SendWQE { return remote(wr(2, ring.OpWrite, a.sge(0, 5000)), b, 0) },
		"READ":   func(a, b *end) *ring.SendWQE { return remote(wr(2, ring.OpRead, a.sge(0, 5000)), b, 0) },
		"atomic": func(a, b *end) *ring.SendWQE { return remote(wr(2, ring.OpFetchAdd, a.sge(0, 8)), b, 0) },
		"SEND":   func(a, b *end) *ring.SendWQE { return wr(2, ring.OpSend, a.sge(0, 5000)) },
	} {
		t.Run(name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 0))
			w.run(second)
			a.want(t, "1:success")
			b.h.mr.space = goneSpace{}
			b.recv(9, b.sge(0, 8000))
			a.post(request(a, b), remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0))
			w.run(20 * second)
			a.want(t, "2:"+ring.StatusRetryExcErr.String(), "3:"+ring.StatusWRFlushErr.String())
			if b.q.State() != Err || b.h.events(EventQPFatal) != 1 || b.h.events(EventQPAccessErr) != 0 {
				t.Errorf("the target is in state %v after %d fatal events and %d of access", b.q.State(), b.h.events(EventQPFatal), b.h.events(EventQPAccessErr))
			}
		})
	}
}
