package stock

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// life builds testdata/life.c, a verbs program that does what programs do in their lives.
func life(t *testing.T) string {
	t.Helper()
	return compiled(t, "life", "-libverbs")
}

// A program may fork while its memory is registered and transfers go on, by all the ways that libibverbs has for it, and
// its children have the device too, with or without execve; wait for events without blocking; have several contexts.
func TestLifeOfAProgram(t *testing.T) {
	bin := life(t)
	for _, c := range []string{"fork", "fork-init", "RDMAV_FORK_SAFE=1 fork-safe", "IBV_FORK_SAFE=1 fork-safe", "nonblocking"} {
		t.Run(c, func(t *testing.T) {
			env, what, found := strings.Cut(c, " ")
			if !found {
				env, what = "", c
			}
			out, code := run(t, "--", "sh", "-c", env+" exec "+bin+" "+what)
			if code != 0 || !strings.HasSuffix(out, "ok\n") {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
	}
}

// A peer that is killed in the middle of transfers is, to the other side, gone: the retries are used up (InfiniBand vol. 1,
// 9.9.2.4.2), the rest is flushed. The same NIC serves the next connection.
func TestPeerIsKilled(t *testing.T) {
	out, code := run(t, "--", life(t), "killed")
	if code != 0 || strings.Count(out, "killed: transport retry counter exceeded\n") != 3 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// The same between two NICs: the whole run of the peer is killed.
func TestRunOfThePeerIsKilled(t *testing.T) {
	installed(t, "ib_write_bw")
	script := fmt.Sprintf(`%[1]s run --addr 127.0.0.1 -- ib_write_bw -F -D 20 >/dev/null 2>&1 & s=$!
until grep -qi ':4853 00000000.*:0000 0A' /proc/net/tcp /proc/net/tcp6; do kill -0 $s || exit 1; sleep 0.05; done
(n=0; until [ $(grep '^Udp: [0-9]' /proc/net/snmp | cut -d' ' -f2) -gt 1000 ] || [ $n -gt 1500 ]; do n=$((n+1)); sleep 0.02; done; kill -9 $s) & # packets flow
%[1]s run --addr 127.0.0.2 -- ib_write_bw -F -D 20 127.0.0.1
echo "exit code $?"`, rnic(t))
	out, code := command(t, ordinary, "sh", "-c", script)
	if code != 0 || !regexp.MustCompile(`(?i)Failed status 12`).MatchString(out) || strings.Contains(out, "exit code 0") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// Many programs on one NIC at once.
func TestManyProgramsAtOnce(t *testing.T) {
	const programs = 64
	script := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do %s simple & p="$p $!"; i=$((i+1)); done
for q in $p; do wait $q || exit 1; done`, programs, life(t))
	out, code := run(t, "--", "sh", "-c", script)
	if n := strings.Count(out, "ok\n"); code != 0 || n != programs {
		t.Errorf("exit code %d, %d of %d programs succeeded\n%s", code, n, programs, out)
	}
}

// programs is how many programs run one after the other: RNIC_PROGRAMS, or few.
func programs(t *testing.T) int {
	s := os.Getenv("RNIC_PROGRAMS")
	if s == "" {
		return 60
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("RNIC_PROGRAMS is %q, and not a number of programs", s)
	}
	return n
}

// leftBehind sets up namespaces of processes and of files with an empty /dev/shm and an empty TMPDIR in it, runs a
// script, and lists what is there afterwards.
const leftBehind = `set -eu
mount -t tmpfs none /dev/shm
export TMPDIR=/dev/shm/tmp
mkdir $TMPDIR
sh -eu -c "$1"
n=0
while :; do
	left=
	for p in /proc/[0-9]*; do
		[ $p = /proc/$$ ] || [ $p = /proc/1 ] || ! [ -e $p/cmdline ] || left="$left process $(tr '\0' ' ' <$p/cmdline)"
	done
	for f in $(find /dev/shm -mindepth 1); do [ $f = $TMPDIR ] || left="$left $f"; done
	[ -n "$left" ] && [ $n -lt 20 ] || break
	n=$((n+1))
	sleep 0.05
done
echo "left behind:$left"`

func nothingLeftBehind(t *testing.T, script string) (out string) {
	t.Helper()
	out, code := command(t, ordinary, "unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", leftBehind, "sh", script)
	if code != 0 || !strings.HasSuffix(out, "left behind:\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	return out
}

// One program after the other on one NIC: its process has as many descriptors as after the first, and /dev/shm as many files.
func TestManyProgramsInARow(t *testing.T) {
	inside := `count() { for p in /proc/[0-9]*; do case "$(readlink $p/exe)" in */rnic) ls $p/fd | wc -l;; esac; done | sort -n | tr "\n" " "; find /dev/shm | wc -l; }
many() { i=0; while [ $i -lt $1 ]; do LIFE simple >/dev/null || exit 1; i=$((i+1)); done; }
many 5; sleep 1; before=$(count)
many PROGRAMS
n=0; while after=$(count); [ "$before" != "$after" ] && [ $n -lt 200 ]; do n=$((n+1)); sleep 0.1; done
echo "descriptors and files: $before, then $after"
[ "$before" = "$after" ]`
	inside = strings.NewReplacer("LIFE", life(t), "PROGRAMS", fmt.Sprint(programs(t))).Replace(inside)
	out := nothingLeftBehind(t, fmt.Sprintf("%s run -- sh -c '%s'", rnic(t), inside))
	if !regexp.MustCompile(`descriptors and files: (\d+ )+\d+, then`).MatchString(out) {
		t.Errorf("nothing was counted\n%s", out)
	}
}

// A NIC after the other, and those whose program, or one of whose own processes, is killed.
func TestManyNICsInARow(t *testing.T) {
	script := `i=0; while [ $i -lt ROUNDS ]; do RNIC run -- LIFE simple; i=$((i+1)); done
for victim in life rnic rnic-supervisor; do
	RNIC run -- LIFE wait >$TMPDIR/out 2>$TMPDIR/err & run=$!
	n=0
	until grep -q ready $TMPDIR/out; do n=$((n+1)); sleep 0.02; [ $n -lt 500 ] || { cat $TMPDIR/err; exit 1; }; done
	n=0
	for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" != $victim ] || ! kill -9 ${p#/proc/} || n=$((n+1)); done
	[ $n = 1 ] || exit 9
	wait $run && exit 1
	rm $TMPDIR/out $TMPDIR/err
	n=0 # the port is free when the last has gone
	while cat /proc/[0-9]*/comm | grep -q ^rnic; do n=$((n+1)); sleep 0.05; [ $n -lt 400 ] || exit 8; done
done`
	script = strings.NewReplacer("LIFE", life(t), "RNIC", rnic(t), "ROUNDS", fmt.Sprint(max(3, programs(t)/10))).Replace(script)
	nothingLeftBehind(t, script)
}

// What a killed program had is gone soon, long before the run ends, in the middle of transfers: a context's end stands in the trace. So it is where its memory
// is on demand, and the pages that the transfers need are not there.
func TestKilledProgramIsCleanedUp(t *testing.T) {
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, what := range []string{"wait", "wait-on-demand"} {
		trace, said := filepath.Join(dir, what+".trace"), filepath.Join(dir, what)
		script := fmt.Sprintf(`%s %s >%s & p=$!
until grep -q ready %s; do kill -0 $p || exit 1; sleep 0.02; done
sleep 0.2; kill -9 $p; n=0
until [ "$(grep -c 'close with [1-9]' %s)" = 2 ] || [ $n = 400 ]; do n=$((n+1)); sleep 0.05; done
echo "cleaned up after $n"`, life(t), what, said, said, trace)
		out, code := run(t, "--trace", trace, "--", "sh", "-c", script)
		if m := regexp.MustCompile(`cleaned up after (\d+)\n`).FindStringSubmatch(out); code != 0 || m == nil || m[1] == "400" {
			t.Errorf("%s: exit code %d; two contexts of a killed program should be gone soon\n%s", what, code, out)
		}
	}
}
