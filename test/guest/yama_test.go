package guest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compileReadonly builds the program that registers memory which it has mapped read-only.
func compileReadonly(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "readonly")
	out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-o", path, "../../internal/uverbs/testdata/readonly.c", "-libverbs").CombinedOutput()
	if err != nil {
		t.Fatalf("compiling readonly.c: %v\n%s", err, out)
	}
	return path
}

// Where Yama lets only ancestors reach a process's memory (ptrace_scope 1, as Ubuntu has it), an ordinary user's second
// run joins the first one's NIC all the same, and nothing can be done with memory that its programs cannot do themselves.
func TestJoiningUnderYama(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is missing: apt-get install util-linux")
	}
	p := bootPeer(t, buildRnic(t), compileReadonly(t), setpriv)
	const prepare = `
rdma link delete rxe0; rmmod rdma_rxe || exit 1 # it has the port
echo 1 >/proc/sys/kernel/yama/ptrace_scope && grep -q 1 /proc/sys/kernel/yama/ptrace_scope || exit 1
mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 shm /dev/shm; chmod 1777 /tmp
`
	if out, err := p.Run(t.Context(), prepare); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const script = `cd /; export HOME=/tmp
user() { /bin/setpriv --reuid 1000 --regid 1000 --clear-groups -- "$@"; }
ulimit -l 64
user rnic run -- rawqp -w 60 >/tmp/server 2>&1 & s=$!
n=0; until netstat -lnt | grep -q 18611 || [ $n -gt 300 ]; do n=$((n+1)); usleep 100000; done
user rnic run -v -- rawqp -w 60 -f both -c 127.0.0.1 OPERATIONS; c=$?
wait $s; s=$?
cat /tmp/server
[ $c = 0 ] && [ $s = 0 ]`
	t.Run("Operations", func(t *testing.T) {
		list := []string{"send:1", "send_imm:3000", "write:mtu+1", "write:70000", "write_imm:8", "read:70000", "read:1", "cas", "fetch_add", "write_mw1:3000", "write_mw2:8"}
		out, err := p.Run(t.Context(), strings.Replace(script, "OPERATIONS", strings.Join(list, " "), 1))
		// Each operation in both directions, checked on both sides.
		if n := strings.Count(out, ": ok\n"); err != nil || n != 4*len(list) || !strings.Contains(out, "rnic: joined NIC any of process") {
			t.Errorf("%v, %d checks\n%s", err, n, out)
		}
	})
	t.Run("ReadOnlyMemory", func(t *testing.T) {
		out, err := p.Run(t.Context(), `cd /; export HOME=/tmp
as="/bin/setpriv --reuid 1000 --regid 1000 --clear-groups --"
$as rnic run -- sleep 100 & s=$!
n=0; until grep -q @rnic/ /proc/net/unix || [ $n -gt 300 ]; do n=$((n+1)); usleep 100000; done
$as rnic run -v -- readonly; c=$?
kill $s; exit $c`)
		if err != nil || !strings.Contains(out, "ok\n") || !strings.Contains(out, "rnic: joined NIC any of process") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
