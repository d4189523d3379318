package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"rnic/internal/testnet"
)

// machines are two network namespaces with a veth pair between them. Programs that this goroutine starts run in the one
// that it has entered. All of it ends with the test's thread and the handles.
func machines(t *testing.T) (ns [2]testnet.Net) {
	t.Helper()
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the first thread's network is what /proc/self/net shows to other tests
		testnet.Net{NsHandle: before}.Enter(t)
		before.Close()
	})
	ns = [2]testnet.Net{testnet.Own(t), testnet.Another(t)}
	testnet.Cable(t, netlink.LinkAttrs{Name: "eth0", MTU: 9000}, ns[1], "eth0")
	for i := range ns {
		ns[i].Enter(t)
		testnet.Up(t, "lo") // without it programs take the machine for one without IPv6
		testnet.Up(t, "eth0", fmt.Sprintf("10.47.93.%d/24", i+1), fmt.Sprintf("fd00:93::%d/64", i+1))
	}
	return ns
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
		ns[0].Enter(t)
		server := start(t, "perf", c.op)
		waitHere(t, server)
		ns[1].Enter(t)
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
