package fault

import (
	"errors"
	"testing"
)

func TestDirections(t *testing.T) {
	send, recv, err := ParseDirections([]string{"recv:nth=2", "drop=1%"})
	if err != nil || send == nil || recv == nil || send.Drop != 0.01 || len(recv.Nth) != 1 {
		t.Fatalf("send %v, recv %v, %v", send, recv, err)
	}
	if send, recv, err = ParseDirections([]string{"send:dup=1%"}); err != nil || send == nil || recv != nil {
		t.Fatalf("send %v, recv %v, %v", send, recv, err)
	}
	for _, bad := range [][]string{{"lose=1%"}, {"drop=1%", "send:dup=1%"}, {"recv:drop=1%", "recv:dup=1%"}} {
		if _, _, err := ParseDirections(bad); !errors.Is(err, ErrSpec) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
