package hostile

import (
	"testing"

	"rnic/internal/device"
	"rnic/internal/roce"
	"rnic/verbs"
)

// An attack is what the attacker sends, the counter that tells of it, and whether the connection that it is sent to goes on.
type attack struct {
	name    string
	send    func(a *arena, qpn uint32)
	counter func(r *device.Readings) uint64
	least   uint64 // by so much it moves; 0: 1
	survive bool
	most    func(r *device.Readings) uint64 // nil, or a counter that moves by 1 at most: what is answered
}

// mtu is the path MTU of loopback.
const mtu = 4096

// one is an attack of one packet from the peer's address.
func one(build func(a *arena, qpn uint32) []byte) func(*arena, uint32) {
	return func(a *arena, qpn uint32) { a.send(true, build(a, qpn)) }
}

func write(va func(a *arena) uint64, n int) func(*arena, uint32) {
	return one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCWriteOnly, qpn, peersPSN, n, reth(va(a), a.mr.RKey(), uint32(n)))
	})
}

func access(r *device.Readings) uint64  { return r.NIC.AccessNAKsSent }
func invalid(r *device.Readings) uint64 { return r.NIC.OtherNAKsSent }
func bad(r *device.Readings) uint64     { return r.NIC.BadPackets }
func ghosts(r *device.Readings) uint64  { return r.NIC.GhostAcks }
func stale(r *device.Readings) uint64   { return r.NIC.StaleAcks }
func gaps(r *device.Readings) uint64    { return r.NIC.SeqNAKsSent }

var attacks = []attack{
	{name: "a WRITE whose end wraps around", send: write(func(*arena) uint64 { return ^uint64(0) - 63 }, 128), counter: access},
	{name: "a WRITE that begins before the region and ends in it", counter: access, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCWriteFirst, qpn, peersPSN, mtu, reth(a.mr.Addr(0)-mtu, a.mr.RKey(), 2*mtu))
	})},
	{name: "a WRITE beyond the region", send: write(func(a *arena) uint64 { return a.mr.Addr(0) + openEnd - openAt - 16 }, 64), counter: access},
	{name: "a WRITE before the region", send: write(func(a *arena) uint64 { return a.mr.Addr(0) - 16 }, 64), counter: access},
	{name: "a WRITE by a key of another protection domain", counter: access, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCWriteOnly, qpn, peersPSN, 64, reth(a.foreign.Addr(0), a.foreign.RKey(), 64))
	})},
	{name: "a WRITE by a key that is nearly right", counter: access, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCWriteOnly, qpn, peersPSN, 64, reth(a.mr.Addr(0), a.mr.RKey()^1, 64))
	})},
	{name: "a WRITE of 4 GiB", counter: invalid, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCWriteFirst, qpn, peersPSN, mtu, reth(a.mr.Addr(0), a.mr.RKey(), 1<<32-1))
	})},
	{name: "a WRITE of less than its packets bring", counter: invalid, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCWriteOnly, qpn, peersPSN, 1024, reth(a.mr.Addr(0), a.mr.RKey(), 16))
	})},
	{name: "a READ of 4 GiB", counter: invalid, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCReadRequest, qpn, peersPSN, 0, reth(a.mr.Addr(0), a.mr.RKey(), 1<<32-1))
	})},
	{name: "a READ beyond the region", counter: access, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCReadRequest, qpn, peersPSN, 0, reth(a.mr.Addr(0), a.mr.RKey(), openEnd-openAt+1))
	})},
	{name: "an atomic at an odd address", counter: invalid, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCFetchAdd, qpn, peersPSN, 0, func(i *roce.OpInfo, p []byte) {
			i.AtomicETH(p).Encode(&roce.AtomicETHFields{VA: a.mr.Addr(1), RKey: a.mr.RKey(), SwapAdd: 1})
		})
	})},
	{name: "a packet in the middle of no message", counter: invalid, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.RCSendMiddle, qpn, peersPSN, mtu, nil)
	})},
	{name: "a SEND that invalidates a region's key, without a receive", counter: func(r *device.Readings) uint64 { return r.NIC.RNRNAKsSent }, survive: true, send: one(func(a *arena, qpn uint32) []byte {
		return packet(roce.RCSendOnlyInv, qpn, peersPSN, 8, func(i *roce.OpInfo, p []byte) { i.IETH(p).Encode(&roce.IETHFields{RKey: a.mr.RKey()}) })
	})},
	{name: "another partition", counter: func(r *device.Readings) uint64 { return r.NIC.BadPKey }, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		p := packet(roce.RCSendOnly, qpn, peersPSN, 8, nil)
		roce.BTH(p).SetPKey(0x8001)
		return p
	})},
	{name: "an ACK of what was never sent", counter: ghosts, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.RCAck, qpn, ownPSN+100, 0, aeth(0x1f))
	})},
	{name: "a NAK of what was never sent", counter: ghosts, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.RCAck, qpn, ownPSN+1, 0, aeth(roce.NAKRemoteAccess))
	})},
	{name: "an ACK of what was acknowledged long ago", counter: stale, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.RCAck, qpn, ownPSN-100, 0, aeth(0x1f))
	})},
	{name: "a NAK of what was acknowledged long ago", counter: stale, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.RCAck, qpn, ownPSN-1, 0, aeth(roce.NAKRemoteOperational))
	})},
	{name: "a READ response that nobody asked for", counter: ghosts, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.RCReadResponseOnly, qpn, ownPSN+1, 256, aeth(0x1f))
	})},
	{name: "the right ACK from another address", counter: func(r *device.Readings) uint64 { return r.NIC.BadSources }, survive: true, send: func(a *arena, qpn uint32) {
		a.send(false, packet(roce.RCAck, qpn, ownPSN, 0, aeth(0x1f)))
	}},
	{name: "the right WRITE from another address", counter: func(r *device.Readings) uint64 { return r.NIC.BadSources }, survive: true, send: func(a *arena, qpn uint32) {
		a.send(false, packet(roce.RCWriteOnly, qpn, peersPSN, 64, reth(a.mr.Addr(0), a.mr.RKey(), 64)))
	}},
	{name: "a wrong ICRC", counter: func(r *device.Readings) uint64 { return r.Net.BadICRC }, survive: true, send: func(a *arena, qpn uint32) {
		p := a.seal(true, packet(roce.RCSendOnly, qpn, peersPSN, 64, nil))
		p[len(p)-9] ^= 4
		a.sendRaw(true, p)
	}},
	{name: "less than a header", counter: func(r *device.Readings) uint64 { return r.Net.Malformed }, survive: true, send: func(a *arena, _ uint32) {
		a.sendRaw(true, make([]byte, 7))
	}},
	{name: "less than the opcode's headers", counter: bad, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.RCWriteOnly, qpn, peersPSN, 0, nil)[:20]
	})},
	{name: "reserved opcodes", counter: bad, least: 100, survive: true, send: func(a *arena, qpn uint32) {
		for op := range 256 {
			if o := roce.Opcode(op); o.Info() == nil {
				a.send(true, packet(o, qpn, peersPSN, 64, nil))
			}
		}
	}},
	{name: "another version of the transport header", counter: bad, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		p := packet(roce.RCSendOnly, qpn, peersPSN, 64, nil)
		p[1] |= 5
		return p
	})},
	{name: "a datagram to a connection", counter: bad, survive: true, send: one(func(_ *arena, qpn uint32) []byte {
		return packet(roce.UDSendOnly, qpn, peersPSN, 64, nil)
	})},
	{name: "a multicast packet to an own address", counter: bad, survive: true, send: one(func(*arena, uint32) []byte {
		return packet(roce.UDSendOnly, 0xffffff, 1, 64, nil)
	})},
	{name: "every queue pair number that there may be", counter: func(r *device.Readings) uint64 { return r.NIC.UnknownQPs }, least: 200, survive: true, send: func(a *arena, qpn uint32) {
		for i := range uint32(1000) {
			a.send(true, packet(roce.RCSendOnly, qpn^(1+i<<10), peersPSN, 8, nil))
		}
	}},
	{name: "a datagram with another Q_Key", counter: func(r *device.Readings) uint64 { return r.NIC.BadQKey }, survive: true, send: func(a *arena, _ uint32) {
		a.send(false, packet(roce.UDSendOnly, a.ud.Num(), 1, 64, func(i *roce.OpInfo, p []byte) { i.DETH(p).Encode(&roce.DETHFields{QKey: 1, SrcQP: 5}) }))
	}},
	{name: "a flood of datagrams", counter: func(r *device.Readings) uint64 { return r.NIC.UDDropped }, least: 100, survive: true, send: func(a *arena, _ uint32) {
		p := a.seal(false, packet(roce.UDSendOnly, a.ud.Num(), 1, 1024, func(i *roce.OpInfo, p []byte) { i.DETH(p).Encode(&roce.DETHFields{QKey: 0x1234, SrcQP: 5}) }))
		for range 10_000 {
			a.sendRaw(false, p)
		}
	}},
	{name: "a flood of requests behind a gap", counter: func(r *device.Readings) uint64 { return r.NIC.OutOfSequence }, least: 100, survive: true, most: gaps, send: func(a *arena, qpn uint32) {
		for i := range 5000 {
			a.send(true, packet(roce.RCSendOnly, qpn, peersPSN+1+i, 64, nil))
		}
	}},
	{name: "a flood of requests that came before", counter: func(r *device.Readings) uint64 { return r.NIC.Duplicates }, least: 100, survive: true, send: func(a *arena, qpn uint32) {
		for i := range 5000 {
			a.send(true, packet(roce.RCSendOnly, qpn, peersPSN-1-i%900, 64, nil))
		}
	}},
	{name: "a flood of requests without a receive", counter: func(r *device.Readings) uint64 { return r.NIC.RNRNAKsSent }, survive: true, send: func(a *arena, qpn uint32) {
		p := a.seal(true, packet(roce.RCSendOnly, qpn, peersPSN, 64, nil))
		for range 5000 {
			a.sendRaw(true, p)
		}
	}},
	{name: "more READs than were agreed on", counter: invalid, send: func(a *arena, qpn uint32) {
		for i := range 200 { // each of the whole region: none is answered before the next comes
			a.send(true, packet(roce.RCReadRequest, qpn, peersPSN+4*i, 0, reth(a.mr.Addr(0), a.mr.RKey(), openEnd-openAt)))
		}
	}},
	{name: "a flood of congestion notifications", counter: func(r *device.Readings) uint64 { return r.NIC.CNPsReceived }, least: 100, survive: true, send: func(a *arena, qpn uint32) {
		p := packet(roce.CNP, qpn, 0, 0, nil)
		p = a.seal(true, append(p, make([]byte, max(0, 28-len(p)))...))
		for range 5000 {
			a.sendRaw(true, p)
		}
	}},
	{name: "congestion notifications from another address", counter: bad, survive: true, send: func(a *arena, qpn uint32) {
		p := packet(roce.CNP, qpn, 0, 0, nil)
		a.send(false, append(p, make([]byte, max(0, 28-len(p)))...))
	}},
}

// Whoever can send from any address, and knows everything, harms nobody but the connection whose peer he says to be: the NIC stays up, verified
// transfers of others go on, memory outside the region keeps its pattern, and a counter tells of each refusal.
func TestAttacks(t *testing.T) {
	a := newArena(t)
	for _, x := range attacks {
		q := a.target()
		// Something is outstanding that nobody will answer.
		if _, err := q.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGE: a.mr.Slice(0, 64)}); err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		before := a.readings()
		x.send(a, q.Num())
		a.until(x.name+": the counter moves", func() bool {
			r := a.readings()
			return x.counter(&r) >= x.counter(&before)+max(1, x.least)
		})
		if now := a.readings(); x.most != nil && x.most(&now) > x.most(&before)+1 {
			t.Errorf("%s: answered %d times", x.name, x.most(&now)-x.most(&before))
		}
		at, err := q.Query()
		if alive := at.State == verbs.StateRTS; err != nil || alive != x.survive {
			t.Errorf("%s: the connection is in state %v (%v)", x.name, at.State, err)
		}
		a.unharmed(x.name)
		q.Close()
	}
}

// Messages of the connection manager with ids that are guessed, from the peer's address and from another, and what is none: no connection
// ends, and the manager counts them.
func TestForgedConnectionManagement(t *testing.T) {
	a := newArena(t)
	const (
		rej, rep, rtu, dreq, drep, lap = 0x12, 0x13, 0x14, 0x15, 0x16, 0x19
	)
	for _, spoofed := range []bool{true, false} {
		before := a.mgr.Counters()
		for i := range uint32(200) {
			for _, kind := range []uint16{rej, rep, rtu, dreq, drep, lap} {
				a.send(spoofed, mad(kind, i*0x01000193, i*0x9e3779b9))
			}
		}
		a.until("forged messages are counted", func() bool { return a.mgr.Counters().Unknown >= before.Unknown+100 })
		a.unharmed("messages with guessed ids")
	}
	before := a.mgr.Counters()
	other := mad(dreq, 1, 2)
	other[len(other)-256+1] = 4 // the management class
	a.send(false, other)
	fromElsewhere := packet(roce.UDSendOnly, 1, 7, 256, func(i *roce.OpInfo, p []byte) {
		i.DETH(p).Encode(&roce.DETHFields{QKey: 0x80010000, SrcQP: 0x1234})
	})
	a.send(false, fromElsewhere)
	a.until("what is no message is counted", func() bool { return a.mgr.Counters().Malformed >= before.Malformed+2 })
	a.unharmed("what is no message")
}
