package explain

import (
	"encoding/binary"
	"net/netip"

	"rnic/internal/roce"
)

var be = binary.BigEndian

// Check is what is known of a packet's ICRC.
type Check uint8

// The results of checking an ICRC.
const (
	Unchecked Check = iota // the packet is cut
	Good
	Bad
)

// Packet is one RoCEv2 packet.
type Packet struct {
	Number    int
	Nanos     int64
	Vantage   Vantage
	Src, Dst  netip.Addr
	SrcPort   uint16
	TOS, TTL  uint8
	Op        roce.Opcode
	Info      *roce.OpInfo // nil: unknown opcode
	BTH       roce.BTH
	Headers   []byte // BTH and what of the extended headers is there, all if Complete
	Complete  bool
	Payload   int // bytes, without pad
	Size      int // bytes of the IP packet
	Malformed bool
	ICRC      Check
	Content   []byte // payload, as far as it is captured
	Comment   string

	delta uint32 // of a bad ICRC: what it differs by, moved back to the end of the UDP header
	ip    []byte // its headers up to the BTH
	piece uint16 // of a frame captured before segmentation: the identification of each is one more
	whole []byte // from the BTH on, as far as it is captured
}

// Vantage is the place where a packet was seen: an interface and a direction.
type Vantage struct {
	Interface int
	Direction Direction
}

// Trouble is something else in a capture that says why packets get lost.
type Trouble struct {
	Kind     TroubleKind
	Src, Dst netip.Addr // of the packet that is in trouble
	From     netip.Addr // who says so
	MTU      int        // TooBig
	Text     string
}

// TroubleKind says what.
type TroubleKind uint8

// The kinds of trouble.
const (
	Unreachable TroubleKind = iota + 1 // an ICMP error
	TooBig                             // ICMP: fragmentation needed, packet too big
	Fragment                           // a RoCEv2 packet in fragments
	ARPRequest                         // or neighbour solicitation: From looks for Dst
	ARPReply                           // or advertisement: From is Src
)

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
	etherIPv6 = 0x86dd

	protoICMP   = 1
	protoUDP    = 17
	protoICMPv6 = 58

	udpHeader = 8
	maxPieces = 64 // packets of one frame that was captured before segmentation
)

// Dissected is what Dissect finds in a frame.
type Dissected struct {
	Packets  []Packet // more than one: captured before segmentation
	Trouble  *Trouble
	Segments bool // captured before segmentation, and cut here
}

// Dissect looks for RoCEv2 in a frame. out is used again.
func Dissect(f *Frame, out *Dissected) {
	out.Packets, out.Trouble, out.Segments = out.Packets[:0], nil, false
	b, proto, dir := network(f)
	if dir != Unknown {
		f.Direction = dir
	}
	switch proto {
	case etherIPv4:
		ipv4(f, b, out)
	case etherIPv6:
		ipv6(f, b, out)
	case etherARP:
		arp(b, out)
	}
}

// network strips the link layer.
func network(f *Frame) (b []byte, proto uint16, dir Direction) {
	b = f.Data
	switch f.Link {
	case LinkEthernet:
		if len(b) < 14 {
			return nil, 0, 0
		}
		b, proto = b[14:], be.Uint16(b[12:])
	case LinkRaw, linkRaw12, linkRaw14, LinkIPv4, LinkIPv6:
		return b, byVersion(b), 0
	case LinkNull, LinkLoop:
		if len(b) < 4 {
			return nil, 0, 0
		}
		return b[4:], byVersion(b[4:]), 0
	case LinkSLL:
		if len(b) < 16 {
			return nil, 0, 0
		}
		dir = cooked(be.Uint16(b))
		b, proto = b[16:], be.Uint16(b[14:])
	case LinkSLL2:
		if len(b) < 20 {
			return nil, 0, 0
		}
		f.Interface = int(be.Uint32(b[4:]) & 0xffff)
		dir = cooked(uint16(b[10]))
		b, proto = b[20:], be.Uint16(b)
	default:
		return nil, 0, 0
	}
	for range 3 {
		if (proto != etherVLAN && proto != etherQinQ) || len(b) < 4 {
			break
		}
		b, proto = b[4:], be.Uint16(b[2:])
	}
	return b, proto, dir
}

// cooked is the direction that a packet type of Linux says.
func cooked(typ uint16) Direction {
	if typ == 4 {
		return Out
	}
	return In
}

func byVersion(b []byte) uint16 {
	switch {
	case len(b) == 0:
		return 0
	case b[0]>>4 == 4:
		return etherIPv4
	case b[0]>>4 == 6:
		return etherIPv6
	}
	return 0
}

func ipv4(f *Frame, b []byte, out *Dissected) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return
	}
	head := int(b[0]&15) * 4
	total := int(be.Uint16(b[2:]))
	if total == 0 { // captured before segmentation
		total = f.Length - (len(f.Data) - len(b))
	}
	if head < 20 || total < head || len(b) < head {
		return
	}
	b = b[:min(len(b), total)]
	p := Packet{Src: netip.AddrFrom4([4]byte(b[12:])), Dst: netip.AddrFrom4([4]byte(b[16:])), TOS: b[1], TTL: b[8], Size: total}
	fragment := be.Uint16(b[6:])
	switch {
	case b[9] == protoICMP && fragment&0x1fff == 0:
		icmp(b[head:], p.Src, out)
	case b[9] == protoUDP && fragment&0x3fff != 0:
		if fragment&0x1fff == 0 && len(b) >= head+udpHeader && be.Uint16(b[head+2:]) == roce.Port {
			out.Trouble = &Trouble{Kind: Fragment, Src: p.Src, Dst: p.Dst}
		}
	case b[9] == protoUDP:
		udp(f, b, head, total, p, out)
	}
}

func ipv6(f *Frame, b []byte, out *Dissected) {
	if len(b) < 40 || b[0]>>4 != 6 {
		return
	}
	total := 40 + int(be.Uint16(b[4:]))
	if total == 40 {
		total = f.Length - (len(f.Data) - len(b))
	}
	b = b[:min(len(b), max(total, 40))]
	p := Packet{Src: netip.AddrFrom16([16]byte(b[8:])), Dst: netip.AddrFrom16([16]byte(b[24:])), TOS: b[0]<<4 | b[1]>>4, TTL: b[7], Size: total}
	switch b[6] {
	case protoICMPv6:
		icmp6(b[40:], p.Src, p.Dst, out)
	case protoUDP:
		udp(f, b, 40, total, p, out)
	case 44: // fragment
		if len(b) >= 56 && b[40] == protoUDP && be.Uint16(b[42:])&0xfff8 == 0 && be.Uint16(b[50:]) == roce.Port {
			out.Trouble = &Trouble{Kind: Fragment, Src: p.Src, Dst: p.Dst}
		}
	}
}

// udp takes a datagram to the port of RoCEv2. b begins at the IP header, of head bytes.
func udp(f *Frame, b []byte, head, total int, p Packet, out *Dissected) {
	if len(b) < head+udpHeader || be.Uint16(b[head+2:]) != roce.Port || total < head+udpHeader {
		return
	}
	p.SrcPort = be.Uint16(b[head:])
	p.Number, p.Nanos, p.Comment = f.Number, f.Nanos, f.Comment
	p.Vantage = Vantage{f.Interface, f.Direction}
	p.ip = b[:head+udpHeader]
	body, length := b[head+udpHeader:], total-head-udpHeader
	if length > roce.MaxPacketSize+roce.ICRCSize {
		segments(f, body, p, out)
		return
	}
	one := p
	if !transport(body, length, &one) {
		return
	}
	one.checkICRC(head, body, length)
	if one.ICRC != Good && segmentSize(body) > 0 { // few packets, together no longer than one may be
		segments(f, body, p, out)
		return
	}
	out.Packets = append(out.Packets, one)
}

// segments cuts what was captured before the system cut it: packets of one length whose PSNs follow each other.
func segments(f *Frame, body []byte, p Packet, out *Dissected) {
	size := segmentSize(body)
	if size == 0 {
		return
	}
	out.Segments = true
	for n := 0; len(body) >= roce.BTHSize+roce.ICRCSize && n < maxPieces; n++ {
		piece := body[:min(size, len(body))]
		q := p
		q.piece = uint16(n)
		q.Size = len(p.ip) + len(piece)
		if !transport(piece, len(piece), &q) {
			return
		}
		out.Packets = append(out.Packets, q)
		body = body[len(piece):]
	}
}

// segmentSize finds the length of the first of several packets: there, another begins, of the same queue pair. Not all PSNs follow each other: READs
// take several, and what is sent again may be single packets.
func segmentSize(b []byte) int {
	if len(b) < roce.BTHSize {
		return 0
	}
	x := roce.BTH(b)
	fits := func(n int) bool {
		if len(b)-n < roce.BTHSize {
			return false
		}
		y := roce.BTH(b[n:])
		d := roce.Diff(y.PSN(), x.PSN())
		return x.DestQP() == y.DestQP() && x.PKey() == y.PKey() && x.Opcode()>>5 == y.Opcode()>>5 && y.Opcode().Info() != nil && y.TVer() == 0 && d < farAway && d > -farAway
	}
	if i := x.Opcode().Info(); i != nil && !i.Payload {
		if n := i.HeaderLen + roce.ICRCSize; fits(n) {
			return n
		}
		return 0
	}
	for n := roce.BTHSize + roce.ICRCSize; n <= roce.MaxPacketSize; n += 4 {
		if fits(n) {
			return n
		}
	}
	return 0
}

// transport reads the headers of a packet whose length on the wire, with the ICRC, is length.
func transport(b []byte, length int, p *Packet) bool {
	if len(b) < roce.BTHSize || length < roce.BTHSize+roce.ICRCSize {
		return false
	}
	p.BTH, p.whole = roce.BTH(b[:roce.BTHSize]), b
	p.Op = p.BTH.Opcode()
	if p.BTH.TVer() != 0 {
		p.Malformed = true
	}
	p.Info = p.Op.Info()
	p.Headers = b[:roce.BTHSize]
	if p.Info == nil {
		return true
	}
	body := length - roce.ICRCSize - p.Info.HeaderLen
	pad := int(p.BTH.PadCount())
	if body < pad || body&3 != 0 {
		p.Malformed = true
		return true
	}
	p.Payload = body - pad
	if len(b) >= p.Info.HeaderLen {
		p.Headers, p.Complete = b[:p.Info.HeaderLen], true
		p.Content = b[p.Info.HeaderLen:min(len(b), p.Info.HeaderLen+p.Payload)]
	}
	return true
}

func (p *Packet) aeth() (roce.AETH, bool) {
	if !p.Complete || p.Malformed || !p.Info.HasAETH {
		return nil, false
	}
	return p.Info.AETH(p.Headers), true
}

// icmp reads an error about a RoCEv2 packet (RFC 792).
func icmp(b []byte, from netip.Addr, out *Dissected) {
	if len(b) < 8+20+udpHeader || b[0] != 3 && b[0] != 11 {
		return
	}
	in := b[8:]
	head := int(in[0]&15) * 4
	if in[0]>>4 != 4 || head < 20 || len(in) < head+udpHeader || in[9] != protoUDP || be.Uint16(in[head+2:]) != roce.Port {
		return
	}
	t := &Trouble{Kind: Unreachable, Src: netip.AddrFrom4([4]byte(in[12:])), Dst: netip.AddrFrom4([4]byte(in[16:])), From: from}
	switch {
	case b[0] == 11 && b[1] == 1: // in reassembly
		t.Kind, t.From = Fragment, netip.Addr{}
	case b[0] == 11:
		t.Text = "time to live exceeded: the packets run in a circle, or their hop limit is too low"
	case b[1] == 4:
		t.Kind, t.MTU = TooBig, int(be.Uint16(b[6:]))
	case b[1] == 0 || b[1] == 11:
		t.Text = "network unreachable"
	case b[1] == 1 || b[1] == 12:
		t.Text = "host unreachable"
	case b[1] == 3:
		t.Text = "port unreachable: no RoCEv2 device listens there"
	case b[1] == 9 || b[1] == 10 || b[1] == 13:
		t.Text = "administratively prohibited: a firewall"
	default:
		t.Text = "destination unreachable"
	}
	out.Trouble = t
}

// icmp6 reads an error about a RoCEv2 packet (RFC 4443), or neighbour discovery (RFC 4861).
func icmp6(b []byte, from, to netip.Addr, out *Dissected) {
	if len(b) < 8 {
		return
	}
	if (b[0] == 135 || b[0] == 136) && len(b) >= 24 {
		target := netip.AddrFrom16([16]byte(b[8:]))
		if b[0] == 135 {
			out.Trouble = &Trouble{Kind: ARPRequest, From: from, Dst: target}
		} else {
			out.Trouble = &Trouble{Kind: ARPReply, Src: target}
		}
		return
	}
	if b[0] != 1 && b[0] != 2 && b[0] != 3 || len(b) < 8+40+udpHeader {
		return
	}
	in := b[8:]
	if in[0]>>4 != 6 || in[6] != protoUDP || be.Uint16(in[42:]) != roce.Port {
		return
	}
	t := &Trouble{Kind: Unreachable, Src: netip.AddrFrom16([16]byte(in[8:])), Dst: netip.AddrFrom16([16]byte(in[24:])), From: from}
	switch {
	case b[0] == 2:
		t.Kind, t.MTU = TooBig, int(min(be.Uint32(b[4:]), 1<<20))
	case b[0] == 3 && b[1] == 1: // in reassembly
		t.Kind, t.From = Fragment, netip.Addr{}
	case b[0] == 3:
		t.Text = "hop limit exceeded: the packets run in a circle, or their hop limit is too low"
	case b[1] == 1:
		t.Text = "administratively prohibited: a firewall"
	case b[1] == 3:
		t.Text = "address unreachable"
	case b[1] == 4:
		t.Text = "port unreachable: no RoCEv2 device listens there"
	default:
		t.Text = "no route"
	}
	out.Trouble = t
}

// arp reads a request or reply for IPv4 over Ethernet (RFC 826).
func arp(b []byte, out *Dissected) {
	if len(b) < 28 || be.Uint16(b[2:]) != etherIPv4 || b[4] != 6 || b[5] != 4 {
		return
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	switch be.Uint16(b[6:]) {
	case 1:
		if sender != target {
			out.Trouble = &Trouble{Kind: ARPRequest, From: sender, Dst: target}
		}
	case 2:
		out.Trouble = &Trouble{Kind: ARPReply, Src: sender}
	}
}
