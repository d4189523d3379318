package nic

import (
	"errors"
	"net/netip"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// fatalTB is what testing.T and rapid.T have in common.
type fatalTB interface {
	Helper()
	Fatalf(format string, args ...any)
}

var (
	testGID4 = roce.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	testGID6 = roce.GIDFromAddr(netip.MustParseAddr("2001:db8::1"))
	peerGID4 = roce.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	peerGID6 = roce.GIDFromAddr(netip.MustParseAddr("2001:db8::2"))
)

// objectsNIC is a NIC with a GID of each IP version.
func objectsNIC(cfg Config) *NIC {
	n := New(cfg)
	n.SetGID(0, testGID4)
	n.SetGID(1, testGID6)
	return n
}

func ringOf(t fatalTB, entries, elem uint32) *ring.Queue {
	t.Helper()
	g, err := ring.GeometryFor(entries, elem)
	if err != nil {
		t.Fatalf("%v", err)
	}
	q, err := ring.Format(make([]byte, g.Size()), g)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return q
}

func mustPD(t fatalTB, n *NIC) *PD {
	t.Helper()
	pd, err := n.AllocPD()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return pd
}

func mustCQ(t fatalTB, n *NIC, entries uint32) *CQ {
	t.Helper()
	cq, err := n.CreateCQ(ringOf(t, entries, ring.CQESize))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return cq
}

var smallCap = Cap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}

func qpInit(t fatalTB, n *NIC, typ QPType, pd *PD, send, recv *CQ, c Cap) QPInit {
	t.Helper()
	_, sq, rq, err := n.QueueShapes(c)
	if err != nil {
		t.Fatalf("%v", err)
	}
	format := func(g ring.Geometry) *ring.Queue {
		q, err := ring.Format(make([]byte, g.Size()), g)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return q
	}
	i := QPInit{Type: typ, PD: pd, SendCQ: send, RecvCQ: recv, SQ: format(sq), RQ: format(rq), Cap: c}
	if typ == XRCTGT {
		if i.XRCD, err = n.AllocXRCD(); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return i
}

func mustQP(t fatalTB, n *NIC, typ QPType, pd *PD, send, recv *CQ) *QP {
	t.Helper()
	q, err := n.CreateQP(qpInit(t, n, typ, pd, send, recv, smallCap))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return q
}

// someQP makes a queue pair with a protection domain and completion queue of its own.
func someQP(t fatalTB, n *NIC, typ QPType) *QP {
	t.Helper()
	cq := mustCQ(t, n, 16)
	return mustQP(t, n, typ, mustPD(t, n), cq, cq)
}

// goodAttr are attribute values that every transition accepts.
func goodAttr(to State) Attr {
	return Attr{
		State: to, PathMTU: 3, QKey: 0x11111111, RQPSN: 0x123456, SQPSN: 0x654321, DestQPN: 0x111,
		AccessFlags: AccessRemoteWrite | AccessRemoteRead, MaxRDAtomic: 4, MaxDestRDAtomic: 3, MinRNRTimer: 12,
		Port: 1, Timeout: 14, RetryCnt: 7, RNRRetry: 6,
		AH:      AHAttr{DGID: peerGID4, IsGlobal: true, Port: 1, HopLimit: 64, TrafficClass: 0x20},
		AltPort: 1, AltAH: AHAttr{DGID: peerGID4, IsGlobal: true, Port: 1, HopLimit: 64},
	}
}

// bring takes a new queue pair to a state, by the required attributes alone.
func bring(t fatalTB, q *QP, to State) {
	t.Helper()
	steps := map[State][]State{Init: {Init}, RTR: {Init, RTR}, RTS: {Init, RTR, RTS}, SQD: {Init, RTR, RTS, SQD},
		SQE: {Init, RTR, RTS}, Err: {Init, Err}}[to]
	for _, s := range steps {
		a := goodAttr(s)
		mask := AttrState | transitionOf(q.typ, q.state, s).required
		if err := q.nic.Modify(1, q, &a, mask); err != nil {
			t.Fatalf("%v", err)
		}
	}
	switch to {
	case SQD:
		q.sqDrained()
	case SQE:
		q.state = SQE // only a failing send gets there (10.3.1.6)
	}
	if q.State() != to {
		t.Fatalf("%v is in state %v, want %v", q, q.State(), to)
	}
}

func transitionOf(typ QPType, from, to State) transition {
	switch typ {
	case XRCINI:
		return iniTransitions[from][to]
	case XRCTGT:
		return tgtTransitions[from][to]
	case UC:
		return ucTransitions[from][to]
	case UD:
		return udTransitions[from][to]
	}
	return rcTransitions[from][to]
}

func wantErrno(t *testing.T, err error, want Errno) {
	t.Helper()
	if want == 0 {
		if err != nil {
			t.Errorf("got error %v, want none", err)
		}
		return
	}
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %q", err, want.Error())
	}
	var e *Error
	if !errors.As(err, &e) || e.Op == "" || e.Reason == "" {
		t.Errorf("error %#v does not say what was attempted and why it cannot be", err)
	}
}

func memory(base uint64, size int) *hostmem.Bytes {
	return &hostmem.Bytes{Base: base, Mem: make([]byte, size)}
}
