package ibcm

import (
	"math/rand/v2"
	"slices"
	"testing"

	"rnic/internal/roce"
)

// host is one CM of a test, with what it has sent and told.
type host struct {
	cm   *CM
	gid  roce.GID
	sent []Datagram
	told []Event
}

// net is two CMs and the time between them.
type net struct {
	t     testing.TB
	now   int64
	hosts [2]*host
	// fate says what becomes of a datagram: the delays of its copies; nil: one copy, a microsecond.
	fate  func(d *Datagram) []int64
	under []flying
	acts  func(h *host, e *Event) // answers events; may be nil
	quiet bool                    // keep no records: long runs
}

type flying struct {
	at int64
	d  Datagram
}

const (
	microsecond = int64(1000)
	millisecond = 1000 * microsecond
	second      = 1000 * millisecond
)

func gid(n byte) roce.GID { return roce.GID{10: 0xff, 11: 0xff, 12: 10, 15: n} }

func newNet(t testing.TB, seed byte, planted Planted) *net {
	n := &net{t: t, now: second}
	for i := range n.hosts {
		n.hosts[i] = &host{gid: gid(byte(i + 1)), cm: New(Config{Seed: [32]byte{seed, byte(i)}, NodeGUID: [8]byte{2, byte(i)}, Planted: planted})}
	}
	return n
}

func (n *net) addr(from int) Address {
	return Address{Local: n.hosts[from].gid, Remote: n.hosts[1-from].gid}
}

// collect takes what the CMs have sent and told.
func (n *net) collect() {
	for _, h := range n.hosts {
		for more := true; more; {
			more = false
			for _, e := range h.cm.Events() {
				more = true
				if !n.quiet {
					h.told = append(h.told, e)
				}
				if n.acts != nil {
					n.acts(h, &e)
				}
			}
		}
		for _, d := range h.cm.Sends() {
			if !n.quiet {
				h.sent = append(h.sent, d)
			}
			delays := []int64{microsecond}
			if n.fate != nil {
				delays = n.fate(&d)
			}
			for _, x := range delays {
				n.under = append(n.under, flying{n.now + x, d})
			}
		}
	}
}

// run lets time pass until nothing happens any more, or the end.
func (n *net) run(until int64) {
	n.collect()
	for {
		next, which := until, -1
		for i := range n.under {
			if n.under[i].at < next {
				next, which = n.under[i].at, i
			}
		}
		var due *host
		for _, h := range n.hosts {
			if at, ok := h.cm.Next(); ok && at < next {
				next, which, due = at, -1, h
			}
		}
		n.now = max(n.now, next)
		switch {
		case due != nil:
			due.cm.Expire(n.now)
		case which >= 0:
			d := n.under[which].d
			n.under = slices.Delete(n.under, which, which+1)
			for _, h := range n.hosts {
				if h.gid == d.Remote {
					h.cm.Receive(n.now, Address{Local: d.Remote, Remote: d.Local}, d.MAD[:])
				}
			}
		default:
			return
		}
		n.collect()
	}
}

// pass runs for some time.
func (n *net) pass(d int64) { n.run(n.now + d) }

func kindOf(d *Datagram) kind { return kind(be.Uint16(d.MAD[offAttr:])) }

// took is what a host has sent, by kind, and forgets it.
func (h *host) took() string {
	s := ""
	for i := range h.sent {
		if s != "" {
			s += " "
		}
		s += kindOf(&h.sent[i]).String()
	}
	h.sent = nil
	return s
}

// heard is what a host was told, and forgets it.
func (h *host) heard() (types []EventType) {
	for _, e := range h.told {
		types = append(types, e.Type)
	}
	h.told = nil
	return types
}

func (h *host) wants(t testing.TB, types ...EventType) {
	t.Helper()
	if got := h.heard(); !slices.Equal(got, types) {
		t.Errorf("events %v, want %v", got, types)
	}
}

// drop loses the next n datagrams of a kind; all if n < 0.
func (n *net) drop(k kind, count int) {
	n.fate = func(d *Datagram) []int64 {
		if kindOf(d) == k && count != 0 {
			count--
			return nil
		}
		return []int64{microsecond}
	}
}

const service = uint64(SpaceTCP)<<16 | 7471

func request(n *net, qpn uint32) *Request {
	return &Request{Connection: Connection{QPN: qpn, StartingPSN: 77, ResponderResources: 3, InitiatorDepth: 2, RNRRetry: 7}, ServiceID: service,
		PathMTU: 3, AckTimeout: 14, RetryCount: 7, PKey: 0xffff, Primary: Path{Local: n.hosts[0].gid, Remote: n.hosts[1].gid}, Private: []byte("hello")}
}

func reply(qpn uint32) *Reply {
	return &Reply{Connection: Connection{QPN: qpn, StartingPSN: 88, ResponderResources: 2, InitiatorDepth: 3, RNRRetry: 6}, Private: []byte("welcome")}
}

// asked is a net whose host 0 has sent a REQ that host 1 has heard.
func asked(t testing.TB) (n *net, a, b *Conn) {
	n = newNet(t, 1, PlantedNone)
	return asking(n)
}

func asking(n *net) (_ *net, a, b *Conn) {
	if _, err := n.hosts[1].cm.Listen(service, 0, "listener"); err != nil {
		n.t.Fatal(err)
	}
	a, err := n.hosts[0].cm.Connect(n.now, n.addr(0), request(n, 0x111), "a")
	if err != nil {
		n.t.Fatal(err)
	}
	n.pass(10 * microsecond)
	if e := n.hosts[1].told; len(e) == 1 {
		b = e[0].Conn
	}
	if b == nil {
		n.t.Fatalf("no request")
	}
	b.SetOwner("b")
	return n, a, b
}

// made is a net with a connection.
func made(t testing.TB) (n *net, a, b *Conn) {
	n, a, b = asked(t)
	must(t, b.Accept(n.now, reply(0x222)))
	n.pass(10 * microsecond)
	must(t, a.Ready(n.now, []byte("ready")))
	n.pass(10 * microsecond)
	if a.State() != Established || b.State() != Established {
		t.Fatalf("states %v and %v", a.State(), b.State())
	}
	for _, h := range n.hosts {
		h.took()
		h.heard()
	}
	return n, a, b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// empty checks that nothing is left of a net's connections.
func (n *net) empty() {
	n.t.Helper()
	for i, h := range n.hosts {
		c := h.cm
		if len(c.conns)+len(c.remote)+len(c.qps)+len(c.timers)+len(c.look)+len(c.asked)+c.npend+c.lapsed+len(c.waiting) != 0 {
			n.t.Errorf("host %d: %d connections, %d remote ids, %d queue pairs, %d timers, %d+%d lookups, %d pending, %d remembered, %d early are left",
				i, len(c.conns), len(c.remote), len(c.qps), len(c.timers), len(c.look), len(c.asked), c.npend, c.lapsed, len(c.waiting))
		}
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
