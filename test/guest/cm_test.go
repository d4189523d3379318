package guest

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// connects has stock programs connect through the communication managers of both sides (InfiniBand Architecture vol. 1, chapter 12, and
// annex A11): the kernel's in the guest, ours beside it.
func connects(t *testing.T, p *peer, rnic string) {
	const perf = " -x 1 -s 65536 -n 50 -F --report_gbits"
	for _, test := range []struct {
		name           string
		server, client string // what is asked for is behind the client's
		toGuest, ipv6  bool
		fault          string // of rnic run
	}{
		{name: "rpingToGuest", server: "rping -s -C 5 -S 3000 -V", client: "rping -c -C 5 -S 3000 -V -v -a ", toGuest: true},
		{name: "rpingFromGuest", server: "rping -s -C 5 -S 3000 -V", client: "rping -c -C 5 -S 3000 -V -v -a "},
		{name: "rpingToGuestIPv6", server: "rping -s -C 5 -S 3000 -V -a ::0", client: "rping -c -C 5 -S 3000 -V -v -a ", toGuest: true, ipv6: true},
		{name: "rpingFromGuestIPv6", server: "rping -s -C 5 -S 3000 -V -a ::0", client: "rping -c -C 5 -S 3000 -V -v -a ", ipv6: true},
		{name: "rpingDatagramsLost", server: "rping -s -C 5 -S 64 -V", client: "rping -c -C 5 -S 64 -V -v -a ", toGuest: true, fault: "send:op=UD_SEND_ONLY,nth=1"},
		// Not there: ib_write_bw as server in the guest. Connected (REQ, REP, RTU within 20 ms), it sometimes never posts the receive that
		// its client's first SEND waits for, which asks every 0.7 ms, as the RNR NAKs of the guest allow; it has one emulated processor.
		{name: "ib_write_bwFromGuest", server: "ib_write_bw -R" + perf, client: "ib_write_bw -R" + perf + " "},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			to := HostAddress
			if test.ipv6 {
				to = HostAddress6
			}
			if test.toGuest {
				if to = GuestAddress; test.ipv6 {
					to = GuestAddress6
				}
			}
			here := func(command string) (string, error) {
				args := []string{rnic, "run", "--capture", filepath.Join(t.TempDir(), "cm.pcapng")}
				if test.fault != "" {
					args = append(args, "--fault", test.fault)
				}
				out, err := p.network.Command(ctx, append(append(args, "--"), strings.Fields(command)...)...).CombinedOutput()
				return string(out), err
			}
			there := func(command string) (string, error) { return p.Run(ctx, command) }
			serve, ask := here, there
			if test.toGuest {
				serve, ask = there, here
			}
			before := guestTraffic(t, p)
			var wait sync.WaitGroup
			var serverOut string
			var serverErr error
			wait.Go(func() { serverOut, serverErr = serve(test.server) })
			var out string
			var err error
			for test.toGuest && ctx.Err() == nil {
				if ids, _ := p.Run(ctx, "rdma resource show cm_id"); strings.Contains(ids, "LISTEN") {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			// A server that does not listen yet refuses: the client asks again, as a user would.
			for range 40 {
				if out, err = ask(test.client + netip.MustParseAddr(to).String()); err == nil || ctx.Err() != nil || !notYet(out) {
					break
				}
				time.Sleep(200 * time.Millisecond)
			}
			if err != nil {
				p.Run(context.WithoutCancel(ctx), "killall rping ib_write_bw")
				cancel()
			}
			wait.Wait()
			if err != nil || serverErr != nil {
				t.Fatalf("client: %v\n%s\nserver: %v\n%s\nconsole:\n%s", err, out, serverErr, serverOut, p.Console())
			}
			after := guestTraffic(t, p)
			t.Logf("packets to the guest: %d, from it: %d\n%s", after.toGuest-before.toGuest, after.fromGuest-before.fromGuest, out)
			if after.toGuest-before.toGuest < 10 || after.fromGuest-before.fromGuest < 10 {
				t.Error("the guest's NIC was not used")
			}
		})
	}
}

// notYet tells from what a client says whether nobody listened.
func notYet(out string) bool {
	return strings.Contains(out, "REJECTED") || strings.Contains(out, "event 8") || strings.Contains(out, "Connect") || strings.Contains(out, "connect") ||
		strings.Contains(out, "route") || strings.Contains(out, "UNREACHABLE")
}
