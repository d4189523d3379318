package nic

import (
	"bytes"
	"net/netip"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// twoPaths gives both hosts a second address, and both ends the path between these as their alternate one.
func twoPaths(t fatalTB, w *wire, a, b *end) {
	t.Helper()
	for i, h := range w.hosts {
		h.alt = netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
		h.n.SetGID(1, roce.GIDFromAddr(h.alt))
	}
	arm(t, a, b.h.alt, 1)
	arm(t, b, a.h.alt, 1)
}

// arm gives an alternate path to dst from GID index source, and asks for it to be armed.
func arm(t fatalTB, e *end, dst netip.Addr, source uint8) {
	t.Helper()
	attr := Attr{AltAH: AHAttr{DGID: roce.GIDFromAddr(dst), SGIDIndex: source, IsGlobal: true, Port: 1, HopLimit: 64},
		AltPort: 1, AltTimeout: 15, PathMigState: MigRearm}
	wantNoError(t, e.h.n.Modify(e.h.w.now, e.q, &attr, AttrAltPath|AttrPathMigState))
}

func wantNoError(t fatalTB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func (e *end) migState() uint8 {
	a, _ := e.q.Query()
	return a.PathMigState
}

func wantStates(t *testing.T, a, b *end, want uint8) {
	t.Helper()
	if a.migState() != want || b.migState() != want {
		t.Errorf("migration states %d and %d, want %d", a.migState(), b.migState(), want)
	}
}

// armed are two connected hosts, both ends of which have been armed by a first message.
func armed(t *testing.T, cfg Config) (*wire, *end, *end) {
	t.Helper()
	w, a, b := connected(t, cfg, nil)
	twoPaths(t, w, a, b)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:success")
	wantStates(t, a, b, MigArmed)
	return w, a, b
}

// by counts the packets that left by a path of the host's address src.
func (w *wire) by(src netip.Addr, migReq bool) int {
	return w.count(func(f frame) bool { return f.path.Src == src && roce.BTH(f.data).MigReq() == migReq })
}

// 17.2.8: MigReq is 1 while migrated and 0 from rearming on; a queue pair to be armed is armed
// by the first packet with 0, and not by those before.
func TestMigReqArmsBothEnds(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	if n := w.count(func(f frame) bool { return !roce.BTH(f.data).MigReq() }); n > 0 || len(w.log) == 0 {
		t.Errorf("%d of %d packets have MigReq 0 although nobody asked for migration", n, len(w.log))
	}
	twoPaths(t, w, a, b)
	wantNoError(t, w.hosts[1].n.Modify(w.now, b.q, &Attr{State: Reset}, AttrState))
	attr := defaultAttr()
	attr.RQPSN = 101
	b.to(RTS, attr, a) // an end without an alternate path
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:success")
	if a.migState() != MigRearm || b.migState() != MigMigrated {
		t.Errorf("states %d and %d, want rearm and migrated: only one end asked", a.migState(), b.migState())
	}
	arm(t, b, a.h.alt, 1)
	w.log = nil
	a.post(remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	wantStates(t, a, b, MigArmed)
	if w.by(a.h.addr, false) == 0 || w.by(b.h.addr, false) == 0 || w.by(a.h.addr, true)+w.by(b.h.addr, true) > 0 {
		t.Error("MigReq must be 0 in the states rearm and armed")
	}
}

// 17.2.8: an armed requester whose retries are used up migrates, the responder follows, and every
// operation completes once, with its data, whichever direction of the path fails and wherever.
func TestMigrationWhenRetriesAreUsedUp(t *testing.T) {
	for name, lost := range map[string]func(w *wire, f frame) bool{
		"both directions": func(w *wire, f frame) bool { return f.path.Dst == w.hosts[0].addr || f.path.Dst == w.hosts[1].addr },
		"requests":        func(w *wire, f frame) bool { return f.path.Dst == w.hosts[1].addr },
		"responses":       func(w *wire, f frame) bool { return f.path.Dst == w.hosts[0].addr },
	} {
		for _, after := range []int{0, 1, 3, 9, 17} {
			t.Run(name, func(t *testing.T) {
				w, a, b := armed(t, Config{})
				w.log = nil
				w.drop = func(f frame) bool { return len(w.log) > after && lost(w, f) }
				b.recv(50, b.sge(30000, 5000))
				clear(b.bytes(60000, 16))
				a.post(remote(wr(2, ring.OpWrite, a.sge(0, 9000)), b, 10000), wr(3, ring.OpSend, a.sge(100, 4000)),
					remote(wr(4, ring.OpRead, a.sge(20000, 5000)), b, 40000))
				for id := range uint64(3) {
					s := remote(wr(5+id, ring.OpFetchAdd, a.sge(70000+8*int(id), 8)), b, 60000)
					s.CompareAdd = 1
					a.post(s)
				}
				b.post(remote(wr(60, ring.OpWrite, b.sge(200, 6000)), a, 50000))
				w.run(20 * second)
				a.want(t, "2:success", "3:success", "4:success", "5:success", "6:success", "7:success")
				got := map[string]int{}
				for _, c := range b.poll() {
					got[completion(c)]++
				}
				if len(got) != 2 || got["50:success"] != 1 || got["60:success"] != 1 {
					t.Errorf("the responder completes %v", got)
				}
				if !bytes.Equal(a.bytes(0, 9000), b.bytes(10000, 9000)) || !bytes.Equal(a.bytes(100, 4000), b.bytes(30000, 4000)) ||
					!bytes.Equal(a.bytes(20000, 5000), b.bytes(40000, 5000)) || !bytes.Equal(b.bytes(200, 6000), a.bytes(50000, 6000)) {
					t.Error("data is wrong")
				}
				if b.bytes(60000, 8)[0] != 3 {
					t.Errorf("three additions have added %d", b.bytes(60000, 8)[0])
				}
				for _, e := range []*end{a, b} {
					if n := e.h.events(EventPathMig); n != 1 || e.h.n.Stats().Migrations != 1 {
						t.Errorf("%d events of migration, %d counted, want 1", n, e.h.n.Stats().Migrations)
					}
					q, _ := e.q.Query()
					if q.AH.SGIDIndex != 1 || q.Timeout != 15 || q.AltTimeout != 0 || q.State != RTS {
						t.Errorf("after the migration: %+v", q)
					}
				}
				wantStates(t, a, b, MigMigrated)
				if w.by(a.h.alt, false)+w.by(b.h.alt, false) > 0 || w.by(a.h.alt, true) == 0 {
					t.Error("MigReq must be 1 on the path that was migrated to")
				}
			})
		}
	}
}

// Without migration armed, retries that are used up end the connection as ever (9.7.6.1.3).
func TestNoMigrationUnlessArmed(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	twoPaths(t, w, a, b)
	w.drop = func(f frame) bool { return true }
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(20 * second)
	a.want(t, "1:"+ring.StatusRetryExcErr.String())
	if a.h.events(EventPathMig)+a.h.events(EventPathMigErr) > 0 {
		t.Error("an event of migration without migration")
	}
}

// 17.2.8: the program may have an armed queue pair migrate. Until the peer learns of it, what it sends by
// the old path counts. And back again: a migration uses the alternate path up.
func TestForcedMigration(t *testing.T) {
	w, a, b := armed(t, Config{})
	force := &Attr{PathMigState: MigMigrated}
	wantNoError(t, a.h.n.Modify(w.now, a.q, force, AttrPathMigState))
	if a.migState() != MigMigrated || b.migState() != MigArmed {
		t.Fatalf("states %d and %d, want migrated and armed", a.migState(), b.migState())
	}
	b.post(remote(wr(2, ring.OpWrite, b.sge(0, 3000)), a, 10000))
	w.run(second)
	b.want(t, "2:success")
	wantStates(t, a, b, MigMigrated)
	if w.hosts[1].n.Stats().Timeouts+w.hosts[1].n.Stats().EarlyResends > 0 {
		t.Error("the peer had to wait for a timer")
	}
	wantErrno(t, a.h.n.Modify(w.now, a.q, &Attr{PathMigState: MigRearm}, AttrPathMigState), EINVAL)
	arm(t, a, b.h.addr, 0)
	wantErrno(t, a.h.n.Modify(w.now, a.q, force, AttrPathMigState), EINVAL) // not before it is armed
	arm(t, b, a.h.addr, 0)
	a.post(remote(wr(3, ring.OpWrite, a.sge(0, 3000)), b, 20000))
	w.run(second)
	wantStates(t, a, b, MigArmed)
	wantNoError(t, b.h.n.Modify(w.now, b.q, force, AttrPathMigState))
	a.post(remote(wr(4, ring.OpWrite, a.sge(0, 3000)), b, 20000))
	w.run(second)
	a.want(t, "3:success", "4:success")
	wantStates(t, a, b, MigMigrated)
	if q, _ := a.q.Query(); q.AH.SGIDIndex != 0 {
		t.Errorf("it is not back on its first path: %+v", q.AH)
	}
}

// 9.6.1, 17.2.8.1.3: each path has a partition of its own. What the peer sends by the former path, until it learns of the
// migration, is of the former path's.
func TestFormerPathKeepsItsPartition(t *testing.T) {
	w, a, b := connected(t, Config{PKeys: []uint16{0xffff, 0x8001}}, nil)
	twoPaths(t, w, a, b)
	for i, e := range []*end{a, b} {
		attr := Attr{AltAH: AHAttr{DGID: roce.GIDFromAddr(w.hosts[1-i].alt), SGIDIndex: 1, IsGlobal: true, Port: 1}, AltPort: 1, AltTimeout: 15,
			AltPKeyIndex: 1, PathMigState: MigRearm}
		wantNoError(t, e.h.n.Modify(w.now, e.q, &attr, AttrAltPath|AttrPathMigState))
	}
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	wantStates(t, a, b, MigArmed)
	wantNoError(t, a.h.n.Modify(w.now, a.q, &Attr{PathMigState: MigMigrated}, AttrPathMigState))
	b.post(remote(wr(2, ring.OpWrite, b.sge(0, 3000)), a, 10000))
	w.run(second)
	a.want(t, "1:success")
	b.want(t, "2:success")
	for i, h := range w.hosts {
		if s := h.n.Stats(); s.BadPKey+s.Timeouts+s.EarlyResends > 0 {
			t.Errorf("host %d: %d packets were of no partition, %d timeouts, %d early resends", i, s.BadPKey, s.Timeouts, s.EarlyResends)
		}
	}
	wantStates(t, a, b, MigMigrated)
}

// 17.2.8 holds for UC too: nothing shows its requester that a path has failed but the port, or the peer.
func TestUCMigration(t *testing.T) {
	w, a, b := unreliable(t, Config{})
	twoPaths(t, w, a, b)
	exchange := func(id uint64) {
		t.Helper()
		a.post(remote(wr(id, ring.OpWrite, a.sge(0, 3000)), b, 10000))
		b.post(remote(wr(id+1, ring.OpWrite, b.sge(0, 3000)), a, 10000))
		w.run(second)
	}
	exchange(1)
	wantStates(t, a, b, MigArmed)
	a.h.n.SetDown(w.now, func(i int) bool { return i == 0 })
	w.drop = func(f frame) bool { return f.path.Dst == a.h.addr || f.path.Src == a.h.addr }
	exchange(3) // what b sends before it hears of a is lost, as ever with UC
	exchange(5)
	a.want(t, "1:success", "3:success", "5:success")
	wantStates(t, a, b, MigMigrated)
	for _, h := range w.hosts {
		if h.events(EventPathMig) != 1 {
			t.Errorf("%d events of migration, want 1", h.events(EventPathMig))
		}
	}
	if !bytes.Equal(a.bytes(0, 3000), b.bytes(10000, 3000)) {
		t.Error("data is wrong")
	}
}

// 17.2.8, 11.6.3: a source address that goes down has its armed queue pairs migrate at once, without a retry, and an
// event tells.
func TestMigrationWhenThePortGoesDown(t *testing.T) {
	w, a, b := armed(t, Config{})
	w.drop = func(f frame) bool { return f.path.Dst == a.h.addr || f.path.Src == a.h.addr }
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 3000)), b, 10000))
	w.settle()
	a.h.n.SetDown(w.now, func(i int) bool { return i == 0 })
	w.settle()
	a.want(t, "2:success")
	wantStates(t, a, b, MigMigrated)
	if n := a.h.n.Stats().Timeouts; n > 0 {
		t.Errorf("%d timeouts", n)
	}
	if a.h.events(EventPathMig) != 1 || b.h.events(EventPathMig) != 1 {
		t.Errorf("%d and %d events of migration, want one each", a.h.events(EventPathMig), b.h.events(EventPathMig))
	}
}

// 11.6.3: a migration that is due and not possible, because nothing leaves from the alternate source address, is an
// event, once; the queue pair stays where it is, on the requester's side and on the responder's.
func TestPathMigrationError(t *testing.T) {
	w, a, b := armed(t, Config{})
	b.h.n.SetDown(w.now, func(i int) bool { return i == 1 })
	wantNoError(t, a.h.n.Modify(w.now, a.q, &Attr{PathMigState: MigMigrated}, AttrPathMigState))
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0), remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(20 * second)
	a.want(t, "2:"+ring.StatusRetryExcErr.String(), "3:"+ring.StatusWRFlushErr.String())
	if b.h.events(EventPathMigErr) != 1 || b.h.events(EventPathMig) != 0 || b.migState() != MigArmed {
		t.Errorf("%d errors and %d migrations of the responder in state %d", b.h.events(EventPathMigErr), b.h.events(EventPathMig), b.migState())
	}
	w, a, b = armed(t, Config{})
	a.h.n.SetGID(1, roce.GID{})
	w.drop = func(f frame) bool { return true }
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(20 * second)
	a.want(t, "2:"+ring.StatusRetryExcErr.String())
	if a.h.events(EventPathMigErr) != 1 || a.h.events(EventPathMig) != 0 {
		t.Errorf("%d errors and %d migrations of the requester", a.h.events(EventPathMigErr), a.h.events(EventPathMig))
	}
}

// 17.2.8: packets by the alternate path that do not ask for migration, or come from elsewhere, are not taken.
func TestAlternatePathNeedsMigReq(t *testing.T) {
	w, a, b := armed(t, Config{})
	w.log = nil
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.settle()
	again := w.log[0]
	for _, c := range []struct {
		src, dst netip.Addr
		migReq   bool
	}{{a.h.alt, b.h.alt, false}, {a.h.alt, b.h.addr, true}, {a.h.addr, b.h.alt, true}, {netip.AddrFrom4([4]byte{203, 0, 113, 1}), b.h.alt, true}} {
		bad := b.h.n.Stats().BadPackets
		roce.BTH(again.data).SetMigReq(c.migReq)
		b.h.inject(roce.Path{Src: c.src, Dst: c.dst}, again.data)
		w.settle()
		if b.h.n.Stats().BadPackets != bad+1 || b.migState() != MigArmed {
			t.Errorf("%+v: taken, state %d", c, b.migState())
		}
	}
}

// XRC (A14) migrates as RC does: the initiator when its retries are used up, the target when the initiator has.
func TestXRCMigration(t *testing.T) {
	w, a, b, _, queues := xrcPair(t, nil)
	twoPaths(t, w, a, b)
	send := func(id uint64) {
		t.Helper()
		queues[0].recv(id, queues[0].piece(10000, 3000))
		s := wr(id, ring.OpSend, a.sge(0, 3000))
		s.RemoteSRQ = queues[0].srq.Num()
		a.post(s)
		w.run(20 * second)
		a.want(t, completion(ring.CQE{WRID: id}))
		queues[0].want(t, completion(ring.CQE{WRID: id}))
	}
	send(1)
	wantStates(t, a, b, MigArmed)
	w.drop = func(f frame) bool { return f.path.Dst == b.h.addr }
	send(2)
	wantStates(t, a, b, MigMigrated)
	if !bytes.Equal(a.bytes(0, 3000), b.h.mem.Mem[10000:13000]) {
		t.Error("the message is wrong")
	}
}
