package stock

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// addressGoes takes an address away from under the program: $1 is rnic, $2 the program.
const addressGoes = `set -eu
ip link set lo up
ip addr add 10.47.70.1/32 dev lo
ip addr add 10.47.71.1/32 dev lo
said=$(mktemp)
trap 'cat $said; rm -f $said' EXIT
setpriv --reuid %[1]d --regid %[1]d --clear-groups "$1" run -- "$2" 10.47.70.1 10.47.71.1 >$said 2>&1 & p=$!
until grep -q ready $said; do kill -0 $p || exit 1; sleep 0.05; done
ip addr del 10.47.70.1/32 dev lo
wait $p`

// RDMA_CM_EVENT_ADDR_CHANGE (rdma_get_cm_event(3)), end to end: an address is taken from an interface under a connection. Both its ends and the listener
// are told, once, and others are not; all can be destroyed, the address cannot be bound any more, and the program connects over another.
func TestAddressGoesAway(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: no address can be taken from an interface")
	}
	program := compiled(t, "cmevents", "-lrdmacm", "-libverbs")
	var b bytes.Buffer
	cmd := exec.Command("sh", "-c", fmt.Sprintf(addressGoes, ordinaryUser), "sh", rnic(t), program)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &b, &b, 10*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	timer := time.AfterFunc(2*time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer timer.Stop()
	err := cmd.Wait()
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) > 4 {
		slices.Sort(lines[1:4]) // in any order
	}
	want := []string{"ready", "the client's address has changed", "the listener's address has changed", "the server's address has changed",
		"over the other: 0 further events", "binding to it: Cannot assign requested address", "ok"}
	if err != nil || !slices.Equal(lines, want) {
		t.Errorf("%v\n%s", err, b.String())
	}
}
