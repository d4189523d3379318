package nic

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// The transitions of InfiniBand vol. 1, 10.3.1 and the table of 11.2.5.2 (modify queue pair
// attributes) with the link layer of RoCE, written as Linux gives them: type, from, to, required,
// optional. Every state but RESET may go to ERR, every state to RESET.
const specTable = `
RC RESET INIT pkey,port,access                       -
RC INIT  INIT -                                      pkey,port,access
RC INIT  RTR  av,mtu,dqpn,rqpsn,maxdest,minrnr       alt,access,pkey
RC RTR   RTS  timeout,retry,rnr,sqpsn,maxrd          cur,alt,access,minrnr,mig
RC RTS   RTS  -                                      cur,alt,access,minrnr,mig
RC RTS   SQD  -                                      sqdnotify
RC SQD   RTS  -                                      cur,alt,access,minrnr,mig
RC SQD   SQD  -                                      port,av,timeout,retry,rnr,maxrd,maxdest,alt,access,pkey,minrnr,mig
RC SQE   RTS  -                                      -
UC RESET INIT pkey,port,access                       -
UC INIT  INIT -                                      pkey,port,access
UC INIT  RTR  av,mtu,dqpn,rqpsn                      alt,access,pkey
UC RTR   RTS  sqpsn                                  cur,alt,access,mig
UC RTS   RTS  -                                      cur,alt,access,mig
UC RTS   SQD  -                                      sqdnotify
UC SQD   RTS  -                                      cur,alt,access,mig
UC SQD   SQD  -                                      av,alt,access,pkey,mig
UC SQE   RTS  -                                      cur,access
XI RESET INIT pkey,port,access                       -
XI INIT  INIT -                                      pkey,port,access
XI INIT  RTR  av,mtu,dqpn,rqpsn                      alt,access,pkey
XI RTR   RTS  timeout,retry,rnr,sqpsn,maxrd          cur,alt,access,mig
XI RTS   RTS  -                                      cur,alt,access,mig
XI RTS   SQD  -                                      sqdnotify
XI SQD   RTS  -                                      cur,alt,access,mig
XI SQD   SQD  -                                      port,av,timeout,retry,rnr,maxrd,alt,access,pkey,mig
XT RESET INIT pkey,port,access                       -
XT INIT  INIT -                                      pkey,port,access
XT INIT  RTR  av,mtu,dqpn,rqpsn,maxdest,minrnr       alt,access,pkey
XT RTR   RTS  timeout,sqpsn                          cur,alt,access,minrnr,mig
XT RTS   RTS  -                                      cur,alt,access,minrnr,mig
XT RTS   SQD  -                                      sqdnotify
XT SQD   RTS  -                                      cur,alt,access,minrnr,mig
XT SQD   SQD  -                                      port,av,timeout,maxdest,alt,access,pkey,minrnr,mig
UD RESET INIT pkey,port,qkey                         -
UD INIT  INIT -                                      pkey,port,qkey
UD INIT  RTR  -                                      pkey,qkey
UD RTR   RTS  sqpsn                                  cur,qkey
UD RTS   RTS  -                                      cur,qkey
UD RTS   SQD  -                                      sqdnotify
UD SQD   RTS  -                                      cur,qkey
UD SQD   SQD  -                                      pkey,qkey
UD SQE   RTS  -                                      cur,qkey
`

var attrNames = map[string]AttrMask{
	"cur": AttrCurState, "sqdnotify": AttrEnSQDAsyncNotify, "access": AttrAccessFlags, "pkey": AttrPKeyIndex,
	"port": AttrPort, "qkey": AttrQKey, "av": AttrAV, "mtu": AttrPathMTU, "timeout": AttrTimeout, "retry": AttrRetryCnt,
	"rnr": AttrRNRRetry, "rqpsn": AttrRQPSN, "maxrd": AttrMaxRDAtomic, "alt": AttrAltPath, "minrnr": AttrMinRNRTimer,
	"sqpsn": AttrSQPSN, "maxdest": AttrMaxDestRDAtomic, "mig": AttrPathMigState, "dqpn": AttrDestQPN,
}

type step struct {
	typ      QPType
	from, to State
}

// readTable is specTable, with the transitions to RESET and ERR.
func readTable(t *testing.T) map[step]transition {
	names := func(list string) (mask AttrMask) {
		for name := range strings.SplitSeq(list, ",") {
			if name != "-" && attrNames[name] == 0 {
				t.Fatalf("no attribute %q", name)
			}
			mask |= attrNames[name]
		}
		return mask
	}
	states := map[string]State{}
	types := map[string]QPType{"RC": RC, "UC": UC, "UD": UD, "XI": XRCINI, "XT": XRCTGT}
	table := map[step]transition{}
	for s := Reset; s <= Err; s++ {
		states[s.String()] = s
		for _, typ := range types {
			table[step{typ, s, Reset}] = transition{valid: true}
			if s != Reset {
				table[step{typ, s, Err}] = transition{valid: true}
			}
		}
	}
	for line := range strings.SplitSeq(strings.TrimSpace(specTable), "\n") {
		f := strings.Fields(line)
		table[step{types[f[0]], states[f[1]], states[f[2]]}] = transition{true, names(f[3]), names(f[4])}
	}
	return table
}

// A modify with exactly the required attributes succeeds, and with each optional one too; with one
// missing, or one more, or to another state, it is EINVAL and nothing changes (10.3.1, 11.2.5.2).
func TestModifyMasks(t *testing.T) {
	table := readTable(t)
	for _, typ := range []QPType{RC, UC, UD, XRCINI, XRCTGT} {
		for from := Reset; from <= Err; from++ {
			for to := Reset; to <= Err+1; to++ {
				tr := table[step{typ, from, to}]
				t.Run(fmt.Sprintf("%d/%v/%d", typ, from, to), func(t *testing.T) {
					testMasks(t, typ, from, to, tr)
				})
			}
		}
	}
}

func testMasks(t *testing.T, typ QPType, from, to State, tr transition) {
	n := objectsNIC(Config{})
	try := func(mask AttrMask, want Errno) {
		t.Helper()
		q := someQP(t, n, typ)
		defer func() { _ = q.Destroy() }()
		bring(t, q, from)
		before, _ := q.Query()
		a := goodAttr(to)
		a.CurState = from
		err := n.Modify(1, q, &a, mask)
		wantErrno(t, err, want)
		after, _ := q.Query()
		if err != nil && after != before {
			t.Errorf("mask %#x: a refused modify changed %+v to %+v", mask, before, after)
		} else if err == nil && after.State != to {
			t.Errorf("mask %#x: the state is %v", mask, after.State)
		}
	}
	if !tr.valid {
		try(AttrState, EINVAL)
		// Not with the attributes of another way to that state either.
		for s := Reset; s <= Err && to <= Err; s++ {
			try(AttrState|transitionOf(typ, s, to).required, EINVAL)
		}
		return
	}
	try(AttrState|tr.required, 0)
	for bit := AttrMask(2); bit != 0; bit <<= 1 {
		switch {
		case tr.required&bit != 0:
			try(AttrState|tr.required&^bit, EINVAL)
		case tr.optional&bit == 0:
			try(AttrState|tr.required|bit, EINVAL)
		default:
			try(AttrState|tr.required|bit, 0)
		}
	}
	if tr.optional != 0 {
		try(AttrState|tr.required|tr.optional, 0)
	}
}

// Without a state in the mask the state stays, and what may be given is what may be given on the way
// from a state to itself.
func TestModifyWithoutState(t *testing.T) {
	table := readTable(t)
	n := objectsNIC(Config{})
	for _, typ := range []QPType{RC, UC, UD} {
		for from := Reset; from <= Err; from++ {
			tr := table[step{typ, from, from}]
			for bit := AttrMask(1 << 1); bit != 0; bit <<= 1 {
				q := someQP(t, n, typ)
				bring(t, q, from)
				want := EINVAL
				if tr.valid && tr.optional&bit != 0 {
					want = 0
				}
				a := goodAttr(Reset) // the state must not be looked at
				a.CurState = from
				wantErrno(t, n.Modify(1, q, &a, bit), want)
				if q.State() != from {
					t.Errorf("type %d, bit %#x: state %v became %v", typ, bit, from, q.State())
				}
			}
		}
	}
}

// 11.2.5.2: values out of range are refused and change nothing; the largest ones are taken.
func TestModifyValues(t *testing.T) {
	n := objectsNIC(Config{MTU: 1500, PKeys: []uint16{0xffff, 0x8001}, Limits: Limits{MaxRDAtomic: 16}})
	toInit, toRTR, toRTS := rcTransitions[Reset][Init].required, rcTransitions[Init][RTR].required, rcTransitions[RTR][RTS].required
	for _, c := range []struct {
		name   string
		from   State
		to     State
		mask   AttrMask
		change func(*Attr)
		want   Errno
	}{
		{"P_Key index in the table", Reset, Init, toInit, func(a *Attr) { a.PKeyIndex = 1 }, 0},
		{"P_Key index beyond", Reset, Init, toInit, func(a *Attr) { a.PKeyIndex = 2 }, EINVAL},
		{"P_Key index far beyond", Reset, Init, toInit, func(a *Attr) { a.PKeyIndex = 0xffff }, EINVAL},
		{"port 0", Reset, Init, toInit, func(a *Attr) { a.Port = 0 }, EINVAL},
		{"port 2", Reset, Init, toInit, func(a *Attr) { a.Port = 2 }, EINVAL},
		{"all access", Reset, Init, toInit, func(a *Attr) { a.AccessFlags = 0xf | AccessMWBind }, 0},
		{"no access", Reset, Init, toInit, func(a *Attr) { a.AccessFlags = 0 }, 0},
		{"access of regions only", Reset, Init, toInit, func(a *Attr) { a.AccessFlags = AccessZeroBased }, EINVAL},
		{"unknown access", Reset, Init, toInit, func(a *Attr) { a.AccessFlags = 1 << 31 }, EINVAL},
		{"MTU code 0", Init, RTR, toRTR, func(a *Attr) { a.PathMTU = 0 }, EINVAL},
		{"MTU code 6", Init, RTR, toRTR, func(a *Attr) { a.PathMTU = 6 }, EINVAL},
		{"active MTU", Init, RTR, toRTR, func(a *Attr) { a.PathMTU = 3 }, 0},
		{"more than the active MTU", Init, RTR, toRTR, func(a *Attr) { a.PathMTU = 4 }, EINVAL},
		{"RNR timer 31", Init, RTR, toRTR, func(a *Attr) { a.MinRNRTimer = 31 }, 0},
		{"RNR timer 32", Init, RTR, toRTR, func(a *Attr) { a.MinRNRTimer = 32 }, EINVAL},
		{"max_dest_rd_atomic at the limit", Init, RTR, toRTR, func(a *Attr) { a.MaxDestRDAtomic = 16 }, 0},
		{"max_dest_rd_atomic beyond", Init, RTR, toRTR, func(a *Attr) { a.MaxDestRDAtomic = 17 }, EINVAL},
		{"alternate path", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltTimeout, a.AltPKeyIndex = 31, 1 }, 0},
		{"alternate path without an address", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltAH.DGID = roce.GID{} }, EINVAL},
		{"alternate path to a group", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltAH.DGID = roce.GIDFromAddr(netip.MustParseAddr("239.1.2.3")) }, EINVAL},
		{"alternate path to this NIC", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltAH.DGID = testGID4 }, EINVAL},
		{"alternate path of IPv6", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltAH.DGID, a.AltAH.SGIDIndex = peerGID6, 1 }, 0},
		{"alternate source beyond the table", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltAH.SGIDIndex = 9 }, EINVAL},
		{"alternate port 2", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltPort = 2 }, EINVAL},
		{"alternate P_Key index beyond", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltPKeyIndex = 2 }, EINVAL},
		{"alternate timeout 32", Init, RTR, toRTR | AttrAltPath, func(a *Attr) { a.AltTimeout = 32 }, EINVAL},
		{"timeout 0: none", RTR, RTS, toRTS, func(a *Attr) { a.Timeout = 0 }, 0},
		{"timeout 31", RTR, RTS, toRTS, func(a *Attr) { a.Timeout = 31 }, 0},
		{"timeout 32", RTR, RTS, toRTS, func(a *Attr) { a.Timeout = 32 }, EINVAL},
		{"retry count 8", RTR, RTS, toRTS, func(a *Attr) { a.RetryCnt = 8 }, EINVAL},
		{"RNR retry count 7: forever", RTR, RTS, toRTS, func(a *Attr) { a.RNRRetry = 7 }, 0},
		{"RNR retry count 8", RTR, RTS, toRTS, func(a *Attr) { a.RNRRetry = 8 }, EINVAL},
		{"max_rd_atomic at the limit", RTR, RTS, toRTS, func(a *Attr) { a.MaxRDAtomic = 16 }, 0},
		{"max_rd_atomic 0", RTR, RTS, toRTS, func(a *Attr) { a.MaxRDAtomic = 0 }, 0},
		{"max_rd_atomic beyond", RTR, RTS, toRTS, func(a *Attr) { a.MaxRDAtomic = 17 }, EINVAL},
		{"migrated", RTR, RTS, toRTS | AttrPathMigState, func(a *Attr) { a.PathMigState = 0 }, 0},
		{"rearm without alternate path", RTR, RTS, toRTS | AttrPathMigState, func(a *Attr) { a.PathMigState = 1 }, EINVAL},
		{"rearm", RTR, RTS, toRTS | AttrAltPath | AttrPathMigState, func(a *Attr) { a.PathMigState = 1 }, 0},
		{"armed with alternate path", RTR, RTS, toRTS | AttrAltPath | AttrPathMigState, func(a *Attr) { a.PathMigState = 2 }, EINVAL},
		{"no migration state", RTR, RTS, toRTS | AttrPathMigState, func(a *Attr) { a.PathMigState = 3 }, EINVAL},
		{"armed", RTR, RTS, toRTS | AttrPathMigState, func(a *Attr) { a.PathMigState = 2 }, EINVAL},
		{"current state", RTR, RTS, toRTS | AttrCurState, func(a *Attr) { a.CurState = RTR }, 0},
		{"wrong current state", RTR, RTS, toRTS | AttrCurState, func(a *Attr) { a.CurState = RTS }, EINVAL},
		{"wrong current state", RTS, RTS, AttrCurState, func(a *Attr) { a.CurState = SQE }, EINVAL},
		{"current state out of range", RTS, RTS, AttrCurState, func(a *Attr) { a.CurState = 255 }, EINVAL},
		{"no such state", RTS, 255, 0, func(a *Attr) {}, EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := someQP(t, n, RC)
			bring(t, q, c.from)
			before, _ := q.Query()
			a := goodAttr(c.to)
			c.change(&a)
			err := n.Modify(1, q, &a, AttrState|c.mask)
			wantErrno(t, err, c.want)
			if after, _ := q.Query(); err != nil && after != before {
				t.Errorf("a refused modify changed the queue pair to %+v", after)
			}
		})
	}
}

// PSNs and queue pair numbers have 24 bits; Linux cuts what is above.
func TestModifyCutsTo24Bits(t *testing.T) {
	n := objectsNIC(Config{})
	q := someQP(t, n, RC)
	bring(t, q, Init)
	for _, to := range []State{RTR, RTS} {
		a := goodAttr(to)
		a.RQPSN, a.SQPSN, a.DestQPN = 0xff000001, 0xff000002, 0xff000003
		wantErrno(t, n.Modify(1, q, &a, AttrState|rcTransitions[q.state][to].required), 0)
	}
	if a, _ := q.Query(); a.RQPSN != 1 || a.SQPSN != 2 || a.DestQPN != 3 {
		t.Errorf("got PSNs %#x, %#x and queue pair %#x", a.RQPSN, a.SQPSN, a.DestQPN)
	}
}

// 10.3.1.1: the Reset state is that of a new queue pair, with empty queues.
func TestResetIsANewQueuePair(t *testing.T) {
	n := objectsNIC(Config{})
	for _, typ := range []QPType{RC, UC, UD} {
		for from := Reset; from <= Err; from++ {
			q := someQP(t, n, typ)
			fresh, _ := q.Query()
			bring(t, q, from)
			program := [2]*ring.Queue{}
			for i, r := range []*ring.Queue{q.sq, q.rq} {
				g := ring.Geometry{Slots: r.Capacity() + 1}
				for 1<<g.ElemLog2 < r.ElemSize() {
					g.ElemLog2++
				}
				program[i] = ring.View(r.Bytes(), g)
				for program[i].Free() > 0 {
					if err := program[i].Publish(); err != nil {
						t.Fatal(err)
					}
				}
			}
			wantErrno(t, n.Modify(1, q, &Attr{State: Reset}, AttrState), 0)
			if after, _ := q.Query(); after != fresh {
				t.Errorf("type %d, from %v: got %+v, want %+v", typ, from, after, fresh)
			}
			for i, r := range []*ring.Queue{q.sq, q.rq} {
				if r.Pending() != 0 || program[i].Free() != program[i].Capacity() {
					t.Errorf("type %d, from %v: queue %d still has %d entries", typ, from, i, r.Pending())
				}
			}
			bring(t, q, RTS) // and all begins anew
		}
	}
}

// 10.3.1.5: while the send queue drains, the queue pair cannot leave SQD but for RESET and ERR. The
// event comes once, if it was asked for.
func TestSendQueueDraining(t *testing.T) {
	n := objectsNIC(Config{})
	for _, notify := range []uint8{0, 1} {
		q := someQP(t, n, RC)
		bring(t, q, RTS)
		wantEvents(t, n)
		a := Attr{State: SQD, EnSQDAsyncNotify: notify}
		wantErrno(t, n.Modify(1, q, &a, AttrState|AttrEnSQDAsyncNotify), 0)
		if q.attr.SQDraining { // else nothing was under way, and it is drained already
			wantErrno(t, n.Modify(1, q, &Attr{State: RTS}, AttrState), EINVAL)
			wantErrno(t, n.Modify(1, q, &Attr{State: SQD, Timeout: 3}, AttrState|AttrTimeout), EINVAL)
			q.sqDrained()
		}
		q.sqDrained()
		if notify != 0 {
			wantEvents(t, n, EventSQDrained)
		} else {
			wantEvents(t, n)
		}
		wantErrno(t, n.Modify(1, q, &Attr{State: SQD, Timeout: 3}, AttrState|AttrTimeout), 0)
		wantErrno(t, n.Modify(1, q, &Attr{State: RTS}, AttrState), 0)
	}
	for _, to := range []State{Reset, Err} {
		q := someQP(t, n, RC)
		bring(t, q, RTS)
		wantErrno(t, n.Modify(1, q, &Attr{State: SQD}, AttrState), 0)
		q.attr.SQDraining = true
		wantErrno(t, n.Modify(1, q, &Attr{State: to}, AttrState), 0)
		if got, _ := q.Query(); got.SQDraining {
			t.Errorf("draining still in %v", to)
		}
	}
}

// Local: a peer of the same NIC is known as such, and reset forgets it.
func TestPeerOfTheSameNIC(t *testing.T) {
	n := objectsNIC(Config{})
	q := someQP(t, n, RC)
	bring(t, q, Init)
	a := goodAttr(RTR)
	a.AH.DGID = testGID4
	wantErrno(t, n.Modify(1, q, &a, AttrState|rcTransitions[Init][RTR].required), 0)
	if !q.local || q.mtu != 1024 || q.path.Dst != testGID4.Addr() {
		t.Errorf("local %v, MTU %d, path %+v", q.local, q.mtu, q.path)
	}
	wantErrno(t, n.Modify(1, q, &Attr{State: Reset}, AttrState), 0)
	if q.local || q.path.Dst.IsValid() {
		t.Error("the path is known after reset")
	}
}

// 11.2.5.2, SQD to SQD: the number of READs and atomics outstanding as initiator may grow.
func TestMoreOutstandingReadsAfterSQD(t *testing.T) {
	n := objectsNIC(Config{})
	pd, cq := mustPD(t, n), mustCQ(t, n, 64)
	i := qpInit(t, n, RC, pd, cq, cq, Cap{MaxSendWR: 15, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	q, err := n.CreateQP(i)
	if err != nil {
		t.Fatal(err)
	}
	m, err := n.RegMR(pd, memory(0x1000, 64), 0x1000, 64, 0x1000, AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	bring(t, q, RTR)
	a := goodAttr(RTS)
	a.MaxRDAtomic = 0
	wantErrno(t, n.Modify(1, q, &a, AttrState|rcTransitions[RTR][RTS].required), 0)
	wantErrno(t, n.Modify(1, q, &Attr{State: SQD}, AttrState), 0)
	wantErrno(t, n.Modify(1, q, &Attr{MaxRDAtomic: 9}, AttrMaxRDAtomic), 0)
	wantErrno(t, n.Modify(1, q, &Attr{State: RTS}, AttrState), 0)

	program := ring.View(q.sq.Bytes(), ring.Geometry{Slots: 16, ElemLog2: 8})
	for range 12 {
		w := ring.SendWQE{Opcode: ring.OpRead, NumSGE: 1, RemoteAddr: 0x5000, RKey: 1}
		w.SGE[0] = ring.SGE{Addr: 0x1000, Length: 8, LKey: m.LKey()}
		program.StoreSend(program.Position(), &w, false)
		if err := program.Publish(); err != nil {
			t.Fatal(err)
		}
	}
	n.Doorbell(2, q)
	tx := NewTx(1<<16, 64)
	for n.Transmit(2, tx) {
	}
	if len(tx.Packets) != 9 {
		t.Errorf("%d READ requests sent, want 9", len(tx.Packets))
	}
	// 11.2.5.3: query gives the PSNs as they are now.
	if a, _ := q.Query(); a.SQPSN != 0x654321+9 || a.RQPSN != 0x123456 {
		t.Errorf("PSNs %#x and %#x, want %#x and %#x", a.SQPSN, a.RQPSN, 0x654321+9, 0x123456)
	}
}
