package stock

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// perftest opens the files of the counters once and reads them again when it is done: in the run that has the NIC, and in the one
// that has joined it.
func TestCountersInSysfs(t *testing.T) {
	installed(t, "ib_send_bw")
	const names = "hw_counters/sent_pkts,hw_counters/rdma_sends,counters/port_xmit_data"
	out, code := terminals(t, `
$RNIC run -- sh -c 'ib_send_bw -F -n 300 -s 4096 -W `+names+`; grep -r . /sys/class/infiniband/rxe0/ports/1/hw_counters' & s=$!
listening
$RNIC run -- ib_send_bw -F -n 300 -s 4096 -W `+names+` 127.0.0.1 || die client
wait $s || die server`)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	value := func(row string) (all []int) {
		for _, m := range regexp.MustCompile(`(?m)`+row+`(\d+)$`).FindAllStringSubmatch(out, -1) {
			n, _ := strconv.Atoi(m[1])
			all = append(all, n)
		}
		return all
	}
	for row, least := range map[string]int{"hw_counters/sent_pkts=": 300, "hw_counters/rdma_sends=": 300, "counters/port_xmit_data=": 300 * 1024} {
		got := value(row)
		if len(got) != 2 || got[0] < least || got[1] < least {
			t.Errorf("%s%v, want two of at least %d\n%s", row, got, least, out)
		}
	}
	// grep -r opens by directories' descriptors.
	if got := value("hw_counters/rdma_recvs:"); len(got) != 1 || got[0] != 300 || !strings.Contains(out, "hw_counters/lifespan:") {
		t.Errorf("rdma_recvs %v, want 300\n%s", got, out)
	}
}
