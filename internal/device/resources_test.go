package device_test

import (
	"sync"
	"testing"

	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/verbs"
)

// What is listed is what was created, of every context, and with its owner.
func TestResources(t *testing.T) {
	d := open(t, device.Config{Local: true, Seed: 1})
	a, b := newEnd(t, d), newEnd(t, d)
	connect(t, a, b, 0, 0)
	r := d.Resources()
	if len(r.Contexts) != 2 || len(r.PDs) != 2 || len(r.CQs) != 2 || len(r.QPs) != 2 || len(r.MRs) != 2 || len(r.SRQs) != 0 {
		t.Fatalf("%+v", r)
	}
	for i, e := range []*end{a, b} {
		owner := r.Contexts[i]
		if p := r.PDs[i]; p.Users != 2 || p.Context != owner {
			t.Errorf("protection domain %+v", p)
		}
		if c := r.CQs[i]; c.Users != 2 || c.Context != owner || c.Capacity < 512 {
			t.Errorf("completion queue %+v", c)
		}
		if m := r.MRs[i]; m.Key != e.mr.RKey() || m.Length != 1<<20 || m.PD != r.PDs[i].Number {
			t.Errorf("region %+v", m)
		}
		at := 0
		for at < 2 && r.QPs[at].Number != e.qp.Num() {
			at++
		}
		if at == 2 {
			t.Fatalf("queue pair %d is not among %+v", e.qp.Num(), r.QPs)
		}
		if q := r.QPs[at]; q.Attr.State != nic.RTS || q.Attr.DestQPN != r.QPs[1-at].Number || q.PD != r.PDs[i].Number || q.Type != nic.RC || q.SRQ != 0 {
			t.Errorf("queue pair %+v", q)
		}
	}
	_ = a.ctx.Close()
	if r = d.Resources(); len(r.Contexts) != 1 || len(r.PDs) != 1 || len(r.QPs) != 1 || r.PDs[0].Number != 2 || r.Contexts[0].Number != 2 {
		t.Errorf("after the first context was closed: %+v", r)
	}
}

func TestResourcesOfASharedReceiveQueue(t *testing.T) {
	d := open(t, device.Config{Local: true, Seed: 1})
	ctx := d.Open(nil)
	ctx.SetPID(4711)
	v := verbs.Wrap(d).Open()
	pd, err := v.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	srq, err := pd.CreateSRQ(verbs.SRQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cq, err := v.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, SRQ: srq}); err != nil {
		t.Fatal(err)
	}
	r := d.Resources()
	if len(r.Contexts) != 2 || r.Contexts[0].PID != 4711 || r.Contexts[1].PID != 0 {
		t.Errorf("contexts %+v", r.Contexts)
	}
	if len(r.SRQs) != 1 || r.SRQs[0].PD != r.PDs[0].Number || r.SRQs[0].XRC || len(r.QPs) != 1 || r.QPs[0].SRQ != r.SRQs[0].Number || r.PDs[0].Users != 2 {
		t.Errorf("%+v", r)
	}
}

// Listing goes on while programs come and go, with many units too.
func TestResourcesWhileTheyChange(t *testing.T) {
	d := open(t, device.Config{Local: true, Seed: 1, Units: 2})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = newEnd(t, d).ctx.Close()
			}
		})
	}
	for range 200 {
		r := d.Resources()
		for _, q := range r.QPs {
			if q.PD == 0 {
				t.Errorf("a queue pair in no protection domain: %+v", q)
			}
		}
	}
	close(stop)
	wg.Wait()
	if r := d.Resources(); len(r.Contexts) != 0 {
		t.Errorf("left: %+v", r)
	}
}
