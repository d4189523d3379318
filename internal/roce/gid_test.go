package roce

import (
	"net/netip"
	"testing"
)

// TestGID checks the mapping of addresses to GIDs (annex A17) and back.
func TestGID(t *testing.T) {
	for _, c := range []struct{ addr, text string }{
		{"192.0.2.1", "0000:0000:0000:0000:0000:ffff:c000:0201"},
		{"fe80::1:2", "fe80:0000:0000:0000:0000:0000:0001:0002"},
	} {
		addr := netip.MustParseAddr(c.addr)
		g := GIDFromAddr(addr)
		if g.String() != c.text || g.Addr() != addr || g.IsZero() {
			t.Errorf("%s: GID %s, back %s", addr, g, g.Addr())
		}
	}
	if g := GIDFromAddr(netip.MustParseAddr("fe80::1%eth0")); g.Addr() != netip.MustParseAddr("fe80::1") {
		t.Errorf("the zone is kept: %s", g.Addr())
	}
	if g := GIDFromAddr(netip.Addr{}); !g.IsZero() || g.Addr().IsValid() {
		t.Errorf("no address: GID %s, back %s", g, g.Addr())
	}
}
