package nic

import (
	"bytes"
	"net/netip"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

var (
	group4 = roce.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
	group6 = roce.GIDFromAddr(netip.MustParseAddr("ff0e::1:2"))
)

// members are a sender on the first of two hosts and UD queue pairs on both, and how to send to group4.
func members(t *testing.T) (w *wire, sender *end, on [2][2]*end, send func(id uint64, n int)) {
	t.Helper()
	w = newWire(t, Config{MTU: 1024}, Config{MTU: 1024})
	for h := range on {
		for i := range on[h] {
			on[h][i] = w.hosts[h].newEnd(UD, testCap, 63)
			on[h][i].to(RTS, defaultAttr(), nil)
		}
	}
	sender = on[0][0]
	ah, err := sender.h.n.CreateAH(sender.h.pd, AHAttr{DGID: group4, IsGlobal: true, Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w, sender, on, func(id uint64, n int) {
		s := wr(id, ring.OpSend, sender.sge(0, n))
		s.AHNum, s.RemoteQPN, s.RemoteQKey = ah.Num(), multicastQPN, 0x11111111
		sender.post(s)
	}
}

func attach(t *testing.T, e *end, g roce.GID, first bool) {
	t.Helper()
	if got, err := e.h.n.AttachMulticast(e.q, g); err != nil || got != first {
		t.Fatalf("attach: first %v, %v; want %v", got, err, first)
	}
}

// received waits for a datagram of n bytes from sender in the first receive of e.
func (e *end) received(t *testing.T, sender *end, n int) {
	t.Helper()
	got := e.poll()
	if len(got) != 1 || got[0].Opcode != ring.WCRecv || got[0].ByteLen != uint32(roce.GRHSize+n) || got[0].SrcQP != sender.q.Num() || got[0].Flags&ring.WCGRH == 0 {
		t.Fatalf("%v: completions %+v", e.q, got)
	}
	if !bytes.Equal(e.bytes(5000+roce.GRHSize, n), sender.bytes(0, n)) {
		t.Errorf("%v: the data differ", e.q)
	}
	if p, ok := roce.GRH(e.bytes(5000, roce.GRHSize)).Path(); !ok || p.Src != sender.h.addr || p.Dst != group4.Addr() {
		t.Errorf("%v: GRH area says %+v", e.q, p)
	}
}

// 10.5: a datagram to a group reaches every member, on this NIC and others, the sender itself included,
// and each once: what the network brings back is none more.
func TestMulticastReachesEveryMember(t *testing.T) {
	w, sender, on, send := members(t)
	for h := range on {
		for i, e := range on[h] {
			attach(t, e, group4, i == 0)
		}
	}
	for round := range 2 {
		for h := range on {
			for i, e := range on[h] {
				at := 5000 + 100_000*i // hosts' ends share their memory
				e.recv(9, ring.SGE{Addr: memBase + uint64(at), Length: 1100, LKey: e.h.mr.LKey()})
			}
		}
		send(uint64(round), 1000)
		w.run(1e6)
		for h := range on {
			for i, e := range on[h] {
				got := e.poll()
				if e == sender {
					if len(got) != 2 {
						t.Fatalf("the sender has completions %+v, want its send's and its own copy's", got)
					}
					got = got[1:]
				}
				at := 5000 + 100_000*i
				if len(got) != 1 || got[0].Opcode != ring.WCRecv || got[0].ByteLen != roce.GRHSize+1000 || got[0].SrcQP != sender.q.Num() {
					t.Fatalf("host %d, member %d: completions %+v", h, i, got)
				}
				if !bytes.Equal(e.bytes(at+roce.GRHSize, 1000), sender.bytes(0, 1000)) {
					t.Errorf("host %d, member %d: the data differ", h, i)
				}
			}
		}
	}
	if st := w.hosts[1].n.Stats(); st.RxPackets != 2 || st.UDDropped != 0 {
		t.Errorf("%+v", st)
	}
}

// 10.5, 11.3.2: who is no member, or no more, gets nothing; the sender need not be one.
func TestMulticastMembership(t *testing.T) {
	w, sender, on, send := members(t)
	in, out := on[1][0], on[1][1]
	attach(t, in, group4, true)
	attach(t, in, group4, false) // once more is no other membership
	attach(t, out, group6, true)
	for _, e := range []*end{in, out, on[0][1]} {
		e.recv(9, e.sge(5000, 1100))
	}
	send(1, 64)
	w.run(1e6)
	sender.want(t, "1:success")
	in.received(t, sender, 64)
	out.want(t)
	on[0][1].want(t)

	if last, err := in.h.n.DetachMulticast(in.q, group4); err != nil || !last {
		t.Fatalf("detach: last %v, %v", last, err)
	}
	in.recv(10, in.sge(5000, 1100))
	send(2, 64)
	w.run(1e6)
	in.want(t)
	if st := in.h.n.Stats(); st.BadPackets == 0 {
		t.Errorf("a packet to a group without members counts nowhere: %+v", st)
	}
	_, err := in.h.n.DetachMulticast(in.q, group4)
	wantErrno(t, err, EINVAL)
}

// Each member checks a datagram as if it were the only one: 10.2.5 Q_Key, 10.9.3 partition, 9.8.3 receive,
// 10.3.1 state. One that drops it takes it from nobody else.
func TestMulticastMembersAreIndependent(t *testing.T) {
	w := newWire(t, Config{MTU: 1024}, Config{MTU: 1024, PKeys: []uint16{0xffff, 0x8123}})
	a := w.hosts[0].newEnd(UD, testCap, 63)
	a.to(RTS, defaultAttr(), nil)
	ah, err := a.h.n.CreateAH(a.h.pd, AHAttr{DGID: group4, IsGlobal: true, Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := w.hosts[1]
	var ends []*end
	for i := range 6 {
		e, at, state := h.newEnd(UD, testCap, 63), defaultAttr(), RTS
		switch i {
		case 1:
			at.QKey++
		case 2:
			at.PKeyIndex = 1
		case 4:
			state = Init
		}
		e.to(state, at, nil)
		attach(t, e, group4, i == 0)
		if i != 3 {
			e.recv(uint64(i), e.sge(5000+2000*i, 1100))
		}
		ends = append(ends, e)
	}
	s := wr(7, ring.OpSend, a.sge(0, 100))
	s.AHNum, s.RemoteQPN, s.RemoteQKey = ah.Num(), multicastQPN, 0x11111111
	a.post(s)
	w.run(1e6)
	for i, e := range ends {
		if i == 0 || i == 5 {
			if got := e.poll(); len(got) != 1 || !bytes.Equal(e.bytes(5000+2000*i+roce.GRHSize, 100), a.bytes(0, 100)) {
				t.Errorf("member %d: completions %+v", i, got)
			}
			continue
		}
		e.want(t)
	}
	if st := h.n.Stats(); st.BadQKey != 1 || st.BadPKey != 1 || st.UDDropped != 1 || st.BadPackets != 1 {
		t.Errorf("%+v", st)
	}
}

// 9.6.1: a group's address and queue pair number 0xffffff belong together.
func TestMulticastAddressAndNumber(t *testing.T) {
	w, sender, on, _ := members(t)
	e := on[1][0]
	attach(t, e, group4, true)
	e.recv(1, e.sge(5000, 1100))
	group, own := e.pathFrom(sender), e.pathFrom(sender)
	group.Dst = group4.Addr()
	packet := func(qpn uint32) []byte {
		b := e.fromPeer(roce.UDSendOnly, 5, 8, func(i *roce.OpInfo, p []byte) {
			i.DETH(p).Encode(&roce.DETHFields{QKey: 0x11111111, SrcQP: 77})
		})
		roce.BTH(b).SetDestQP(qpn)
		return b
	}
	e.h.inject(group, packet(e.q.Num()))
	e.h.inject(own, packet(multicastQPN))
	w.run(1e6)
	e.want(t)
	e.h.inject(group, packet(multicastQPN))
	w.run(1e6)
	e.want(t, "1:success")
}

// 11.3.1, 11.2.5.4: what is refused, and that a refusal changes nothing.
func TestMulticastRefusals(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxMulticastGroups: 1, MaxMulticastMembers: 1}})
	ud, other, rc := someQP(t, n, UD), someQP(t, n, UD), someQP(t, n, RC)
	for _, c := range []struct {
		q    *QP
		g    roce.GID
		want Errno
	}{
		{rc, group4, EINVAL},
		{ud, peerGID4, EINVAL},
		{ud, peerGID6, EINVAL},
		{ud, roce.GID{}, EINVAL},
		{ud, group6, 0},
		{other, group6, ENOMEM},
		{ud, group4, ENOMEM},
	} {
		_, err := n.AttachMulticast(c.q, c.g)
		wantErrno(t, err, c.want)
	}
	wantErrno(t, ud.Destroy(), EBUSY)
	if g := ud.MulticastGroups(); len(g) != 1 || g[0] != group6 || len(n.groups) != 1 {
		t.Errorf("groups %v, %d of the NIC", g, len(n.groups))
	}
	if last, err := n.DetachMulticast(ud, group6); !last || err != nil {
		t.Errorf("detach: %v %v", last, err)
	}
	wantErrno(t, ud.Destroy(), 0)
	_, err := n.AttachMulticast(ud, group6)
	wantErrno(t, err, EINVAL)
	// 10.5: connections have no groups.
	a := goodAttr(RTR)
	a.AH.DGID = group4
	bring(t, rc, Init)
	wantErrno(t, n.Modify(1, rc, &a, AttrState|rcTransitions[Init][RTR].required), EINVAL)
}
