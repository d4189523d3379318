package uverbs

import (
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"
)

type hexadecimal uint32

func (h hexadecimal) String() string { return fmt.Sprintf("%#x", uint32(h)) }

// What another front tells stands among the device's lines, in their style, and in JSON with numbers as numbers.
func TestReportsOfOtherFronts(t *testing.T) {
	list := []Report{
		{PID: 7, Name: "CREATE_ID", Args: []slog.Attr{slog.String("ps", "TCP")}, Result: []slog.Attr{slog.Uint64("id", 3)}},
		{PID: 7, Name: "BIND", Args: []slog.Attr{slog.Uint64("id", 3)}, Errno: syscall.EADDRINUSE, Reason: "port 1\x1b is in use"},
		{PID: 7, Event: true, Name: "RDMA_CM_EVENT_ESTABLISHED", Args: []slog.Attr{slog.Uint64("id", 3), slog.Any("qp_num", hexadecimal(0x1a)), slog.Bool("ud", true)}},
	}
	var text, machine output
	for _, w := range []Watch{{Text: &text, Commands: true}, {JSON: &machine, Commands: true}, {JSON: &machine}} {
		p := newWatchedProgram(t, nil, w)
		for _, r := range list {
			r.At = time.Now()
			p.drv.Tell(r)
		}
		if p.drv.Tells() != w.Commands {
			t.Errorf("%+v: reports are wanted: %v", w, p.drv.Tells())
		}
	}
	text.inOrder(t, `^ *\d+\.\d{6} \[7\D.*CREATE_ID\(ps=TCP\) = id=3$`, `BIND\(id=3\) = -EADDRINUSE \(port 1\? is in use\)$`,
		`<- RDMA_CM_EVENT_ESTABLISHED\(id=3, qp_num=0x1a, ud\)$`)
	machine.inOrder(t, `"command":"CREATE_ID","args":\{"ps":"TCP"\},"result":\{"id":3\}`, `"error":"EADDRINUSE","errno":98,"reason":"port 1\? is in use"`,
		`"event":"RDMA_CM_EVENT_ESTABLISHED","args":\{"id":3,"qp_num":26,"ud":true\}`)
	if n := strings.Count(machine.String(), "CREATE_ID"); n != 1 {
		t.Errorf("told %d times:\n%s", n, &machine)
	}
}
