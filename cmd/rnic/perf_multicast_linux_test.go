package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// machines are two network namespaces with a veth pair between them. Programs that this goroutine starts run in the one
// that it has entered. All of it ends with the test's thread and the handles.
func machines(t *testing.T) (ns [2]netns.NsHandle) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: no network namespace can be made")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test, unless it is the process's first
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the first thread's network is what /proc/self/net shows to other tests
		enter(t, before)
		before.Close()
	})
	for i := range ns {
		n, err := netns.New() // enters it
		if err != nil {
			t.Skipf("no network namespace can be made: %v", err)
		}
		t.Cleanup(func() { n.Close() })
		ns[i] = n
	}
	err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: 9000}, PeerName: "eth0", PeerMTU: 9000, PeerNamespace: netlink.NsFd(ns[0])})
	if err != nil {
		t.Skipf("no veth devices: %v", err)
	}
	for i := range ns {
		enter(t, ns[i])
		l, err1 := netlink.LinkByName("eth0")
		lo, err2 := netlink.LinkByName("lo") // without it programs take the machine for one without IPv6
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		v4 := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 47, 93, byte(i+1)), Mask: net.CIDRMask(24, 32)}}
		v6 := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fd00:93::" + string(rune('1'+i))), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
		if err := errors.Join(netlink.AddrAdd(l, v4), netlink.AddrAdd(l, v6), netlink.LinkSetUp(l), netlink.LinkSetUp(lo)); err != nil {
			t.Fatal(err)
		}
	}
	return ns
}

func enter(t *testing.T, ns netns.NsHandle) {
	t.Helper()
	if err := netns.Set(ns); err != nil {
		t.Fatal(err)
	}
}

// Bandwidth and latency to an IPv4 and an IPv6 group, with members on another machine and on the client's own NIC.
func TestPerfMulticastOverTheNetwork(t *testing.T) {
	ns := machines(t)
	for _, c := range []struct{ op, group, server string }{
		{"send-bw", "239.47.93.1", "10.47.93.1"},
		{"send-lat", "239.47.93.1", "10.47.93.1"},
		{"send-bw", "ff0e::4793", "fd00:93::1"},
		{"send-lat", "ff02::4793", "10.47.93.1"}, // the group's IP version counts, not that of the connection
	} {
		enter(t, ns[0])
		server := start(t, "perf", c.op)
		waitHere(t, server)
		enter(t, ns[1])
		p := run(t, 0, "perf", c.op, c.server, "-c", "ud", "--multicast", c.group, "-g", "2", "--own-members", "1", "-n", "100", "--check", "--json")
		var r struct {
			Operation string `json:"operation"`
			Errors    int    `json:"errors"`
			Multicast struct {
				Group   string `json:"group"`
				Sent    uint64 `json:"sent"`
				Members []struct {
					Receiver string `json:"receiver"`
					Own      bool   `json:"own"`
					Received uint64 `json:"received"`
				} `json:"members"`
			} `json:"multicast"`
		}
		if err := json.Unmarshal(p.out.Bytes(), &r); err != nil || r.Operation != c.op || r.Errors != 0 || r.Multicast.Group != c.group || len(r.Multicast.Members) != 3 {
			t.Fatalf("%v: %v\n%s", c, err, &p.out)
		}
		for i, m := range r.Multicast.Members {
			if m.Received != r.Multicast.Sent || m.Received < 100 || m.Own != (i == 2) || !m.Own && m.Receiver != c.server {
				t.Errorf("%v: member %d of %d messages: %+v", c, i, r.Multicast.Sent, m)
			}
		}
		if code := server.end(t); code != 0 {
			t.Errorf("%v: server: exit code %d\n%s%s", c, code, &server.out, &server.errOut)
		}
	}
}

// defaultPort is a socket that listens on the default port, 18515 (proc(5), /proc/net/tcp).
var defaultPort = regexp.MustCompile(`:4853 [0-9A-F]+:0000 0A `)

// waitHere waits until a server listens on the default port in the namespace that this thread has entered.
func waitHere(t *testing.T, p *program) {
	t.Helper()
	for range 1000 {
		for _, table := range []string{"tcp", "tcp6"} {
			if b, err := os.ReadFile("/proc/thread-self/net/" + table); err == nil && defaultPort.Match(b) {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the server does not listen: %s", &p.errOut)
}
