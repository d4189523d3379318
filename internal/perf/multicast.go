package perf

import (
	"fmt"
	"net/netip"
	"slices"

	"rnic/verbs"
)

// With --multicast the client's messages go to a multicast group. Its members are queue pairs of one or more NICs: servers', or,
// in one process, another NIC's, and the client's own. Each member counts what it receives. For the latency, the first
// member of each NIC answers every message, to the client alone.

// Limits of --multicast.
const (
	maxReceivers = 32   // NICs with members, which all answer into the client's one receive queue
	maxMembers   = 1000 // of one NIC (nic.DefaultLimits has 1024)
)

// multicast tells whether messages go to a group.
func (o *Options) multicast() bool { return o.Group.IsValid() }

// checkMulticast is the part of Validate that is about --multicast.
func (o *Options) checkMulticast() error {
	if !o.multicast() {
		switch {
		case o.Members > 1 || o.OwnMembers != 0:
			return usage("--members and --own-members go with --multicast")
		case len(o.Servers) > 1:
			return usage("%d servers: only with --multicast there may be more than one", len(o.Servers))
		}
		return nil
	}
	switch g := o.Group; {
	case !g.IsMulticast() || g.Is4In6() || g.Zone() != "":
		return usage("--multicast %s: a group of 224.0.0.0/4 or ff00::/8 is needed", g)
	case o.Kind.Verb != "send" || !o.datagrams():
		return usage("--multicast goes with send-bw and send-lat over UD (-c UD)")
	case g.Is4() && o.IPv6 || g.Is6() && o.IPv4:
		return usage("--multicast %s: it is of the other IP version", g)
	case o.Both || o.SRQ || o.Stages:
		return usage("--multicast goes without --bidirectional, --srq and --stages")
	case o.Members < 0 || o.Members > maxMembers || o.OwnMembers < 0 || o.OwnMembers > maxMembers:
		return usage("--members %d, --own-members %d: 0 to %d are possible", o.Members, o.OwnMembers, maxMembers)
	case o.Members == 0 && (!o.Loopback || o.OwnMembers == 0):
		return usage("--members 0: only with --loopback and --own-members there is a receiver then")
	case len(o.Servers) >= maxReceivers:
		return usage("%d servers: at most %d are possible", len(o.Servers), maxReceivers-1)
	}
	for i, server := range o.Servers {
		if slices.Contains(o.Servers[:i], server) {
			return usage("server %s is named twice: it serves one client", server)
		}
	}
	o.IPv6 = o.Group.Is6()
	return nil
}

// Immediate data of multicast messages are the number of the round (send-lat), what postMarked makes of them (send-bw),
// or say that a message only asks whether the members can hear it.
const probe = 0xffffffff

// members are the queue pairs of one NIC that are members of the group.
type members struct {
	o       *Options
	ctx     *verbs.Context
	pd      *verbs.PD
	cq, scq *verbs.CQ // of receives, of answers
	mr      *verbs.MR // receives, and behind them the answer
	qps     []*verbs.QP
	senders map[uint32]int // the client's queue pairs by number
	slots   int            // receives of each member

	got     []uint64 // messages of each member, without probes
	last    []int    // of these, those of the last round, verified
	heard   []bool   // a probe has come
	unheard int      // members that have not had one

	answers destination // send-lat
	flight  int         // answers that have not completed
	wr      verbs.SendWR
	sge     [1]verbs.SGE
	wc, swc []verbs.WC
	scratch []byte
}

// newMembers makes count members on a NIC for what the client's queue pairs send, whose GIDs and numbers are given.
func newMembers(o *Options, dev *verbs.Device, count int, client []verbs.Endpoint) (m *members, err error) {
	ctx := dev.Open()
	m = &members{o: o, ctx: ctx, senders: map[uint32]int{}, got: make([]uint64, count), last: make([]int, count), heard: make([]bool, count),
		unheard: count, wc: make([]verbs.WC, 64), swc: make([]verbs.WC, 8)}
	defer func() {
		if err != nil {
			_ = ctx.Close() // m may be nil by now
		}
	}()
	for q, ep := range client {
		m.senders[ep.QPN] = q
	}
	m.slots = max(1, min(2048, defaultBuffers/(count*o.inStride()), mostSlots(count)))
	if m.pd, err = m.ctx.AllocPD(); err != nil {
		return nil, err
	}
	if m.mr, err = m.pd.AllocMR((count*m.slots+1)*o.inStride(), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if m.cq, err = m.ctx.CreateCQ(count*m.slots + 64); err != nil {
		return nil, err
	}
	if m.scq, err = m.ctx.CreateCQ(2 * lazySends); err != nil {
		return nil, err
	}
	gid, err := o.pickGID(dev)
	if err != nil {
		return nil, err
	}
	for len(m.qps) < count {
		if err := m.addMember(); err != nil {
			return nil, err
		}
	}
	if o.Kind.Latency {
		m.answers.qpn = client[0].QPN
		m.answers.ah, err = m.pd.AHTo(client[0].GID, gid)
	}
	return m, err
}

func (m *members) addMember() error {
	q, err := m.pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: m.scq, RecvCQ: m.cq, MaxSend: lazySends, MaxRecv: m.slots + 1})
	if err != nil {
		return err
	}
	m.qps = append(m.qps, q)
	if err := q.Activate(qkey); err != nil {
		return err
	}
	for s := range m.slots {
		if err := m.postRecv(len(m.qps)-1, s); err != nil {
			return err
		}
	}
	return q.AttachMulticast(verbs.GIDOf(m.o.Group))
}

// off is where the buffer of a member's slot begins.
func (m *members) off(member, slot int) int { return (member*m.slots + slot) * m.o.inStride() }

func (m *members) postRecv(member, slot int) error {
	_, err := m.qps[member].PostRecv(&verbs.RecvWR{ID: wrID(member, slot), SGE: m.mr.Slice(m.off(member, slot), grhSize+m.o.Size)})
	return err
}

// step takes what has come, and says how many messages that were.
func (m *members) step() (int, error) {
	n, err := m.cq.Poll(m.wc)
	for i := 0; err == nil && i < n; i++ {
		err = m.take(&m.wc[i])
	}
	return n, err
}

func (m *members) take(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	k, s := fromWRID(wc.ID)
	if q, ours := m.senders[wc.SrcQP]; ours { // others may send to the group too
		if n := wc.ByteLen - grhSize; n != m.o.Size {
			return fmt.Errorf("member %d received %d bytes, %d were sent", k, n, m.o.Size)
		}
		if err := m.message(wc, k, q, m.mr.Bytes()[m.off(k, s)+grhSize:][:m.o.Size]); err != nil {
			return fmt.Errorf("member %d: %w", k, err)
		}
	}
	return m.postRecv(k, s)
}

// message takes a message of the client's queue pair q.
func (m *members) message(wc *verbs.WC, member, q int, b []byte) error {
	if wc.HasImm && wc.Imm == probe {
		if !m.heard[member] {
			m.heard[member] = true
			m.unheard--
		}
		return nil
	}
	m.got[member]++
	switch {
	case m.o.Kind.Latency:
		if m.o.Check {
			if err := verify(b, 0, int(wc.Imm), &m.scratch); err != nil {
				return err
			}
		}
		if member == 0 {
			return m.answer(wc.Imm)
		}
	case wc.HasImm:
		m.last[member]++
		return verify(b, q, int(wc.Imm&0xffff), &m.scratch)
	}
	return nil
}

// answer answers a round of send-lat to the client.
func (m *members) answer(round uint32) error {
	off := m.off(len(m.qps), 0)
	b := m.mr.Bytes()[off:][:m.o.Size]
	m.wr = verbs.SendWR{Opcode: verbs.OpSendImm, Flags: verbs.Signaled, Imm: round, AH: m.answers.ah, RemoteQPN: m.answers.qpn, RemoteQKey: qkey}
	if len(b) > 0 {
		if m.o.Check {
			fill(b, 1, int(round))
		}
		m.sge[0] = m.mr.SGE(off, len(b))
		m.wr.SGE = m.sge[:]
	}
	for m.flight >= lazySends/2 {
		n, err := m.scq.Poll(m.swc)
		if err != nil {
			return err
		}
		for i := range m.swc[:n] {
			if err := m.swc[i].Err(); err != nil {
				return err
			}
		}
		m.flight -= n
	}
	m.flight++
	_, err := m.qps[0].PostSend(&m.wr)
	return err
}

// silent is the error of a bandwidth measurement of which a member has received nothing in the end.
func (m *members) silent(name string) error {
	if m.o.Kind.Latency || m.o.Size == 0 {
		return nil
	}
	for k, n := range m.last {
		if n == 0 {
			return fmt.Errorf("member %d of %s: none of the last messages has arrived", k, name)
		}
	}
	return nil
}

func (m *members) close() { _ = m.ctx.Close() }

// Member is what one member of a multicast group has received.
type Member struct {
	Receiver  string   `json:"receiver"` // its NIC: the server as named on the command line, or an address of this process
	Member    int      `json:"member"`   // number within the NIC
	Own       bool     `json:"own"`      // of the sender's NIC
	Received  uint64   `json:"received"` // messages
	Lost      uint64   `json:"lost"`
	LatencyNS *Latency `json:"latency_ns,omitempty"` // send-lat: of the one member of each NIC that answers
}

// Multicast is what became of the messages to a group.
type Multicast struct {
	Group   netip.Addr `json:"group"`
	Sent    uint64     `json:"sent"` // messages, those before and behind the timed part included
	Members []Member   `json:"members"`
}
