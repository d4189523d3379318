package ucm

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"rnic/internal/cma"
)

// reports collects what is told, as lines.
type reports struct {
	mu    sync.Mutex
	lines []string
}

func (r *reports) tell(x Report) {
	var b strings.Builder
	if x.Event {
		b.WriteString("<- ")
	}
	b.WriteString(x.Name)
	for _, a := range x.Args {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
	}
	for _, a := range x.Result {
		fmt.Fprintf(&b, " -> %s=%v", a.Key, a.Value)
	}
	if x.Errno != 0 {
		fmt.Fprintf(&b, " !%d %s", x.Errno, x.Reason)
	}
	if x.PID != 1 || x.At.IsZero() {
		b.WriteString(" of nobody, or at no time")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, b.String())
}

// want fails the test unless lines that begin so were told, in this order, with others between them.
func (r *reports) want(t *testing.T, lines ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := r.lines
	for _, l := range lines {
		at := 0
		for at < len(rest) && !strings.HasPrefix(rest[at], l) {
			at++
		}
		if at == len(rest) {
			t.Errorf("no %q in what was told:\n%s", l, strings.Join(r.lines, "\n"))
			return
		}
		rest = rest[at+1:]
	}
}

// What a program does with the connection manager is told with arguments, results, reasons, and events as it fetches them.
func TestCommandsAreTold(t *testing.T) {
	p := newProgram(t)
	var r reports
	p.drv.cfg.Tell = r.tell
	a, b := p.open(), p.open()
	l, port := p.listener(b, psTCP, 9, 3)
	p.refused("a port in use", b, newForm("listen", "id", l, "backlog", 3), 0, syscall.EINVAL)
	c := p.resolved(a, psTCP, uid, port)
	p.must(a, newForm("connect", "id", c, "conn_param", param(0x1234, "hi")), 0)
	req := p.event(b, cma.ConnectRequest)
	p.must(b, newForm("reject", "id", req.id(), "private_data_len", 5, "private_data", []byte("sorry")), 0)
	p.event(a, cma.Rejected)
	p.refused("nothing of this name", a, newForm("disconnect", "id", 4711), 0, syscall.ENOENT)
	at := netip.AddrPortFrom(p.addr, uint16(port))
	r.want(t,
		fmt.Sprintf("CREATE_ID ps=TCP qp_type=0 -> id=%d", l),
		fmt.Sprintf("BIND id=%d addr=%v", l, netip.AddrPortFrom(p.addr, 0)),
		fmt.Sprintf("LISTEN id=%d backlog=3", l),
		fmt.Sprintf("LISTEN id=%d backlog=3 !22 the id is listening", l),
		fmt.Sprintf("RESOLVE_ADDR id=%d dst=%v", c, at),
		fmt.Sprintf("<- RDMA_CM_EVENT_ADDR_RESOLVED id=%d", c),
		fmt.Sprintf("CONNECT id=%d qp_num=0x1234 responder_resources=3 initiator_depth=5 retry_count=7 rnr_retry_count=6 private_data_len=2", c),
		fmt.Sprintf("<- RDMA_CM_EVENT_CONNECT_REQUEST id=%d listen_id=%d src=%v", req.id(), l, at),
		fmt.Sprintf("REJECT id=%d reason=0 private_data_len=5", req.id()),
		fmt.Sprintf("<- RDMA_CM_EVENT_REJECTED id=%d status=28", c),
		"DISCONNECT id=4711 !2",
	)
	for _, l := range r.lines {
		if strings.HasPrefix(l, "GET_EVENT") || strings.HasSuffix(l, "of nobody, or at no time") {
			t.Errorf("told: %s", l)
		}
	}
}
