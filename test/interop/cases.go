package interop

import (
	"fmt"
	"slices"
	"strings"
)

// axes are the coordinates that every program is tried at.
func axes(loss []bool) (list []Case) {
	for _, mtu := range []int{1024, 4096} {
		for _, toGuest := range []bool{true, false} {
			for _, v6 := range []bool{false, true} {
				for _, lossy := range loss {
					list = append(list, Case{MTU: mtu, ToGuest: toGuest, IPv6: v6, Loss: lossy})
				}
			}
		}
	}
	return list
}

// Of what is not reliable, what is lost stays lost, and the programs wait for it for ever: these are not tried with loss.
var (
	cleanOnly = []bool{false}
	bothWays  = []bool{false, true}
)

// All are the cases of the whole matrix, those of one MTU together.
func All() []Case {
	cases := slices.Concat(pingpongCases(), perftestCases(), rpingCases(), operationCases())
	slices.SortStableFunc(cases, func(a, b Case) int { return a.MTU - b.MTU })
	return cases
}

// Covering are two cases of each program in each direction, with and without -R, with and without loss: one of each MTU
// and one of each IP version, with sizes in rotation. A sixth of the matrix, it has every pair of these but not every
// combination.
func Covering() []Case {
	type kind struct {
		family                     string
		golang, cm, lossy, toGuest bool
	}
	all := All()
	of := func(c *Case) kind { return kind{c.family, c.Go, c.CM, c.Loss, c.ToGuest} }
	turns := map[kind]int{}  // how the kinds differ from each other
	next := map[string]int{} // turn of the next kind of a family
	var chosen []Case
	for _, mtu := range []int{1024, 4096} {
		candidates := map[kind][]*Case{}
		var order []kind
		for i := range all {
			if k := of(&all[i]); all[i].MTU == mtu {
				if candidates[k] == nil {
					order = append(order, k)
				}
				candidates[k] = append(candidates[k], &all[i])
			}
		}
		for _, k := range order {
			if _, ok := turns[k]; !ok {
				turns[k] = next[k.family]
				next[k.family]++
			}
			turn := turns[k]
			v6 := (turn%2 == 0) == (mtu == 4096)
			fitting := slices.DeleteFunc(slices.Clone(candidates[k]), func(c *Case) bool { return c.IPv6 != v6 })
			if len(fitting) == 0 {
				fitting = candidates[k] // perftest -R knows IPv4 only
			}
			at := turn
			if mtu == 4096 {
				at += len(fitting) / 2
			}
			chosen = append(chosen, *fitting[at%len(fitting)])
		}
	}
	return chosen
}

// short are the cases of make test.
var short = []string{
	"rc_pingpong/65536/to_guest/1024/IPv6/clean",
	"rc_pingpong/65536/from_guest/1024/IPv6/clean",
	"go_rc_pingpong/65536/to_guest/1024/IPv4/clean",
	"go_rc_pingpong/65536/from_guest/1024/IPv4/loss",
	"go_operations/rc/to_guest/1024/IPv6/loss",
	"go_operations/rc/from_guest/1024/IPv4/loss",
	"go_operations/uc/to_guest/1024/IPv4/clean",
	"go_operations/ud/from_guest/1024/IPv6/clean",
	"read_bw/1048576/to_guest/1024/IPv4/clean",
	"send_bw/65536/from_guest/1024/IPv6/clean",
	"atomic_bw_CMP_AND_SWAP/to_guest/1024/IPv4/clean",
	"write_lat/1_R/from_guest/1024/IPv4/clean",
	"go_operations/rc/to_guest/4096/IPv4/clean",
	"read_bw/65536/from_guest/4096/IPv6/clean",
}

// Short are the cases of make test.
func Short() []Case {
	return slices.DeleteFunc(All(), func(c Case) bool { return !slices.Contains(short, c.ID) })
}

// pingpongCases are those of rdma-core's own programs, which check what they receive with -c, against themselves and Go.
func pingpongCases() (cases []Case) {
	for _, transport := range []string{"rc", "uc", "ud"} {
		sizes := []struct{ bytes, n int }{{1, 100}, {4096, 50}, {65536, 20}, {1 << 20, 5}}
		loss := cleanOnly
		switch transport {
		case "rc":
			loss = bothWays
		case "ud":
			sizes = sizes[:1]
			sizes = append(sizes, struct{ bytes, n int }{1024, 50})
		}
		for _, size := range sizes {
			for _, c := range axes(loss) {
				for _, goSide := range []bool{false, true} {
					program := fmt.Sprintf("ibv_%s_pingpong", transport)
					options := fmt.Sprintf(" -g @GID -p @PORT -c -s %d -n %d -r %d", size.bytes, size.n, size.n)
					if transport != "ud" {
						options += fmt.Sprintf(" -m %d", c.MTU)
					}
					c := c
					c.Row, c.family, c.Go, c.unreliable = fmt.Sprintf("%s -s %d", program, size.bytes), program, goSide, transport != "rc"
					c.server, c.client = program+options, program+options+" @TCP"
					c.check = exchanged(size.n)
					name := fmt.Sprintf("%s_pingpong/%d", transport, size.bytes)
					if goSide {
						name = "go_" + name
						ours := fmt.Sprintf("gopeer pingpong -t %s -a @OWN -p @PORT -m %d -s %d -n %d", transport, c.MTU, size.bytes, size.n)
						if c.ToGuest {
							c.client = ours + " -c @TCP"
						} else {
							c.server = ours
						}
					}
					cases = append(cases, c.finish(name))
				}
			}
		}
	}
	return cases
}

// perftest are the programs, and what they are run with, but for size and count.
var perftest = []struct {
	program  string
	options  []string
	reliable bool
	atomic   bool
}{
	{"ib_write_bw", []string{""}, true, false},
	{"ib_write_bw", []string{" -c UC"}, false, false},
	{"ib_write_lat", []string{""}, true, false},
	{"ib_write_lat", []string{" -c UC"}, false, false},
	{"ib_read_bw", []string{""}, true, false},
	{"ib_read_lat", []string{""}, true, false},
	{"ib_send_bw", []string{""}, true, false},
	{"ib_send_bw", []string{" -c UC", " -c UD"}, false, false},
	{"ib_send_lat", []string{""}, true, false},
	{"ib_send_lat", []string{" -c UC", " -c UD"}, false, false},
	{"ib_atomic_bw", []string{" -A FETCH_AND_ADD", " -A CMP_AND_SWAP"}, true, true},
	{"ib_atomic_lat", []string{" -A FETCH_AND_ADD", " -A CMP_AND_SWAP"}, true, true},
}

// sizesOf are the sizes and counts of a program, as options.
func sizesOf(c Case, program string, atomic, datagrams, cm bool) []string {
	mtu, loss := c.MTU, c.Loss
	switch {
	case loss && cm && !c.ToGuest && strings.Contains(program, "read"):
		// rxe waits for its timer whenever a response to its READ is lost, two seconds with rdma_cm: 1 MiB would take minutes.
		return []string{"-s 1 -n 200", "-s 65536 -n 5"}
	case atomic && loss:
		return []string{"-n 200"}
	case atomic:
		return []string{"-n 50"}
	case datagrams:
		return []string{"-s 1 -n 100", fmt.Sprintf("-s %d -n 100", mtu)}
	case loss:
		return []string{"-s 1 -n 200", "-s 1048576 -n 5"}
	}
	return []string{"-s 1 -n 100", "-s 4097 -n 20", "-s 65536 -n 10", "-s 1048576 -n 5"}
}

func perftestCases() (cases []Case) {
	for _, p := range perftest {
		loss := cleanOnly
		if p.reliable {
			loss = bothWays
		}
		for _, option := range p.options {
			for _, c := range axes(loss) {
				for _, cm := range []bool{false, true} {
					if cm && (c.IPv6 || strings.Contains(option, "UC")) {
						continue // perftest knows neither: "Address family for hostname not supported", "UC is not supported in librdmacm"
					}
					for _, size := range sizesOf(c, p.program, p.atomic, strings.Contains(option, "UD"), cm) {
						cases = append(cases, perftestCase(c, p.program+option, size, cm))
					}
				}
			}
		}
	}
	return cases
}

// perftestCase is the case of a program of perftest at the coordinates that c has.
func perftestCase(c Case, command, size string, cm bool) Case {
	bytes, _, _ := strings.Cut(strings.TrimPrefix(size, "-s "), " -n")
	name := strings.TrimPrefix(strings.ReplaceAll(command, " -c ", "_"), "ib_")
	name = strings.ReplaceAll(name, " -A ", "_")
	c.CM, c.Row, c.family, c.unreliable = cm, command, command, strings.Contains(command, "-c U")
	if strings.Contains(command, "atomic") {
		c.family, _, _ = strings.Cut(command, " ")
	}
	if strings.HasPrefix(size, "-s") {
		c.Row += " -s " + bytes
		name += "/" + bytes
	}
	command += " -F -p @PORT " + size
	if cm {
		c.Row += " -R"
		name += "_R"
		command += " -R"
	} else {
		command += fmt.Sprintf(" -x @GID -m %d", c.MTU)
	}
	if c.IPv6 {
		command += " --ipv6"
	}
	c.server, c.client = command, command+" @TCP"
	c.check = measured
	return c.finish(name)
}

func rpingCases() (cases []Case) {
	for _, size := range []int{64, 3000, 65000} {
		for _, c := range axes(bothWays) {
			options := fmt.Sprintf(" -p @PORT -C 20 -S %d -V", size)
			c.CM, c.Row, c.family = true, fmt.Sprintf("rping -S %d", size), "rping"
			c.server, c.client = "rping -s -a @OWN"+options, "rping -c -v -a @PEER"+options
			c.check = pinged(20)
			cases = append(cases, c.finish(fmt.Sprintf("rping/%d", size)))
		}
	}
	return cases
}

// operationCases have Go programs and a program of the kernel's side execute every operation in both directions, whose
// every byte both check.
func operationCases() (cases []Case) {
	for _, transport := range []string{"rc", "uc", "ud"} {
		kinds, loss := []string{"send", "send_imm", "write", "write_imm", "read"}, bothWays
		sizes := []string{"1", "8", "mtu-1", "mtu", "mtu+1", "3000", "70000", "250000"}
		var list []string
		switch transport {
		case "rc":
			list = []string{"cas", "cas_miss", "fetch_add"}
		case "uc":
			kinds, loss = kinds[:4], cleanOnly
		case "ud":
			kinds, loss, sizes = kinds[:2], cleanOnly, sizes[:4]
		}
		for _, kind := range kinds {
			for _, size := range sizes {
				list = append(list, kind+":"+size)
			}
		}
		for _, c := range axes(loss) {
			options := fmt.Sprintf(" -t %s -a @OWN -p @PORT -m %d", transport, c.MTU)
			theirs, ours := "rawqp"+options, "gopeer operations"+options
			ask := " -f both -c @PEER " + strings.Join(list, " ")
			c.Go, c.Row, c.unreliable = true, "every operation, "+strings.ToUpper(transport), transport != "rc"
			c.family = c.Row
			c.server, c.client = theirs, ours+ask
			if !c.ToGuest {
				c.server, c.client = ours, theirs+ask
			}
			c.check = verified(2 * len(list))
			cases = append(cases, c.finish("go_operations/"+transport))
		}
	}
	return cases
}
