package ibcm

import (
	"math/rand/v2"
	"testing"

	"rnic/internal/fuzzscript"
	"rnic/internal/roce"
)

// party is two communication managers to which a script of bytes does what it likes: what their programs do, what is lost and comes again, and
// what an attacker sends who sees everything, and may also send from the peer's address.
type party struct {
	*net
	script  fuzzscript.Script
	seen    []Datagram // that were sent, or forged
	dead    map[*Conn]bool
	conns   [2][]*Conn
	lookups [2][]*Lookup
	lossy   bool
}

func newParty(t testing.TB, script []byte) *party {
	p := &party{net: newNet(t, 5, PlantedNone), script: script, dead: map[*Conn]bool{}}
	p.quiet = true
	for i, h := range p.hosts {
		if i == 1 {
			h.cm = New(Config{Seed: [32]byte{5, 9}, NodeGUID: [8]byte{2, 1}, MaxConns: 64})
		}
		h.cm.cfg.EarlyWait = 50 * millisecond
		for s := range uint64(2) {
			_, err := h.cm.Listen(service+s, 3, "listener")
			must(t, err)
		}
	}
	p.acts = p.told
	p.fate = p.note
	return p
}

// told notes an event, which is of a connection that has not ended.
func (p *party) told(h *host, e *Event) {
	i := 0
	if h == p.hosts[1] {
		i = 1
	}
	if e.Conn != nil && p.dead[e.Conn] {
		p.t.Errorf("event %v of a connection that was closed", e.Type)
	}
	switch e.Type {
	case EventRequest:
		p.conns[i] = append(p.conns[i], e.Conn)
	case EventLookup:
		p.lookups[i] = append(p.lookups[i], e.Lookup)
	}
}

func (p *party) note(d *Datagram) []int64 {
	if len(p.seen) < 64 {
		p.seen = append(p.seen, *d)
	} else {
		p.seen[p.now%64] = *d
	}
	if p.lossy {
		return nil
	}
	return []int64{microsecond}
}

func (p *party) byte() int { return p.script.Next() }

// act does the next thing.
func (p *party) act() {
	op, i := p.byte(), p.byte()&1
	c := p.hosts[i].cm
	switch op & 7 {
	case 0:
		if k, err := c.Connect(p.now, p.addr(i), p.request(i), "a"); err == nil {
			p.conns[i] = append(p.conns[i], k)
		}
	case 1:
		if l := c.Lookup(p.now, p.addr(i), service+uint64(p.byte()&3), 0xffff, []byte("x"), "l"); l != nil {
			p.lookups[i] = append(p.lookups[i], l)
		}
	case 2, 3:
		p.program(i)
	case 4, 5, 6:
		p.attack(i)
	case 7:
		p.lossy = op&8 != 0
		if op&16 != 0 { // fails if it does already
			_, _ = c.Listen(service+2+uint64(op>>5&1), 3, "listener")
		}
		p.pass(int64(p.byte()) * 100 * millisecond)
	}
	p.collect()
	if op&0x80 == 0 {
		p.pass(10 * microsecond)
	}
}

func (p *party) request(i int) *Request {
	r := request(p.net, uint32(0x100+p.byte()&7))
	r.Primary = Path{Local: p.hosts[i].gid, Remote: p.hosts[1-i].gid}
	r.ServiceID, r.RespTimeout = service+uint64(p.byte()&3), 10
	return r
}

// program is what the owner of a connection or lookup asks for, in whatever state it is.
func (p *party) program(i int) {
	n, how := p.byte(), p.byte()
	if how&15 == 15 && len(p.lookups[i]) > 0 {
		l := p.lookups[i][n%len(p.lookups[i])]
		if how&16 != 0 {
			_ = l.Reply(p.now, LookupStatus(how>>5), 5, 6, nil, []byte("y"))
		} else {
			l.Close(p.now)
		}
		return
	}
	if len(p.conns[i]) == 0 {
		return
	}
	k := p.conns[i][n%len(p.conns[i])]
	if p.dead[k] {
		return
	}
	switch how & 7 {
	case 0, 1:
		_ = k.Accept(p.now, reply(uint32(0x200+how>>4)))
	case 2:
		_ = k.Reject(p.now, Reason(how>>3), nil, []byte("no"))
	case 3:
		_ = k.Ready(p.now, []byte("ready"))
	case 4:
		_ = k.Disconnect(p.now, nil)
	case 5:
		_ = k.DisconnectReply(p.now, nil)
	case 6:
		_, _ = k.MoreTime(p.now, uint8(how>>3), nil), k.Established(p.now)
	case 7:
		k.Close(p.now)
		p.dead[k] = true
	}
}

// attack gives host i a message: one that was seen, or a new one to a connection, with some bytes changed.
func (p *party) attack(i int) {
	how := p.byte()
	var d Datagram
	switch {
	case how&1 == 0 && len(p.seen) > 0:
		d = p.seen[p.byte()%len(p.seen)]
	case len(p.conns[i]) > 0:
		k := p.conns[i][p.byte()%len(p.conns[i])]
		d = p.from(i, k, k.remoteID, kindREQ+kind(p.byte()%kinds))
	default:
		mad(d.MAD[:]).header(kindREQ+kind(p.byte()%kinds), uint64(how))
	}
	for range how >> 1 & 3 {
		d.MAD[p.byte()] ^= byte(p.byte())
	}
	from := Address{Local: p.hosts[i].gid, Remote: p.hosts[1-i].gid}
	foreign := how&0x30 == 0x30
	if foreign {
		from.Remote = roce.GID{10: 0xff, 11: 0xff, 12: 10, 15: byte(how)}
	}
	var before []State
	for _, k := range p.conns[i] {
		before = append(before, k.state)
	}
	b := d.MAD[:]
	if how&0xc0 == 0xc0 {
		b = b[:p.byte()]
	}
	p.hosts[i].cm.Receive(p.now, from, b)
	for n, k := range p.conns[i] {
		if n < len(before) && foreign && k.state != before[n] && k.to.Remote != from.Remote {
			p.t.Errorf("%v after a datagram of somebody else, %v before", k.state, before[n])
		}
	}
}

// end closes everything; when all times are over nothing is left.
func (p *party) end() {
	p.lossy = true
	for range 3 { // what is on its way may ask for more
		for _, h := range p.hosts {
			for _, k := range h.cm.conns {
				k.Close(p.now)
				p.dead[k] = true
			}
			for _, l := range h.cm.asked {
				l.Close(p.now)
			}
		}
		p.pass(second)
	}
	for _, all := range p.lookups {
		for _, l := range all {
			l.Close(p.now)
		}
	}
	p.pass(20_000 * second)
	p.empty()
}

// Any messages and any requests of programs, in any order: nothing panics, an attacker with another address changes nobody's connection, and when
// the programs have let go nothing is left.
func FuzzMADs(f *testing.F) {
	rng := rand.New(rand.NewPCG(41, 42))
	for range 24 {
		b := make([]byte, 150)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Add([]byte{0, 0, 1, 0, 2, 1, 0, 0, 2, 0, 0, 3, 4, 1, 1, 0, 5, 2, 0, 0, 4, 7, 0, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newParty(t, b[:min(len(b), 600)])
		for len(p.script) > 0 {
			p.act()
		}
		p.end()
	})
}
