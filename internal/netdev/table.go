// Package netdev is what the NIC knows of the machine's network: interfaces,
// addresses, and the GID table made of them.
package netdev

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Errors that callers can test for.
var (
	ErrNoInterface = errors.New("no such interface")
	ErrDown        = errors.New("interface is down")
	ErrNoAddress   = errors.New("no usable address")
	ErrBoth        = errors.New("select interfaces or addresses, not both")
)

// MaxEntries bounds the GID table; further addresses are left out.
const MaxEntries = 256

// Entry is one GID: RoCEv2 with one unicast address of one interface.
type Entry struct {
	Index    int        // in the table, counted from 0
	GID      [16]byte   // the IPv6 address, or the IPv4 address as ::ffff:a.b.c.d
	Addr     netip.Addr // the same, not mapped, no zone
	IfName   string
	IfIndex  int
	MTU      int  // of the interface, bytes
	PathMTU  int  // the largest path MTU that fits, 256 to 4096 bytes
	Loopback bool // on a loopback interface
	Up       bool // the interface is up
	Running  bool // and has a carrier
}

// Table is the GID table, in an order that lasts: the interface of the default
// route first, others by index, loopback last; on an interface IPv4 before
// IPv6, and addresses that the system itself prefers before others, those that
// are deprecated last.
type Table struct {
	Entries  []Entry
	NodeGUID uint64 // EUI-64, never 0, the same after a restart
}

// Lookup returns the entry of addr, nil if there is none.
func (t *Table) Lookup(addr netip.Addr) *Entry {
	addr = addr.Unmap().WithZone("")
	for i := range t.Entries {
		if t.Entries[i].Addr == addr {
			return &t.Entries[i]
		}
	}
	return nil
}

// PathMTU is the path MTU, in bytes, that every entry can carry.
func (t *Table) PathMTU() int {
	least := pathMTUs[0]
	for i := range t.Entries {
		least = min(least, t.Entries[i].PathMTU)
	}
	return least
}

// Selection says which addresses become GIDs. The zero Selection is all of the
// interfaces that are up, loopback included: two programs on one machine use
// that most.
type Selection struct {
	Interfaces []string     // these interfaces, in this order
	Addrs      []netip.Addr // these addresses, in this order; not together with Interfaces
}

// Read makes the GID table of the network namespace of the calling thread.
// Errors: ErrNoInterface, ErrDown, ErrNoAddress, ErrBoth, or the system's.
func Read(sel Selection) (*Table, error) {
	ifaces, err := readInterfaces()
	if err != nil {
		return nil, fmt.Errorf("read network interfaces: %w", err)
	}
	return build(ifaces, sel)
}

// iface is an interface as the system describes it.
type iface struct {
	name     string
	index    int
	mtu      int
	mac      net.HardwareAddr
	up       bool
	running  bool // up, with a carrier
	loopback bool
	metric   int // of its default route, noDefault if it has none
	addrs    []addr
}

const noDefault = int(^uint(0) >> 1)

type addr struct {
	ip         netip.Addr
	secondary  bool // IPv4 alias or IPv6 temporary address
	deprecated bool // not preferred any more, or never (a service's address); good for all that is in use or named (RFC 4862, 5.5.4)
	unusable   bool // tentative or duplicate
}

// build is Read without the system.
func build(ifaces []iface, sel Selection) (*Table, error) {
	var chosen []candidate
	var err error
	switch {
	case len(sel.Interfaces) > 0 && len(sel.Addrs) > 0:
		return nil, ErrBoth
	case len(sel.Interfaces) > 0:
		chosen, err = byInterface(ifaces, sel.Interfaces)
	case len(sel.Addrs) > 0:
		chosen, err = byAddr(ifaces, sel.Addrs)
	default:
		if chosen = all(ifaces); len(chosen) == 0 {
			err = fmt.Errorf("make the GID table: %w on any interface that is up: bring one up, lo is enough (ip link set lo up)", ErrNoAddress)
		}
	}
	if err != nil {
		return nil, err
	}
	t := &Table{}
	for _, c := range chosen {
		if len(t.Entries) < MaxEntries && t.Lookup(c.ip) == nil {
			t.Entries = append(t.Entries, c.entry(len(t.Entries)))
		}
	}
	t.NodeGUID = nodeGUID(chosen)
	return t, nil
}

// candidate is an address with its interface.
type candidate struct {
	*iface
	ip netip.Addr
}

func (c candidate) entry(index int) Entry {
	return Entry{
		Index: index, GID: c.ip.As16(), Addr: c.ip,
		IfName: c.name, IfIndex: c.index, MTU: c.mtu, PathMTU: pathMTU(c.mtu), Loopback: c.loopback,
		Up: c.up, Running: c.up && c.running,
	}
}

// all takes every usable address of every interface that is up.
func all(ifaces []iface) (chosen []candidate) {
	sorted := slices.Clone(ifaces)
	slices.SortStableFunc(sorted, func(a, b iface) int {
		return cmp.Or(boolOrder(a.loopback, b.loopback), cmp.Compare(a.metric, b.metric), cmp.Compare(a.index, b.index))
	})
	for i := range sorted {
		if sorted[i].up {
			chosen = append(chosen, sorted[i].usable()...)
		}
	}
	return chosen
}

func byInterface(ifaces []iface, names []string) (chosen []candidate, err error) {
	for _, name := range names {
		i := slices.IndexFunc(ifaces, func(f iface) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("interface %q: %w: there are %s", name, ErrNoInterface, interfaceNames(ifaces))
		}
		f := &ifaces[i]
		if !f.up {
			return nil, fmt.Errorf("interface %q: %w: ip link set %s up", name, ErrDown, name)
		}
		found := f.usable()
		if len(found) == 0 {
			return nil, fmt.Errorf("interface %q (MTU %d): %w: it needs an IPv4 or global IPv6 address and an MTU of at least %d",
				name, f.mtu, ErrNoAddress, pathMTUs[len(pathMTUs)-1]+headers)
		}
		chosen = append(chosen, found...)
	}
	return chosen, nil
}

func byAddr(ifaces []iface, addrs []netip.Addr) (chosen []candidate, err error) {
	for _, a := range addrs {
		want := a.Unmap().WithZone("")
		found := slices.IndexFunc(ifaces, func(f iface) bool { return f.has(want) })
		if found < 0 {
			return nil, fmt.Errorf("address %v: %w: there are %s", a, ErrNoAddress, usableAddrs(ifaces))
		}
		chosen = append(chosen, candidate{&ifaces[found], want})
	}
	return chosen, nil
}

// usableAddrs lists what byAddr would find, for messages.
func usableAddrs(ifaces []iface) string {
	var names []string
	for i := range ifaces {
		if ifaces[i].up {
			for _, c := range ifaces[i].usable() {
				names = append(names, c.ip.String())
			}
		}
	}
	if len(names) == 0 {
		return "none on an interface that is up"
	}
	return strings.Join(names, ", ")
}

// has tells whether ip is f's. All of 127.0.0.0/8 is the loopback interface's, whatever it lists
// (RFC 1122, 3.2.1.3): several NICs of one machine each take an address of it.
func (f *iface) has(ip netip.Addr) bool {
	if f.up && f.loopback && ip.Is4() && ip.IsLoopback() {
		return true
	}
	return f.up && slices.ContainsFunc(f.usable(), func(c candidate) bool { return c.ip == ip })
}

// usable returns the addresses that can be GIDs, in their lasting order.
func (f *iface) usable() (found []candidate) {
	if pathMTU(f.mtu) == 0 {
		return nil
	}
	addrs := slices.Clone(f.addrs)
	slices.SortFunc(addrs, func(a, b addr) int {
		return cmp.Or(boolOrder(a.ip.Is6(), b.ip.Is6()), boolOrder(a.deprecated, b.deprecated), boolOrder(a.secondary, b.secondary), a.ip.Compare(b.ip))
	})
	for _, a := range addrs {
		if !a.unusable && canBeGID(a.ip) {
			found = append(found, candidate{f, a.ip})
		}
	}
	return found
}

// canBeGID leaves out IPv6 link-local addresses: fe80:: means something only
// together with an interface, and a GID, like a packet's path, has no place
// for one; a socket refuses to send there (EINVAL).
func canBeGID(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && !(ip.Is6() && ip.IsLinkLocalUnicast())
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func interfaceNames(ifaces []iface) string {
	var names []string
	for i := range ifaces {
		names = append(names, ifaces[i].name)
	}
	return strings.Join(names, ", ")
}

// pathMTUs are those of InfiniBand, in bytes, largest first.
var pathMTUs = [...]int{4096, 2048, 1024, 512, 256}

// headers is what a packet of one path MTU may have around its payload: IPv6,
// UDP, BTH, XRCETH, RETH, immediate data, and the ICRC.
const headers = 40 + 8 + 12 + 4 + 16 + 4 + 4

// pathMTU returns the largest path MTU that an interface's MTU carries without
// fragments, 0 if none: 1024 for 1500, 4096 for 9000.
func pathMTU(mtu int) int {
	for _, p := range pathMTUs {
		if p+headers <= mtu {
			return p
		}
	}
	return 0
}

// nodeGUID makes the EUI-64 of the first interface that has a MAC (RFC 4291,
// appendix A). Without any it hashes the first one's name and address, marked
// as locally administered.
func nodeGUID(chosen []candidate) uint64 {
	for _, c := range chosen {
		if m := c.mac; len(m) == 6 && slices.ContainsFunc(m, func(b byte) bool { return b != 0 }) {
			hi, lo := uint64(m[0]^2)<<16|uint64(m[1])<<8|uint64(m[2]), uint64(m[3])<<16|uint64(m[4])<<8|uint64(m[5])
			return hi<<40 | 0xfffe<<24 | lo
		}
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %v", chosen[0].name, chosen[0].ip)
	const universal, group = 2 << 56, 1 << 56 // in the modified form, 0 means local
	return h.Sum64()&^(universal|group) | 1
}
