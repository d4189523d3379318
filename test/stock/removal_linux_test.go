package stock

import (
	"strings"
	"testing"
)

// removalSays is what a program sees whose device is taken away: ib_uverbs_free_hw_resources and cma_remove_one of the kernel.
const removalSays = `ready
removal: client 1, server 1, listener 1, others 0
the program's context: local catastrophic error
librdmacm's context: local catastrophic error
further events of ids: 0
completion event: -1
querying the port: Input/output error
another protection domain: Input/output error
modifying a queue pair: Input/output error
arming: Input/output error
an option of the client: No such device or address
destroying the queue pair: Input/output error
deregistering: Input/output error
closing: ok
devices: 0
resolving: RDMA_CM_EVENT_ADDR_ERROR, No such device
ok
`

// removalScript runs the program in $PROGRAM until it says that it is ready, and then the command that removes the device.
const removalScript = `
PATH=$PATH:/sbin:/usr/sbin
said=$(mktemp); trap 'rm -f $said' EXIT
ready() { n=0; until grep -q ready $said || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done; }
gone() { n=0; until [ -z "$(ls /sys/class/infiniband /sys/class/infiniband_verbs/uverbs0 /dev/infiniband/uverbs0 2>/dev/null | grep -v :)" ] || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done; ls /sys/class/infiniband; }
`

// The stock rdma tool removes the device under a program (rdma link delete), as it removes one of the kernel's Soft-RoCE: the program learns of it by the events that the
// kernel has for that, its commands fail, and there is no device any more.
func TestDeviceIsRemoved(t *testing.T) {
	rdmaTool(t)
	program := compiled(t, "removal", "-lrdmacm", "-libverbs")
	t.Run("by the same run", func(t *testing.T) {
		out, code := run(t, "--", "sh", "-c", removalScript+program+` >$said 2>&1 & p=$!
ready
rdma link delete rxe0 || echo "not deleted: $?"
wait $p; echo "status $?" >>$said
gone
rdma link
rdma link delete rxe0 2>&1
cat $said`)
		if want := "Wrong device name - rxe0\n" + removalSays + "status 0\n"; code != 0 || out != want {
			t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
		}
	})
	t.Run("by another run", func(t *testing.T) {
		out, code := terminals(t, removalScript+`
$RNIC run -- sleep 100 & a=$!
joinable
$RNIC run -- sh -c '`+program+`; echo "status $?"; gone() { n=0; until [ -z "$(ls /sys/class/infiniband)" ] || [ $n -gt 500 ]; do n=$((n+1)); sleep 0.02; done; ls /sys/class/infiniband; }; gone' >$said 2>&1 & b=$!
ready
$RNIC run -- rdma link delete rxe0 || die "not deleted: $?"
wait $b
cat $said
$RNIC run -- true && die "a removed NIC was joined"
kill $(children $(children $a)); wait $a
$RNIC run -- rdma link`)
		if code != 0 || !strings.HasPrefix(out, removalSays+"status 0\nrnic: ") || !strings.Contains(out, "it has been removed (rdma link delete)") || !strings.Contains(out, "link rxe0/1 state ACTIVE") {
			t.Errorf("exit code %d\n%s", code, out)
		}
	})
}
