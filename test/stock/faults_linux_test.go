package stock

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scenarios are the examples, each with a program that plays it.
var scenarios = map[string]string{
	"lost-ack":       "ib_write_bw -n 1000",
	"retry-exceeded": "ib_write_bw -D 60",
	"port-flap":      "ib_write_bw -D 3",
	"rnr-storm":      "ib_send_bw -n 1000",
	"slow-link":      "ib_write_bw -n 60",
	"corrupted":      "ib_read_bw -n 1000",
	"chain":          "ib_write_bw -D 4",
}

// Every scenario of examples/scenarios comes to what it expects.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("../../examples/scenarios/*.scenario")
	if err != nil || len(files) != len(scenarios) {
		t.Fatalf("%d files, %d programs for them, %v", len(files), len(scenarios), err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".scenario")
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			program := scenarios[name]
			installed(t, strings.Fields(program)[0])
			out, code := run(t, append([]string{"--scenario", share(t, path)}, pair(program)...)...)
			if wantsFailure := name == "retry-exceeded"; (code != 0) != wantsFailure || code == 121 || strings.Contains(out, "FAILED") || !strings.Contains(out, " expectations met") {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
	}
}

// share copies a file to where the ordinary user can read it.
func share(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return scenario(t, string(text))
}

func scenario(t *testing.T, text string) string {
	t.Helper()
	rnic(t) // makes the directory
	f, err := os.CreateTemp(binary.dir, "*.scenario")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o644); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// A scenario that was not met ends the run with a status of its own, whatever the program's is; the program's own status of that number is
// another; and a file that is wrong is refused before anything starts, with the number of the line.
func TestScenarioStatus(t *testing.T) {
	for _, c := range []struct {
		text, program string
		code          int
		says          string
	}{
		{"link up\nexpect program exit = 0", "exit 0", 0, "1 expectations met"},
		{"link up\nexpect program exit = 37", "exit 37", 37, "1 expectations met"},
		{"link up\nexpect program exit = 0", "exit 37", 121, "FAILED: line 2: expect program exit = 0: it is 37"},
		{"link up\nexpect program exit = 0", "sleep 30 & exit 37", 121, "the program's own status was 37"},
		{"after 5 packets\nlink down", "exit 0", 121, "still waiting in line 1: after 5 packets"},
		{"link up", "exit 121", 1, "the status is 1 instead"},
		{"link up\n\nlink sideways", "exit 0", 2, `.scenario:3: "link sideways": want link down`},
	} {
		out, code := run(t, "--scenario", scenario(t, c.text), "--", "sh", "-c", c.program)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%q with %q: exit code %d, want %d and %q\n%s", c.program, c.text, code, c.code, c.says, out)
		}
	}
	out, code := run(t, "--scenario", "/no/such/file", "--", "true")
	if code != 2 {
		t.Errorf("no such file: exit code %d\n%s", code, out)
	}
}

// Faults are planted into a running NIC, listed with what they have done, and cleared, while a program sends.
func TestFaultsOfARunningNIC(t *testing.T) {
	installed(t, "ib_write_bw")
	out, code := terminals(t, `
$RNIC fault list; [ $? = 0 ] && die "there is no NIC, and it is listed"
$RNIC run -- sh -c 'ib_write_bw -D 5 & s=$!; n=0
until grep -qi ":4853 00000000.*:0000 0A" /proc/net/tcp /proc/net/tcp6 || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
ib_write_bw -D 5 127.0.0.1 || exit 1; wait $s' >/dev/null & b=$!
n=0; until $RNIC fault list >/dev/null 2>&1; do n=$((n+1)); [ $n -gt 500 ] && die "no NIC"; sleep 0.02; done
$RNIC fault add both:drop=2%,seed=5 || die add
$RNIC fault add --nic rxe0 recv:delay=10%:100us-1ms --json || die add
$RNIC fault add drop=many; [ $? = 2 ] || die "a bad specification: $?"
n=0; until $RNIC fault list --json | grep -q '"dropped": [1-9]'; do n=$((n+1)); [ $n -gt 500 ] && die "nothing is dropped"; sleep 0.02; done
$RNIC fault list || die list
$RNIC fault clear 7; [ $? = 1 ] || die "there is no fault 7: $?"
$RNIC fault clear 1 || die clear
echo JSON; $RNIC fault list --json || die list; echo END
$RNIC fault clear || die clear
$RNIC fault list
wait $b || die "the program"`)
	for _, want := range []string{"fault 1 planted into rxe0: both:drop=2%,seed=5\n", "ID  STATE ", "1   active  both:drop=2%,seed=5 ", "no such fault: number 7", "1 cleared from rxe0\n",
		"want a rate from 0% to 100%", "No faults are planted into rxe0."} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	_, rest, _ := strings.Cut(out, "JSON\n")
	list, _, _ := strings.Cut(rest, "END\n")
	var rows []struct {
		ID   int
		Spec string
	}
	if err := json.Unmarshal([]byte(list), &rows); err != nil || fmt.Sprint(rows) != "[{2 recv:delay=10%:100µs-1ms}]" {
		t.Errorf("list in JSON: %v, %v", rows, err)
	}
	if code != 0 || t.Failed() {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
