package stock

import (
	"regexp"
	"strings"
	"testing"
)

// shellWords are functions for the scripts of terminals.
const shellWords = `
listening() { n=0; until grep -qi ':4853 00000000.*:0000 0A' /proc/net/tcp /proc/net/tcp6 || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done; }
connected() { n=0; until grep -qiE ':4853 [0-9A-F]+:[0-9A-F]{4} 01' /proc/net/tcp /proc/net/tcp6 || [ $n -gt 1000 ]; do n=$((n+1)); sleep 0.02; done; }
joinable() { n=0; until grep -q "@rnic/$(id -u)/" /proc/net/unix || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done; }
children() { cat /proc/$1/task/*/children | tr -d " "; }
die() { echo "FAILED: $*"; exit 1; }
`

// terminals runs a shell script as an ordinary user in a network namespace of its own that has only lo; $RNIC is the
// binary.
func terminals(t *testing.T, script string) (out string, code int) {
	t.Helper()
	return command(t, ordinary, "sh", "-c", "RNIC="+rnic(t)+"\n"+shellWords+script)
}

// The server in one terminal, the client in another, no options: the second run joins the first one's NIC.
func TestTwoTerminals(t *testing.T) {
	for _, c := range []struct{ what, options string }{
		{"by its own rights", ""},
		{"by passed files", "--files-only"},
	} {
		for _, program := range []string{
			"ib_write_bw -n 300", "ib_read_lat -n 300", "ib_send_bw -n 300 -e", "ib_atomic_bw -n 300", "ibv_rc_pingpong -g 0 -n 100 -c -e",
			"ib_send_bw -n 300 -c UD -s 1024", "ib_write_bw -n 100 -s 1000001 -b",
		} {
			t.Run(c.what+"/"+program, func(t *testing.T) {
				installed(t, strings.Fields(program)[0])
				script := strings.NewReplacer("OPTIONS", c.options, "PROGRAM", program).Replace(`
$RNIC run -- PROGRAM & s=$!
listening
$RNIC run -v OPTIONS -- PROGRAM 127.0.0.1 || die client
wait $s || die server`)
				out, code := terminals(t, script)
				if code != 0 || !strings.Contains(out, "rnic: joined NIC any of process ") {
					t.Errorf("exit code %d\n%s", code, out)
				}
			})
		}
	}
}

// someSeconds are a server and a client that run for a few seconds in one joined run.
const someSeconds = `
$RNIC run -- sh -c 'ib_write_bw -D 3 & s=$!; n=0
until grep -qi ":4853 00000000.*:0000 0A" /proc/net/tcp /proc/net/tcp6 || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
ib_write_bw -D 3 127.0.0.1 || exit 1; wait $s' & b=$!
connected; sleep 0.7
`

// The NIC lives until the last run that uses it ends, however the first one does.
func TestNICOutlivesItsFirstRun(t *testing.T) {
	installed(t, "ib_write_bw")
	for what, end := range map[string]string{
		"exits":                            `kill $(children $(children $a)); wait $a; [ $? = 143 ] || die "the first run ended with $?"`,
		"is killed":                        `kill -9 $a; wait $a`,
		"and its process group are killed": `kill -9 -$a; wait $a`,
		"is interrupted":                   `kill -INT $a; wait $a; [ $? = 130 ] || die "the first run ended with $?"`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			out, code := terminals(t, `
setsid $RNIC run -- sleep 100 & a=$!
joinable
`+someSeconds+end+`
kill -0 $b || die "the second run ended with the first"
wait $b || die "the second run failed: $?"
# The NIC is gone: one with other options can be made.
$RNIC run --mtu 1024 -- ibv_devinfo || die "the NIC is still there"
`)
			if code != 0 || !strings.Contains(out, "active_mtu:\t\t1024") {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
	}
}

// If the process that has the NIC dies, every run that uses it ends at once and says why.
func TestNICDies(t *testing.T) {
	installed(t, "ib_write_bw")
	out, code := terminals(t, `
$RNIC run -- sleep 100 & a=$!
joinable
`+someSeconds+`
kill -9 $(children $a)
wait $a; [ $? = 125 ] || die "the first run ended with $?"
wait $b; [ $? = 125 ] || die "the second run ended with $?"
$RNIC run -- true || die "no new NIC"`)
	said := regexp.MustCompile(`(?m)^rnic: the NIC \(any\), process \d+ of another run, has died: the program and all its descendants were killed$`)
	if code != 0 || !said.MatchString(out) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// What a run asks for and the NIC is not is refused, with what to do.
func TestJoiningWithOtherOptions(t *testing.T) {
	long := scenario(t, strings.Repeat("# <"+strings.Repeat("\t", 60)+"\n", 1000)+"link up\n") // nearly as long as it may be
	if out, code := run(t, "--scenario", long, "--", "true"); code != 0 {
		t.Errorf("a long scenario: exit code %d\n%s", code, out)
	}
	for _, options := range []string{"--mtu 4096", "--units 2", "--seed 8", "--congestion dcqcn", "--capture /tmp/no.pcapng", "--fault drop=1%", "--scenario " + long} {
		option, _, _ := strings.Cut(options, " ")
		t.Run(option, func(t *testing.T) {
			t.Parallel()
			out, code := terminals(t, `
$RNIC run --mtu 1024 --seed 7 -- sleep 100 & a=$!
joinable
$RNIC run --mtu 1024 --seed 7 -- true || die "the same options"
$RNIC run `+options+` -- true; c=$?
kill $a
exit $c`)
			if code != 125 || !strings.Contains(out, "leave "+option+" off to join it") {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
	}
}

// Two devices in one run, and runs that choose among several NICs.
func TestSeveralNICs(t *testing.T) {
	installed(t, "ib_write_bw")
	out, code := terminals(t, `
$RNIC run --nic rxe_a,addr=127.0.0.1 --nic rxe_b,addr=127.0.0.2,mtu=1024 -- sh -c '
ibv_devinfo
ib_write_bw -n 100 -d rxe_b & s=$!; n=0
until grep -qi ":4853 00000000.*:0000 0A" /proc/net/tcp /proc/net/tcp6 || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
ib_write_bw -n 100 -d rxe_a 127.0.0.1 || exit 1; wait $s || exit 1; sleep 100' & a=$!
n=0; until [ $(grep -c "@rnic/" /proc/net/unix) = 2 ] || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
$RNIC run -- true; [ $? = 125 ] || die "no choice was asked for"
$RNIC run --addr 127.0.0.2 -- ibv_devinfo || die "joining the second"
# Its own NIC and another's in one run.
$RNIC run --nic rxe0,addr=127.0.0.3 --nic rxe1,addr=127.0.0.1 -- ibv_devinfo || die "one joined, one made"
kill $a; wait $a; exit 0`)
	for want, times := range map[string]int{
		`hca_id:\s+rxe_a`: 1, `hca_id:\s+rxe_b`: 1, `hca_id:\s+rxe0`: 2, `hca_id:\s+rxe1`: 1,
		`active_mtu:\s+1024`: 2, `several NICs run here \(addr=127.0.0.1; addr=127.0.0.2\)`: 1,
	} {
		if n := len(regexp.MustCompile(want).FindAllString(out, -1)); n != times {
			t.Errorf("%q %d times, want %d", want, n, times)
		}
	}
	if code != 0 || len(rows.FindAllString(out, -1)) != 2 || t.Failed() {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// Each NIC of a run ends with the last run that uses it: the other one's addresses are free again.
func TestNICsEndOneByOne(t *testing.T) {
	out, code := terminals(t, `
$RNIC run --nic rxe0,addr=127.0.0.1 --nic rxe1,addr=127.0.0.2 -- sleep 100 & a=$!
n=0; until [ $(grep -c "@rnic/" /proc/net/unix) = 2 ] || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done
$RNIC run -v --addr 127.0.0.1 -- sleep 100 2>/tmp/joined.$$ & b=$!
n=0; until grep -q joined /tmp/joined.$$ || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done; rm /tmp/joined.$$
kill $a; wait $a
$RNIC run --addr 127.0.0.2 --mtu 1024 -- true || die "the second NIC is still there"
kill -0 $b || die "the second run ended with the first"
# A run that the NIC's process cannot serve costs the others nothing.
kill $b; wait $b; ulimit -n 40
$RNIC run -- sleep 100 & a=$!
joinable
for i in 1 2 3 4 5; do $RNIC run -- sleep 1 & all="$all $!"; done
wait $all
kill -0 $a || die "the NIC died of it"
kill $a; wait $a; exit 0`)
	if code != 0 || strings.Contains(out, "panic") || !strings.Contains(out, "rnic: the NIC cannot be joined: ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
