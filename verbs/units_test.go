package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"rnic/verbs"
)

func manyUnits(t *testing.T, units int) *verbs.Device {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true, Units: units, Seed: 5}))
	t.Cleanup(func() { check(dev.Close()) })
	return dev
}

// Queue pairs of four units share a receive queue and a completion queue, which are resized, and move from unit to unit meanwhile:
// every message arrives once, in order, with its bytes (vol. 1, 10.2.9, 9.7.1).
func TestUnitsShareQueues(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sharedQueueUnderTraffic(t, manyUnits(t, 4), 6, 400, func(qps []*verbs.QP) {
		if err := qps[random.IntN(len(qps))].MoveTo(random.IntN(4)); err != nil {
			t.Errorf("moving: %v", err)
		}
	})
}

// Windows are bound, used, and invalidated from both sides while other units work: a key is good exactly between (10.6.7.2).
func TestUnitsAndWindows(t *testing.T) {
	dev := manyUnits(t, 3)
	var wg sync.WaitGroup
	for i := range 4 {
		client, server := newSide(dev, verbs.QPConfig{}), newSide(dev, verbs.QPConfig{})
		connect(client, server)
		wg.Go(func() {
			mr := server.bindable(4096)
			mw := get(server.pd.AllocMW(verbs.MWType2))
			for k := range 60 {
				if k%7 == 0 {
					check(server.qp.MoveTo((i + k) % 3))
				}
				server.post(&verbs.SendWR{Opcode: verbs.OpBindMW, Flags: verbs.Signaled,
					Bind: &verbs.Bind{MW: mw, MR: mr, Addr: mr.Addr(100), Length: 16, Access: verbs.AccessRemoteWrite}})
				check(server.next().Err())
				key, text := mw.RKey(), fmt.Sprintf("%08d%08d", i, k)
				if err := client.put(text, mr.Addr(100), key); err != nil || !bytes.Equal(mr.Bytes()[100:116], []byte(text)) {
					t.Errorf("pair %d, round %d: %v, %q", i, k, err, mr.Bytes()[100:116])
					return
				}
				if k%2 == 0 {
					server.post(&verbs.SendWR{Opcode: verbs.OpLocalInv, Flags: verbs.Signaled, InvRKey: key})
				} else {
					server.receive(0, 0, 64)
					client.post(&verbs.SendWR{Opcode: verbs.OpSendInv, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 4), InvRKey: key})
					check(client.next().Err())
				}
				if err := server.next().Err(); err != nil {
					t.Errorf("pair %d, round %d: invalidating: %v", i, k, err)
					return
				}
			}
			key := mw.RKey()
			if err := client.put("too late", mr.Addr(100), key); !errors.Is(err, verbs.ErrRemoteAccess) {
				t.Errorf("pair %d: after the invalidation: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// A completion queue that overflows takes the queue pairs of all units with it (11.6.3).
func TestOverflowReachesAllUnits(t *testing.T) {
	dev := manyUnits(t, 3)
	senders, server, srq, qps := pooled(dev, 3, 64)
	for i, q := range qps {
		check(q.MoveTo(i))
	}
	check(server.cq.Resize(2))
	for id := range uint64(20) {
		get(srq.PostRecv(&verbs.RecvWR{ID: id, SGE: server.mr.Slice(0, 64)}))
	}
	for range 7 {
		senders[0].post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: senders[0].mr.Slice(0, 8)})
	}
	fatal := map[*verbs.QP]bool{}
	for len(fatal) < 3 {
		select {
		case ev := <-server.ctx.Events():
			if ev.Type == verbs.EventQPFatal {
				fatal[ev.QP] = true
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of 3 queue pairs failed", len(fatal))
		}
	}
}

// Vectors (rdma/ib_user_verbs.h, struct ib_uverbs_create_cq: comp_vector) place queue pairs, and moves and vectors that
// there are not are refused.
func TestPlacement(t *testing.T) {
	dev := manyUnits(t, 4)
	s := &side{ctx: dev.Open()}
	s.pd = get(s.ctx.AllocPD())
	auto := get(s.ctx.CreateCQ(16))
	used := map[int]int{}
	for range 8 {
		used[get(s.pd.CreateQP(verbs.QPConfig{SendCQ: auto, RecvCQ: auto})).Unit()]++
	}
	for u := range 4 {
		if used[u] != 2 {
			t.Errorf("unit %d has %d of 8 queue pairs", u, used[u])
		}
	}
	for v := 1; v < dev.Units(); v++ {
		cq := get(s.ctx.CreateCQOnVector(16, v))
		if q := get(s.pd.CreateQP(verbs.QPConfig{SendCQ: auto, RecvCQ: cq})); q.Unit() != v || int(q.Num()%4) != v {
			t.Errorf("vector %d: queue pair %#x of unit %d", v, q.Num(), q.Unit())
		} else if err := q.MoveTo(4); !errors.Is(err, verbs.ErrInvalid) || q.Unit() != v {
			t.Errorf("moving to unit 4: %v", err)
		}
	}
	if _, err := s.ctx.CreateCQOnVector(16, 4); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("vector 4 of 4: %v", err)
	}
}
