package doctor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"rnic/internal/roce"
)

// The examination of a way: both ends send each other the same probes, RoCEv2 packets with a right ICRC, and tell each other
// over TCP what arrived and how. judge then says what a difference means.

// Default ports: of the TCP connection by which both ends talk, beside the UDP port that is looked at.
const DefaultControlPort = 18516

// kind says what a probe is to find out.
type kind uint8

const (
	kindPlain      kind = iota // does it arrive, and from whom
	kindECN                    // do the ECN bits survive (RFC 3168)
	kindDSCP                   // does the DSCP survive (RFC 2474)
	kindSize                   // does a packet of this path MTU fit
	kindNoChecksum             // does UDP checksum 0 pass, as Soft-RoCE and hardware send it
)

// probe is a packet of the plan, of which each end knows all.
type probe struct {
	kind kind
	tos  uint8
	mtu  int // path MTU whose largest packet this is as long as; 0: a short packet
	seq  int // place in the plan
}

// Copies of the probes: a lost packet shall not look like a closed way.
const (
	plainProbes = 16
	copies      = 3
	shortProbe  = 64 // bytes BTH to ICRC
	probeTTL    = 64
)

// pathMTUs that are tried, smallest first.
var pathMTUs = [...]int{256, 512, 1024, 2048, 4096}

// Traffic classes of the probes: ECN alone, and with the DSCPs that RoCE networks use.
var ecnProbes = [...]uint8{0x01, 0x02, 0x03}
var dscpProbes = [...]uint8{26<<2 | 2, 46<<2 | 2}

// plan is what either end sends.
func plan() (list []probe) {
	add := func(n int, p probe) {
		for range n {
			p.seq = len(list)
			list = append(list, p)
		}
	}
	add(plainProbes, probe{kind: kindPlain})
	for _, tos := range ecnProbes {
		add(copies, probe{kind: kindECN, tos: tos})
	}
	for _, tos := range dscpProbes {
		add(copies, probe{kind: kindDSCP, tos: tos})
	}
	add(copies, probe{kind: kindNoChecksum})
	for _, m := range pathMTUs {
		add(copies, probe{kind: kindSize, mtu: m})
	}
	return list
}

// size is a probe's length from BTH to ICRC: that of a write with immediate data where a path MTU is tried, the
// longest packet of it but for datagrams, whose extended headers are 4 bytes longer with half as many in RETH.
func (p probe) size() int {
	if p.mtu == 0 {
		return shortProbe
	}
	return roce.BTHSize + 16 + 4 + p.mtu + roce.ICRCSize
}

// Offsets in a probe behind the BTH.
const (
	probeMagic   = "rnicdoct"
	offSession   = roce.BTHSize + len(probeMagic)
	offSeq       = offSession + 8
	probeOpcode  = 0x64 // UD SEND only
	probeMinimum = offSeq + 2 + roce.ICRCSize
)

// marshal writes probe p of a session as it goes from path.Src to path.Dst with identification 0, as an unconnected socket of
// Linux sends it without fragmentation.
func (p probe) marshal(path roce.Path, session uint64) []byte {
	b := make([]byte, p.size())
	b[0] = probeOpcode
	binary.BigEndian.PutUint16(b[2:], 0xffff) // default partition
	copy(b[roce.BTHSize:], probeMagic)
	binary.BigEndian.PutUint64(b[offSession:], session)
	binary.BigEndian.PutUint16(b[offSeq:], uint16(p.seq))
	roce.PutICRC(&path, 0, b)
	return b
}

// parseProbe returns the place in the plan of a packet of the session; ok is false for any other packet.
func parseProbe(b []byte, session uint64) (seq int, ok bool) {
	if len(b) < probeMinimum || string(b[roce.BTHSize:offSession]) != probeMagic || binary.BigEndian.Uint64(b[offSession:]) != session {
		return 0, false
	}
	return int(binary.BigEndian.Uint16(b[offSeq:])), true
}

// observation is one probe as it arrived.
type observation struct {
	Seq  int            `json:"seq"`
	Src  netip.AddrPort `json:"src"`
	Dst  netip.Addr     `json:"dst"`
	TOS  uint8          `json:"tos"`
	TTL  uint8          `json:"ttl"`
	Size int            `json:"size"`
	ICRC bool           `json:"icrc"` // right for the addresses and ports seen, with some identification
}

// header is what a raw socket saw of a probe's IPv4 header.
type header struct {
	Seq   int    `json:"seq"`
	Ident uint16 `json:"ident"`
	DF    bool   `json:"df"`
}

// arrivals are what one end saw of the other's probes.
type arrivals struct {
	Seen    []observation `json:"seen"`
	Headers []header      `json:"headers"` // empty without CAP_NET_RAW, and over IPv6
	Raw     bool          `json:"raw"`     // headers could be looked at
}

// direction is one of the two ways, after the probes.
type direction struct {
	name     string         // "to the peer", "from the peer"
	sender   string         // "here", "there": where commands for the sending end are typed
	receiver string         // likewise
	claimed  netip.AddrPort // the sender, as it knows itself
	dest     netip.AddrPort // where the sender sent to
	refused  map[int]string // probes that the sender's system refused, by place in the plan
	arrivals arrivals
	ttl      uint8 // as sent
}

// sum gathers what arrived of each kind.
type sum struct {
	sent, refused, seen int
	reason              string // of a refusal
}

func (d *direction) count(want func(probe) bool) (s sum) {
	seen := map[int]bool{}
	for _, o := range d.arrivals.Seen {
		seen[o.Seq] = true
	}
	for _, p := range plan() {
		if !want(p) {
			continue
		}
		s.sent++
		if why, no := d.refused[p.seq]; no {
			s.refused++
			s.reason = why
		}
		if seen[p.seq] {
			s.seen++
		}
	}
	return s
}

// judge says what became of the probes of one direction.
func (d *direction) judge() []Finding {
	plain := d.count(func(p probe) bool { return p.kind == kindPlain })
	all := d.reach(plain)
	if plain.seen == 0 {
		return all
	}
	all = append(all, d.translation()...)
	all = append(all, d.integrity()...)
	all = append(all, d.pathMTU()...)
	all = append(all, d.trafficClass()...)
	all = append(all, d.checksum()...)
	return append(all, d.distance()...)
}

func (d *direction) finding(check string, level Level, found, means string, fix ...string) []Finding {
	return []Finding{{check, level, d.name + ": " + found, means, fix}}
}

func (d *direction) reach(plain sum) []Finding {
	const check = "reachability"
	port := d.dest.Port()
	open := []string{
		fmt.Sprintf("iptables -I INPUT -p udp --dport %d -j ACCEPT     # %s; or", port, d.receiver),
		fmt.Sprintf("firewall-cmd --add-port=%d/udp     # %s; or", port, d.receiver),
		fmt.Sprintf("ufw allow %d/udp     # %s", port, d.receiver),
		"# in clouds: allow the UDP port in the security groups of both machines",
	}
	switch {
	case plain.refused == plain.sent:
		return d.finding(check, Problem, fmt.Sprintf("the system refuses to send from UDP port %d: %s", d.claimed.Port(), plain.reason),
			"There is no route, or a firewall refuses what goes out.", fmt.Sprintf("ip route get %s     # %s", d.dest.Addr(), d.sender))
	case plain.seen == 0:
		return d.finding(check, Problem, fmt.Sprintf("none of %d packets to %s arrives", plain.sent, d.dest),
			"RoCEv2 is filtered on the way: programs end with status 12 (transport retry counter exceeded).", open...)
	case plain.seen*10 < plain.sent*9:
		return d.finding(check, Warning, fmt.Sprintf("%d of %d packets to %s arrive", plain.seen, plain.sent, d.dest),
			"What is lost is sent again, at the price of bandwidth and latency.")
	}
	return d.finding(check, OK, fmt.Sprintf("%d of %d packets to %s arrive", plain.seen, plain.sent, d.dest), "")
}

func (d *direction) translation() []Finding {
	const check = "address translation"
	const means = "The ICRC of every RoCEv2 packet covers addresses and ports: the receiver drops all packets as corrupt, and programs end with status 12."
	fix := []string{
		"# use addresses that are not translated: of a tunnel (WireGuard, VXLAN), or of the machine itself:",
		"rnic run --addr ADDRESS -- ...     # the tunnel's address, at both ends",
		"docker run --network host ...     # instead of a published port",
	}
	for _, o := range d.arrivals.Seen {
		switch {
		case o.Src.Addr() != d.claimed.Addr():
			return d.finding(check, Problem, fmt.Sprintf("packets of %s arrive as if from %s", d.claimed, o.Src), means, fix...)
		case o.Src.Port() != d.claimed.Port():
			return d.finding(check, Problem, fmt.Sprintf("source port %d arrives as %d", d.claimed.Port(), o.Src.Port()), means, fix...)
		case o.Dst.IsValid() && o.Dst != d.dest.Addr():
			return d.finding(check, Problem, fmt.Sprintf("packets to %s arrive at %s", d.dest.Addr(), o.Dst), means, fix...)
		}
	}
	return d.finding(check, OK, fmt.Sprintf("none, %s arrives as it is", d.claimed), "")
}

// integrity looks at the ICRC, and where possible at the fields of the IPv4 header that it covers.
func (d *direction) integrity() []Finding {
	const check = "ICRC"
	translated := false
	bad := 0
	for _, o := range d.arrivals.Seen {
		translated = translated || o.Src != d.claimed || o.Dst != d.dest.Addr()
		if !o.ICRC {
			bad++
		}
	}
	switch {
	case bad > 0 && translated:
		return d.finding(check, Problem, fmt.Sprintf("wrong in %d of %d packets", bad, len(d.arrivals.Seen)), "As was to be expected: see address translation.")
	case bad > 0:
		return d.finding(check, Problem, fmt.Sprintf("wrong in %d of %d packets", bad, len(d.arrivals.Seen)),
			"Contents or header fields are changed on the way: every such packet is dropped as corrupt.",
			"# look for a firewall or an accelerator on the way that rewrites UDP packets")
	}
	const others = "The ICRC covers it. rnic does not see it and takes the packets; hardware and the kernel's Soft-RoCE drop every one as corrupt."
	for _, h := range d.arrivals.Headers {
		switch {
		case !h.DF:
			return d.finding(check, Warning, "the flag \"do not fragment\" is cleared on the way", others,
				"# a firewall normalizes packets (\"scrub no-df\", \"clear DF\"): switch this off for UDP port 4791")
		case h.Ident != 0:
			return d.finding(check, Warning, fmt.Sprintf("the IPv4 identification is changed on the way: 0 becomes %d", h.Ident), others,
				"# a firewall replaces identifications (\"scrub random-id\"): switch this off for UDP port 4791")
		}
	}
	found := fmt.Sprintf("right in all %d packets", len(d.arrivals.Seen))
	if d.claimed.Addr().Is4() {
		if d.arrivals.Raw {
			found += "; IPv4 identification and \"do not fragment\" arrive as sent"
		} else {
			found += "; the IPv4 identification itself was not looked at, which needs CAP_NET_RAW at the receiver"
		}
	}
	return d.finding(check, OK, found, "")
}

func (d *direction) pathMTU() []Finding {
	const check = "path MTU"
	best, cut := 0, ""
	for _, m := range pathMTUs {
		s := d.count(func(p probe) bool { return p.mtu == m })
		if s.seen > 0 {
			best = m
			continue
		}
		cut = fmt.Sprintf("packets of path MTU %d are lost on the way", m)
		if s.refused > 0 {
			cut = fmt.Sprintf("packets of path MTU %d are refused by the sender's system (%s)", m, s.reason)
		}
		lost := s.refused == 0
		if best == 0 {
			return d.finding(check, Problem, cut, "Not even the smallest path MTU passes.")
		}
		// What the interface does not take, the NIC does not offer; what is lost behind it, it does.
		if !lost {
			break
		}
		return d.finding(check, Warning, fmt.Sprintf("%d; %s", best, cut),
			"The interfaces carry more than the way between them (a tunnel, a VPN, a switch without jumbo frames): transfers hang and end with status 12.",
			fmt.Sprintf("rnic run --mtu %d -- ...     # at both ends", best),
			"ip link set INTERFACE mtu N     # what the way carries, at both ends")
	}
	if best < pathMTUs[len(pathMTUs)-1] {
		return d.finding(check, OK, fmt.Sprintf("%d; %s", best, cut), "")
	}
	return d.finding(check, OK, fmt.Sprintf("up to %d", best), "")
}

// trafficClass compares what was sent in the traffic class with what arrived.
func (d *direction) trafficClass() (all []Finding) {
	probes := plan()
	var ecn, dscp, marked string
	seenECN := false
	for _, o := range d.arrivals.Seen {
		if o.Seq < 0 || o.Seq >= len(probes) {
			continue
		}
		sent := probes[o.Seq].tos
		seenECN = seenECN || probes[o.Seq].kind == kindECN
		switch {
		case sent&3 == o.TOS&3:
		case o.TOS&3 == 3 && sent&3 != 0: // congestion experienced, at this moment
			marked = "; some packets were marked just now: the network is congested"
		default:
			ecn = fmt.Sprintf("ECN bits %02b arrive as %02b", sent&3, o.TOS&3)
		}
		if sent>>2 != o.TOS>>2 {
			dscp = fmt.Sprintf("DSCP %d arrives as %d", sent>>2, o.TOS>>2)
		}
	}
	switch {
	case ecn != "":
		all = d.finding("ECN", Warning, ecn, "Marks of congested switches do not get through: --congestion dcqcn has no effect, the default does not need them.",
			"# look for a tunnel or firewall on the way that clears the traffic class (RFC 6040 says what a tunnel should do)")
	case !seenECN:
		all = d.finding("ECN", Warning, "packets with ECN bits do not arrive", "A firewall drops them: leave --congestion dcqcn away.")
	default:
		all = d.finding("ECN", OK, "the bits arrive as sent"+marked, "")
	}
	if dscp != "" {
		return append(all, d.finding("DSCP", Warning, dscp, "Traffic classes that programs choose are lost on the way: priorities of switches have no effect. Transfers work.")...)
	}
	return append(all, d.finding("DSCP", OK, "arrives as sent", "")...)
}

func (d *direction) checksum() []Finding {
	s := d.count(func(p probe) bool { return p.kind == kindNoChecksum })
	if s.seen > 0 || s.refused > 0 {
		return d.finding("UDP checksum 0", OK, "passes", "")
	}
	return d.finding("UDP checksum 0", Warning, "is dropped on the way", "Hardware and the kernel's Soft-RoCE send it; rnic does not, and reaches other rnic.")
}

func (d *direction) distance() []Finding {
	var least, most uint8 = 255, 0
	for _, o := range d.arrivals.Seen {
		least, most = min(least, o.TTL), max(most, o.TTL)
	}
	if most == 0 || most > d.ttl {
		return d.finding("TTL", OK, fmt.Sprintf("%d sent, %d arrives", d.ttl, most), "")
	}
	found := fmt.Sprintf("%d sent, %d arrives: %s on the way", d.ttl, most, plural(int(d.ttl-most), "router"))
	if least != most {
		found += fmt.Sprintf(", or %d: ways differ, and packets may overtake each other", d.ttl-least)
	}
	return d.finding("TTL", OK, found, "")
}

// dedupe keeps the first observation of each probe, bounded by the plan: what else comes is none of ours.
func dedupe(seen []observation) []observation {
	n := len(plan())
	have := make([]bool, n)
	return slices.DeleteFunc(seen, func(o observation) bool {
		if o.Seq < 0 || o.Seq >= n || have[o.Seq] {
			return true
		}
		have[o.Seq] = true
		return false
	})
}
