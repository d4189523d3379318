package ibcm

import (
	"encoding/binary"
	"testing"

	"rnic/internal/roce"
)

// 12.6, 12.9.8: no message that is not from the connection's peer, with the connection's ids, changes anything: another address, another id of
// the sender's, another queue pair in a DREQ.
func TestForged(t *testing.T) {
	for s, x := range situations {
		for k := kindMRA; k <= kindAPR; k++ {
			if k == kindSIDRREQ || k == kindSIDRREP {
				continue
			}
			n, a, b := asked(t)
			if x.reach != nil {
				x.reach(n, a, b)
				n.pass(10 * microsecond)
			}
			h, own, peer := 0, a, b.localID
			if x.passive {
				h, own, peer = 1, b, a.localID
			}
			before := own.state
			n.hosts[h].heard()
			n.fate = func(*Datagram) []int64 { return nil }
			forge := func(change func(d *Datagram, m mad)) {
				d := n.from(h, own, peer, k)
				change(&d, mad(d.MAD[:]))
				n.give(h, &d)
			}
			forge(func(d *Datagram, m mad) { d.Local = gid(66) })
			forge(func(d *Datagram, m mad) { d.Remote = gid(67) })
			forge(func(d *Datagram, m mad) { m.ids(peer, own.localID^1) })
			if own.state != ReqSent { // which does not know the peer's id yet
				forge(func(d *Datagram, m mad) { m.ids(peer^1, own.localID) })
				forge(func(d *Datagram, m mad) { m.ids(0, own.localID) })
			}
			if k == kindREJ {
				forge(func(d *Datagram, m mad) { m.ids(peer^1, 0) })
			}
			if k == kindDREQ {
				forge(func(d *Datagram, m mad) { put24(m.body()[8:], own.own.QPN^1) })
			}
			n.collect()
			if e := n.hosts[h].heard(); len(e) != 0 || own.state != before {
				t.Errorf("%s, forged %v: %v, told %v", situations[s].name, k, own.state, e)
			}
		}
	}
}

// A third machine that says it has the queue pair, the GUID and the id of the peer does not make the peer's connection stale.
func TestForeignRequest(t *testing.T) {
	n, a, b := made(t)
	d := Datagram{Address: Address{Local: gid(66), Remote: n.hosts[1].gid}}
	r := request(n, 0x111)
	r.Primary.Local = gid(66)
	m := mad(d.MAD[:])
	m.header(kindREQ, 1)
	m.encodeREQ(a.localID, [8]byte{2, 0}, r)
	n.give(1, &d)
	if b.State() != Established {
		t.Errorf("state %v", b.State())
	}
	n.collect()
	n.hosts[1].wants(t, EventRequest)
	// Nor does the peer's own address in the REQ help it.
	r.Primary.Local = n.hosts[0].gid
	m.encodeREQ(a.localID, [8]byte{2, 0}, r)
	n.give(1, &d)
	n.collect()
	n.hosts[1].wants(t)
	if n.hosts[1].cm.Stats().Malformed != 1 {
		t.Error("it is not counted")
	}
}

// What the wire can make a CM remember is bounded, and ends by itself.
func TestFlood(t *testing.T) {
	n := newNet(t, 8, PlantedNone)
	n.quiet = true
	const bound = 500
	c := New(Config{MaxConns: bound})
	n.hosts[1].cm = c
	for i := range uint64(4) {
		_, err := c.Listen(service+i, 0, nil)
		must(t, err)
	}
	mode := 0
	most := 0
	n.acts = func(h *host, e *Event) {
		switch {
		case e.Type == EventLookup:
			must(t, e.Lookup.Reply(n.now, LookupReject, 0, 0, nil, nil))
		case e.Type != EventRequest:
		case mode == 1:
			must(t, e.Conn.Reject(n.now, RejConsumer, nil, nil))
		case mode == 2:
			e.Conn.Close(n.now)
		}
	}
	n.fate = func(*Datagram) []int64 { return nil }
	for mode = range 3 {
		for i := range uint32(20_000) {
			d := Datagram{Address: Address{Local: gid(byte(i)), Remote: n.hosts[1].gid}}
			m := mad(d.MAD[:])
			if i%3 == 0 {
				m.header(kindSIDRREQ, uint64(i))
				binary.BigEndian.PutUint32(m.body(), i+1)
				be.PutUint64(m.body()[8:], service)
			} else {
				r := request(n, i)
				r.Primary.Local, r.ServiceID, r.RespTimeout, r.AckTimeout = d.Local, service+uint64(i%4), 31, 31
				r.Primary.AckTimeout = 31
				m.header(kindREQ, uint64(i))
				m.encodeREQ(i+1+uint32(mode)<<20, [8]byte{}, r)
			}
			n.give(1, &d)
			n.collect()
			most = max(most, len(c.conns)+len(c.asked))
		}
	}
	if most > bound+maxLapse {
		t.Errorf("%d connections and lookups at a time", most)
	}
	for _, k := range c.conns {
		k.Close(n.now)
	}
	n.pass(60 * second)
	n.empty()
}

// Any bytes in any state: nothing panics, and what is told makes sense. What an attacker who sees everything cannot forge is the address.
func FuzzReceive(f *testing.F) {
	for _, x := range frames(f) {
		f.Add(uint8(0), byte(1), []byte(x.mad))
		f.Add(uint8(9), byte(0x81), []byte(x.mad))
	}
	f.Fuzz(func(t *testing.T, s uint8, how byte, b []byte) {
		x := situations[int(s)%len(situations)]
		n, a, bb := asked(t)
		if x.reach != nil {
			x.reach(n, a, bb)
			n.pass(10 * microsecond)
		}
		h, own, peer := 0, a, bb.localID
		if x.passive {
			h, own, peer = 1, bb, a.localID
		}
		before := own.state
		n.hosts[h].heard()
		from := Address{Local: n.hosts[h].gid, Remote: n.hosts[1-h].gid}
		switch {
		case how&1 != 0:
			from.Remote = roce.GID{15: how}
		case len(b) == MADSize: // with ids that fit
			b = append([]byte(nil), b...)
			mad(b).ids(peer, own.localID)
		}
		n.hosts[h].cm.Receive(n.now, from, b)
		n.collect()
		if how&1 != 0 && own.state != before {
			t.Errorf("%s: %v after a datagram of somebody else", x.name, own.state)
		}
		n.pass(10 * millisecond)
		own.Close(n.now)
		n.pass(10 * millisecond)
		for _, h := range n.hosts {
			for _, k := range h.cm.conns {
				k.Close(n.now)
			}
			for _, l := range h.cm.asked {
				l.Close(n.now)
			}
		}
		n.pass(200 * second)
		n.empty()
	})
}

// The IP header: what is read is what is written, or it is none.
func FuzzIPHeader(f *testing.F) {
	for _, x := range frames(f) {
		if x.kind == "REQ" {
			f.Add(x.mad.decodeREQ().Private, uint64(0x01061c06))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, sid uint64) {
		h, ok := DecodeIPHeader(b, sid)
		if !ok {
			return
		}
		if h.Src.Addr().Is4() != h.Dst.Addr().Is4() || h.Dst.Port() != uint16(sid) {
			t.Errorf("read as %+v", h)
		}
		again := make([]byte, IPHeaderSize)
		EncodeIPHeader(again, h)
		if g, ok := DecodeIPHeader(again, sid); !ok || g != h {
			t.Errorf("%+v comes back as %+v", h, g)
		}
	})
}
