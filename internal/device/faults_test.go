package device_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/verbs"
)

func rule(t *testing.T, text string) fault.Spec {
	t.Helper()
	s, err := fault.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// statusOf waits for a completion, good or not.
func (e *end) statusOf(t *testing.T) (id uint64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := e.cq.Next(ctx, wc[:]); err != nil {
		t.Fatal(err)
	}
	return wc[0].ID, wc[0].Err()
}

// Requests refused with RNR and sequence error NAKs, in the responder's place by either side, over the network and within one
// NIC, beside losses too, cost time only: every byte is right, and the refusals are counted.
func TestForcedNAKsCostTimeOnly(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, f := range []string{"send:rnr=5%:10us,seed=1", "recv:rnr=5%:10us,seed=2", "send:nak=5%:sequence,seed=3", "recv:nak=5%:sequence,seed=4",
			"both:rnr=2%:10us,drop=2%,seed=5"} {
			t.Run(fmt.Sprintf("local=%v/%s", local, f), func(t *testing.T) {
				t.Parallel()
				faults := func(c *device.Config) { c.Faults = []fault.Spec{rule(t, f)} }
				var a, b *device.Device
				if local {
					cfg := device.Config{Local: true}
					faults(&cfg)
					a = open(t, cfg)
					b = a
				} else {
					a, b = twoDevices(t, faults)
				}
				ea, eb := newEnd(t, a), newEnd(t, b)
				connect(t, ea, eb, 0, 0)
				exchange(t, ea, eb, 25)
				sa, ra := a.Injected()
				sb, rb := b.Injected()
				if n := sa.Refused + ra.Refused + sb.Refused + rb.Refused; n == 0 {
					t.Error("nothing was refused")
				}
				if s := a.Stats(); s.RNRNAKsReceived+s.SeqNAKsReceived == 0 {
					t.Errorf("the requester got no NAK: %+v", s)
				}
			})
		}
	}
}

// A NAK that ends the connection completes exactly the request that it is for with its error; those before are good, those behind
// are flushed.
func TestForcedNAKIsForItsRequest(t *testing.T) {
	for f, want := range map[string]error{"send:nak=remote-access,nth=3": verbs.ErrRemoteAccess, "recv:nak=invalid-request,nth=3": verbs.ErrRemoteInvalid,
		"send:nak=remote-operational,skip=2,times=1": verbs.ErrRemoteOperation} {
		t.Run(f, func(t *testing.T) {
			t.Parallel()
			a, b := twoDevices(t, nil)
			ea, eb := newEnd(t, a), newEnd(t, b)
			connect(t, ea, eb, 0, 0)
			target := a
			if f[:4] == "recv" {
				target = b
			}
			if _, err := target.AddFault(rule(t, f)); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if _, err := ea.qp.PostSend(&verbs.SendWR{ID: uint64(i), Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: ea.mr.Slice(0, 100),
					RemoteAddr: eb.mr.Addr(0), RKey: eb.mr.RKey()}); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range []error{nil, nil, want, verbs.ErrFlushed, verbs.ErrFlushed} {
				if id, err := ea.statusOf(t); id != uint64(i) || !errors.Is(err, want) {
					t.Errorf("completion %d is of request %d: %v, want %v", i, id, err, want)
				}
			}
		})
	}
}

// Faults come and go while messages pass.
func TestFaultsComeAndGoUnderTraffic(t *testing.T) {
	a, b := twoDevices(t, nil)
	ea, eb := newEnd(t, a), newEnd(t, b)
	connect(t, ea, eb, 0, 0)
	exchange(t, ea, eb, 3)
	send, recv := a.Injected()
	if send.Seen+recv.Seen != 0 {
		t.Errorf("packets were looked at without a fault: %+v, %+v", send, recv)
	}
	loss, err := a.AddFault(rule(t, "both:drop=5%,seed=3"))
	if err != nil {
		t.Fatal(err)
	}
	late, err := a.AddFault(rule(t, "delay=10%:100us-1ms,bandwidth=1Gbit,seed=3"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // while messages pass
		defer close(done)
		for range 20 {
			id, err := a.AddFault(rule(t, "recv:corrupt=5%,seed=9"))
			if err == nil {
				time.Sleep(2 * time.Millisecond)
				err = a.ClearFault(id)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}()
	exchange(t, ea, eb, 30)
	<-done
	list := a.Faults()
	if len(list) != 2 || list[0].ID != loss || list[0].Counters.Dropped == 0 || list[1].ID != late || list[1].Counters.Delayed == 0 {
		t.Errorf("faults %+v", list)
	}
	if err := a.ClearFault(loss); err != nil {
		t.Error(err)
	}
	if err := a.ClearFault(loss); !errors.Is(err, fault.ErrRule) {
		t.Errorf("cleared twice: %v", err)
	}
	if n := a.ClearFaults(); n != 1 {
		t.Errorf("%d cleared", n)
	}
	send, recv = a.Injected()
	exchange(t, ea, eb, 3)
	if s, r := a.Injected(); s != send || r != recv {
		t.Error("packets are looked at after the last fault is gone")
	}
}

// The port goes down and comes up as a fault says: its state, its events, and no packet meanwhile. A connection that is patient goes on.
func TestPortFlap(t *testing.T) {
	a, b := twoDevices(t, nil)
	ea, eb := newEnd(t, a), newEnd(t, b)
	connect(t, ea, eb, 0, 0)
	sink := newRecorder()
	ctx := a.Open(sink)
	defer ctx.Close()
	id, err := a.AddFault(rule(t, "down=1h"))
	if err != nil {
		t.Fatal(err)
	}
	if e := sink.event(t); e.Type != nic.EventPortErr || a.PortActive() {
		t.Errorf("event %v, active %v", e.Type, a.PortActive())
	}
	if _, err := ea.qp.PostSend(&verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: ea.mr.Slice(0, 100), RemoteAddr: eb.mr.Addr(0), RKey: eb.mr.RKey()}); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if s, _ := a.Injected(); s.Dropped > 1 {
			break
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatal("nothing is lost while the port is down")
		}
	}
	if b.Stats().RxBytes != 0 {
		t.Error("a packet has left while the port was down")
	}
	if err := a.ClearFault(id); err != nil {
		t.Fatal(err)
	}
	if e := sink.event(t); e.Type != nic.EventPortActive || !a.PortActive() {
		t.Errorf("event %v, active %v", e.Type, a.PortActive())
	}
	ea.complete(t)
	if _, err := a.AddFault(rule(t, "down=10ms")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []nic.EventType{nic.EventPortErr, nic.EventPortActive} {
		if e := sink.event(t); e.Type != want {
			t.Errorf("event %v, want %v", e.Type, want)
		}
	}
}

// Completions that are late come in order, and those of a queue pair that is destroyed meanwhile come before that.
func TestLateCompletions(t *testing.T) {
	a, b := twoDevices(t, func(c *device.Config) { c.Faults = []fault.Spec{rule(t, "completion-delay=50%:1ms-30ms,seed=4")} })
	ea, eb := newEnd(t, a), newEnd(t, b)
	connect(t, ea, eb, 0, 0)
	for i := range 50 {
		if _, err := ea.qp.PostSend(&verbs.SendWR{ID: uint64(i), Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: ea.mr.Slice(0, 8), RemoteAddr: eb.mr.Addr(0), RKey: eb.mr.RKey()}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		if wc := ea.complete(t); wc.ID != uint64(i) {
			t.Fatalf("completion %d is of request %d", i, wc.ID)
		}
	}
	if s, _ := a.Injected(); s.DelayedCompletions < 10 || s.DelayedCompletions > 40 {
		t.Errorf("%d of 50 completions were late", s.DelayedCompletions)
	}
}
