package sim

import (
	"encoding/binary"
	"math/rand/v2"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// cmFirst is what the communication manager's planted faults begin behind: those before are the NIC's.
const cmFirst = nic.Planted(200)

// cmWorld is the communication managers of a run, and the model's knowledge of them. Some connections of queue pairs are made by them, and
// many others without queue pairs come and go beside those. Its random choices are its own.
type cmWorld struct {
	rng      *rand.Rand
	attempts []*cmAttempt
	sent     []cmSent // lately: what forgers have seen
	rough    bool     // the links lose and repeat its datagrams more often than other packets, and much later
}

type cmSent struct {
	to  *host
	mad ibcm.Datagram
}

// cmAttempt is one connection that one host asks another for.
type cmAttempt struct {
	index  int
	c      *conn // nil: no queue pairs
	number int   // of the connection's queue pairs
	hosts  [2]*host
	ends   [2]*ibcm.Conn
	own    [2]ibcm.Connection
	accept bool // what the sides want
	agree  bool
	quits  [2]bool // they hang up once it is made
	hung   [2]bool // it has refused, hung up or let go
	met    [2]struct{ requests, replies, made, ends int }
}

// cmSide is the owner of an end.
type cmSide struct {
	a *cmAttempt
	n int
}

const cmService = uint64(ibcm.SpaceTCP)<<16 | 4791

// addCM gives every host a communication manager.
func (w *world) addCM() {
	w.cm = &cmWorld{rng: rand.New(rand.NewPCG(w.cfg.Seed, 0x636d))}
	w.cm.rough = w.cm.chance(60)
	for _, h := range w.hosts {
		cfg := ibcm.Config{NodeGUID: [8]byte{2, byte(h.index)}}
		binary.LittleEndian.PutUint64(cfg.Seed[:], w.cm.rng.Uint64())
		if w.cfg.Planted > cmFirst {
			cfg.Planted = ibcm.Planted(w.cfg.Planted - cmFirst)
		}
		h.cm = ibcm.New(cfg)
		_, err := h.cm.Listen(cmService, 0, nil)
		w.must(err, "listening")
	}
	for _, c := range w.conns {
		c.cm = !w.paths && w.cm.rng.IntN(2) == 0
	}
	for range 10 + w.cm.rng.IntN(60) {
		w.after(w.cm.nanos(50_000_000), w.churn)
	}
	for range w.cm.rng.IntN(40) {
		w.after(w.cm.nanos(60_000_000), w.forgeCM)
	}
}

func (m *cmWorld) nanos(below int64) int64 { return m.rng.Int64N(below) }
func (m *cmWorld) chance(percent int) bool { return m.rng.IntN(100) < percent }
func (m *cmWorld) host(w *world) *host     { return w.hosts[m.rng.IntN(len(w.hosts))] }
func (m *cmWorld) attempt(a *cmAttempt) {
	a.index = len(m.attempts)
	m.attempts = append(m.attempts, a)
}
func (m *cmWorld) connection() ibcm.Connection {
	return ibcm.Connection{StartingPSN: m.rng.Uint32() & roce.PSNMask, ResponderResources: uint8(m.rng.IntN(17)),
		InitiatorDepth: uint8(m.rng.IntN(17)), RNRRetry: uint8(m.rng.IntN(8)), SRQ: m.chance(20)}
}

// churn asks for a connection without queue pairs, which ends in one of many ways.
func (w *world) churn() {
	m := w.cm
	a := &cmAttempt{hosts: [2]*host{m.host(w), m.host(w)}, accept: !m.chance(15), agree: !m.chance(15), own: [2]ibcm.Connection{m.connection(), m.connection()}}
	a.quits[m.rng.IntN(2)] = m.chance(70)
	a.quits[m.rng.IntN(2)] = m.chance(50)
	m.attempt(a)
	// No two of them are of one queue pair.
	a.own[0].QPN, a.own[1].QPN = uint32(a.index)<<1|0x800000, uint32(a.index)<<1|0x800001
	w.ask(a)
	if m.chance(10) { // it loses patience
		w.after(m.nanos(3_000_000), func() {
			a.hung[0] = true
			a.ends[0].Close(w.now)
			a.hosts[0].cmWork()
		})
	}
}

// askCM makes a connection of queue pairs, which are in INIT: the passive one hears its peer before the reply is sent, the active one
// when it has come, and the passive one talks when the active one is ready, or has sent something.
func (w *world) askCM(c *conn) {
	a := &cmAttempt{c: c, number: c.a.number, hosts: [2]*host{c.a.h, c.b.h}, accept: true, agree: true}
	for n, q := range []*qpair{c.a, c.b} {
		a.own[n] = w.cm.connection()
		a.own[n].QPN, a.own[n].StartingPSN = q.qp.Num(), q.attr.RQPSN
		q.held = true
	}
	w.cm.attempt(a)
	c.attempt = a
	w.ask(a)
}

func (w *world) ask(a *cmAttempt) {
	w.count.CMConnections++
	h, p := a.hosts[0], a.hosts[1]
	to := ibcm.Address{Local: roce.GIDFromAddr(h.addrs[0]), Remote: roce.GIDFromAddr(p.addrs[0])}
	private := binary.BigEndian.AppendUint32(nil, uint32(a.index))
	k, err := h.cm.Connect(w.now, to, &ibcm.Request{Connection: a.own[0], ServiceID: cmService, PathMTU: 1, AckTimeout: 16, PKey: 0xffff, Private: private,
		Primary: ibcm.Path{Local: to.Local, Remote: to.Remote}}, cmSide{a, 0})
	w.must(err, "asking for a connection")
	a.ends[0] = k
	w.note(h, "asks host %d for connection %d, %x", p.index, a.index, k.LocalID())
	h.cmWork()
}

// cmWork sends what the host's communication manager has to send, deals with its events, and has its timers looked at.
func (h *host) cmWork() {
	for {
		events := h.cm.Events()
		if len(events) == 0 {
			break
		}
		for i := range events {
			h.cmEvent(&events[i])
		}
	}
	for _, d := range h.cm.Sends() {
		h.w.cm.overhear(h.w.hostOf(d.Remote.Addr()), &d)
		h.cmSend(&d)
	}
	if at, ok := h.cm.Next(); ok && (h.cmWake == 0 || at < h.cmWake) {
		h.cmWake = at
		h.w.after(at-h.w.now, func() {
			if h.cmWake == at {
				h.cmWake = 0
			}
			h.cm.Expire(h.w.now)
			h.cmWork()
		})
	}
}

// overhear keeps a datagram for forgers: not what answers them, in which their changes would cancel out.
func (m *cmWorld) overhear(to *host, d *ibcm.Datagram) {
	if len(m.sent) < 64 {
		m.sent = append(m.sent, cmSent{to, *d})
	} else {
		m.sent[m.rng.IntN(64)] = cmSent{to, *d}
	}
}

func (h *host) cmSend(d *ibcm.Datagram) {
	w := h.w
	to := w.hostOf(d.Remote.Addr())
	if to == nil || d.Local.Addr() != h.addrs[0] {
		w.fail("host %d: a management datagram from %v to %v", h.index, d.Local.Addr(), d.Remote.Addr())
	}
	w.count.CMDatagrams++
	path := &roce.Path{Src: h.addrs[0], Dst: to.addrs[0], SrcPort: 0xd1ce, TTL: 64}
	switch x := h.wires[to.index]; {
	case w.cm.rough && w.cm.chance(5):
		w.count.Dropped++
		return
	case w.cm.rough && w.cm.chance(15):
		w.after(w.cm.nanos(150_000_000), func() { x.send(path, cmPacket(d)) })
		fallthrough
	default:
		x.send(path, cmPacket(d))
	}
}

// cmPacket is a datagram from queue pair 1 to queue pair 1, with room for the ICRC.
func cmPacket(d *ibcm.Datagram) []byte {
	b := make([]byte, roce.BTHSize+roce.DETHSize+ibcm.MADSize+roce.ICRCSize)
	roce.BTH(b).Encode(&roce.BTHFields{Opcode: roce.UDSendOnly, PKey: 0xffff, DestQP: nic.ManagementQPN})
	copy(b[roce.BTHSize+roce.DETHSize:], d.MAD[:])
	return b
}

// cmArrive takes a packet for queue pair 1; false if it is none.
func (h *host) cmArrive(p *packet) bool {
	if h.cm == nil || len(p.data) != roce.BTHSize+roce.DETHSize+ibcm.MADSize || roce.BTH(p.data).DestQP() != nic.ManagementQPN || p.forged {
		return false
	}
	h.cm.Receive(h.w.now, ibcm.Address{Local: roce.GIDFromAddr(p.path.Dst), Remote: roce.GIDFromAddr(p.path.Src)}, p.data[roce.BTHSize+roce.DETHSize:])
	h.cmWork()
	return true
}

// forgeCM gives a host a management datagram that looks like one of a connection of its, but is from another address, of another id, or
// for another queue pair. It must change nothing.
func (w *world) forgeCM() {
	m := w.cm
	if len(m.sent) == 0 {
		return
	}
	s := m.sent[m.rng.IntN(len(m.sent))]
	h, d := s.to, s.mad
	from := d.Local
	mad := d.MAD[:]
	kind := binary.BigEndian.Uint16(mad[16:])
	if m.chance(60) { // a DREQ that fits a connection
		a := m.attempts[m.rng.IntN(len(m.attempts))]
		n := m.rng.IntN(2)
		if a.ends[n] == nil || a.ends[1-n] == nil {
			return
		}
		h, from, kind = a.hosts[n], roce.GIDFromAddr(a.hosts[1-n].addrs[0]), 0x15
		binary.BigEndian.PutUint16(mad[16:], kind)
		binary.BigEndian.PutUint32(mad[24:], a.ends[1-n].LocalID())
		binary.BigEndian.PutUint32(mad[28:], a.ends[n].LocalID())
		binary.BigEndian.PutUint32(mad[32:], a.own[n].QPN<<8)
	}
	switch what := m.rng.IntN(3); {
	case what == 0 || kind == 0x10: // whatever a REQ says is its sender's own
		from = roce.GIDFromAddr(w.unknown(0))
	case what == 1:
		mad[31] ^= 0x40
	case kind == 0x15:
		mad[34] ^= 1
	default:
		mad[27] ^= 0x40
		if end := h.cmConn(binary.BigEndian.Uint32(mad[28:])); end == nil || end.RemoteID() == 0 {
			return // its peer's id is not known yet
		}
	}
	w.count.CMForged++
	w.note(h, "is sent a forged management datagram of kind %x: %x from %v", kind, mad[24:36], from.Addr())
	h.cm.Receive(w.now, ibcm.Address{Local: roce.GIDFromAddr(h.addrs[0]), Remote: from}, mad)
	for _, d := range h.cm.Sends() { // answers go astray
		if d.Remote == from && w.hostOf(d.Remote.Addr()) != nil {
			h.cmSend(&d)
		}
	}
	h.cmWork()
}

func (h *host) cmConn(id uint32) *ibcm.Conn {
	for _, a := range h.w.cm.attempts {
		for n, k := range a.ends {
			if k != nil && a.hosts[n] == h && k.LocalID() == id && k.State() != ibcm.Idle {
				return k
			}
		}
	}
	return nil
}
