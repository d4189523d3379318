package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/internal/roce"
)

// nicConfig is one NIC of a run, as the options describe it. What is zero was not said.
type nicConfig struct {
	Name, Interface string
	Addrs           []netip.Addr
	MTU, Units      int
	Faults          []fault.Spec
	Scenario        *scenarioFile
	Capture         string
	Seed            uint64
	DCQCN           bool
}

// deviceName is what uverbs takes (IB_DEVICE_NAME_MAX).
var deviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// check refuses what cannot work, before anything is started.
func (n *nicConfig) check() error {
	switch {
	case !deviceName.MatchString(n.Name):
		return fmt.Errorf("--name %q: letters and digits, and behind the first _, - and . too, 63 at most", n.Name)
	case n.MTU != 0 && roce.MTUCode(n.MTU) == 0:
		return fmt.Errorf("--mtu %d: 256, 512, 1024, 2048 or 4096 are possible", n.MTU)
	case n.Units < 0 || n.Units > nic.MaxUnits:
		return fmt.Errorf("--units %d: 1 to %d are possible", n.Units, nic.MaxUnits)
	case n.Interface != "" && len(n.Addrs) > 0:
		return errors.New("--interface and --addr exclude each other")
	}
	return nil
}

// parseNIC reads the value of --nic: a name, or none, then key=value, separated by commas. The n-th NIC is rxeN
// by default.
func parseNIC(spec string, n int) (nicConfig, error) {
	c := nicConfig{Name: "rxe" + strconv.Itoa(n)}
	for i, part := range strings.Split(spec, ",") {
		key, value, given := strings.Cut(part, "=")
		var err error
		switch {
		case i == 0 && !given && key != "":
			c.Name = key
		case !given || value == "":
			err = fmt.Errorf("%q is not of the form key=value", part)
		case key == "name":
			c.Name = value
		case key == "addr":
			var a netip.Addr
			if a, err = netip.ParseAddr(value); err == nil {
				c.Addrs = append(c.Addrs, a)
			}
		case key == "interface":
			c.Interface = value
		case key == "mtu":
			c.MTU, err = strconv.Atoi(value)
		case key == "units":
			c.Units, err = strconv.Atoi(value)
		case key == "seed":
			c.Seed, err = strconv.ParseUint(value, 10, 64)
		case key == "congestion" && value == "dcqcn":
			c.DCQCN = true
		case key == "congestion" && value == "window":
		case key == "capture":
			c.Capture, err = filepath.Abs(value)
		default:
			err = fmt.Errorf("%q: name, addr, interface, mtu, units, seed, congestion (window, dcqcn) and capture are possible", part)
		}
		if err != nil {
			return c, fmt.Errorf("--nic %q: %w", spec, err)
		}
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("--nic %q: %w", spec, err)
	}
	return c, nil
}

// keyAny is the key of a NIC that takes every address of the machine.
const keyAny = "any"

// key names the NIC among those of the same user and network: what it takes of the network.
func (n *nicConfig) key() string {
	switch {
	case n.Interface != "":
		return "interface=" + n.Interface
	case len(n.Addrs) == 0:
		return keyAny
	}
	addrs := slices.Clone(n.Addrs)
	slices.SortFunc(addrs, netip.Addr.Compare)
	var b strings.Builder
	for i, a := range slices.Compact(addrs) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.String())
	}
	key := "addr=" + b.String()
	if len(key) > 72 {
		key = fmt.Sprintf("addr=%s,...%x", addrs[0], sha256.Sum256([]byte(key)))[:72]
	}
	return key
}

// attachOrder is the order in which a run makes or joins its NICs, by their places: one for all runs, because a run that joins a NIC waits until the
// run that has it has all of its own. First the one that takes whichever there is, which must not be another of the run's.
func attachOrder(list []nicConfig) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := list[a].key(), list[b].key()
		switch {
		case x == y:
			return 0
		case x == keyAny:
			return -1
		case y == keyAny:
			return 1
		}
		return strings.Compare(x, y)
	})
	return order
}

// joinable tells why a run that asks for q cannot use the NIC n, which exists already.
func (n *nicConfig) joinable(q *nicConfig) error {
	says := func(option, has string) error {
		return fmt.Errorf("the NIC that runs already on these addresses was made %s: leave %s off to join it, or choose other addresses with --addr",
			has, option)
	}
	switch {
	case q.MTU != 0 && q.MTU != n.MTU:
		return says("--mtu", given(n.MTU, "with --mtu %d", "without --mtu"))
	case q.Units > 1 && q.Units != n.Units:
		return says("--units", given(n.Units, "with --units %d", "without --units"))
	case q.Seed != 0 && q.Seed != n.Seed:
		return says("--seed", "with another seed")
	case q.DCQCN && !n.DCQCN:
		return says("--congestion", "without dcqcn")
	case q.Capture != "" && q.Capture != n.Capture:
		return says("--capture", "without this capture")
	case len(q.Faults) > 0:
		return fmt.Errorf("the NIC that runs already on these addresses takes faults from its first run, or from rnic fault add: leave --fault off to join it")
	case q.Scenario != nil:
		return says("--scenario", "before, and a scenario is played for the first run that uses it")
	}
	return nil
}

func given(v int, with, without string) string {
	if v == 0 {
		return without
	}
	return fmt.Sprintf(with, v)
}
