package ibcm

import (
	"fmt"
	"testing"
)

// link is a lossy, duplicating, reordering link.
func (n *net) faulty(seed uint64, loss, twice, late int) {
	rng := newRand(seed)
	n.fate = func(*Datagram) (delays []int64) {
		copies := 1
		if rng.IntN(100) < twice {
			copies += 1 + rng.IntN(2)
		}
		for range copies {
			if rng.IntN(100) < loss {
				continue
			}
			d := microsecond * int64(1+rng.IntN(50))
			if rng.IntN(100) < late {
				d = millisecond * int64(rng.IntN(400))
			}
			delays = append(delays, d)
		}
		return delays
	}
}

// talk is what one connection's two ends have been told.
type talk struct {
	qpn     uint32
	ends    [2]*Conn
	said    [2][]EventType
	accept  bool // the passive side does
	agree   bool // the active side does
	hangsUp int  // who disconnects
}

// conversation runs many connections between two CMs over a faulty link, and says what is wrong.
func conversation(t testing.TB, seed uint64, planted Planted, loss int) error {
	n := newNet(t, byte(seed), planted)
	n.quiet = true
	rng := newRand(seed)
	n.faulty(seed, loss, 20, 20)
	talks := map[uint32]*talk{}
	byConn := map[*Conn]*talk{}
	twice := error(nil)
	side := func(h *host) int {
		if h == n.hosts[0] {
			return 0
		}
		return 1
	}
	n.acts = func(h *host, e *Event) {
		var w *talk
		s := side(h)
		if e.Type == EventRequest {
			if w = talks[e.Request.QPN]; w.ends[s] != nil {
				twice = fmt.Errorf("connection %#x is asked for twice", w.qpn)
			}
			w.ends[s] = e.Conn
			byConn[e.Conn] = w
		} else if e.Conn != nil {
			w = byConn[e.Conn]
		}
		w.said[s] = append(w.said[s], e.Type)
		switch e.Type {
		case EventRequest:
			if w.accept {
				must(t, e.Conn.Accept(n.now, reply(w.qpn+0x1000)))
			} else {
				must(t, e.Conn.Reject(n.now, RejConsumer, nil, nil))
			}
		case EventReply:
			if !w.agree {
				must(t, e.Conn.Reject(n.now, RejConsumer, nil, nil))
				break
			}
			must(t, e.Conn.Ready(n.now, nil))
			if w.hangsUp == 0 {
				must(t, e.Conn.Disconnect(n.now, nil))
			}
		case EventReady:
			if w.hangsUp == 1 {
				must(t, e.Conn.Disconnect(n.now, nil))
			}
		case EventDisconnect:
			if e.Conn.State() == DreqReceived {
				must(t, e.Conn.DisconnectReply(n.now, nil))
			}
		}
	}
	_, err := n.hosts[1].cm.Listen(service, 0, nil)
	must(t, err)
	for i := range uint32(20) {
		w := &talk{qpn: 0x100 + i, accept: rng.IntN(8) > 0, agree: rng.IntN(8) > 0, hangsUp: rng.IntN(3)}
		talks[w.qpn] = w
		r := request(n, w.qpn)
		r.AckTimeout = 18 // a second: later than anything on the link
		k, err := n.hosts[0].cm.Connect(n.now, n.addr(0), r, nil)
		must(t, err)
		w.ends[0], byConn[k] = k, w
		n.pass(millisecond * int64(rng.IntN(50)))
	}
	n.pass(40 * second)
	for _, w := range talks {
		if w.agree && w.accept && w.hangsUp == 2 {
			if a, b := w.ends[0].State(), w.ends[1].State(); a != Established || b != Established {
				return fmt.Errorf("connection %#x: %v and %v after 40 s", w.qpn, a, b)
			}
			must(t, w.ends[rng.IntN(2)].Disconnect(n.now, nil))
		}
	}
	n.pass(200 * second)
	for _, w := range talks {
		if err := w.judge(); err != nil {
			return err
		}
	}
	for i, h := range n.hosts {
		if c := h.cm; len(c.conns)+len(c.remote)+len(c.qps)+len(c.timers)+c.npend+c.lapsed != 0 {
			return fmt.Errorf("host %d: %d connections are left", i, len(c.conns))
		}
	}
	return twice
}

// judge looks at what the two ends were told.
func (w *talk) judge() error {
	count := func(s int, types ...EventType) (c int) {
		for _, e := range w.said[s] {
			for _, x := range types {
				if e == x {
					c++
				}
			}
		}
		return c
	}
	ends := []EventType{EventRejected, EventUnreachable, EventDisconnect, EventDisconnected}
	want := func(what string, got, want int) error {
		if got != want {
			return fmt.Errorf("connection %#x: %s %d times, not %d: %v and %v", w.qpn, what, got, want, w.said[0], w.said[1])
		}
		return nil
	}
	one := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	for _, err := range []error{
		want("request", count(1, EventRequest), 1),
		want("reply", count(0, EventReply), one(w.accept)),
		want("ready", count(1, EventReady), one(w.accept && w.agree)-one(w.accept && w.agree && w.hangsUp == 0 && count(1, EventReady) == 0)),
		want("the active end", count(0, ends...), one(!w.accept || w.agree)),
		want("the passive end", count(1, ends...), one(w.accept)),
		want("no answer", count(0, EventUnreachable)+count(1, EventUnreachable), 0),
		want("end of timewait", count(0, EventTimewaitEnd)+count(1, EventTimewaitEnd), 2*one(w.accept && w.agree)),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// 12.9: over a link that loses, doubles and reorders, every connection comes up or is rejected as its ends want it, both sides are told the same,
// once, and nothing is left.
func TestConversations(t *testing.T) {
	for seed := range uint64(60) {
		if err := conversation(t, seed, PlantedNone, int(seed%4)*10); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// The test above can fail: each planted fault is found.
func TestConversationsFindPlantedFaults(t *testing.T) {
	for name, planted := range map[string]Planted{"RTU once": PlantedRTUOnce, "no timewait": PlantedNoTimewait, "request twice": PlantedRequestTwice} {
		found := false
		for seed := uint64(0); seed < 30 && !found; seed++ {
			err := conversation(t, seed, planted, 20)
			if found = err != nil; found {
				t.Logf("%s: seed %d: %v", name, seed, err)
			}
		}
		if !found {
			t.Errorf("%s is not found", name)
		}
	}
}
