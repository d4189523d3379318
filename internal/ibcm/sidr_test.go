package ibcm

import "testing"

func looks(t testing.TB) (n *net, a, b *Lookup) {
	n = newNet(t, 4, PlantedNone)
	_, err := n.hosts[1].cm.Listen(service, 2, "listener")
	must(t, err)
	a = n.hosts[0].cm.Lookup(n.now, n.addr(0), service, 0xffff, []byte("who"), "a")
	n.pass(10 * microsecond)
	if e := n.hosts[1].told; len(e) != 1 || e[0].Type != EventLookup || string(e[0].Private[:3]) != "who" || e[0].PKey != 0xffff || e[0].Listener.Owner() != "listener" {
		t.Fatalf("told %+v", e)
	}
	return n, a, n.hosts[1].told[0].Lookup
}

// 12.11: a queue pair is found, also when the answer is lost, and nothing is left.
func TestLookup(t *testing.T) {
	for _, loss := range []int{0, 2} {
		n, a, b := looks(t)
		n.drop(kindSIDRREP, loss)
		must(t, b.Reply(n.now, LookupOK, 0xabcdef, 0x01234567, []byte("info"), []byte("me")))
		if err := b.Reply(n.now, LookupOK, 1, 1, nil, nil); err == nil {
			t.Error("answered twice")
		}
		n.pass(second)
		e := n.hosts[0].told
		if len(e) != 1 || e[0].Type != EventLookupReply || e[0].Lookup != a || e[0].QPN != 0xabcdef || e[0].QKey != 0x01234567 || e[0].ServiceID != service ||
			string(e[0].Info) != "info" || string(e[0].Private[:2]) != "me" {
			t.Errorf("told %+v", e)
		}
		n.pass(15 * second)
		n.hosts[1].wants(t, EventLookup)
		n.empty()
	}
}

// 12.11.2.3: statuses: nobody listens, and a refusal. A lookup that nobody answers fails.
func TestLookupRefused(t *testing.T) {
	n, _, b := looks(t)
	b.Close(n.now)
	n.hosts[0].cm.Lookup(n.now, n.addr(0), service+1, 0xffff, nil, nil)
	n.pass(millisecond)
	if e := n.hosts[0].told; len(e) != 2 || e[0].Status != LookupReject || e[1].Status != LookupUnsupported {
		t.Errorf("told %+v", e)
	}
	n.hosts[0].heard()
	n.fate = func(*Datagram) []int64 { return nil }
	n.hosts[0].cm.Lookup(n.now, n.addr(0), service, 0xffff, nil, nil)
	n.pass(80 * second)
	n.hosts[0].wants(t, EventLookupFailed)
	c := n.hosts[0].cm.Lookup(n.now, n.addr(0), service, 0xffff, nil, nil)
	c.Close(n.now)
	n.pass(80 * second)
	n.hosts[0].wants(t)
	n.empty()
}

// A reply from somebody else, or for another request, is not taken.
func TestLookupForged(t *testing.T) {
	n, a, _ := looks(t)
	d := Datagram{Address: Address{Local: gid(66), Remote: n.hosts[0].gid}}
	m := mad(d.MAD[:])
	m.header(kindSIDRREP, a.tid)
	be.PutUint32(m.body(), a.id)
	n.give(0, &d)
	d.Local = n.hosts[1].gid
	be.PutUint32(m.body(), a.id+1)
	n.give(0, &d)
	n.pass(millisecond)
	n.hosts[0].wants(t)
	if s := n.hosts[0].cm.Stats(); s.Foreign != 1 || s.Unknown != 1 {
		t.Errorf("counted %+v", s)
	}
}
