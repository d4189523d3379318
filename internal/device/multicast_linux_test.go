package device_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rnic/internal/device"
	"rnic/internal/testnet"
	"rnic/verbs"
)

// machine is a network namespace on the bridge, with the addresses 10.47.91.n, 10.47.81.n and fd00:1::n.
type machine struct {
	ns   testnet.Net
	host int
}

// bridged makes machines whose interfaces are ports of one bridge, as on one switch. All of it ends with
// the test's thread and the handles.
func bridged(t *testing.T, count int) (machines []machine) {
	t.Helper()
	hub := testnet.Own(t)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Skipf("no bridge devices: %v", err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		ns := testnet.Another(t)
		name := fmt.Sprintf("m%d", i)
		testnet.Cable(t, netlink.LinkAttrs{Name: name, MTU: 9000, MasterIndex: bridge.Index}, ns, "eth0")
		testnet.Up(t, name)
		ns.Enter(t)
		bringUp(t, "eth0", i+1)
		hub.Enter(t)
		machines = append(machines, machine{ns, i + 1})
	}
	for _, m := range machines {
		m.ns.Enter(t)
		testnet.WaitLinkLocal(t, "eth0")
	}
	return machines
}

func (m machine) addr(format string) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, 1, m.host))
}

const multicastKey = 0x11223344

// member is a UD queue pair with its protection domain.
type member struct {
	end
	ctx    *verbs.Context
	pd     *verbs.PD
	posted bool // receives wait
}

func newMember(t *testing.T, d *device.Device) *member {
	t.Helper()
	e := &member{ctx: verbs.Wrap(d).Open()}
	var err1, err2, err3, err4 error
	e.pd, err1 = e.ctx.AllocPD()
	e.cq, err2 = e.ctx.CreateCQ(512)
	e.mr, err3 = e.pd.AllocMR(1<<20, verbs.AccessLocalWrite)
	e.qp, err4 = e.pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: e.cq, RecvCQ: e.cq})
	if err := errors.Join(err1, err2, err3, err4, e.qp.Activate(multicastKey)); err != nil {
		t.Fatal(err)
	}
	return e
}

const (
	burst   = 40
	payload = 2000
	slot    = 4096
)

// sendTo sends a burst of messages to a group, each full of its number.
func (e *member) sendTo(t *testing.T, g verbs.GID, index int) {
	t.Helper()
	ah, err := e.pd.AHTo(g, index)
	if err != nil {
		t.Fatal(err)
	}
	for i := range burst {
		b := e.mr.Bytes()[1<<19+i*slot:][:payload]
		for k := 0; k < payload; k += 4 {
			binary.BigEndian.PutUint32(b[k:], uint32(i<<16|k))
		}
		_, err := e.qp.PostSend(&verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, SGE: e.mr.Slice(1<<19+i*slot, payload), AH: ah,
			RemoteQPN: verbs.MulticastQPN, RemoteQKey: multicastKey})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (e *member) expect(t *testing.T) {
	t.Helper()
	if e.posted {
		return
	}
	e.posted = true
	clear(e.mr.Bytes()[:burst*slot])
	for i := range burst {
		if _, err := e.qp.PostRecv(&verbs.RecvWR{ID: uint64(i), SGE: e.mr.Slice(i*slot, 40+payload)}); err != nil {
			t.Fatal(err)
		}
	}
}

// arrived waits for the whole burst, once each, in order.
func (e *member) arrived(t *testing.T, who string) {
	t.Helper()
	e.posted = false
	for i := range burst {
		wc := e.complete(t)
		if wc.ByteLen != 40+payload || wc.ID != uint64(i) {
			t.Fatalf("%s, message %d: completion %+v", who, i, wc)
		}
		b := e.mr.Bytes()[i*slot+40:][:payload]
		for k := 0; k < payload; k += 4 {
			if got := binary.BigEndian.Uint32(b[k:]); got != uint32(i<<16|k) {
				t.Fatalf("%s, message %d: word at %d is %#x", who, i, k, got)
			}
		}
	}
}

func (e *member) nothing(t *testing.T, who string) {
	t.Helper()
	var wc [1]verbs.WC
	if n, err := e.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("%s got something: %+v, %v", who, wc[0], err)
	}
}

// isMember tells whether the machine of the current thread is a member of a group on eth0.
func isMember(t *testing.T, g netip.Addr) bool {
	t.Helper()
	file, want := "/proc/thread-self/net/igmp", ""
	if g.Is4() {
		a := g.As4()
		want = fmt.Sprintf("%08X", binary.NativeEndian.Uint32(a[:]))
	} else {
		a := g.As16()
		file, want = "/proc/thread-self/net/igmp6", fmt.Sprintf("%x", a[:])
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(bytes.ToUpper(b), []byte(strings.ToUpper(want)))
}

// Vol. 1, 10.5; RFC 3376; RFC 3810: three machines on a switch, one of them with two NICs. What is sent to
// a group reaches the members on every NIC, also that of the sender and another of its machine, once, and
// nobody else; the machine is a member exactly as long as one of its queue pairs is.
func TestMulticastBetweenMachines(t *testing.T) {
	m := bridged(t, 3)
	m[0].ns.Enter(t)
	one := open(t, device.Config{Name: "one", Addrs: []netip.Addr{m[0].addr("10.47.9%d.%d"), m[0].addr("fd00:%d::%d")}})
	two := open(t, device.Config{Name: "two", Addrs: []netip.Addr{m[0].addr("10.47.8%d.%d")}})
	m[1].ns.Enter(t)
	three := open(t, device.Config{Name: "three"}) // all addresses of the machine on one socket
	m[2].ns.Enter(t)
	four := open(t, device.Config{Name: "four", Interface: "eth0"})

	sender := newMember(t, one)
	members := map[string]*member{"the sender's neighbour on its NIC": newMember(t, one), "another NIC of the machine": newMember(t, two),
		"a machine's wildcard socket": newMember(t, three), "another queue pair there": newMember(t, three), "an interface's addresses": newMember(t, four)}
	on := map[string]machine{"the sender's neighbour on its NIC": m[0], "another NIC of the machine": m[0],
		"a machine's wildcard socket": m[1], "another queue pair there": m[1], "an interface's addresses": m[2]}
	stranger := newMember(t, four)
	stranger.expect(t)

	for _, group := range []string{"239.47.91.1", "ff0e::4791", "ff02::4791"} {
		addr := netip.MustParseAddr(group)
		gid, index := verbs.GIDOf(addr), -1
		for _, g := range one.GIDs() {
			if g.GID.Addr().Is4() == addr.Is4() && index < 0 {
				index = g.Index
			}
		}
		in := map[string]*member{}
		for who, e := range members {
			if addr.Is6() && who == "another NIC of the machine" {
				continue // it has no IPv6 address
			}
			in[who] = e
			on[who].ns.Enter(t) // where the NIC opens its sockets
			for range 2 {       // the second does nothing
				if err := e.qp.AttachMulticast(gid); err != nil {
					t.Fatalf("%s: %s: %v", group, who, err)
				}
			}
			if !isMember(t, addr) {
				t.Errorf("%s: %s: the machine is no member", group, who)
			}
		}
		for _, e := range in {
			e.expect(t)
		}
		sender.sendTo(t, gid, index)
		for who, e := range in {
			e.arrived(t, group+": "+who)
		}
		time.Sleep(20 * time.Millisecond) // a copy too many would come now
		for who, e := range in {
			e.nothing(t, group+": "+who)
			if err := e.qp.Close(); !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("%s: closing a member: %v, want ErrBusy", group, err)
			}
			on[who].ns.Enter(t)
			if err := e.qp.DetachMulticast(gid); err != nil {
				t.Fatalf("%s: %s: %v", group, who, err)
			}
		}
		stranger.nothing(t, "a stranger")
		for i := range m {
			m[i].ns.Enter(t)
			if isMember(t, addr) {
				t.Errorf("%s: machine %d is still a member", group, i)
			}
		}
		for _, e := range in {
			e.expect(t)
		}
		sender.sendTo(t, gid, index)
		time.Sleep(20 * time.Millisecond)
		for who, e := range in {
			e.nothing(t, group+", left: "+who)
		}
	}

	// A program that ends leaves its groups.
	m[1].ns.Enter(t)
	addr := netip.MustParseAddr("239.47.91.2")
	e := newMember(t, three)
	if err := e.qp.AttachMulticast(verbs.GIDOf(addr)); err != nil || !isMember(t, addr) {
		t.Fatalf("attach: %v, member %v", err, isMember(t, addr))
	}
	if err := e.ctx.Close(); err != nil || isMember(t, addr) {
		t.Errorf("close: %v, member %v", err, isMember(t, addr))
	}
}
