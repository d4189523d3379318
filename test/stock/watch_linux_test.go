package stock

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// summary is the last line of --json.
type summary struct {
	Type  string
	Total struct {
		QueuePairs       int    `json:"queue_pairs"`
		SentMessages     uint64 `json:"sent_messages"`
		ReceivedMessages uint64 `json:"received_messages"`
		ReadsServed      uint64 `json:"reads_served"`
		AtomicsServed    uint64 `json:"atomics_served"`
		Retransmitted    uint64 `json:"retransmitted_packets"`
		Failed           uint64 `json:"failed_requests"`
	}
	Faults   struct{ Send struct{ Dropped uint64 } }
	Warnings int
}

func readSummary(t *testing.T, path string) (s summary) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil || s.Type != "summary" {
		t.Fatalf("the last line of --json: %v\n%s", err, lines[len(lines)-1])
	}
	return s
}

// jsonFile is a file that the ordinary user of run may write.
func jsonFile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rnic-json-") // below a directory that everybody may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "out.json")
}

// Stock programs make no mistakes that --pedantic would know of, and their messages are counted.
func TestPedanticAndSummary(t *testing.T) {
	for _, c := range []struct {
		program string
		want    func(s *summary) bool
	}{
		{"ibv_rc_pingpong -g 0 -n 100", func(s *summary) bool { return s.Total.SentMessages == 200 && s.Total.ReceivedMessages == 200 }},
		{"ib_write_bw -n 300 -s 2048", func(s *summary) bool { return s.Total.SentMessages >= 300 && s.Total.ReceivedMessages >= 300 }},
		{"ib_send_bw -n 300 -s 2048", func(s *summary) bool { return s.Total.SentMessages >= 300 }},
		{"ib_read_lat -n 300 -s 2048", func(s *summary) bool { return s.Total.ReadsServed >= 300 }},
		{"ib_atomic_bw -n 300", func(s *summary) bool { return s.Total.AtomicsServed >= 300 }},
	} {
		t.Run(c.program, func(t *testing.T) {
			installed(t, strings.Fields(c.program)[0])
			t.Parallel()
			file := jsonFile(t)
			out, code := run(t, append([]string{"--pedantic", "--json=" + file, "--fault", "drop=5%,seed=3"}, pair(c.program)...)...)
			s := readSummary(t, file)
			if code != 0 || strings.Contains(out, "rnic: ") || s.Warnings != 0 {
				t.Errorf("exit code %d, %d warnings\n%s", code, s.Warnings, out)
			}
			if s.Total.QueuePairs != 2 || s.Total.Failed != 0 || !c.want(&s) {
				t.Errorf("%+v", s)
			}
			if s.Faults.Send.Dropped == 0 || s.Total.Retransmitted == 0 {
				t.Errorf("%d packets were dropped, %d sent again", s.Faults.Send.Dropped, s.Total.Retransmitted)
			}
		})
	}
}

// An ordinary user with 64 KiB of memory that may be locked: hardware would refuse what works here.
func TestPedanticLockedMemory(t *testing.T) {
	installed(t, "ib_write_bw")
	t.Parallel()
	out, code := run(t, append([]string{"--pedantic"}, pair("ib_write_bw -n 5 -s 65536")...)...)
	if !strings.Contains(out, "[locked-memory]") || !strings.Contains(out, "is 65536:") || code != 0 && !strings.Contains(out, uncalibrated) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// Whoever reads standard error may stop: that does not end the program.
func TestReaderOfCommandsStops(t *testing.T) {
	installed(t, "ibv_devinfo")
	file := jsonFile(t)
	out, code := command(t, ordinary, "sh", "-c", `{ "$0" run -v -- sh -c 'ibv_devinfo >/dev/null; ibv_devinfo >/dev/null; echo done >"$0"' "$1"; } 2>&1 | head -n 1`, rnic(t), file)
	if code != 0 || !strings.Contains(out, "] OPEN(") {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "done\n" {
		t.Errorf("the program's last words: %q, %v", b, err)
	}
}

// A run that joins another's NIC is told of its own programs, and counts their messages.
func TestJoinedRunIsWatched(t *testing.T) {
	installed(t, "ibv_rc_pingpong")
	first, second := jsonFile(t), jsonFile(t)
	out, code := command(t, ordinary, "sh", "-c", `"$0" run --json="$1" -- ibv_rc_pingpong -g 0 -n 30 & s=$!; n=0
until grep -qi ':4853 00000000.*:0000 0A' /proc/net/tcp /proc/net/tcp6 || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
"$0" run -v --json="$2" -- ibv_rc_pingpong -g 0 -n 30 127.0.0.1 || exit 1; wait $s`, rnic(t), first, second)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	for _, file := range []string{first, second} {
		if s := readSummary(t, file); s.Total.QueuePairs != 1 || s.Total.SentMessages != 30 || s.Total.ReceivedMessages != 30 {
			t.Errorf("%+v\n%s", s, out)
		}
	}
	if b, err := os.ReadFile(second); err != nil || strings.Count(string(b), `"command":"MODIFY_QP"`) != 3 {
		t.Errorf("%v\n%s", err, b)
	}
}
