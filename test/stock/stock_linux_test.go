package stock

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// installed skips the test if a program is not there.
func installed(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed: apt-get install ibverbs-utils ibverbs-providers perftest", program)
	}
}

// pair is a shell command that runs a program as server and, once it listens, as client of it: both under
// one rnic run. It fails if one of them does.
func pair(program string) []string {
	return []string{"--", "sh", "-c", fmt.Sprintf(`%[1]s & s=$!; n=0
until grep -qi ':4853 00000000.*:0000 0A' /proc/net/tcp /proc/net/tcp6 || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
%[1]s 127.0.0.1 || exit 1; wait $s`, program)} // 0x4853: port 18515 of pingpong and perftest
}

func TestDeviceIsListed(t *testing.T) {
	installed(t, "ibv_devices")
	out, code := run(t, "--", "ibv_devices")
	if code != 0 || !regexp.MustCompile(`rxe0\s+[0-9a-f]{16}`).MatchString(out) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	out, code = run(t, "--name", "rxe_second", "--", "ibv_devices")
	if code != 0 || !strings.Contains(out, "rxe_second ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestDeviceAttributes(t *testing.T) {
	installed(t, "ibv_devinfo")
	out, code := run(t, "--", "ibv_devinfo", "-v")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	for _, want := range []string{`hca_id:\s+rxe0`, `fw_ver:\s+\d+\.\d+\.\d+\n`, `node_guid:\s+[0-9a-f:]{19}\n`, `phys_port_cnt:\s+1\n`,
		`max_sge:\s+32\n`, `max_cqe:\s+[1-9]\d+\n`, `max_qp_wr:\s+[1-9]\d+\n`, `atomic_cap:\s+ATOMIC_HCA`,
		`state:\s+PORT_ACTIVE`, `link_layer:\s+Ethernet`, `max_msg_sz:\s+0x40000000`, `phys_state:\s+LINK_UP`,
		`GID\[\s*\d+\]:\s+::ffff:127\.0\.0\.1, RoCE v2`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestPingpong(t *testing.T) {
	for _, program := range []string{
		"ibv_rc_pingpong -g 0 -n 100 -c",
		"ibv_rc_pingpong -g 0 -n 100 -c -e",
		"ibv_rc_pingpong -g 0 -n 100 -c -N",
		"ibv_rc_pingpong -g 0 -n 100 -s 100000 -r 10",
		"ibv_rc_pingpong -g 0 -n 100 -c -o",    // memory on demand
		"ibv_rc_pingpong -g 0 -n 100 -c -o -O", // all of it
		"ibv_uc_pingpong -g 0 -n 100",
		"ibv_uc_pingpong -g 0 -n 100 -e -s 100000 -r 10",
		"ibv_srq_pingpong -g 0 -n 100",
		"ibv_srq_pingpong -g 0 -n 100 -e -q 4 -s 100000 -r 10",
		"ibv_ud_pingpong -g 0 -n 100",
		"ibv_ud_pingpong -g 0 -n 100 -e",
	} {
		t.Run(program, func(t *testing.T) {
			installed(t, strings.Fields(program)[0])
			out, code := run(t, pair(program)...)
			if code != 0 || strings.Count(out, "100 iters in") != 2 {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
	}
}

// rows finds the rows of perftest's table: size, iterations, figures.
var rows = regexp.MustCompile(`(?m)^ (\d+) +(\d+) +([\d.]+) +([\d.]+)`)

func TestPerftest(t *testing.T) {
	for _, program := range []string{
		"ib_write_bw -n 300",
		"ib_write_bw -n 300 -b",
		"ib_write_bw -n 300 -q 4 -s 4096",
		"ib_write_lat -n 300",
		"ib_send_bw -n 300",
		"ib_send_bw -n 300 -e",
		"ib_send_bw -n 300 -c UD -s 1024",
		"ib_send_bw -n 300 --use-srq",
		"ib_send_bw -n 300 --use-srq -q 4 -e",
		"ib_send_bw -n 300 --use-srq -c UC",
		"ib_send_lat -n 300 --use-srq",
		"ib_write_bw -n 300 -c UC",
		"ib_write_lat -n 300 -c UC",
		"ib_send_bw -n 300 -c UC",
		"ib_send_lat -n 300 -c UC",
		"ib_send_bw -n 300 -c UD -s 1024 -g -x 1", // multicast; index 1 is ::1
		"ib_send_bw -n 300 -c UD -s 1024 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:47:91:1",
		"ib_send_lat -n 300",
		"ib_send_lat -n 300 -c UD",
		"ib_read_bw -n 300",
		"ib_read_lat -n 300",
		"ib_atomic_bw -n 300",
		"ib_atomic_bw -n 300 -A CMP_AND_SWAP",
		"ib_atomic_lat -n 300",
	} {
		t.Run(program, func(t *testing.T) {
			installed(t, strings.Fields(program)[0])
			out, code := run(t, pair(program)...)
			table := rows.FindAllStringSubmatch(out, -1)
			if code != 0 || len(table) == 0 {
				t.Fatalf("exit code %d\n%s", code, out)
			}
			for _, r := range table {
				if v, err := strconv.ParseFloat(r[4], 64); err != nil || v <= 0 {
					t.Errorf("a figure of %s in\n%s", r[4], out)
				}
			}
		})
	}
}

func TestExitCodeIsTheProgramsOwn(t *testing.T) {
	for shell, want := range map[string]int{"exit 0": 0, "exit 37": 37, "kill -9 $$": 128 + 9} {
		if out, code := run(t, "--", "sh", "-c", shell); code != want {
			t.Errorf("%q: exit code %d, want %d\n%s", shell, code, want, out)
		}
	}
	if out, code := run(t, "--", "no-such-program"); code != 127 || strings.Count(out, "\n") != 1 {
		t.Errorf("a program that there is not: exit code %d\n%s", code, out)
	}
}

func TestBadArgumentsAreOneLine(t *testing.T) {
	for _, args := range [][]string{
		{"--name", "a/b", "--", "true"}, {"--addr", "nonsense", "--", "true"}, {"--fault", "drop=many", "--", "true"},
		{"--no-such-option", "--", "true"}, {"--"},
	} {
		out, code := run(t, args...)
		if code != 2 || strings.Count(strings.TrimSpace(out), "\n") != 0 || !strings.HasPrefix(out, "rnic: ") {
			t.Errorf("%v: exit code %d\n%s", args, code, out)
		}
	}
}
