//go:build linux && (amd64 || arm64)

package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// Options that cannot work are refused in one line, before anything is started.
func TestRunBadArguments(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--"},
		{"--nonsense", "true"},
		{"--name", "", "true"},
		{"--name", ".hidden", "true"},
		{"--name", "rxe/../x", "true"},
		{"--name", "rxe" + strings.Repeat("0", 61), "true"}, // IB_DEVICE_NAME_MAX with its NUL
		{"--mtu", "1500", "true"},
		{"--addr", "localhost", "true"},
		{"--addr", "127.0.0.1", "--interface", "lo", "true"},
		{"--fault", "lose=1%", "true"},
		{"--fault", "drop=1%", "--fault", "burst=1%", "true"},
		{"--scenario", "/no/such/file", "true"},
		{"--seed", "x", "true"},
		{"--json=", "true"},
		{"--json=a", "--json=b"},
	} {
		p := run(t, 2, append([]string{"run"}, args...)...)
		if e := p.errOut.String(); !strings.HasPrefix(e, "rnic: ") || strings.Count(e, "\n") != 1 || p.out.Len() > 0 {
			t.Errorf("rnic run %s:\nstdout %q\nstderr %q", strings.Join(args, " "), &p.out, e)
		}
	}
}

// Whoever types something wrong is told which help to read, and finds it.
func TestHelpIsNamed(t *testing.T) {
	for args, want := range map[string]string{
		"": "(rnic --help)", "nosuch": "(rnic --help)", "doctor x": "(rnic doctor --help)", "fault add": "(rnic fault add --help)", "run": "(rnic run --help)",
	} {
		p := run(t, 2, strings.Fields(args)...)
		if e := p.errOut.String(); !strings.HasSuffix(e, want+"\n") || strings.Count(e, "\n") != 1 {
			t.Errorf("rnic %s: %q, want %s", args, e, want)
		}
	}
	for _, args := range []string{"help run", "run --help"} {
		if out := run(t, 0, strings.Fields(args)...).out.String(); !strings.Contains(out, "rnic run -- ib_write_bw 127.0.0.1") || !strings.Contains(out, "The exit code") {
			t.Errorf("rnic %s:\n%s", args, out)
		}
	}
}

// What is missing of a capture is told.
func TestRunCaptureOnAFullDisk(t *testing.T) {
	p := run(t, 0, "run", "--addr", address(3), "--capture", "/dev/full", "--", "true")
	if e := p.errOut.String(); !strings.Contains(e, "capture: write /dev/full: no space left on device") {
		t.Errorf("stderr %q", e)
	}
}

// A run that would check nothing must not pass.
func TestSimBadArguments(t *testing.T) {
	for _, args := range [][]string{{"--seeds", "0"}, {"--seeds", "x"}, {"--parallel=-1"}, {"more"}} {
		p := run(t, 2, append([]string{"sim"}, args...)...)
		if e := p.errOut.String(); !strings.HasPrefix(e, "rnic: ") || strings.Count(e, "\n") != 1 || p.out.Len() > 0 {
			t.Errorf("rnic sim %s:\nstdout %q\nstderr %q", strings.Join(args, " "), &p.out, e)
		}
	}
}

// --json has a file or none; what stands behind it is the program.
func TestJSONOption(t *testing.T) {
	for _, c := range []struct {
		args []string
		want jsonFile
		rest string
	}{
		{[]string{"true"}, jsonFile{}, "true"},
		{[]string{"--json", "true"}, jsonFile{On: true}, "true"},
		{[]string{"--json", "--", "true"}, jsonFile{On: true}, "true"},
		{[]string{"--json=/tmp/x y", "-v", "true"}, jsonFile{On: true, Path: "/tmp/x y"}, "true"},
	} {
		var cli struct {
			Run RunCmd `cmd:""`
		}
		if _, err := kong.Must(&cli).Parse(append([]string{"run"}, c.args...)); err != nil {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		if cli.Run.JSON != c.want || strings.Join(cli.Run.command(), " ") != c.rest {
			t.Errorf("%v: %+v, program %v", c.args, cli.Run.JSON, cli.Run.command())
		}
	}
}

// Two runs that name the same NICs in different orders make or join them in the same one.
func TestAttachOrder(t *testing.T) {
	list := []nicConfig{{Interface: "eth0"}, {Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.3")}}, {}, {Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.2")}}}
	if got := attachOrder(list); !slices.Equal(got, []int{2, 3, 1, 0}) {
		t.Errorf("order %v", got)
	}
}
