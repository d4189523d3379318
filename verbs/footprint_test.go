package verbs_test

import (
	"runtime"
	"testing"

	"rnic/internal/ring"
	"rnic/verbs"
)

// footprintLimit is what a queue pair may take beyond its rings, in bytes: its share of the NIC, of the
// device service and of this package.
const footprintLimit = 16 << 10

func heap() int {
	runtime.GC()
	runtime.GC() // what the first one's finalizers and pools let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A queue pair, connected or used, takes at most 16 KiB beyond its rings: ten thousand fit everywhere.
func TestFootprintOfQueuePairs(t *testing.T) {
	const pairs, depth, sge = 256, 128, 1
	dev := local(t)
	ctx := dev.Open()
	pd, cq := get(ctx.AllocPD()), get(ctx.CreateCQ(4*depth))
	mr := get(pd.AllocMR(depth*4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
	rings := ringMemory(t, depth-1, ring.SendWQESize+sge*ring.SGESize) + ringMemory(t, depth-1, ring.RecvWQESize+sge*ring.SGESize)

	before := heap()
	var qps []*verbs.QP
	for range 2 * pairs {
		qps = append(qps, get(pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: depth - 1, MaxRecv: depth - 1})))
	}
	for i := 0; i < len(qps); i += 2 {
		a, b := get(qps[i].Local(0, 1)), get(qps[i+1].Local(0, 2))
		check(qps[i].Connect(b, verbs.ConnectOptions{PSN: 1}))
		check(qps[i+1].Connect(a, verbs.ConnectOptions{PSN: 2}))
	}
	report := func(what string) {
		each := (heap()-before)/len(qps) - rings
		t.Logf("%s queue pair: %d bytes beyond its rings, which take %d", what, each, rings)
		if each > footprintLimit {
			t.Errorf("a %s queue pair takes %d bytes beyond its rings, more than %d", what, each, footprintLimit)
		}
	}
	report("connected")

	// Full queues of everything that needs memory: SENDs, READs and atomics in flight at once.
	wc := make([]verbs.WC, 64)
	for i, q := range qps {
		peer := qps[i^1]
		const each = depth/2 - 1
		for s := range each {
			get(peer.PostRecv(&verbs.RecvWR{SGE: mr.Slice(s*4096, 4096)}))
		}
		wrs := make([]*verbs.SendWR, 0, 2*each)
		for s := range each {
			wrs = append(wrs, &verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: mr.Slice(s*4096, 8)})
			switch s % 2 {
			case 0:
				wrs = append(wrs, &verbs.SendWR{Opcode: verbs.OpRead, SGE: mr.Slice(s*4096, 4096), RemoteAddr: mr.Addr(0), RKey: mr.RKey()})
			case 1:
				wrs = append(wrs, &verbs.SendWR{Opcode: verbs.OpFetchAdd, SGE: mr.Slice(s*4096, 8), RemoteAddr: mr.Addr(0), RKey: mr.RKey()})
			}
		}
		get(q.PostSend(wrs...))
		for left := 2 * each; left > 0; {
			n := get(cq.Poll(wc))
			for _, c := range wc[:n] {
				check(c.Err())
			}
			left -= n
		}
	}
	report("used")
	runtime.KeepAlive(qps)
}

// ringMemory is what a queue of that shape takes of the heap, which rounds up.
func ringMemory(t *testing.T, entries, elem uint32) int {
	t.Helper()
	g := get(ring.GeometryFor(entries, elem))
	var some [64][]byte
	before := heap()
	for i := range some {
		some[i] = make([]byte, g.Size())
	}
	bytes := (heap() - before) / len(some)
	runtime.KeepAlive(&some)
	return bytes
}
