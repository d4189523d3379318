package cma

import (
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/verbs"
)

// A processing unit dies, and with it the management queue pair: connections are made all the same afterwards.
func TestConnectionsAfterAUnitDied(t *testing.T) {
	a := loopbackAddr(26)
	died := make(chan string, 8)
	m := nicOn(t, a, func(c *device.Config) { c.Planted, c.Report = nic.PlantedDeath, func(s string) { died <- s } })
	_, server, to := listening(t, m, a, 0)
	linked(t, m, to, server, 7)
	killUnit(t, m.ports[0].dev)
	<-died
	for n := range uint32(3) {
		linked(t, m, to, server, 20+2*n)
	}
}

// Completions that faults hold back come after the queue pair has begun a new life: they say nothing of what that has posted.
func TestLateCompletionsOfAFormerLife(t *testing.T) {
	const late = 100 * time.Millisecond
	a := loopbackAddr(27)
	m := nicOn(t, a, func(c *device.Config) {
		c.SendFault = &fault.Spec{Completion: 1, CompletionMin: late, CompletionMax: late}
	})
	_, server, to := listening(t, m, a, 0)
	p := m.ports[0]
	linked(t, m, to, server, 7)
	m.mu.Lock()
	held := sendSlots - len(p.free)
	p.renew()
	m.mu.Unlock()
	if held == 0 {
		t.Fatal("no completion is held back: the test tests nothing")
	}
	time.Sleep(3 * late)
	m.mu.Lock()
	if len(p.free) > sendSlots {
		t.Errorf("%d slots of %d are free: some twice", len(p.free), sendSlots)
	}
	m.mu.Unlock()
	linked(t, m, to, server, 9)
}

// killUnit posts what the planted fault is about.
func killUnit(t *testing.T, dev *device.Device) {
	t.Helper()
	ctx := verbs.Wrap(dev).Open()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := ctx.CreateCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	var q [2]*verbs.QP
	var e [2]verbs.Endpoint
	for i := range q {
		if q[i], err = pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq}); err != nil {
			t.Fatal(err)
		}
		if e[i], err = q[i].Local(0, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range q {
		if err := q[i].Connect(e[1-i], verbs.ConnectOptions{PSN: e[i].PSN}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q[0].PostSend(&verbs.SendWR{Opcode: verbs.OpCompareSwap, SGE: mr.Slice(0, 8), RemoteAddr: mr.Addr(8), RKey: mr.RKey()}); err != nil {
		t.Fatal(err)
	}
}
