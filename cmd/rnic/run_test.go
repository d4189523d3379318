//go:build linux && (amd64 || arm64)

package main

import (
	"strings"
	"testing"
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
		{"--fault", "drop=1%", "--fault", "dup=1%", "true"},
		{"--seed", "x", "true"},
	} {
		p := run(t, 2, append([]string{"run"}, args...)...)
		if e := p.errOut.String(); !strings.HasPrefix(e, "rnic: ") || strings.Count(e, "\n") != 1 || p.out.Len() > 0 {
			t.Errorf("rnic run %s:\nstdout %q\nstderr %q", strings.Join(args, " "), &p.out, e)
		}
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
