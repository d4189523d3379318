package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"rnic/cm"
	"rnic/internal/device"
	"rnic/internal/nic"
	"rnic/internal/roce"
	"rnic/internal/testnet"
	"rnic/verbs"
)

var (
	victimAddr = netip.MustParseAddr("10.66.0.1")
	peerAddr   = netip.MustParseAddr("10.66.0.2")
	otherAddr  = netip.MustParseAddr("10.66.0.3")
)

const (
	openAt, openEnd = 16 << 10, 32 << 10 // the region with remote rights in the victim's memory
	memSize         = 64 << 10
	patience        = time.Minute // the machine may be busy
	peersPSN        = 1000        // the next packet of a target's peer
	ownPSN          = 5000        // and of the target
	nobody          = 0x777777    // the peer that targets believe to be connected to
)

// arena is a NIC that is attacked, an honest peer of it, and the attacker's sockets.
type arena struct {
	t            *testing.T
	victim, peer *verbs.Device
	pd           *verbs.PD
	cq           *verbs.CQ
	mem, before  []byte
	mr, foreign  *verbs.MR
	ud           *verbs.QP

	spoofs, owns *net.UDPConn // from the peer's address, from the attacker's own

	rounds atomic.Int64 // transfers of the honest connection, each compared
	honest chan error
	stream net.Conn // of the connection manager's
	mgr    *cm.Manager
}

func get[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newArena(t *testing.T) *arena {
	testnet.Own(t)
	testnet.Up(t, "lo", victimAddr.String()+"/32", peerAddr.String()+"/32", otherAddr.String()+"/32")
	a := &arena{t: t, honest: make(chan error, 1)}
	a.victim, a.peer = a.nic(victimAddr, 1), a.nic(peerAddr, 2)
	ctx := a.victim.Open()
	a.pd = get(ctx.AllocPD())(t)
	a.cq = get(ctx.CreateCQ(1000))(t)
	a.mem = make([]byte, memSize)
	for i := range a.mem {
		a.mem[i] = byte(i*7 + i>>8)
	}
	a.before = bytes.Clone(a.mem)
	rights := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	a.mr = get(a.pd.RegMR(a.mem[openAt:openEnd], rights))(t)
	a.foreign = get(get(ctx.AllocPD())(t).RegMR(a.mem[40<<10:48<<10], rights))(t)
	a.ud = get(a.pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: a.cq, RecvCQ: a.cq}))(t)
	if err := a.ud.Activate(0x1234); err != nil {
		t.Fatal(err)
	}
	a.spoofs, a.owns = a.socket(peerAddr), a.socket(otherAddr)
	a.startHonest()
	a.startStream()
	return a
}

func (a *arena) nic(at netip.Addr, seed uint64) *verbs.Device {
	d := get(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{at}, Seed: seed}))(a.t)
	a.t.Cleanup(func() { d.Close() })
	return d
}

func (a *arena) socket(at netip.Addr) *net.UDPConn {
	c := get(net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0))))(a.t)
	a.t.Cleanup(func() { c.Close() })
	return c
}

// target is a connection of the victim to a peer that there is not: the attacker speaks for it.
func (a *arena) target() *verbs.QP {
	q := get(a.pd.CreateQP(verbs.QPConfig{SendCQ: a.cq, RecvCQ: a.cq}))(a.t)
	err := q.Connect(verbs.Endpoint{GID: roce.GIDFromAddr(peerAddr), QPN: nobody, PSN: peersPSN}, verbs.ConnectOptions{PSN: ownPSN, RDAtomic: 4})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { q.Close() })
	return q
}

// send sends a packet, with its ICRC, from the peer's address or the attacker's own.
func (a *arena) send(spoofed bool, pkt []byte) { a.sendRaw(spoofed, a.seal(spoofed, pkt)) }

func (a *arena) from(spoofed bool) *net.UDPConn {
	if spoofed {
		return a.spoofs
	}
	return a.owns
}

func (a *arena) seal(spoofed bool, pkt []byte) []byte {
	at := a.from(spoofed).LocalAddr().(*net.UDPAddr).AddrPort()
	pkt = append(bytes.Clone(pkt), make([]byte, roce.ICRCSize)...)
	roce.PutICRC(&roce.Path{Src: at.Addr().Unmap(), Dst: victimAddr, SrcPort: at.Port(), TTL: 64}, 0, pkt)
	return pkt
}

func (a *arena) sendRaw(spoofed bool, pkt []byte) {
	if _, err := a.from(spoofed).WriteToUDPAddrPort(pkt, netip.AddrPortFrom(victimAddr, roce.Port)); err != nil {
		a.t.Fatal(err)
	}
}

// packet is a packet with its extended headers as they are, or as set changes them.
func packet(op roce.Opcode, qpn uint32, psn int, payload int, set func(i *roce.OpInfo, p []byte)) []byte {
	n, i := roce.BTHSize, op.Info()
	if i != nil {
		n = i.HeaderLen
	}
	p := make([]byte, n+payload+int(roce.PadCount(payload)))
	for k := range payload {
		p[n+k] = 0xee
	}
	roce.BTH(p).Encode(&roce.BTHFields{Opcode: op, MigReq: true, PadCount: roce.PadCount(payload), PKey: 0xffff, DestQP: qpn, AckReq: true, PSN: roce.PSN(psn)})
	if set != nil {
		set(i, p)
	}
	return p
}

// reth sets address, key and length of an RDMA request.
func reth(va uint64, key, length uint32) func(i *roce.OpInfo, p []byte) {
	return func(i *roce.OpInfo, p []byte) { i.RETH(p).Encode(&roce.RETHFields{VA: va, RKey: key, Length: length}) }
}

func aeth(s roce.Syndrome) func(i *roce.OpInfo, p []byte) {
	return func(i *roce.OpInfo, p []byte) { i.AETH(p).Encode(&roce.AETHFields{Syndrome: s, MSN: 1}) }
}

// mad is a message of the connection manager, to queue pair 1 (vol. 1, 12.6, 13.4).
func mad(attribute uint16, local, remote uint32) []byte {
	return packet(roce.UDSendOnly, nic.ManagementQPN, 7, 256, func(i *roce.OpInfo, p []byte) {
		i.DETH(p).Encode(&roce.DETHFields{QKey: nic.ManagementQKey, SrcQP: nic.ManagementQPN})
		m := p[i.HeaderLen:]
		clear(m)
		m[0], m[1], m[2], m[3] = 1, 7, 2, 3
		binary.BigEndian.PutUint16(m[16:], attribute)
		binary.BigEndian.PutUint32(m[24:], local)
		binary.BigEndian.PutUint32(m[28:], remote)
	})
}

// readings are the victim's counters.
func (a *arena) readings() device.Readings { return a.victim.Unwrap().Readings() }

// until waits for something that must come.
func (a *arena) until(what string, is func() bool) {
	a.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		select {
		case err := <-a.honest:
			a.t.Fatalf("the honest connection: %v", err)
		default:
		}
		if time.Now().After(end) {
			a.t.Fatalf("%s: not within %v; counters %+v", what, patience, a.readings())
		}
	}
}

// unharmed checks what no attack may change: memory outside the region, the honest connection, the stream.
func (a *arena) unharmed(name string) {
	a.t.Helper()
	if !bytes.Equal(a.mem[:openAt], a.before[:openAt]) || !bytes.Equal(a.mem[openEnd:], a.before[openEnd:]) {
		a.t.Fatalf("%s: memory outside the region has changed", name)
	}
	was := a.rounds.Load()
	a.until(name+": the honest connection goes on", func() bool { return a.rounds.Load() > was+1 })
	_ = a.stream.SetDeadline(time.Now().Add(patience))
	if _, err := a.stream.Write([]byte(name)); err != nil {
		a.t.Fatalf("%s: the stream: %v", name, err)
	}
	got := make([]byte, len(name))
	if _, err := io.ReadFull(a.stream, got); err != nil || string(got) != name {
		a.t.Fatalf("%s: the stream brings %q, %v", name, got, err)
	}
}

// startHonest lets the peer write to the victim and read it back, again and again, and compare.
func (a *arena) startHonest() {
	v, p := a.victim.Open(), a.peer.Open()
	vpd, ppd := get(v.AllocPD())(a.t), get(p.AllocPD())(a.t)
	vcq, pcq := get(v.CreateCQ(10))(a.t), get(p.CreateCQ(10))(a.t)
	const n = 20_000
	rights := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	vmr, pmr := get(vpd.AllocMR(n, rights))(a.t), get(ppd.AllocMR(2*n, rights))(a.t)
	vq, pq := get(vpd.CreateQP(verbs.QPConfig{SendCQ: vcq, RecvCQ: vcq}))(a.t), get(ppd.CreateQP(verbs.QPConfig{SendCQ: pcq, RecvCQ: pcq}))(a.t)
	ve, pe := get(vq.Local(0, 11))(a.t), get(pq.Local(0, 22))(a.t)
	for q, c := range map[*verbs.QP][2]verbs.Endpoint{vq: {pe, ve}, pq: {ve, pe}} {
		if err := q.Connect(c[0], verbs.ConnectOptions{PSN: c[1].PSN, Timeout: 17}); err != nil {
			a.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(a.t.Context())
	a.t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			b := pmr.Bytes()
			for i := range n {
				b[i], b[n+i] = byte(i*int(a.rounds.Load()+3)), 0
			}
			_, err := pq.PostSend(
				&verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.Signaled, SGE: pmr.Slice(0, n), RemoteAddr: vmr.Addr(0), RKey: vmr.RKey()},
				&verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.Signaled, SGE: pmr.Slice(n, n), RemoteAddr: vmr.Addr(0), RKey: vmr.RKey()})
			if err == nil {
				err = complete(ctx, pcq, 2)
			}
			if err == nil && !bytes.Equal(b[:n], b[n:]) {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				if ctx.Err() == nil {
					a.honest <- err
				}
				return
			}
			a.rounds.Add(1)
			time.Sleep(time.Millisecond)
		}
	}()
}

type badStatus verbs.WC

func (b badStatus) Error() string { return b.Status.String() }

func complete(ctx context.Context, cq *verbs.CQ, n int) error {
	wc := make([]verbs.WC, 8)
	for n > 0 {
		got, err := cq.Next(ctx, wc)
		if err != nil {
			return err
		}
		for _, w := range wc[:got] {
			if w.Status != verbs.StatusSuccess {
				return badStatus(w)
			}
		}
		n -= got
	}
	return nil
}

// startStream connects a stream by the connection manager; the victim answers with what it gets.
func (a *arena) startStream() {
	a.mgr = get(cm.New(a.victim))(a.t)
	far := get(cm.New(a.peer))(a.t)
	l := get(a.mgr.ListenStream("tcp", victimAddr.String()+":7000"))(a.t)
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	a.stream = get(far.DialStream(a.t.Context(), "tcp", l.Addr().String()))(a.t)
	a.t.Cleanup(func() { a.stream.Close(); l.Close(); far.Close(); a.mgr.Close() })
}
