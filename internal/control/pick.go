package control

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Pick chooses the NIC that a user means: by the name of a device or the number of a process, or the only one that runs
// if wanted is empty. device is the name within the process, never empty after nil: operations take it as an argument, because a
// process may have several. ErrNone and ErrSeveral list what there is.
func Pick(nics []NIC, wanted string) (n *NIC, device string, err error) {
	type choice struct {
		nic    *NIC
		device string
	}
	var fits []choice
	for i := range nics {
		for _, d := range nics[i].Devices {
			if wanted == "" || d == wanted || strconv.Itoa(nics[i].PID) == wanted {
				fits = append(fits, choice{&nics[i], d})
			}
		}
	}
	if pid, name, both := strings.Cut(wanted, "/"); both {
		for i := range nics {
			if strconv.Itoa(nics[i].PID) == pid && slices.Contains(nics[i].Devices, name) {
				fits = append(fits, choice{&nics[i], name})
			}
		}
	}
	switch {
	case len(fits) == 1:
		return fits[0].nic, fits[0].device, nil
	case len(fits) == 0 && len(nics) == 0:
		return nil, "", fmt.Errorf("%w: nothing of this user has one in this network namespace: start it with rnic run or rnic perf", ErrNone)
	case len(fits) == 0:
		return nil, "", fmt.Errorf("NIC %s: %w; those that run: %s", wanted, ErrNone, list(nics))
	}
	if wanted != "" {
		return nil, "", fmt.Errorf("NIC %s: %w with it; say which with --nic PID/NAME: %s", wanted, ErrSeveral, list(nics))
	}
	return nil, "", fmt.Errorf("%w; say which with --nic NAME, PID or PID/NAME: %s", ErrSeveral, list(nics))
}

func list(nics []NIC) string {
	var s []string
	for i := range nics {
		s = append(s, nics[i].String())
	}
	return strings.Join(s, "; ")
}
