package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// pingpongPort is where pingpong programs, and those of perftest, listen.
const pingpongPort = 18515

// pair makes a case of a program that is server without an address and client with it.
func pair(id string, l layout, command string) testCase {
	args := strings.Fields(command)
	return testCase{id: id, layout: l, server: args, client: append(args[:len(args):len(args)], serverAddress), port: pingpongPort}
}

// named turns options into words of an id.
func named(options string) string {
	if options == "" {
		return "default"
	}
	return strings.Join(strings.Fields(options), "_")
}

// pingpong checks what the pingpong programs say at their end, and that none found wrong data.
func pingpong(iterations int) func(*outcome) error {
	return all(shows(`(?m)^\d+ bytes in [\d.]+ seconds = `, fmt.Sprintf(`(?m)^%d iters in `, iterations)), func(o *outcome) error {
		if strings.Contains(o.all(), "invalid data") {
			return errors.New("the data that arrived were wrong")
		}
		return nil
	})
}

// GID indexes of a NIC with all addresses of the tests' namespace: IPv4 and IPv6 of the veth interface, IPv4 and
// IPv6 of loopback; and of one with the veth interface alone.
const gidIndexes, vethIndexes = 4, 2

func ibverbsCases() []testCase {
	cases := []testCase{
		{id: "ibverbs/devices", server: []string{"ibv_devices"}, check: shows(`rxe0\s+[0-9a-f]{16}`), short: true},
		{id: "ibverbs/devices_name", server: []string{"ibv_devices"}, run: []string{"--name", "rxe_second"}, check: shows(`rxe_second\s+[0-9a-f]{16}`)},
	}
	for _, d := range []struct{ options, says string }{
		{"", `PORT_ACTIVE`}, {"-v", `GID\[ +\d+\]:.*RoCE v2`}, {"-d rxe0", `hca_id:\s+rxe0`}, {"-l", `1 HCA found:\n\s+rxe0`},
		{"-i 1", `port:\s+1\n`}, {"-d rxe0 -i 1 -v", `max_qp_wr:\s+[1-9]`},
	} {
		cases = append(cases, testCase{id: "ibverbs/devinfo/" + named(d.options), server: strings.Fields("ibv_devinfo " + d.options), check: shows(d.says), short: d.options == "-v"})
	}
	// There are no second port and no other device.
	cases = append(cases, testCase{id: "ibverbs/devinfo/-i_2", server: strings.Fields("ibv_devinfo -i 2"), check: refuses("Invalid port requested for device")},
		testCase{id: "ibverbs/devinfo/-d_nosuch", server: strings.Fields("ibv_devinfo -d nosuch"), check: refuses("IB device 'nosuch' wasn't found")})
	cases = append(cases, pingpongCases()...)
	cases = append(cases, pingpongLimits()...)
	cases = append(cases, asyncwatchCases()...)
	return cases
}

func pingpongCases() (cases []testCase) {
	add := func(l layout, program, options string) *testCase {
		iterations, command := 100, program+" -g 1 "+options
		if strings.Contains(options, "-g ") {
			command = program + " " + options
		}
		if !strings.Contains(options, "-n ") {
			command += " -n 100"
		} else if _, err := fmt.Sscanf(options[strings.Index(options, "-n "):], "-n %d", &iterations); err != nil {
			panic(err)
		}
		where := ""
		switch l {
		case twoNICs:
			where = "two_NICs/"
		case joined:
			where = "joined/"
		}
		c := pair("ibverbs/"+strings.TrimPrefix(program, "ibv_")+"/"+where+named(options), l, command)
		c.check = pingpong(iterations)
		cases = append(cases, c)
		return &cases[len(cases)-1]
	}
	common := []string{"", "-e", "-c", "-s 1", "-s 2047", "-n 5000", "-r 100", "-l 3", "-d rxe0 -i 1", "-e -c", "-p 18515"}
	long := []string{"-s 4097", "-s 65537", "-s 1048579 -r 10 -n 20", "-s 8388608 -r 4 -n 5"}
	mtus := []string{"-m 256", "-m 512", "-m 1024", "-m 2048", "-m 4096", "-m 256 -s 65537 -c", "-m 4096 -s 65537 -c"}
	rare := "-r 1 -n 20"
	for _, p := range []struct {
		program string
		options [][]string
	}{
		{"ibv_rc_pingpong", [][]string{common, long, mtus, {rare, "-N", "-N -e", "-N -c -s 65537"}}},
		{"ibv_uc_pingpong", [][]string{common, long, mtus, {rare}}},
		{"ibv_ud_pingpong", [][]string{common, {rare}}},
		{"ibv_srq_pingpong", [][]string{common, {"-s 4097", "-s 65537", "-s 1048579 -q 1 -r 10 -n 20", "-s 8388608 -q 1 -r 4 -n 5"}, mtus, {"-q 1", "-q 4", "-q 16 -e", "-q 64 -r 200", "-q 1 " + rare}}},
	} {
		for _, option := range slices.Concat(p.options...) {
			c := add(oneNIC, p.program, option)
			c.short = option == "-e -c" || option == "-m 256 -s 65537 -c"
		}
		for index := range gidIndexes {
			add(oneNIC, p.program, fmt.Sprintf("-g %d", index))
			if index < vethIndexes {
				add(twoNICs, p.program, fmt.Sprintf("-g %d", index))
			}
		}
		add(twoNICs, p.program, "-e -c -s 2000").short = true
		add(joined, p.program, "-c").short = true
		add(joined, p.program, "-e")
	}
	return cases
}

// pingpongLimits are options that the provider or every Soft-RoCE device lacks.
func pingpongLimits() (cases []testCase) {
	for _, l := range []struct{ command, says, reason string }{
		{"ibv_xsrq_pingpong -g 1", `Failed to Open XRC Domain|XRC`, "the rxe provider of rdma-core has no XRC domains"},
		{"ibv_rc_pingpong -g 1 -j", `[Dd]evice memory|\bDM\b|dm`, "the rxe provider of rdma-core has no device memory"},
		{"ibv_rc_pingpong -g 1 -t", `timestamp`, "the rxe provider reports no completion_timestamp_mask"},
		{"ibv_rc_pingpong -g 1 -o", `ODP|on demand`, "the rxe provider of this release has no on-demand paging"},
		{"ibv_rc_pingpong -g 1 -O", `ODP|on demand`, "the rxe provider of this release has no on-demand paging"},
		{"ibv_rc_pingpong -g 1 -o -P", `ODP|on demand`, "the rxe provider of this release has no on-demand paging"},
		{"ibv_srq_pingpong -g 1 -o", `ODP|on demand`, "the rxe provider of this release has no on-demand paging"},
	} {
		program, options, _ := strings.Cut(l.command, " -g 1")
		c := pair("ibverbs/"+strings.TrimPrefix(program, "ibv_")+"/"+named(options)+"_limit", oneNIC, l.command)
		c.limit = &limit{says: l.says, reason: l.reason, kernel: true}
		cases = append(cases, c)
	}
	return cases
}

// asyncwatchCases take the NIC's only interface down and up while the program watches.
func asyncwatchCases() []testCase {
	flap := "sleep 1; ip link set " + vethHere + " down; sleep 1; ip link set " + vethHere + " up"
	watch := []string{"stdbuf", "-oL", "ibv_asyncwatch"}
	cases := []testCase{
		{id: "ibverbs/asyncwatch/port_down_and_up", server: watch, until: "PORT_ACTIVE"},
		{id: "ibverbs/asyncwatch/-d_rxe0", server: append(watch[:3:3], "-d", "rxe0"), until: "PORT_ACTIVE"},
	}
	for i := range cases {
		cases[i].run, cases[i].meanwhile = []string{"--interface", vethHere}, flap
		cases[i].check = func(o *outcome) error {
			for _, event := range []string{"IBV_EVENT_PORT_ERR ", "IBV_EVENT_PORT_ACTIVE "} {
				if !strings.Contains(o.Client.Out, event) {
					return fmt.Errorf("no event %q: %s", event, tail(o.Client.Out))
				}
			}
			return nil
		}
	}
	return cases
}
