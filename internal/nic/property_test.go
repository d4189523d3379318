package nic

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world is a NIC under random commands, with what should live in it.
type world struct {
	n   *NIC
	now int64
	pds []*PD
	cqs []*CQ
	mrs []*MR
	ahs []*AH
	qps []*QP
}

var worldLimits = Limits{MaxPD: 4, MaxCQ: 5, MaxMR: 6, MaxAH: 6, MaxQP: 8}

// pick draws one of list; ok is false if there is none.
func pick[T any](t *rapid.T, list []T, label string) (v T, ok bool) {
	if len(list) == 0 {
		return v, false
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(t, label)], true
}

// made notes the object that a creation made, which must succeed unless the limit is reached.
func made[T comparable](t *rapid.T, list *[]T, v T, err error, limit int) {
	t.Helper()
	if (err == nil) != (len(*list) < limit) {
		t.Fatalf("creation with %d of %d living: %v", len(*list), limit, err)
	}
	if err == nil {
		*list = append(*list, v)
	}
}

// gone notes the destruction of v, which must succeed unless it is in use.
func gone[T comparable](t *rapid.T, list *[]T, v T, err error, used bool) {
	t.Helper()
	if (err != nil) != used {
		t.Fatalf("destruction of an object in use (%v): %v", used, err)
	}
	if err == nil {
		*list = slices.DeleteFunc(*list, func(o T) bool { return o == v })
	}
}

func (w *world) inPD(pd *PD) (refs int) {
	for _, m := range w.mrs {
		refs += b2i(m.pd == pd)
	}
	for _, a := range w.ahs {
		refs += b2i(a.pd == pd)
	}
	for _, q := range w.qps {
		refs += b2i(q.pd == pd)
	}
	return refs
}

func (w *world) onCQ(cq *CQ) (refs int) {
	for _, q := range w.qps {
		refs += b2i(q.sendCQ == cq) + b2i(q.recvCQ == cq)
	}
	return refs
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (w *world) allocPD(t *rapid.T) {
	pd, err := w.n.AllocPD()
	made(t, &w.pds, pd, err, worldLimits.MaxPD)
}

func (w *world) deallocPD(t *rapid.T) {
	if pd, ok := pick(t, w.pds, "pd"); ok {
		gone(t, &w.pds, pd, pd.Dealloc(), w.inPD(pd) > 0)
	}
}

func (w *world) createCQ(t *rapid.T) {
	cq, err := w.n.CreateCQ(ringOf(t, 3, 64))
	made(t, &w.cqs, cq, err, worldLimits.MaxCQ)
}

func (w *world) destroyCQ(t *rapid.T) {
	if cq, ok := pick(t, w.cqs, "cq"); ok {
		gone(t, &w.cqs, cq, cq.Destroy(), w.onCQ(cq) > 0)
	}
}

func (w *world) regMR(t *rapid.T) {
	if pd, ok := pick(t, w.pds, "pd"); ok {
		m, err := w.n.RegMR(pd, &anywhere{}, 0, 64, 0, AccessLocalWrite)
		made(t, &w.mrs, m, err, worldLimits.MaxMR)
	}
}

func (w *world) deregMR(t *rapid.T) {
	if m, ok := pick(t, w.mrs, "mr"); ok {
		gone(t, &w.mrs, m, m.Dereg(), false)
	}
}

func (w *world) createAH(t *rapid.T) {
	if pd, ok := pick(t, w.pds, "pd"); ok {
		a, err := w.n.CreateAH(pd, goodAttr(RTR).AH)
		made(t, &w.ahs, a, err, worldLimits.MaxAH)
	}
}

func (w *world) destroyAH(t *rapid.T) {
	if a, ok := pick(t, w.ahs, "ah"); ok {
		gone(t, &w.ahs, a, a.Destroy(), false)
	}
}

func (w *world) createQP(t *rapid.T) {
	pd, ok := pick(t, w.pds, "pd")
	send, ok2 := pick(t, w.cqs, "send cq")
	recv, _ := pick(t, w.cqs, "recv cq")
	if ok && ok2 {
		typ := rapid.SampledFrom([]QPType{RC, UC, UD}).Draw(t, "type")
		q, err := w.n.CreateQP(qpInit(t, w.n, typ, pd, send, recv, smallCap))
		if send.overrun.Load() || recv.overrun.Load() {
			if err == nil {
				t.Fatalf("a queue pair was made on an overflowed completion queue")
			}
			return
		}
		made(t, &w.qps, q, err, worldLimits.MaxQP)
	}
}

func (w *world) destroyQP(t *rapid.T) {
	if q, ok := pick(t, w.qps, "qp"); ok {
		gone(t, &w.qps, q, q.Destroy(), false)
	}
}

// modifyQP tries a state with the attributes that are required for it, some left out now and then.
func (w *world) modifyQP(t *rapid.T) {
	q, ok := pick(t, w.qps, "qp")
	if !ok {
		return
	}
	to := State(rapid.Uint8Range(0, uint8(Err)).Draw(t, "to"))
	tr := transitionOf(q.typ, q.state, to)
	drop := AttrMask(0)
	if rapid.IntRange(0, 9).Draw(t, "drop") == 0 {
		drop = AttrMask(rapid.Uint32().Draw(t, "dropped")) &^ AttrState
	}
	mask := AttrState | tr.required&^drop
	a, before := goodAttr(to), q.State()
	w.now++
	err := w.n.Modify(w.now, q, &a, mask)
	draining := before == SQD && q.attr.SQDraining && to != Reset && to != Err
	broken := before == Reset && to == Init && (q.sendCQ.overrun.Load() || q.recvCQ.overrun.Load())
	if want := tr.valid && tr.required&drop == 0 && !draining && !broken; (err == nil) != want {
		t.Fatalf("%v from %v to %v with mask %#x: %v", q, before, to, mask, err)
	}
	if err != nil && q.State() != before || err == nil && q.State() != to {
		t.Fatalf("%v from %v to %v: %v, and is in %v", q, before, to, err, q.State())
	}
}

// complete pushes a completion without anybody who takes it: overflow comes soon.
func (w *world) complete(t *rapid.T) {
	if cq, ok := pick(t, w.cqs, "cq"); ok {
		cq.Arm(rapid.Bool().Draw(t, "solicited only"))
		w.n.pushCQE(cq, good, rapid.Bool().Draw(t, "solicited"))
	}
}

func (w *world) events(t *rapid.T) {
	for _, e := range w.n.Events() {
		if e.CQ != nil && !slices.Contains(w.cqs, e.CQ) || e.QP != nil && !slices.Contains(w.qps, e.QP) {
			t.Fatalf("event %v is of an object that is gone", e.Type)
		}
	}
	for _, q := range w.qps {
		if (q.sendCQ.overrun.Load() || q.recvCQ.overrun.Load()) && q.State() != Reset && q.State() != Err {
			t.Fatalf("%v is in %v, and a completion queue of it has overflowed", q, q.State())
		}
	}
}

// check holds after every command.
func (w *world) check(t *rapid.T) {
	n := w.n
	if n.pds != len(w.pds) || n.cqs != len(w.cqs) || len(n.mrs) != len(w.mrs) || len(n.ahs) != len(w.ahs) || len(n.qps) != len(w.qps) {
		t.Fatalf("the NIC counts %d %d %d %d %d objects", n.pds, n.cqs, len(n.mrs), len(n.ahs), len(n.qps))
	}
	for _, pd := range w.pds {
		if pd.refs != w.inPD(pd) {
			t.Fatalf("protection domain: %d references, want %d", pd.refs, w.inPD(pd))
		}
	}
	for _, cq := range w.cqs {
		if cq.refs != w.onCQ(cq) || len(cq.users) != cq.refs {
			t.Fatalf("completion queue: %d references, %d users, want %d", cq.refs, len(cq.users), w.onCQ(cq))
		}
	}
	for _, m := range w.mrs {
		if n.lookupMR(m.key) != m {
			t.Fatalf("key %#x does not name its region", m.key)
		}
	}
	for _, a := range w.ahs {
		if n.lookupAH(a.num) != a {
			t.Fatalf("number %d does not name its address handle", a.num)
		}
	}
	for _, q := range w.qps {
		if n.lookupQP(q.num) != q || q.sendCQ.users[q.cqSlot[0]] != q || q.recvCQ.users[q.cqSlot[1]] != q {
			t.Fatalf("%v is not where it should be", q)
		}
	}
}

// Whatever commands come in whatever order, the tables and reference counts tell what lives.
func TestCommandSequences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{n: objectsNIC(Config{Limits: worldLimits, Seed: rapid.Uint64().Draw(t, "seed")})}
		t.Repeat(map[string]func(*rapid.T){
			"alloc pd": w.allocPD, "dealloc pd": w.deallocPD, "create cq": w.createCQ, "destroy cq": w.destroyCQ,
			"reg mr": w.regMR, "dereg mr": w.deregMR, "create ah": w.createAH, "destroy ah": w.destroyAH,
			"create qp": w.createQP, "create another qp": w.createQP, "destroy qp": w.destroyQP,
			"modify qp": w.modifyQP, "modify another qp": w.modifyQP, "modify a third qp": w.modifyQP,
			"complete": w.complete, "events": w.events, "": w.check,
		})
		for _, q := range slices.Clone(w.qps) {
			gone(t, &w.qps, q, q.Destroy(), false)
		}
		for _, m := range slices.Clone(w.mrs) {
			gone(t, &w.mrs, m, m.Dereg(), false)
		}
		for _, a := range slices.Clone(w.ahs) {
			gone(t, &w.ahs, a, a.Destroy(), false)
		}
		for _, cq := range slices.Clone(w.cqs) {
			gone(t, &w.cqs, cq, cq.Destroy(), false)
		}
		for _, pd := range slices.Clone(w.pds) {
			gone(t, &w.pds, pd, pd.Dealloc(), false)
		}
		w.check(t)
	})
}
