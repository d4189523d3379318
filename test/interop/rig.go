package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Guest is the machine with the kernel's device.
type Guest interface {
	Run(ctx context.Context, script string) (string, error)
	Console() string
	SetMTU(ctx context.Context, bytes int) error
}

// Host starts programs in the network at the other end of the guest's link.
type Host interface {
	Command(ctx context.Context, args ...string) *exec.Cmd
}

// Link has the addresses of both ends, IPv4 and IPv6: here is our side, there the guest.
type Link struct {
	Here, There [2]netip.Addr
}

// Rig runs cases, one at a time.
type Rig struct {
	guest         Guest
	host          Host
	link          Link
	rnic, gopeer  string
	mtu           int                // path MTU of the link now; 0: not known
	indices       map[netip.Addr]int // in the GID tables
	port, attempt int
	captures      string
}

// NewRig makes one of a guest, the network at the other end of its link, and the binaries of this project.
func NewRig(guest Guest, host Host, link Link, rnic, gopeer string) *Rig {
	return &Rig{guest: guest, host: host, link: link, rnic: rnic, gopeer: gopeer}
}

// Capture makes our side of stock programs write what passes into DIR/case.pcapng; of tries that fail it is kept as
// DIR/ID.TRY.pcapng.
func (r *Rig) Capture(dir string) { r.captures = dir }

// timeouts are those of one try of a case. Programs that wait for what is lost wait for ever.
const (
	timeout           = 45 * time.Second
	unreliableTimeout = 30 * time.Second
)

// linkMTUs are those of the link that leave room for headers around a path MTU.
var linkMTUs = map[int]int{1024: 1500, 4096: 4200}

// tries is how often a case is run until it fails for good; what was wrong at first is in the result. Three kinds of
// failure are no device's: programs that end before the peer has its last acknowledgement make the peer fail when that
// is lost; perftest -R tells its client to connect before it listens (see early); and an emulated processor
// on a busy machine stands still for longer than the programs' timeouts, half a second in ibv_rc_pingpong.
const tries = 3

// early is what perftest's client says, and then crashes, when the server does not listen yet for its second
// connection, the one that is measured: the first one's end is the client's sign to go on, and the server's to listen.
const early = "RDMA_CM_EVENT_REJECTED; error: 8"

// earlyTries is how often a case is run that ends so.
const earlyTries = 8

// Result is what became of a case.
type Result struct {
	ID, Row, Direction, Family string
	MTU                        int
	Go, CM, Loss               bool
	Command                    string // the client's
	Pass                       bool
	Reason                     string `json:",omitempty"` // of the failure
	First                      string `json:",omitempty"` // how an earlier try failed
	Tries                      int
	Early                      int `json:",omitempty"` // tries that perftest's client came too early in
	Seconds                    float64
	Server, Client             string `json:"-"` // what they wrote
}

// Run runs one case.
func (r *Rig) Run(ctx context.Context, c *Case) (Result, error) {
	res := Result{ID: c.ID, Row: c.Row, Direction: c.Direction(), Family: c.ip(), MTU: c.MTU, Go: c.Go, CM: c.CM, Loss: c.Loss, Command: c.client}
	if err := r.prepare(ctx, c.MTU); err != nil {
		return res, err
	}
	begin := time.Now()
	for {
		err := r.try(ctx, c, &res)
		if ctx.Err() != nil {
			return res, ctx.Err()
		}
		if err != nil && c.CM && strings.Contains(res.Client, early) && res.Early < earlyTries {
			res.Early++
			continue
		}
		res.Tries++
		if err == nil {
			res.Pass, res.Reason = true, ""
			break
		}
		if res.Reason = err.Error(); res.First == "" {
			res.First = res.Reason
		}
		if r.captures != "" {
			kept := fmt.Sprintf("%s.%d.pcapng", strings.ReplaceAll(c.ID, "/", "_"), res.Tries)
			_ = os.Rename(r.captureFile(), filepath.Join(r.captures, kept)) // there is none of a Go program
		}
		if res.Tries == tries {
			break
		}
	}
	res.Seconds = time.Since(begin).Seconds()
	return res, nil
}

// prepare gives the link its MTU and finds out where the addresses stand in the tables.
func (r *Rig) prepare(ctx context.Context, mtu int) error {
	if r.mtu == mtu {
		return nil
	}
	if err := r.guest.SetMTU(ctx, linkMTUs[mtu]); err != nil {
		return fmt.Errorf("setting the link's MTU: %w", err)
	}
	r.mtu, r.indices = mtu, map[netip.Addr]int{}
	const show = `for i in 0 1 2 3 4 5; do echo $i $(cat /sys/class/infiniband/rxe0/ports/1/gids/$i); done`
	out, err := r.guest.Run(ctx, show)
	if err != nil {
		return fmt.Errorf("the guest's GID table: %w: %s", err, out)
	}
	here, err := r.host.Command(ctx, r.rnic, "run", "--", "sh", "-c", show).Output()
	if err != nil {
		return fmt.Errorf("our GID table: %w", err)
	}
	for line := range strings.Lines(out + string(here)) {
		index, gid, _ := strings.Cut(strings.TrimSpace(line), " ")
		if address, err := netip.ParseAddr(gid); err == nil {
			r.indices[address.Unmap()], _ = strconv.Atoi(index)
		}
	}
	return nil
}

// expand fills in a command of one side.
func (r *Rig) expand(c *Case, command string, inGuest bool) string {
	family := 0
	if c.IPv6 {
		family = 1
	}
	servers, own := r.link.Here, r.link.Here[family]
	if c.ToGuest {
		servers = r.link.There
	}
	if inGuest {
		own = r.link.There[family]
	}
	return strings.NewReplacer(peerAddress, servers[family].String(), peerIPv4, servers[0].String(), ownAddress, own.String(),
		gidIndex, strconv.Itoa(r.indices[own]), tcpPort, strconv.Itoa(r.port)).Replace(command)
}

// ours is a command of our side in full.
func (r *Rig) ours(c *Case, command string) []string {
	args := strings.Fields(r.expand(c, command, false))
	var faults []string
	if c.Loss {
		faults = []string{"--fault", fmt.Sprintf("send:drop=1%%,seed=%d", 2*r.attempt), "--fault", fmt.Sprintf("recv:drop=1%%,seed=%d", 2*r.attempt+1)}
	}
	if c.Go {
		return append(append([]string{r.gopeer, args[1]}, faults...), args[2:]...)
	}
	run := append([]string{r.rnic, "run"}, faults...)
	if r.captures != "" {
		run = append(run, "--capture", r.captureFile())
	}
	if c.CM && !c.ToGuest {
		// The first tells when the server listens; with the second it does so sooner on a busy machine: see early.
		run = append(run, "-v", "--no-nice")
	}
	return append(append(run, "--"), args...)
}

func (r *Rig) captureFile() string { return filepath.Join(r.captures, "case.pcapng") }

// try runs a case once.
func (r *Rig) try(ctx context.Context, c *Case, res *Result) error {
	limit := timeout
	if c.unreliable {
		limit = unreliableTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r.attempt++
	res.Server, res.Client = "", ""
	r.port = 20000 + r.attempt%10000
	if c.ToGuest {
		return r.toGuest(ctx, c, res)
	}
	return r.fromGuest(ctx, c, res)
}

// toGuest runs the server in the guest and the client here.
func (r *Rig) toGuest(ctx context.Context, c *Case, res *Result) error {
	if out, err := r.guest.Run(ctx, r.startServer(c)); err != nil {
		r.cleanGuest(c)
		return fmt.Errorf("starting the server in the guest: %w: %s", err, tail(out))
	}
	out, clientErr := r.host.Command(ctx, r.ours(c, c.client)...).CombinedOutput()
	res.Client = string(out)
	wait := awaitServer
	if clientErr != nil {
		wait = killServer(c)
	}
	var serverErr error
	res.Server, serverErr = r.guest.Run(ctx, wait)
	if clientErr != nil || serverErr != nil {
		r.cleanGuest(c)
	}
	return r.judge(ctx, c, res, serverErr, clientErr)
}

// fromGuest runs the server here and the client in the guest.
func (r *Rig) fromGuest(ctx context.Context, c *Case, res *Result) error {
	server := startProcess(r.host.Command(ctx, r.ours(c, c.server)...))
	if err := server.listening(ctx, r.port, c.CM); err != nil {
		server.stop(0)
		return fmt.Errorf("%w: %s", err, tail(server.out.String()))
	}
	var clientErr error
	res.Client, clientErr = r.guest.Run(ctx, r.expand(c, c.client, true))
	patience := 15 * time.Second
	if clientErr != nil {
		patience = 300 * time.Millisecond
		r.cleanGuest(c)
	}
	serverErr := server.stop(patience)
	res.Server = server.out.String()
	return r.judge(ctx, c, res, serverErr, clientErr)
}

// judge says what was wrong with a case, if anything.
func (r *Rig) judge(ctx context.Context, c *Case, res *Result, serverErr, clientErr error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("not ended in time; client: %s; server: %s", tail(res.Client), tail(res.Server))
	case clientErr != nil || serverErr != nil:
		return fmt.Errorf("client: %v: %s; server: %v: %s", clientErr, tail(res.Client), serverErr, tail(res.Server))
	}
	if err := c.check(res.Server, res.Client); err != nil {
		return fmt.Errorf("%w; client: %s; server: %s", err, tail(res.Client), tail(res.Server))
	}
	return nil
}

// startServer is a script that starts the server in the background and ends when it listens.
func (r *Rig) startServer(c *Case) string {
	listens := fmt.Sprintf("grep -q ':%04X 0*:0000 0A ' /proc/net/tcp /proc/net/tcp6", r.port)
	if c.CM {
		listens = "rdma resource show cm_id | grep -q LISTEN"
	}
	return fmt.Sprintf(`rm -f /tmp/status; (%s >/tmp/said 2>&1; echo $? >/tmp/status) >/dev/null 2>&1 </dev/null &
n=0; until %s; do n=$((n+1)); if [ -e /tmp/status ] || [ $n -gt 500 ]; then cat /tmp/said; exit 1; fi; usleep 20000; done`,
		r.expand(c, c.server, true), listens)
}

const awaitServer = `n=0; until [ -e /tmp/status ] || [ $n -gt 500 ]; do n=$((n+1)); usleep 30000; done; cat /tmp/said; exit $(cat /tmp/status || echo 99)`

// program is the name of the guest's program.
func program(c *Case) string {
	command := c.client
	if c.ToGuest {
		command = c.server
	}
	name, _, _ := strings.Cut(command, " ")
	return name
}

// killServer is a script that ends a server whose client failed, which may wait for ever.
func killServer(c *Case) string {
	return "usleep 300000; killall " + program(c) + " 2>/dev/null; " + awaitServer
}

// cleanGuest ends what a case has left in the guest.
func (r *Rig) cleanGuest(c *Case) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, _ = r.guest.Run(ctx, "killall -9 "+program(c)+"; true")
}

// tail is the end of what a program wrote, on one line.
func tail(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line != "" && strings.Trim(line, "-") != "" && !strings.HasPrefix(line, "rnic: [") {
			lines = append(lines, line)
		}
	}
	text := strings.Join(lines[max(0, len(lines)-4):], " / ")
	if len(text) > 400 {
		text = "..." + text[len(text)-400:]
	}
	return text
}

var errNotListening = errors.New("the server here does not listen")
