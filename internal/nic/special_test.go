package nic

import (
	"errors"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// managed are two hosts with their management queue pairs, and a program's queue pair of datagrams at the first, with the Q_Key asked
// for; send makes a request from one of the first host's to the second's management queue pair.
func managed(t *testing.T, key uint32) (w *wire, gsi, program, target *end, send func(e *end, id uint64) *ring.SendWQE) {
	t.Helper()
	w = newWire(t, Config{MTU: 1024}, Config{MTU: 1024})
	gsi, target = w.hosts[0].newEndOf(QPInit{Type: UD, Special: true}, testCap, 63), w.hosts[1].newEndOf(QPInit{Type: UD, Special: true}, testCap, 63)
	program = w.hosts[0].newEnd(UD, testCap, 63)
	at := defaultAttr()
	at.QKey = ManagementQKey
	gsi.to(RTS, at, nil)
	target.to(RTS, at, nil)
	at.QKey = key
	program.to(RTS, at, nil)
	ah, err := gsi.h.n.CreateAH(gsi.h.pd, AHAttr{DGID: roce.GIDFromAddr(target.h.addr), IsGlobal: true, Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w, gsi, program, target, func(e *end, id uint64) *ring.SendWQE {
		s := wr(id, ring.OpSend, e.sge(0, 256))
		s.AHNum, s.RemoteQPN, s.RemoteQKey = ah.Num(), ManagementQPN, ManagementQKey
		return s
	}
}

// 10.2.5, 12.2.1: management datagrams go from number 1 to number 1. One that a program sends is dropped for its Q_Key, since the management Q_Key
// in a request stands for the queue pair's own; with that as its own it arrives, but says which queue pair has sent it.
func TestManagementQueuePair(t *testing.T) {
	w, gsi, program, target, send := managed(t, 0x11111111)
	if gsi.q.Num() != ManagementQPN || program.q.Num() == ManagementQPN {
		t.Fatalf("numbers %d and %d", gsi.q.Num(), program.q.Num())
	}
	for i := range uint64(3) {
		target.recv(i, target.sge(0, 296))
	}
	gsi.post(send(gsi, 1))
	program.post(send(program, 2))
	w.run(1e6)
	gsi.want(t, "1:success")
	program.want(t, "2:success") // a datagram has no answer
	if got := target.poll(); len(got) != 1 || got[0].SrcQP != ManagementQPN || got[0].ByteLen != 296 {
		t.Fatalf("completions %+v", got)
	}
	if st := target.h.n.Stats(); st.BadQKey != 1 {
		t.Errorf("%+v", st)
	}
	w, _, program, target, send = managed(t, ManagementQKey)
	target.recv(1, target.sge(0, 296))
	program.post(send(program, 1))
	w.run(1e6)
	if got := target.poll(); len(got) != 1 || got[0].SrcQP != program.q.Num() {
		t.Errorf("completions %+v", got)
	}
}

// What does not find a receive is dropped, and the next one arrives; packets of connections are no affair of number 1.
func TestManagementFlood(t *testing.T) {
	w, gsi, _, target, send := managed(t, 0)
	target.recv(1, target.sge(0, 296))
	for i := range uint64(40) {
		gsi.post(send(gsi, i))
	}
	for range 40 {
		target.h.inject(target.pathFrom(gsi), target.fromPeer(roce.RCSendOnly, 5, 8, func(*roce.OpInfo, []byte) {}))
	}
	w.run(1e6)
	if got := target.poll(); len(got) != 1 || target.q.State() != RTS {
		t.Fatalf("completions %+v, state %v", got, target.q.State())
	}
	if st := target.h.n.Stats(); st.UDDropped != 39 {
		t.Errorf("%+v", st)
	}
	target.recv(2, target.sge(0, 296))
	gsi.poll()
	gsi.post(send(gsi, 50))
	w.run(1e6)
	target.want(t, "2:success")
}

// Get Special QP of 11.2: one for each device, of datagrams; its number is free again when it is destroyed, and no other queue pair gets it.
func TestManagementQueuePairIsOne(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	h := w.hosts[0]
	first := h.newEndOf(QPInit{Type: UD, Special: true}, testCap, 63)
	other := h.newEnd(UD, testCap, 63)
	init := QPInit{Type: UD, Special: true, PD: h.pd, SendCQ: first.cq, RecvCQ: first.cq, SQ: other.q.sq, RQ: other.q.rq, Cap: testCap}
	var errno Errno
	if _, err := h.n.CreateQP(init); !errors.As(err, &errno) || errno != EBUSY {
		t.Errorf("a second one: %v", err)
	}
	if err := first.q.Destroy(); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []QPType{RC, UC, XRCINI} {
		bad := init
		bad.Type = typ
		if _, err := h.n.CreateQP(bad); !errors.As(err, &errno) || errno != EINVAL {
			t.Errorf("of type %v: %v", typ, err)
		}
	}
	if again := h.newEndOf(QPInit{Type: UD, Special: true}, testCap, 63); again.q.Num() != ManagementQPN {
		t.Errorf("number %d", again.q.Num())
	}
}
