package uverbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
)

// buildC compiles a C program of testdata against libibverbs.
func buildC(t *testing.T, name string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is missing: apt-get install gcc libc6-dev")
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("libibverbs is missing: apt-get install libibverbs-dev ibverbs-providers")
	}
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command(gcc, "-O1", "-Wall", "-o", bin, "testdata/"+name+".c", "-libverbs").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

var (
	closeLine  = regexp.MustCompile(`(?m)^# close with (\d+) objects$`)
	memoryLine = regexp.MustCompile(`(?m)^# memory gone, with ([1-9]\d*) regions`)
)

// What a process owned ends with it, or with its memory, whatever happens to it.
func TestEndOfAProcess(t *testing.T) {
	stock(t, "ibv_devinfo")
	bin := buildC(t, "process")
	for _, c := range []struct {
		what    string
		killed  bool
		closed  []string // objects that each closed device still had
		regions bool     // a region loses its memory before its device is closed
	}{
		{"exec", false, []string{"4"}, true},
		{"exec-keep", false, []string{"4"}, true}, // open until the second image ends
		{"fork", false, []string{"8"}, true},      // the child's region ends with the child
		{"kill", true, []string{"4"}, false},
		{"signals", false, []string{"0"}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			trace := filepath.Join(t.TempDir(), "trace")
			cmd := isolated(t, buildRnic(t), "run", "-v", "--trace", trace, "--", bin, c.what)
			out, err := outcome(t, cmd, time.Minute)
			if c.killed {
				if err == nil || cmd.ProcessState.ExitCode() != 128+9 {
					t.Errorf("exit code %d of a killed program\n%s", cmd.ProcessState.ExitCode(), out)
				}
			} else if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text := waitFor(t, trace, closeLine)
			if got := matches(closeLine, text); !slices.Equal(got, c.closed) {
				t.Errorf("devices were closed with %v objects, want %v", got, c.closed)
			}
			if got := matches(memoryLine, text); c.regions && (len(got) == 0 || got[0] != "1") {
				t.Errorf("regions that lost their memory: %v, want 1", got)
			}
		})
	}
}

// waitFor reads a trace until it says what is looked for: the supervisor writes on for a moment after the
// program has ended.
func waitFor(t *testing.T, path string, what *regexp.Regexp) string {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if what.Match(b) {
			return string(b)
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing like %q in the trace:\n%s", what, b)
		}
	}
}

func matches(r *regexp.Regexp, text string) (found []string) {
	for _, m := range r.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

// Libraries that do not know the ioctl write the same commands.
func TestOldLibraries(t *testing.T) {
	stock(t, "ibv_rc_pingpong")
	const rc = "ibv_rc_pingpong -d rxe0 -g 0 -n 100 -e"
	cmd := isolated(t, buildRnic(t), "run", "-v", "--no-ioctl", "--", "sh", "-c", pair(rc, rc+" 127.0.0.1"))
	finish(t, cmd, time.Minute)
}
