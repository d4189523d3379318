package verbs_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"rnic/verbs"
)

// Many queue pairs, one shared queue and one completion queue, resized while messages come in: nothing is
// lost, and nothing is completed twice (vol. 1, 11.2, Modify Shared Receive Queue, 11.2, Resize Completion Queue).
func TestResizeUnderTraffic(t *testing.T) {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	sharedQueueUnderTraffic(t, dev, 4, 300, nil)
}

// sharedQueueUnderTraffic has clients send to a server with one shared receive queue and one completion queue, which are
// resized meanwhile, and does something else with the queue pairs of both again and again, unless that is nil.
func sharedQueueUnderTraffic(t *testing.T, dev *verbs.Device, clients, messages int, also func(qps []*verbs.QP)) {
	const slot = 64
	senders, server, srq, qps := pooled(dev, clients, 64)
	posted := uint64(0)
	post := func() {
		get(srq.PostRecv(&verbs.RecvWR{ID: posted, SGE: server.mr.Slice(int(posted%1000)*slot, slot)}))
		posted++
	}
	for range 40 {
		post()
	}
	var wg, others sync.WaitGroup
	for i, c := range senders {
		qps = append(qps, c.qp)
		wg.Go(func() {
			for m := range messages {
				n := copy(c.mr.Bytes(), fmt.Sprintf("%d/%d", i, m))
				c.post(&verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: c.mr.Slice(0, n)})
				if wc := c.next(); wc.Status != verbs.StatusSuccess {
					t.Errorf("client %d, message %d: %v", i, m, wc.Err())
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	size := 64
	untilDone(&others, stop, 400*time.Microsecond, func() {
		size = 64 + (size+37)%400
		if err := errors.Join(srq.Resize(size), server.cq.Resize(256+size)); err != nil {
			t.Errorf("resizing: %v", err)
		}
	})
	if also != nil {
		untilDone(&others, stop, 300*time.Microsecond, func() { also(qps) })
	}
	seen, next := map[uint64]bool{}, make([]int, clients)
	for range clients * messages {
		wc := server.next()
		if wc.Status != verbs.StatusSuccess || seen[wc.ID] || wc.ID >= posted {
			t.Fatalf("receive %d: %v, seen before: %v", wc.ID, wc.Status, seen[wc.ID])
		}
		seen[wc.ID] = true
		var c, m int
		at := int(wc.ID%1000) * slot
		if _, err := fmt.Sscanf(string(server.mr.Bytes()[at:at+wc.ByteLen]), "%d/%d", &c, &m); err != nil || m != next[c] {
			t.Fatalf("receive %d holds %q, message %d of client %d was to come (%v)", wc.ID, server.mr.Bytes()[at:at+wc.ByteLen], next[c], c, err)
		}
		next[c]++
		post()
	}
	wg.Wait()
	close(stop)
	others.Wait()
}

// untilDone runs f again and again until done is closed.
func untilDone(wg *sync.WaitGroup, done <-chan struct{}, pause time.Duration, f func()) {
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(pause):
				f()
			}
		}
	})
}

func TestErrorsOfSharedQueues(t *testing.T) {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	_, server, srq, _ := pooled(dev, 1, 15)
	foreign := get(get(dev.Open().AllocPD()).CreateSRQ(verbs.SRQConfig{}))
	_, tooMany := server.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 1 << 20})
	_, tooWide := server.pd.CreateSRQ(verbs.SRQConfig{MaxRecvSGE: 33})
	_, mixed := server.pd.CreateQP(verbs.QPConfig{SendCQ: server.cq, RecvCQ: server.cq, SRQ: foreign})
	_, wide := srq.PostRecv(&verbs.RecvWR{SGE: []verbs.SGE{{}, {}}})
	for what, err := range map[string]error{"too many": tooMany, "too wide": tooWide, "of another context": mixed, "two entries": wide,
		"limit": srq.Arm(16), "negative limit": srq.Arm(-1), "no receives": srq.Resize(0), "completions": server.cq.Resize(0),
		"count": server.cq.Moderate(1<<16, 0), "period": server.cq.Moderate(2, time.Second), "nothing": server.mr.Rereg(verbs.Rereg{}),
		"no memory": server.mr.Rereg(verbs.Rereg{Memory: []byte{}})} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	check(foreign.Close())
	check(foreign.Close())
	if _, err := foreign.Query(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("query of a closed queue: %v", err)
	}
	if _, err := foreign.PostRecv(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("posting to a closed queue: %v", err)
	}
}

// A moderated queue wakes its waiter by the period when the count is not reached.
func TestModerationPeriodWakes(t *testing.T) {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	check(server.cq.Moderate(1000, 5*time.Millisecond))
	server.receive(1, 0, 64)
	go client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 8)})
	if wc := server.next(); wc.Status != verbs.StatusSuccess {
		t.Error(wc.Err())
	}
}

// An overflowed completion queue says so (11.6.3), and takes its queue pairs with it.
func TestOverflowEvent(t *testing.T) {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	check(server.cq.Resize(2))
	for id := range uint64(5) {
		server.receive(id, 0, 64)
	}
	for range 5 {
		client.post(&verbs.SendWR{Opcode: verbs.OpSend, SGE: client.mr.Slice(0, 8)})
	}
	for ev := range server.ctx.Events() {
		if ev.Type == verbs.EventCQError {
			if ev.CQ != server.cq {
				t.Error("the event is of another queue")
			}
			break
		}
	}
	if ev := <-server.ctx.Events(); ev.Type != verbs.EventQPFatal || ev.QP != server.qp {
		t.Errorf("event %v, want that of the queue pair", ev.Type)
	}
}

// A region changes its rights, domain and memory; each call keeps what it does not name.
func TestReregister(t *testing.T) {
	client, server, done := newPair(verbs.QPConfig{})
	defer done()
	read := func() error {
		client.post(&verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.Signaled, SGE: client.mr.Slice(0, 4), RemoteAddr: server.mr.Addr(0), RKey: server.mr.RKey()})
		return client.next().Err()
	}
	other := []byte("other memory")
	readOnly := verbs.AccessRemoteRead
	check(server.mr.Rereg(verbs.Rereg{Memory: other, Access: &readOnly}))
	if err := read(); err != nil || string(client.mr.Bytes()[:4]) != "othe" {
		t.Fatalf("%q, %v", client.mr.Bytes()[:4], err)
	}
	wrong := verbs.AccessRemoteWrite
	key := server.mr.RKey()
	if err := server.mr.Rereg(verbs.Rereg{Access: &wrong}); !errors.Is(err, verbs.ErrInvalid) || server.mr.RKey() != key {
		t.Fatalf("a refused change: %v", err)
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	pd := get(server.ctx.AllocPD())
	check(server.mr.Rereg(verbs.Rereg{PD: pd}))
	if err := pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("closing the region's domain: %v", err)
	}
	if err := read(); !errors.Is(err, verbs.ErrRemoteAccess) {
		t.Errorf("a region of another domain: %v", err)
	}
	check(server.mr.Close())
	check(pd.Close())
}

// Receives of a shared queue cost no allocation either.
func TestSharedReceivesDoNotAllocate(t *testing.T) {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	defer dev.Close()
	clients, server, srq, _ := pooled(dev, 1, 16)
	recv := &verbs.RecvWR{SGE: server.mr.Slice(0, 64)}
	send := &verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: clients[0].mr.Slice(0, 8)}
	wc := make([]verbs.WC, 4)
	message := func() {
		get(srq.PostRecv(recv))
		once(t, clients[0], send, wc)
		for get(server.cq.Poll(wc)) == 0 {
		}
	}
	message()
	if n := testing.AllocsPerRun(1000, message); n >= 1 {
		t.Errorf("%v allocations a SEND and its shared receive", n)
	}
}
