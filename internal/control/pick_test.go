package control

import (
	"errors"
	"strings"
	"testing"
)

func TestPick(t *testing.T) {
	two := []NIC{
		{PID: 10, About: About{Devices: []string{"rxe0", "rxe1"}, Command: "rping"}},
		{PID: 20, About: About{Devices: []string{"rxe0"}, Command: "ib_write_bw"}},
	}
	for _, c := range []struct {
		nics   []NIC
		wanted string
		pid    int
		device string
		err    error
	}{
		{nil, "", 0, "", ErrNone},
		{nil, "rxe0", 0, "", ErrNone},
		{two[1:], "", 20, "rxe0", nil},
		{two[1:], "rxe0", 20, "rxe0", nil},
		{two[1:], "20", 20, "rxe0", nil},
		{two[1:], "rxe7", 0, "", ErrNone},
		{two, "", 0, "", ErrSeveral},
		{two, "rxe0", 0, "", ErrSeveral},
		{two, "rxe1", 10, "rxe1", nil},
		{two, "20", 20, "rxe0", nil},
		{two, "10", 0, "", ErrSeveral},
		{two, "10/rxe0", 10, "rxe0", nil},
		{two, "20/rxe1", 0, "", ErrNone},
	} {
		n, device, err := Pick(c.nics, c.wanted)
		if !errors.Is(err, c.err) || device != c.device || n != nil && n.PID != c.pid {
			t.Errorf("Pick(%d NICs, %q) = %v, %q, %v", len(c.nics), c.wanted, n, device, err)
		}
		if err != nil && len(c.nics) > 1 && (!strings.Contains(err.Error(), "process 10: rping") || !strings.Contains(err.Error(), "process 20")) {
			t.Errorf("Pick(%q): the error does not list them: %v", c.wanted, err)
		}
	}
}
