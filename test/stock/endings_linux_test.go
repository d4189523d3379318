package stock

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Every completion status that RoCE has (vol. 1, 11.6.2), as a stock program sees it, with what the peer sees. Those of enum
// ibv_wc_status that are missing are of reliable datagrams (LOC_EEC_OP_ERR, LOC_RDD_VIOL_ERR, REM_INV_RD_REQ_ERR, INV_EECN_ERR, INV_EEC_STATE_ERR)
// or of tag matching (TM_*), which no RoCE device without these has; or never happen in Linux's Soft-RoCE nor here: REM_ABORT_ERR,
// RESP_TIMEOUT_ERR, GENERAL_ERR, FATAL_ERR, and LOC_ACCESS_ERR, in the place of which a WRITE with immediate data that may not be is refused to its sender.
func TestEveryCompletionStatus(t *testing.T) {
	for name, want := range map[string]string{
		"success":          "a write: success",
		"local_length":     "b receive: local length error|a send: remote invalid request error",
		"local_operation":  "a read: local QP operation error",
		"local_protection": "a send: local protection error",
		"flushed":          "b receive: Work Request Flushed Error",
		"window_bind":      "a bind: memory management operation error",
		"bad_response":     "a send: bad response error",
		"remote_invalid":   "a read: remote invalid request error|b event: invalid request local work queue error",
		"remote_access":    "a write: remote access error|b event: local access violation work queue error",
		"remote_operation": "b receive: local protection error|a send: remote operation error",
		"retries":          "a send: transport retry counter exceeded",
		"not_ready":        "a send: RNR retry counter exceeded",
	} {
		t.Run(name, func(t *testing.T) {
			ends(t, want, "--addr", "127.0.0.1", "--", compiled(t, "endings", "-libverbs", "-lpthread"), name)
		})
	}
}

func ends(t *testing.T, want string, args ...string) {
	t.Helper()
	out, code := run(t, args...)
	if got := strings.ReplaceAll(strings.TrimSpace(out), "\n", "|"); code != 0 || got != want {
		t.Errorf("exit code %d, and\n%s\ninstead of\n%s", code, got, want)
	}
}

// Every asynchronous event of the affiliated kind (11.6.3). SRQ_ERR cannot happen: there is no error that a shared receive queue can be in
// here; WQ_FATAL is of queues that Soft-RoCE has not.
func TestEveryEvent(t *testing.T) {
	for name, want := range map[string]string{
		"overflow":    "a event: CQ error|a event: local work queue catastrophic error",
		"established": "a send: success|b event: communication established",
		"drained":     "a event: send queue drained",
		"migrated":    "a event: path migrated|a write: success|b event: path migrated",
		"limit":       "a send: success|b event: SRQ limit reached",
		"last":        "b event: last WQE reached",
	} {
		t.Run(name, func(t *testing.T) {
			ends(t, want, "--addr", "127.0.0.1", "--addr", "127.0.0.2", "--", compiled(t, "endings", "-libverbs", "-lpthread"), name)
		})
	}
}

// Those of the port (11.6.3), and the error of a migration whose address has gone. LID_CHANGE, PKEY_CHANGE, SM_CHANGE and CLIENT_REREGISTER are
// of InfiniBand's subnet manager; DEVICE_FATAL cannot be seen: with the NIC's process its programs end.
func TestEveryPortEvent(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a virtual Ethernet pair in a network namespace")
	}
	bin, self := compiled(t, "endings", "-libverbs", "-lpthread"), rnic(t)
	const prepare = `set -e
ip link set lo up; ip link add v0 type veth peer name v1
ip addr add 10.9.8.1/24 dev v0; ip addr add 10.9.8.2/24 dev v0; ip link set v0 up; ip link set v1 up
out=$(mktemp)
`
	const follow = `
said() { i=0; until grep -q "$1" "$out"; do i=$((i+1)); [ $i -lt 600 ] && kill -0 $p || { cat "$out"; exit 1; }; sleep 0.1; done; }
said ready
`
	for name, c := range map[string]struct{ change, want string }{
		"port": {`ip link set v1 down; said "port error"; ip link set v1 up; said "port active"; ip addr add 10.9.8.3/24 dev v0; said "GID table"; kill $p`,
			"ready|a event: port error|a event: port active|a event: GID table change"},
		"not_migrated": {`ip addr del 10.9.8.2/24 dev v0; wait $p`, "ready|a event: GID table change|a event: path migration request error"},
	} {
		t.Run(name, func(t *testing.T) {
			script := prepare + self + " run -- " + bin + " " + name + ` >"$out" 2>&1 & p=$!` + follow + c.change + `
cat "$out"; rm -f "$out"`
			out, err := exec.Command("unshare", "-n", "sh", "-c", script).CombinedOutput()
			if got := strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "|"); err != nil || got != c.want {
				t.Errorf("%v, and\n%s\ninstead of\n%s", err, got, c.want)
			}
		})
	}
}
