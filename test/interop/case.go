// Package interop holds the NIC against the kernel's Soft-RoCE in a virtual machine: stock programs under rnic run, and
// Go programs, on one side, the same stock programs on the kernel's device on the other.
package interop

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Case is one server and one client, on either side of the link.
type Case struct {
	ID      string
	Row     string // of the table: what is done
	Go      bool   // our side is a Go program on package verbs
	ToGuest bool   // the server is in the guest
	MTU     int    // path MTU, bytes
	IPv6    bool
	CM      bool // connected through the communication managers, not through an exchange of the programs' own
	Loss    bool // our NIC drops 1 % of what it sends and of what it receives

	family     string // of cases that differ in what Covering rotates only
	unreliable bool   // what is lost stays lost, and the programs wait for it

	server, client string // commands; see expand
	check          func(server, client string) error
}

// What commands contain in place of values that are known when the case runs.
const (
	peerAddress = "@PEER" // the server's address, for the client
	peerIPv4    = "@TCP"  // the server's IPv4 address, for exchanges whose servers know no other
	ownAddress  = "@OWN"  // one's own
	gidIndex    = "@GID"  // index of one's own address in the GID table
	tcpPort     = "@PORT"
)

// Direction says where the server is.
func (c *Case) Direction() string {
	if c.ToGuest {
		return "server in the guest"
	}
	return "client in the guest"
}

// ip is "IPv4" or "IPv6".
func (c *Case) ip() string {
	if c.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// finish fills in what follows from the rest.
func (c Case) finish(name string) Case {
	where := "from_guest"
	if c.ToGuest {
		where = "to_guest"
	}
	loss := "clean"
	if c.Loss {
		loss = "loss"
	}
	c.ID = strings.Join([]string{name, where, strconv.Itoa(c.MTU), c.ip(), loss}, "/")
	return c
}

// perftestRow is a row of perftest's table: size, iterations, and figures.
var perftestRow = regexp.MustCompile(`(?m)^ *(\d+) +(\d+) +(-?[\d.]+|nan|inf) +(-?[\d.]+|nan|inf)`)

// perftestComplaint is in what perftest writes where it goes on, or ends with status 0, in spite of an error.
var perftestComplaint = regexp.MustCompile(`Completion with error|Failed status \d+|[Cc]ouldn't|unsupported|not supported`)

// measured checks that perftest has its row of figures.
func measured(server, client string) error {
	if bad := perftestComplaint.FindString(server + client); bad != "" {
		return fmt.Errorf("it says %q", bad)
	}
	if got := len(perftestRow.FindAllString(client, -1)); got != 1 {
		return fmt.Errorf("%d rows of figures, not 1", got)
	}
	return nil
}

var pingpongEnd = regexp.MustCompile(`(?m)^(\d+) iters in`)

// exchanged checks that ibv_*_pingpong has done its iterations on both sides and found no wrong byte.
func exchanged(iterations int) func(server, client string) error {
	return func(server, client string) error {
		for _, out := range []string{server, client} {
			m := pingpongEnd.FindStringSubmatch(out)
			if m == nil || m[1] != strconv.Itoa(iterations) {
				return fmt.Errorf("it has not done %d iterations", iterations)
			}
			if strings.Contains(out, "invalid data") {
				return fmt.Errorf("it got wrong data")
			}
		}
		return nil
	}
}

// pinged checks that rping's client has seen each ping come back, with option -v.
func pinged(pings int) func(server, client string) error {
	return func(_, client string) error {
		if got := strings.Count(client, "ping data: "); got != pings {
			return fmt.Errorf("%d pings came back, not %d", got, pings)
		}
		return nil
	}
}

// verified checks that rawqp and its Go counterpart have found each operation right, on both sides.
func verified(operations int) func(server, client string) error {
	return func(server, client string) error {
		for _, out := range []string{server, client} {
			if got := strings.Count(out, ": ok\n"); got != operations {
				return fmt.Errorf("%d operations are right, not %d", got, operations)
			}
		}
		return nil
	}
}
