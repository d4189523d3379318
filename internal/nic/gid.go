package nic

import (
	"net/netip"

	"rnic/internal/roce"
)

// gidTableSize is the number of entries of the port's GID table: what an index of a byte reaches.
const gidTableSize = 256

// SetGID sets entry index of the port's GID table; the zero GID clears it. Queue pairs and address
// handles keep the path that they were given. An index beyond 255 is ignored.
func (n *NIC) SetGID(index int, g roce.GID) {
	if index >= 0 && index < gidTableSize {
		n.gids[index] = g
	}
}

// GID returns entry index of the port's GID table; false if it is not set.
func (n *NIC) GID(index int) (roce.GID, bool) {
	if index < 0 || index >= gidTableSize || n.gids[index].IsZero() {
		return roce.GID{}, false
	}
	return n.gids[index], true
}

// usableSource tells whether packets may leave from an address: it is in the table, and not down.
func (n *NIC) usableSource(a netip.Addr) bool {
	g := roce.GIDFromAddr(a)
	for i := range n.gids {
		if n.gids[i] == g && !n.gidDown[i] {
			return true
		}
	}
	return false
}

// isLocal tells whether an address is one of this NIC.
func (n *NIC) isLocal(g roce.GID) bool {
	for i := range n.gids {
		if n.gids[i] == g {
			return true
		}
	}
	return false
}

// defaultHopLimit is what leaves instead of a hop limit of 0 or 1. Programs that think of subnets
// ask for 1; Linux replaces it by the route's.
const defaultHopLimit = 64

// resolve checks an address vector and turns it into what the IP and UDP headers say. local: the
// destination is an address of this NIC.
func (n *NIC) resolve(op, object string, a *AHAttr) (path roce.Path, local bool, err error) {
	if !a.IsGlobal {
		// A17.4.2: RoCE packets have no local header to route by.
		return path, false, refuse(EINVAL, op, object, "RoCE needs a global address: set is_global and the GRH fields")
	}
	if a.Port != 1 {
		return path, false, refuse(EINVAL, op, object, "the address vector's port is not 1")
	}
	src, ok := n.GID(int(a.SGIDIndex))
	if !ok {
		return path, false, refuse(EINVAL, op, object, "the source GID index is not in use: see the GID table")
	}
	path = roce.Path{Src: src.Addr(), Dst: a.DGID.Addr(), TOS: a.TrafficClass, TTL: a.HopLimit}
	if err := checkDestination(op, object, path.Src, path.Dst); err != nil {
		return roce.Path{}, false, err
	}
	if path.TTL <= 1 {
		path.TTL = defaultHopLimit
	}
	return path, n.isLocal(a.DGID), nil
}

func checkDestination(op, object string, src, dst netip.Addr) error {
	switch {
	case !dst.IsValid() || dst.IsUnspecified() || dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return refuse(EINVAL, op, object, "the destination GID is no address")
	case src.Is4() != dst.Is4():
		return refuse(EINVAL, op, object, "source and destination GID are of different IP versions: choose another source GID index")
	}
	return nil
}

// sourcePort is the UDP source port of a flow: constant, so that its packets take one way through
// the network, and different among flows (A17.3.2.1). It comes from the flow label if there is one.
func sourcePort(flowLabel, from, to uint32) uint16 {
	x := flowLabel & 0xfffff
	if x == 0 {
		x = uint32(mix64(uint64(from)<<24 | uint64(to)))
	}
	return 0xc000 | uint16(x^x>>14)&0x3fff
}
