package ibcm

import (
	"fmt"
	"strings"
	"testing"
)

// situations are the states of a connection, on either side (12.9.7), each made anew for every message.
var situations = []struct {
	name    string
	passive bool
	reach   func(n *net, a, b *Conn)
}{
	{"active REQ sent", false, nil},
	{"active REP received", false, func(n *net, a, b *Conn) { must(n.t, b.Accept(n.now, reply(0x222))) }},
	{"active established", false, connects},
	{"active DREQ sent", false, func(n *net, a, b *Conn) { connects(n, a, b); must(n.t, a.Disconnect(n.now, nil)) }},
	{"active DREQ received", false, func(n *net, a, b *Conn) { connects(n, a, b); must(n.t, b.Disconnect(n.now, nil)) }},
	{"active timewait", false, func(n *net, a, b *Conn) { connects(n, a, b); disconnects(n, a, b) }},
	{"active rejected the REP", false, func(n *net, a, b *Conn) {
		must(n.t, b.Accept(n.now, reply(0x222)))
		n.pass(10 * microsecond)
		must(n.t, a.Reject(n.now, RejConsumer, nil, nil))
	}},
	{"passive REQ received", true, nil},
	{"passive REP sent", true, func(n *net, a, b *Conn) { must(n.t, b.Accept(n.now, reply(0x222))) }},
	{"passive established", true, connects},
	{"passive DREQ sent", true, func(n *net, a, b *Conn) { connects(n, a, b); must(n.t, b.Disconnect(n.now, nil)) }},
	{"passive DREQ received", true, func(n *net, a, b *Conn) { connects(n, a, b); must(n.t, a.Disconnect(n.now, nil)) }},
	{"passive timewait", true, func(n *net, a, b *Conn) { connects(n, a, b); disconnects(n, b, a) }},
	{"passive rejected the REQ", true, func(n *net, a, b *Conn) { must(n.t, b.Reject(n.now, RejConsumer, nil, nil)) }},
}

func connects(n *net, a, b *Conn) {
	must(n.t, b.Accept(n.now, reply(0x222)))
	n.pass(10 * microsecond)
	must(n.t, a.Ready(n.now, nil))
	n.pass(10 * microsecond)
}

func disconnects(n *net, a, b *Conn) {
	must(n.t, a.Disconnect(n.now, nil))
	n.pass(10 * microsecond)
	must(n.t, b.DisconnectReply(n.now, nil))
	n.pass(10 * microsecond)
}

// from is a message of the peer of a connection of host h, with the right ids.
func (n *net) from(h int, own *Conn, peer uint32, k kind) Datagram {
	d := Datagram{Address: n.addr(1 - h)}
	m := mad(d.MAD[:])
	m.header(k, own.tid)
	switch k {
	case kindREQ:
		m.encodeREQ(peer, [8]byte{2, 0}, request(n, 0x111))
	case kindREP:
		m.encodeREP([8]byte{2, 1}, reply(0x222))
		m.ids(peer, own.localID)
	case kindREJ:
		about := aboutREP
		if own.state == ReqSent || own.remoteID == 0 {
			about = aboutREQ
		}
		m.encodeREJ(about, RejConsumer, nil, nil)
		m.ids(peer, own.localID)
	case kindMRA:
		about := aboutREP
		if own.state == ReqSent {
			about = aboutREQ
		}
		m.encodeMRA(about, 20, nil)
		m.ids(peer, own.localID)
	case kindDREQ:
		m.ids(peer, own.localID)
		put24(m.body()[8:], own.own.QPN)
	default:
		m.ids(peer, own.localID)
	}
	return d
}

// give hands a datagram to a host.
func (n *net) give(h int, d *Datagram) {
	n.hosts[h].cm.Receive(n.now, Address{Local: d.Remote, Remote: d.Local}, d.MAD[:])
}

// cell is what a message does in a situation: the state afterwards, what is sent, what is told.
func cell(t *testing.T, s int, k kind) string {
	n, a, b := asked(t)
	n.fate = nil
	x := situations[s]
	if x.reach != nil {
		x.reach(n, a, b)
		n.pass(10 * microsecond)
	}
	h, own, peer := 0, a, b.localID
	if x.passive {
		h, own, peer = 1, b, a.localID
	}
	n.hosts[h].took()
	n.hosts[h].heard()
	d := n.from(h, own, peer, k)
	n.give(h, &d)
	n.fate = func(*Datagram) []int64 { return nil }
	n.collect()
	out := own.State().String()
	if s := n.hosts[h].took(); s != "" {
		out += " <" + s + ">"
	}
	for _, e := range n.hosts[h].heard() {
		out += " " + eventNames[e]
	}
	return out
}

var eventNames = map[EventType]string{EventRequest: "!request", EventReply: "!reply", EventReady: "!ready", EventRejected: "!rejected",
	EventMoreTime: "!more time", EventDisconnect: "!disconnect", EventDisconnected: "!disconnected", EventTimewaitEnd: "!end", EventUnreachable: "!unreachable"}

// 12.9.7: every message in every state. What the table does not list changes nothing, answers nothing and tells nothing.
func TestStates(t *testing.T) {
	table := map[string]string{}
	for line := range strings.Lines(states) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 2); len(f) == 2 {
			table[f[0]] = strings.TrimSpace(f[1])
		}
	}
	for s, x := range situations {
		before := cell(t, s, kindAPR) // which never does anything
		if strings.ContainsAny(before, "<!") {
			t.Errorf("%s, APR: %s", x.name, before)
		}
		for k := kindREQ; k < kindAPR; k++ {
			if k == kindSIDRREQ || k == kindSIDRREP {
				continue // of no connection
			}
			name := fmt.Sprintf("%s, %v", x.name, k)
			want, listed := table[name]
			if !listed {
				want = before
			}
			if got := cell(t, s, k); got != want {
				t.Errorf("%s: %s", name, got)
			}
			delete(table, name)
		}
	}
	for name := range table {
		t.Errorf("there is no %q", name)
	}
}

// states has, for a situation and a message, the state afterwards, <what is sent>, !what is told.
const states = `
active REQ sent, MRA: REQ sent !more time
active REQ sent, REJ: idle !rejected
active REQ sent, REP: REP received !reply
active REP received, REJ: timewait !rejected
active REP received, DREQ: DREQ received !disconnect
active established, REJ: timewait !disconnect
active established, REP: established <RTU>
active established, DREQ: DREQ received !disconnect
active established, LAP: established <APR>
active DREQ sent, REJ: timewait !disconnected
active DREQ sent, DREQ: timewait <DREP> !disconnect
active DREQ sent, DREP: timewait !disconnected
active timewait, REP: timewait <REJ>
active timewait, DREQ: timewait <DREP>
active rejected the REP, REP: timewait <REJ>
active rejected the REP, DREQ: timewait <DREP>
passive REQ received, REJ: timewait !rejected
passive REP sent, REQ: REP sent <REP>
passive REP sent, MRA: REP sent !more time
passive REP sent, REJ: timewait !rejected
passive REP sent, RTU: established !ready
passive REP sent, DREQ: DREQ received !disconnect
passive established, REJ: timewait !disconnect
passive established, DREQ: DREQ received !disconnect
passive established, LAP: established <APR>
passive DREQ sent, REQ: DREQ sent <REJ>
passive DREQ sent, REJ: timewait !disconnected
passive DREQ sent, DREQ: timewait <DREP> !disconnect
passive DREQ sent, DREP: timewait !disconnected
passive timewait, REQ: timewait <REJ>
passive timewait, DREQ: timewait <DREP>
passive rejected the REQ, REQ: timewait <REJ>
passive rejected the REQ, DREQ: timewait <DREP>
`
