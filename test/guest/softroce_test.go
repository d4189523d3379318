package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// operations returns every operation of a connected queue pair in the sizes
// at which packets divide: nothing, one byte, a word, around the path MTU,
// several packets with an odd rest, and more than one window of packets.
func operations() []string {
	var list []string
	for _, name := range []string{"send", "send_imm", "write", "write_imm", "read"} {
		for _, size := range []string{"0", "1", "8", "mtu-1", "mtu", "mtu+1", "3000", "70000"} {
			list = append(list, name+":"+size)
		}
	}
	return append(list, "cas", "cas_miss", "fetch_add", "cas", "fetch_add")
}

// unacknowledged are the operations of an unreliable connection.
func unacknowledged() []string {
	var list []string
	for _, o := range operations() {
		if name, _, _ := strings.Cut(o, ":"); name != "read" && name != "cas" && name != "cas_miss" && name != "fetch_add" {
			list = append(list, o)
		}
	}
	return list
}

// windowed are RDMA WRITEs through memory windows of both types; those of type 2 are invalidated by the
// peer's SEND with invalidate.
func windowed() []string {
	var list []string
	for _, name := range []string{"write_mw1", "write_mw2"} {
		for _, size := range []string{"1", "8", "mtu", "mtu+1", "3000", "70000"} {
			list = append(list, name+":"+size)
		}
	}
	return list
}

// datagrams are the operations of an unreliable datagram queue pair.
var datagrams = []string{"send:0", "send:1", "send:mtu-1", "send:mtu", "send_imm:0", "send_imm:8"}

// peer is a booted guest with the test programs, and the host's programs beside it.
type peer struct {
	*Machine
	network *Network
	rawqp   string // path on the host
}

// compileRawqp builds the queue pair tester in dir.
func compileRawqp(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "rawqp")
	out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-o", path, "rawqp/rawqp.c", "-libverbs").CombinedOutput()
	if err != nil {
		t.Fatalf("compiling rawqp.c: %v\n%s", err, out)
	}
	return path
}

// bootPeer boots one guest for the test, with programs of the host in it. It skips the test where that is not possible.
func bootPeer(t *testing.T, programs ...string) *peer {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine, which takes seconds: not with -short")
	}
	if err := Available(); err != nil {
		t.Skip(err)
	}
	ctx, dir := t.Context(), t.TempDir()
	p := &peer{rawqp: compileRawqp(t, dir)}
	image, err := BuildImage(ctx, dir, append(programs, p.rawqp)...)
	if err != nil {
		t.Fatal(err)
	}
	p.network, err = NewNetwork(ctx)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.network.Close(); err != nil {
			t.Error(err)
		}
	})
	if p.Machine, err = Boot(ctx, image, p.network); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Machine.Close)
	return p
}

// pair runs a server in the guest and a client beside it, and fails the test
// with what both said unless both found everything right.
func pair(t *testing.T, p *peer, server string, client func(context.Context) (string, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	var wait sync.WaitGroup
	var serverOut string
	var serverErr error
	wait.Go(func() { serverOut, serverErr = p.Run(ctx, server) })
	clientOut, clientErr := client(ctx)
	if clientErr != nil {
		// A server whose client never came would wait until the timeout.
		p.Run(ctx, "killall rawqp")
	}
	wait.Wait()
	if serverErr != nil || clientErr != nil {
		t.Fatalf("client: %v\n%s\nserver in the guest: %v\n%s\nconsole:\n%s", clientErr, clientOut, serverErr,
			serverOut, p.Console())
	}
	if n := strings.Count(clientOut, ": ok\n"); n == 0 || n != strings.Count(serverOut, ": ok\n") {
		t.Fatalf("client and server did not check the same operations:\n%s\n%s", clientOut, serverOut)
	}
}

// TestSoftRoCELoopback shows that the guest and the tester are good, with the
// kernel's implementation on both ends.
func TestSoftRoCELoopback(t *testing.T) {
	p := bootPeer(t, compileRecorded(t, t.TempDir())...)
	t.Run("ConnectionManagerAnswers", func(t *testing.T) { answers(t, p) })
	for _, test := range []struct {
		name, options string
		operations    []string
	}{
		{"RC", "-a " + GuestAddress, operations()},
		{"RCOverIPv6", "-a " + GuestAddress6, operations()},
		{"Windows", "-a " + GuestAddress, windowed()},
		{"UC", "-t uc -a " + GuestAddress, unacknowledged()},
		{"UD", "-t ud -a " + GuestAddress, datagrams},
		{"UDOverIPv6", "-t ud -a " + GuestAddress6, datagrams},
	} {
		t.Run(test.name, func(t *testing.T) {
			command := "rawqp " + test.options
			pair(t, p, command, func(ctx context.Context) (string, error) {
				return p.Run(ctx, command+" -f both -c 127.0.0.1 "+strings.Join(test.operations, " "))
			})
		})
	}
	for _, operation := range []string{"send:3000", "write:1"} {
		t.Run("SpoiltByteIsFound/"+operation, func(t *testing.T) {
			command := "rawqp -a " + GuestAddress
			out, err := p.Run(t.Context(), fmt.Sprintf("%s & %s -x -c 127.0.0.1 %s", command, command, operation))
			if err == nil || !strings.Contains(out, "WRONG, the other side: byte") {
				t.Errorf("the tester did not find a wrong byte: %v\n%s", err, out)
			}
		})
	}
}

// buildRnic builds the binary under test.
func buildRnic(t *testing.T) string {
	t.Helper()
	return buildCommand(t, "rnic/cmd/rnic")
}

// buildCommand builds a command of this module.
func buildCommand(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, out)
	}
	return path
}

// traffic is how many RoCE packets went each way.
type traffic struct {
	toGuest, fromGuest int
}

// guestTraffic returns what the guest's device has received and sent since the
// boot, by its own counters (Linux, drivers/infiniband/sw/rxe/rxe_hw_counters.c).
func guestTraffic(t *testing.T, p *peer) traffic {
	t.Helper()
	out, err := p.Run(t.Context(), "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && cat rcvd_pkts sent_pkts")
	if err != nil {
		t.Fatalf("reading the guest's counters: %v\n%s", err, out)
	}
	var total traffic
	if _, err := fmt.Sscan(out, &total.toGuest, &total.fromGuest); err != nil {
		t.Fatalf("the guest's counters %q: %v", out, err)
	}
	return total
}

// capturedTraffic returns what a capture of ours saw: all that the NIC sent,
// before faults, and all that it got, after them.
func capturedTraffic(t *testing.T, path, host string) traffic {
	t.Helper()
	out, err := exec.Command("tshark", "-r", path, "-T", "fields", "-e", "ip.src", "-e", "ipv6.src").Output()
	if err != nil {
		t.Fatalf("reading the capture: %v", err)
	}
	var total traffic
	for source := range strings.FieldsSeq(string(out)) {
		if source == host {
			total.toGuest++
		} else {
			total.fromGuest++
		}
	}
	return total
}

// TestKernelSoftRoCE connects one queue pair of ours to one of the kernel's,
// without a connection manager, and has either side execute SEND, RDMA WRITE,
// RDMA READ and both atomics (InfiniBand Architecture vol. 1, 9.4 and 9.5);
// then again with packets dropped in each direction (9.7, reliable service).
func TestKernelSoftRoCE(t *testing.T) {
	p := bootPeer(t)
	rnic := buildRnic(t)
	for _, test := range []struct {
		name       string
		options    []string // of rawqp
		ipv6       bool
		operations []string
		faults     []string // of rnic run
	}{
		{name: "Clean", operations: operations()},
		{name: "OverIPv6", ipv6: true, operations: operations()},
		{name: "Windows", operations: windowed()},
		{name: "UC", options: []string{"-t", "uc"}, operations: unacknowledged()},
		{name: "UD", options: []string{"-t", "ud"}, operations: datagrams},
		{name: "UDOverIPv6", options: []string{"-t", "ud"}, ipv6: true, operations: datagrams},
		{name: "FirstPacketsLost", operations: operations(), faults: []string{"send:nth=1", "recv:nth=2"}},
		{name: "RequestsLost", operations: operations(), faults: []string{
			"send:op=RC_RDMA_WRITE_MIDDLE,nth=20", "recv:op=RC_SEND_MIDDLE,nth=20"}},
		{name: "AcknowledgementsLost", operations: operations(), faults: []string{
			"send:op=RC_ACKNOWLEDGE,nth=1", "recv:op=RC_ACKNOWLEDGE,nth=1"}},
		{name: "ReadResponsesLost", operations: operations(), faults: []string{
			"send:op=RC_RDMA_READ_RESPONSE_MIDDLE,nth=20", "recv:op=RC_RDMA_READ_RESPONSE_MIDDLE,nth=20"}},
		{name: "AtomicResultsLost", operations: operations(), faults: []string{
			"send:op=RC_ATOMIC_ACKNOWLEDGE,nth=1", "recv:op=RC_ATOMIC_ACKNOWLEDGE,nth=1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			host, guest := HostAddress, GuestAddress
			if test.ipv6 {
				host, guest = HostAddress6, GuestAddress6
			}
			server := append([]string{"rawqp", "-a", guest}, test.options...)
			client := []string{rnic, "run"}
			file := filepath.Join(t.TempDir(), "capture.pcapng")
			client = append(client, "--capture", file)
			for _, fault := range test.faults {
				client = append(client, "--fault", fault)
			}
			client = append(client, "--", p.rawqp, "-a", host, "-f", "both", "-c", guest)
			client = append(append(client, test.options...), test.operations...)
			before := guestTraffic(t, p)
			pair(t, p, strings.Join(server, " "), func(ctx context.Context) (string, error) {
				out, err := p.network.Command(ctx, client...).CombinedOutput()
				return string(out), err
			})
			after, ours := guestTraffic(t, p), capturedTraffic(t, file, host)
			lost := traffic{ours.toGuest - (after.toGuest - before.toGuest), after.fromGuest - before.fromGuest - ours.fromGuest}
			t.Logf("packets to the guest: %d, %d of them lost; from it: %d, %d of them lost", ours.toGuest, lost.toGuest,
				after.fromGuest-before.fromGuest, lost.fromGuest)
			if test.faults != nil && (lost.toGuest < 1 || lost.fromGuest < 1) {
				t.Error("a packet was to be lost each way")
			}
		})
	}
	t.Run("ConnectionManager", func(t *testing.T) { connects(t, p, rnic) })
}
