package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"rnic/internal/control"
)

// Of two processes with NICs one says what it has and then nothing more: both are listed, it with what is known, and the
// answers of all are waited for at once, not one after the other.
func TestListWithSilentProcesses(t *testing.T) {
	started := map[int]bool{}
	for _, as := range []string{"silent1", "silent2", "honest"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), asServer+"="+as)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); cmd.Wait() })
		started[cmd.Process.Pid] = true
		if _, err := out.Read(make([]byte, 1)); err != nil { // it listens
			t.Fatal(err)
		}
	}
	found, err := control.Find()
	if err != nil {
		t.Fatal(err)
	}
	var nics []control.NIC
	for _, n := range found {
		if started[n.PID] { // others may run here as well
			nics = append(nics, n)
		}
	}
	if len(nics) != 3 {
		t.Fatalf("found: %+v", nics)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var rows []nicRow
	done := make(chan struct{})
	go func() { defer close(done); rows = describe(ctx, nics) }()
	select {
	case <-done:
	case <-time.After(10 * listTime): // of 128 devices which do not answer
		t.Fatal("silent processes hold up the list")
	}
	if len(rows) != 2*64+1 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		switch {
		case r.Device == "honest" && (r.MTU != 1024 || r.mtu() != "1024" || r.addresses() != "192.0.2.1"):
			t.Errorf("who answers is listed as %+v", r)
		case r.Device != "honest" && (r.MTU != 0 || r.mtu() != "-" || len(r.Addresses) > 0):
			t.Errorf("who does not answer is listed as %+v", r)
		case userName(r.UID) == "":
			t.Errorf("no user: %+v", r)
		}
	}
	if strangers := 1<<31 - 7; userName(strangers) != strconv.Itoa(strangers) {
		t.Errorf("a user without a name is %q", userName(strangers))
	}
}

// asServer in the environment makes this test binary a process that says it has NICs, until its standard input ends.
const asServer = "RNIC_TEST_AS_NICS"

func init() {
	if as := os.Getenv(asServer); as != "" {
		alsoProgram = func() { serveNICs(as); os.Exit(0) }
	}
}

func serveNICs(as string) {
	about := control.About{Command: asServer}
	for range 64 {
		about.Devices = append(about.Devices, as)
	}
	if as == "honest" {
		about.Devices = about.Devices[:1]
	}
	s, err := control.Listen(about)
	if err != nil {
		panic(err)
	}
	s.Handle("info", func(ctx context.Context, _ json.RawMessage, c *control.Stream) error {
		if strings.HasPrefix(as, "silent") {
			<-ctx.Done()
			return ctx.Err()
		}
		return c.Reply(deviceInfo{MTU: 1024, Units: 1, Addresses: []string{"192.0.2.1"}})
	})
	os.Stdout.Write([]byte{'\n'})
	os.Stdin.Read(make([]byte, 1))
	s.Close()
}
