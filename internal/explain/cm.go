package explain

import (
	"fmt"
	"net/netip"

	"rnic/internal/roce"
)

// Messages of the connection manager (vol. 1, chapter 12).
const (
	madSize   = 256
	madHeader = 24

	attrREQ     = 0x10
	attrMRA     = 0x11
	attrREJ     = 0x12
	attrREP     = 0x13
	attrRTU     = 0x14
	attrDREQ    = 0x15
	attrDREP    = 0x16
	attrSIDRREQ = 0x17
	attrSIDRREP = 0x18

	maxDialogues = 8192
)

type cm struct {
	dialogues map[cmKey]*dialogue
	order     []*dialogue
}

// cmKey is who asks whom, and the number that he gave it.
type cmKey struct {
	from, to netip.Addr
	id       uint32
	sidr     bool
}

// dialogue is one attempt to connect.
type dialogue struct {
	key        cmKey
	requests   refs
	service    uint64
	qpn        uint32 // of who asks
	peerQPN    uint32
	mtu        int
	retries    uint8
	timeout    int64 // local ACK timeout in nanoseconds
	localGID   roce.GID
	reply, rtu ref
	rejected   ref
	reason     uint16
	byPassive  bool
	disconnect ref
	answered   bool
}

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// mad reads a datagram to queue pair 1.
func (a *Analyzer) mad(p *Packet) {
	m := p.Content
	if len(m) < madSize || m[0] != 1 || m[1] != 7 || m[2] != 2 {
		return
	}
	b, at := m[madHeader:], p.ref()
	local, remote := be.Uint32(b), be.Uint32(b[4:])
	switch be.Uint16(m[16:]) {
	case attrREQ:
		d := a.dialogue(cmKey{p.Src, p.Dst, local, false})
		if d == nil {
			return
		}
		d.requests.add(at)
		d.service, d.qpn = be.Uint64(b[8:]), get24(b[32:])
		d.retries, d.mtu = b[47]&7, roce.MTUBytes(b[50]>>4)
		d.timeout = roce.TimeoutNanos(b[52+43] >> 3)
		copy(d.localGID[:], b[52+4:])
		for _, t := range connected {
			a.begins(flowKey{d.key.to, d.key.from, d.qpn, t}, d)
		}
	case attrREP:
		if d := a.known(p.Dst, p.Src, remote); d != nil && d.reply.n == 0 {
			d.reply, d.answered, d.peerQPN = at, true, get24(b[12:])
			a.connect(d)
		}
	case attrREJ:
		d, passive := a.known(p.Dst, p.Src, remote), true
		if d == nil {
			d, passive = a.known(p.Src, p.Dst, local), false
		}
		if d != nil && d.rejected.n == 0 {
			d.rejected, d.reason, d.byPassive, d.answered = at, be.Uint16(b[10:]), passive, true
		}
	case attrMRA:
		if d := a.known(p.Dst, p.Src, remote); d != nil {
			d.answered = true
		}
	case attrRTU:
		if d := a.known(p.Src, p.Dst, local); d != nil {
			d.rtu = at
		}
	case attrDREQ, attrDREP:
		d := a.known(p.Src, p.Dst, local)
		if d == nil {
			d = a.known(p.Dst, p.Src, remote)
		}
		if d != nil {
			d.disconnect = at
		}
	case attrSIDRREQ:
		if d := a.dialogue(cmKey{p.Src, p.Dst, local, true}); d != nil {
			d.requests.add(at)
			d.service = be.Uint64(b[8:])
		}
	case attrSIDRREP:
		if d := a.cm.dialogues[cmKey{p.Dst, p.Src, local, true}]; d != nil {
			d.answered = true
			if b[5] != 0 && d.rejected.n == 0 {
				d.rejected, d.reason = at, uint16(b[5])
			}
		}
	}
}

func (a *Analyzer) known(from, to netip.Addr, id uint32) *dialogue {
	return a.cm.dialogues[cmKey{from, to, id, false}]
}

func (a *Analyzer) dialogue(k cmKey) *dialogue {
	d := a.cm.dialogues[k]
	if d != nil && (d.rejected.n != 0 || d.disconnect.n != 0) { // that one has ended: its number is used again
		d = nil
	}
	if d == nil && len(a.cm.order) < maxDialogues {
		d = &dialogue{key: k}
		a.cm.dialogues[k] = d
		a.cm.order = append(a.cm.order, d)
	}
	return d
}

// connected are the transports whose connections the connection manager makes.
var connected = []roce.Transport{roce.TransportRC, roce.TransportXRC, roce.TransportUC}

// connect pairs the two directions of a connection that was agreed on.
func (a *Analyzer) connect(d *dialogue) {
	for _, t := range connected {
		f, g := flowKey{d.key.from, d.key.to, d.peerQPN, t}, flowKey{d.key.to, d.key.from, d.qpn, t}
		if len(a.pairs) >= 4*maxFlows {
			return
		}
		a.begins(f, d)
		a.begins(g, d)
		a.pairs[f], a.pairs[g] = g, f
		for _, k := range []flowKey{f, g} {
			if x := a.flows[k]; x != nil && x.cm == nil {
				x.cm = d
			}
		}
		a.join(a.flows[f], a.flows[g])
	}
}

// port is what a service of rdma_cm is called by: RDMA_PS_TCP and others, and a port.
func (d *dialogue) serviceName() string {
	const prefix = 0x0000000001000000
	if d.service>>24 == prefix>>24 {
		space := map[byte]string{0x06: "TCP port space", 0x11: "UDP port space", 0x3f: "IB port space", 0x02: "IPoIB port space"}[byte(d.service>>16)]
		if space == "" {
			space = fmt.Sprintf("port space 0x%02x", byte(d.service>>16))
		}
		return fmt.Sprintf("port %d (%s)", uint16(d.service), space)
	}
	return fmt.Sprintf("service 0x%x", d.service)
}

// rejectReasons are table 110 of 12.6.7.2, with what to do.
var rejectReasons = map[uint16][2]string{
	1:  {"no queue pair available", "The passive side is out of queue pairs: look at its limits."},
	2:  {"no EEC available", ""},
	3:  {"no resources available", "The passive side is out of memory or queue pairs."},
	4:  {"timeout", "The other side did not go on in time: look at its load, and for lost datagrams."},
	5:  {"unsupported request", "The two sides differ in what they implement."},
	6:  {"invalid communication ID", "The connection was given up on one side: an earlier message was late or lost."},
	7:  {"invalid communication instance", ""},
	8:  {"invalid service ID", "Nobody listens on that port: start the server first, and compare port number and port space."},
	9:  {"invalid transport service type", "The server does not take this type of connection (RC, UC, XRC)."},
	10: {"stale connection", "The passive side still has a connection with that queue pair: the peer was restarted. It goes away after its timewait."},
	11: {"RDC does not exist", ""},
	12: {"primary remote GID rejected", "The address asked for is none of the server's: compare the addresses on both sides, and look for address translation."},
	13: {"primary remote LID rejected", ""},
	14: {"invalid primary service level", ""},
	15: {"invalid primary traffic class", ""},
	16: {"invalid primary hop limit", ""},
	17: {"invalid primary packet rate", ""},
	18: {"alternate remote GID rejected", ""},
	19: {"alternate remote LID rejected", ""},
	20: {"invalid alternate service level", ""},
	21: {"invalid alternate traffic class", ""},
	22: {"invalid alternate hop limit", ""},
	23: {"invalid alternate packet rate", ""},
	24: {"port and CM redirection", ""},
	25: {"port redirection", ""},
	26: {"invalid path MTU", "The passive side cannot carry the path MTU that was asked for: set the same MTU on both interfaces."},
	27: {"insufficient responder resources", "The passive side offers fewer outstanding READs (responder resources) than were asked for."},
	28: {"rejected by the application", "The server's program said no (rdma_reject): its private data or its log says why."},
	29: {"RNR retry count rejected", ""},
	30: {"duplicate local communication ID", ""},
	31: {"unsupported class version", ""},
	32: {"invalid flow label", ""},
	33: {"invalid alternate flow label", ""},
	35: {"vendor option not supported", ""},
}
