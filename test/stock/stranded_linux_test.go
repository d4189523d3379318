package stock

import (
	"strings"
	"testing"
)

// Destroying a completion queue waits for events that a program has not acknowledged (ibv_destroy_cq(3)). Where it has not because a command was
// interrupted, which no kernel's driver lets happen, it need not wait, if there is no other thread that may acknowledge them; also in a run that has joined another.
func TestInterruptedCommandStrandsNobody(t *testing.T) {
	program := compiled(t, "stranded", "-libverbs", "-lpthread")
	const interrupted = "Interrupted system call, interrupted: 1\n"
	for what, want := range map[string]struct {
		says string
		code int
	}{"interrupted": {interrupted + "ok\n", 0}, "thread": {interrupted + "ok\n", 0}, "forgets": {"waits\n", 3}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			out, code := run(t, "--", program, what)
			if code != want.code || !strings.HasSuffix(out, want.says) {
				t.Errorf("exit code %d\n%s", code, out)
			}
			out, code = terminals(t, `
$RNIC run -- sleep 100 & a=$!
joinable
$RNIC run -- `+program+` `+what+`; c=$?
kill $(children $(children $a)); wait $a
exit $c`)
			if code != want.code || !strings.Contains(out, want.says) {
				t.Errorf("in a run that joined: exit code %d\n%s", code, out)
			}
		})
	}
}
