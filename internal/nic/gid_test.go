package nic

import (
	"net/netip"
	"testing"

	"rnic/internal/roce"
)

func gid(s string) roce.GID { return roce.GIDFromAddr(netip.MustParseAddr(s)) }

func TestGIDTable(t *testing.T) {
	n := New(Config{})
	for _, i := range []int{-1, 0, 255, 256} {
		if _, ok := n.GID(i); ok {
			t.Errorf("entry %d of a new NIC is set", i)
		}
		n.SetGID(i, testGID4)
		if g, ok := n.GID(i); ok != (i == 0 || i == 255) || ok && g != testGID4 {
			t.Errorf("entry %d is %v, %v", i, g, ok)
		}
	}
	n.SetGID(255, roce.GID{})
	if _, ok := n.GID(255); ok {
		t.Error("the zero GID does not clear an entry")
	}
}

// A17.4.2: an address vector on RoCEv2 is an IP path. A modify to RTR and an address handle take
// and refuse the same.
func TestAddressVectors(t *testing.T) {
	n := objectsNIC(Config{})
	n.SetGID(7, gid("192.0.2.7"))
	for _, c := range []struct {
		name   string
		change func(*AHAttr)
		want   Errno
		src    string
		local  bool
		ttl    uint8
	}{
		{"IPv4", func(a *AHAttr) {}, 0, "192.0.2.1", false, 64},
		{"IPv6", func(a *AHAttr) { a.DGID, a.SGIDIndex = peerGID6, 1 }, 0, "2001:db8::1", false, 64},
		{"source index", func(a *AHAttr) { a.SGIDIndex = 7 }, 0, "192.0.2.7", false, 64},
		{"own address", func(a *AHAttr) { a.DGID = testGID4 }, 0, "192.0.2.1", true, 64},
		{"another own address", func(a *AHAttr) { a.DGID = gid("192.0.2.7") }, 0, "192.0.2.1", true, 64},
		{"hop limit", func(a *AHAttr) { a.HopLimit = 9 }, 0, "192.0.2.1", false, 9},
		{"hop limit 1 is the subnet's in InfiniBand", func(a *AHAttr) { a.HopLimit = 1 }, 0, "192.0.2.1", false, 64},
		{"hop limit 0", func(a *AHAttr) { a.HopLimit = 0 }, 0, "192.0.2.1", false, 64},
		{"no GRH", func(a *AHAttr) { a.IsGlobal = false }, EINVAL, "", false, 0},
		{"port 0", func(a *AHAttr) { a.Port = 0 }, EINVAL, "", false, 0},
		{"port 2", func(a *AHAttr) { a.Port = 2 }, EINVAL, "", false, 0},
		{"source index not set", func(a *AHAttr) { a.SGIDIndex = 2 }, EINVAL, "", false, 0},
		{"IPv4 to IPv6", func(a *AHAttr) { a.DGID = peerGID6 }, EINVAL, "", false, 0},
		{"IPv6 to IPv4", func(a *AHAttr) { a.SGIDIndex = 1 }, EINVAL, "", false, 0},
		{"zero GID", func(a *AHAttr) { a.DGID = roce.GID{} }, EINVAL, "", false, 0},
		{"unspecified IPv4", func(a *AHAttr) { a.DGID = gid("0.0.0.0") }, EINVAL, "", false, 0},
		{"broadcast", func(a *AHAttr) { a.DGID = gid("255.255.255.255") }, EINVAL, "", false, 0},
		{"IPv4 to an IPv6 group", func(a *AHAttr) { a.DGID = gid("ff0e::1") }, EINVAL, "", false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := goodAttr(RTR)
			c.change(&a.AH)
			check := func(path roce.Path, local bool) {
				t.Helper()
				want := roce.Path{Src: netip.MustParseAddr(c.src), Dst: a.AH.DGID.Addr(), SrcPort: path.SrcPort, TOS: 0x20, TTL: c.ttl}
				if path != want || local != c.local || !path.Valid() {
					t.Errorf("got path %+v local %v, want %+v local %v", path, local, want, c.local)
				}
				if path.SrcPort < 0xc000 { // A17.3.2.1
					t.Errorf("source port %d is not a dynamic port", path.SrcPort)
				}
			}
			q := someQP(t, n, RC)
			bring(t, q, Init)
			before, _ := q.Query()
			err := n.Modify(1, q, &a, AttrState|rcTransitions[Init][RTR].required)
			wantErrno(t, err, c.want)
			if after, _ := q.Query(); err != nil && after != before {
				t.Errorf("a refused modify changed the queue pair to %+v", after)
			} else if err == nil {
				check(q.path, q.local)
				if after.AH != a.AH {
					t.Errorf("query gives address vector %+v, want %+v", after.AH, a.AH)
				}
			}

			live, refs := len(n.ahs), q.pd.refs
			h, err := n.CreateAH(q.pd, a.AH)
			wantErrno(t, err, c.want)
			if err == nil {
				check(h.path, h.local)
			} else if len(n.ahs) != live || q.pd.refs != refs {
				t.Error("a refused address handle left something behind")
			}
		})
	}
}

// A17.3.2.1: the source port is constant for a flow and tells flows apart.
func TestSourcePorts(t *testing.T) {
	seen := map[uint16]bool{}
	for q := range uint32(1000) {
		seen[sourcePort(0, q, 5)] = true
	}
	if len(seen) < 900 {
		t.Errorf("1000 flows have %d source ports", len(seen))
	}
	if sourcePort(0x12345, 1, 2) != sourcePort(0x12345, 3, 4) {
		t.Error("one flow label has two source ports")
	}
}
