package guest

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A meeting is a server and a client of stock programs, one of them in the guest.
type meeting struct {
	name           string
	server, client string // whose last argument, the server's address, is added; "cmpeer" is ours in Go, others run under rnic run beside the guest
	toGuest, ipv6  bool
	faults         []string // of rnic run
}

// perf are the options of perftest's programs.
const perf = " -R -x 1 -s 65536 -n 50 -F --report_gbits"

// late keeps back what our connection manager sends. perftest's server tells its client over a first connection that the second may be made,
// and only then listens for that: on this guest a client that is not slower than it is refused every other time.
const late = "send:delay=100%:1s,op=UD_SEND_ONLY"

// connects has stock programs connect through the communication managers of both sides (InfiniBand Architecture vol. 1, chapter 12, and
// annex A11): the kernel's in the guest, ours beside it.
func connects(t *testing.T, p *peer, rnic string) {
	cmpeer := buildCommand(t, "rnic/test/cmpeer")
	for _, m := range []meeting{
		{name: "rpingToGuest", server: "rping -s -C 5 -S 3000 -V", client: "rping -c -C 5 -S 3000 -V -v -a", toGuest: true},
		{name: "rpingFromGuest", server: "rping -s -C 5 -S 3000 -V", client: "rping -c -C 5 -S 3000 -V -v -a"},
		{name: "rpingToGuestIPv6", server: "rping -s -C 5 -S 3000 -V -a ::0", client: "rping -c -C 5 -S 3000 -V -v -a", toGuest: true, ipv6: true},
		{name: "rpingFromGuestIPv6", server: "rping -s -C 5 -S 3000 -V -a ::0", client: "rping -c -C 5 -S 3000 -V -v -a", ipv6: true},
		{name: "rpingDatagramsLost", server: "rping -s -C 5 -S 64 -V", client: "rping -c -C 5 -S 64 -V -v -a", toGuest: true,
			faults: []string{"send:op=UD_SEND_ONLY,nth=1"}},
		{name: "ib_write_bwToGuest", server: "ib_write_bw" + perf, client: "ib_write_bw" + perf, toGuest: true, faults: []string{late}},
		{name: "ib_write_bwFromGuest", server: "ib_write_bw" + perf, client: "ib_write_bw" + perf},
		{name: "goToGuest", server: "rping -s -C 5 -S 3000 -V", client: cmpeer + " -own " + HostAddress + " -C 5 -S 3000 rping", toGuest: true},
		{name: "goFromGuest", server: cmpeer + " -own " + HostAddress + " -C 5 -S 3000 rping", client: "rping -c -C 5 -S 3000 -V -v -a"},
		{name: "goToGuestIPv6", server: "rping -s -C 5 -S 3000 -a ::0", client: cmpeer + " -own " + HostAddress6 + " -C 5 -S 3000 rping", toGuest: true, ipv6: true},
		{name: "goFromGuestIPv6", server: cmpeer + " -own " + HostAddress6 + " -C 5 -S 3000 rping", client: "rping -c -C 5 -S 3000 -V -v -a", ipv6: true},
	} {
		t.Run(m.name, func(t *testing.T) {
			before := guestTraffic(t, p)
			var r outcome
			// Refused by a server that did listen is perftest's again: both begin anew, because a client alone would come to a server
			// that waits for its second connection, posts no receive for what the first begins with, and is asked for ever.
			for range 5 {
				if r = m.meet(t, p, rnic); r.clientErr == nil || !strings.Contains(r.client, "REJECTED") {
					break
				}
				t.Logf("the server was late to listen for the second connection:\n%s", r.client)
			}
			if r.clientErr != nil || r.serverErr != nil {
				t.Fatalf("client: %v\n%s\nserver: %v\n%s\nconsole:\n%s", r.clientErr, r.client, r.serverErr, r.server, p.Console())
			}
			after := guestTraffic(t, p)
			t.Logf("packets to the guest: %d, from it: %d\n%s", after.toGuest-before.toGuest, after.fromGuest-before.fromGuest, r.client)
			if after.toGuest-before.toGuest < 10 || after.fromGuest-before.fromGuest < 10 {
				t.Error("the guest's NIC was not used")
			}
		})
	}
}

// outcome is what both programs said.
type outcome struct {
	client, server       string
	clientErr, serverErr error
}

// meet starts the server, waits until it listens, and runs the client.
func (m *meeting) meet(t *testing.T, p *peer, rnic string) (r outcome) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	here := func(command string, out *watched) error {
		args := strings.Fields(command)
		if filepath.Base(args[0]) != "cmpeer" {
			args = append(m.underRnic(t, rnic), args...)
		}
		cmd := p.network.Command(ctx, args...)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	}
	there := func(command string, out *watched) error {
		said, err := p.Run(ctx, command)
		out.Write([]byte(said))
		return err
	}
	serve, ask := here, there
	if m.toGuest {
		serve, ask = there, here
	}
	var server, client watched
	var wait sync.WaitGroup
	wait.Go(func() { r.serverErr = serve(m.server, &server) })
	for listening := false; !listening && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if m.toGuest {
			ids, _ := p.Run(ctx, "rdma resource show cm_id")
			listening = strings.Contains(ids, "LISTEN")
		} else {
			listening = server.contains("LISTEN")
		}
	}
	r.clientErr = ask(m.client+" "+m.address(), &client)
	if r.clientErr != nil {
		p.Run(context.WithoutCancel(ctx), "killall rping ib_write_bw")
		if !m.toGuest {
			cancel()
		}
	}
	wait.Wait()
	r.client, r.server = client.String(), server.String()
	return r
}

// underRnic is what precedes a stock program beside the guest.
func (m *meeting) underRnic(t *testing.T, rnic string) []string {
	args := []string{rnic, "run", "-v", "--capture", filepath.Join(t.TempDir(), "cm.pcapng")}
	for _, fault := range m.faults {
		args = append(args, "--fault", fault)
	}
	return append(args, "--")
}

// address is the server's.
func (m *meeting) address() string {
	switch {
	case m.toGuest && m.ipv6:
		return GuestAddress6
	case m.toGuest:
		return GuestAddress
	case m.ipv6:
		return HostAddress6
	}
	return HostAddress
}

// watched keeps what a program writes, for others to look at meanwhile.
type watched struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(b)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func (w *watched) contains(s string) bool { return strings.Contains(w.String(), s) }
