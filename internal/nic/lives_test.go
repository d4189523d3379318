package nic

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// An object of the test of lives: how it ends, and which objects it uses.
type living struct {
	name string
	end  func() error
	uses []string
}

// 11.2: whatever the order in which a program ends its objects, one that another uses is busy, one that none uses
// is not, and nothing is left of them.
func TestLivesInAnyOrder(t *testing.T) {
	for seed := range uint64(40) {
		w := newWire(t, Config{})
		h := w.hosts[0]
		all := livingObjects(t, h)
		rng := rand.New(rand.NewPCG(seed, 1))
		for len(all) > 0 {
			i := rng.IntN(len(all))
			o := all[i]
			there := func(name string) bool { return slices.ContainsFunc(all, func(x living) bool { return x.name == name }) }
			used := slices.ContainsFunc(all, func(x living) bool { return slices.Contains(x.uses, o.name) }) ||
				o.name == "MR" && there("window 2") && there("RC") // 10.6.7.2: its binding ends with its queue pair
			err := o.end()
			if used != errors.Is(err, EBUSY) || !used && err != nil {
				t.Fatalf("seed %d: end of %s, used %v: %v", seed, o.name, used, err)
			}
			if err == nil {
				all = slices.Delete(all, i, i+1)
				if o.end() == nil {
					t.Fatalf("seed %d: %s ends twice", seed, o.name)
				}
			}
		}
		w.run(second)
		n := h.n
		if n.pds != 1 || n.cqs != 0 || n.srqs != 0 || n.xrcds != 0 || n.mws != 0 || len(n.mrs) != 1 || len(n.qps) != 0 || len(n.ahs) != 0 || len(n.groups) != 0 ||
			h.pd.refs != 1 || len(n.transport.timers.q) != 0 || len(n.transport.peers) != 0 {
			t.Fatalf("seed %d: left: %d domains, %d completion queues, %d shared receive queues, %d XRC domains, %d windows, %d keys, %d queue pairs, %d peers",
				seed, n.pds, n.cqs, n.srqs, n.xrcds, n.mws, len(n.mrs), len(n.qps), len(n.transport.peers))
		}
	}
}

func livingObjects(t *testing.T, h *host) (all []living) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add := func(name string, end func() error, uses ...string) { all = append(all, living{name, end, uses}) }
	n := h.n
	pd := mustPD(t, n)
	add("PD", pd.Dealloc)
	mr, err := n.RegMR(pd, h.mem, memBase, 1<<20, memBase, allAccess|AccessMWBind)
	must(err)
	add("MR", mr.Dereg, "PD")
	p := h.newPool(pd, SRQAttr{MaxWR: 7, MaxSGE: 1})
	add("SRQ", p.s.Destroy, "PD")
	d, err := n.AllocXRCD()
	must(err)
	add("XRCD", d.Dealloc)
	x := newXRCQueue(t, h, d)
	must(x.mr.Dereg())
	add("XRC's CQ", x.cq.Destroy)
	xpd := x.srq.pd
	add("XRC's PD", xpd.Dealloc)
	add("XRC SRQ", x.srq.Destroy, "XRCD", "XRC's CQ", "XRC's PD")
	target, err := n.CreateQP(QPInit{Type: XRCTGT, XRCD: d})
	must(err)
	add("XRC target", target.Destroy, "XRCD")
	bring(t, target, RTS)

	own := h.pd
	h.pd = pd
	for _, typ := range []QPType{RC, UC, UD, XRCINI} {
		name := map[QPType]string{RC: "RC", UC: "UC", UD: "UD", XRCINI: "XRC initiator"}[typ]
		uses := []string{"PD", name + "'s CQ"}
		var e *end
		if typ == XRCINI {
			e = h.newEnd(typ, testCap, 15)
		} else {
			e = h.newShared(typ, p)
			uses = append(uses, "SRQ")
		}
		bring(t, e.q, RTS)
		add(name+"'s CQ", e.cq.Destroy)
		add(name, e.q.Destroy, uses...)
		if typ == UD {
			_, err := n.AttachMulticast(e.q, group4)
			must(err)
			add("membership", func() error { _, err := n.DetachMulticast(e.q, group4); return err }, "UD")
		}
		if typ == RC {
			for i, kind := range []MWType{MWType1, MWType2} {
				mw, err := n.AllocMW(pd, kind)
				must(err)
				win := testWindow{t, e, mw}
				e.post(win.bind(uint64(i), mr, 0, 64, windowAccess))
				h.transmit()
				if !mw.bound() {
					t.Fatal("not bound")
				}
				add([]string{"window 1", "window 2"}[i], mw.Dealloc, [][]string{{"PD", "MR"}, {"PD"}}[i]...)
			}
		}
	}
	h.pd = own
	ah, err := n.CreateAH(pd, AHAttr{DGID: group4, IsGlobal: true, Port: 1})
	must(err)
	add("AH", ah.Destroy, "PD")
	return all
}
