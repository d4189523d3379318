package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"rnic/internal/device"
	"rnic/internal/netdev"
	"rnic/verbs"
)

// Run runs `rnic perf` with the options, which have been validated.
func Run(ctx context.Context, options *Options, p *Printer) error {
	o := new(*options)
	o.ctx = ctx
	err := run(ctx, o, p)
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

func run(ctx context.Context, o *Options, p *Printer) error {
	switch {
	case o.Process:
		return runProcess(ctx, o, p)
	case o.Loopback:
		return runLoopback(o, p)
	case len(o.Servers) == 0:
		return serve(ctx, o, p)
	}
	return runClient(ctx, o, p)
}

// sizes are the message sizes to measure, one after the other.
func (o *Options) sizes(dev *verbs.Device) []int {
	if !o.AllSizes {
		return []int{o.Size}
	}
	var s []int
	largest := 8 << 20
	if o.datagrams() {
		largest = dev.MTU()
		if o.MTU != 0 {
			largest = min(largest, o.MTU)
		}
	}
	for n := 2; n <= largest; n *= 2 {
		s = append(s, n)
	}
	return s
}

// forSize is o for one size: fewer iterations of big messages.
func (o *Options) forSize(size int) *Options {
	c := *o
	c.Size = size
	if o.AllSizes && o.Duration == 0 {
		c.Iterations = min(o.Iterations, max(50, (1<<30)/size))
	}
	return &c
}

func open(o *Options, addrs []netip.Addr, side int) (*verbs.Device, error) {
	cfg, err := o.deviceConfig(addrs, side)
	if err != nil {
		return nil, err
	}
	d, err := device.New(cfg)
	if errors.Is(err, netdev.ErrNoInterface) || errors.Is(err, netdev.ErrNoAddress) {
		return nil, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if err != nil {
		return nil, err
	}
	if o.Opened != nil {
		o.Opened(d)
	}
	return verbs.Wrap(d), nil
}

func (o *Options) result(e *endpoint) *Result {
	r := &Result{Operation: o.Kind.String(), SizeBytes: o.Size, QueuePairs: o.QueuePairs, Transport: o.Transport, MTUBytes: e.mtu,
		Bidirectional: o.Both, SRQ: o.SRQ}
	if o.qpTypeIsRC() {
		r.Resend, _ = e.resend() // looked at when it was connected
	}
	if !o.reliable() {
		r.LostPackets = new(uint64)
	}
	return r
}

// loopbackAddrs are the addresses of two NICs in one process.
func (o *Options) loopbackAddrs() (server, client netip.Addr, err error) {
	if len(o.Addrs) >= 2 {
		return o.Addrs[0], o.Addrs[1], nil
	}
	if !o.IPv6 {
		return netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), nil
	}
	server = netip.MustParseAddr("::1")
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		n, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if n = n.Unmap(); ok && n.Is6() && n != server && !n.IsLinkLocalUnicast() {
			return server, n, nil
		}
	}
	return server, client, fmt.Errorf("--loopback with IPv6 needs two addresses for its two NICs, and there is only ::1: "+
		"add one (ip addr add fd00::1/128 dev lo) or name two with --addr: %w", ErrUsage)
}

// runLoopback measures between two NICs of this process, over UDP on loopback.
func runLoopback(o *Options, p *Printer) (err error) {
	a, b, err := o.loopbackAddrs()
	if err != nil {
		return err
	}
	sdev, err := open(o, []netip.Addr{a}, 0)
	if err != nil {
		return err
	}
	defer closeDevice(sdev, &err)
	defer o.report(sdev)
	cdev, err := open(o, []netip.Addr{b}, 1)
	if err != nil {
		return err
	}
	defer closeDevice(cdev, &err)
	defer o.report(cdev)
	for _, size := range o.sizes(cdev) {
		r, err := loopbackOnce(o.forSize(size), sdev, cdev)
		if err != nil {
			return fmt.Errorf("%s, %d bytes: %w", o.Kind, size, err)
		}
		if err := p.Print(r); err != nil {
			return err
		}
	}
	return nil
}

func loopbackOnce(o *Options, sdev, cdev *verbs.Device) (*Result, error) {
	if o.multicast() {
		return loopbackCast(o, sdev, cdev)
	}
	s, c, err := pair(o, sdev, cdev)
	if err != nil {
		return nil, err
	}
	defer s.close()
	defer c.close()
	server, err := s.local()
	if err != nil {
		return nil, err
	}
	r := o.result(c)
	client, err := c.local()
	if err != nil {
		return nil, err
	}
	before := s.counters()
	defer o.Progress.start(o)()
	if o.Kind.Latency {
		var other *player
		if o.Kind.Verb == "write" || o.Kind.Verb == "send" {
			other = newPlayer(s, client)
		} else {
			s.prepare()
		}
		p := newPlayer(c, server)
		if o.Stages {
			p.stages = new(stages)
			other.stages = p.stages
			defer p.stages.record(c, s)()
		}
		if err := p.latency(r, other); err != nil {
			return nil, err
		}
	} else {
		if err := loopbackBandwidth(o, s, c, server, client, r); err != nil {
			return nil, err
		}
	}
	r.add(s.counters().since(before))
	return r, nil
}

// pair makes and connects the two endpoints.
func pair(o *Options, sdev, cdev *verbs.Device) (s, c *endpoint, err error) {
	if s, err = newEndpoint(o, sdev, false); err != nil {
		return nil, nil, err
	}
	if c, err = newEndpoint(o, cdev, true); err != nil {
		s.close()
		return nil, nil, err
	}
	server, err1 := s.local()
	client, err2 := c.local()
	err = errors.Join(err1, err2)
	if err == nil {
		err = s.connect(client)
	}
	if err == nil {
		err = c.connect(server)
	}
	if err != nil {
		s.close()
		c.close()
		return nil, nil, err
	}
	return s, c, nil
}

// prepare fills the server's buffers with what READs must find.
func (e *endpoint) prepare() {
	if e.o.Kind.Verb != "read" {
		return
	}
	for q := range e.o.QueuePairs {
		for s := range e.o.slots() {
			fill(e.target(q, s), q, s)
		}
	}
}

// protocolVersion is that of the messages between client and server.
const protocolVersion = 4

// hello is the client's first message of each measurement; the server adopts its options.
type hello struct {
	Version    int    `json:"version"`
	Operation  string `json:"operation"`
	Transport  string `json:"transport"`
	Size       int    `json:"size"`
	QueuePairs int    `json:"queue_pairs"`
	Depth      int    `json:"depth"`
	Inline     int    `json:"inline"`
	Check      bool   `json:"check"`
	SRQ        bool   `json:"srq"`
	CM         bool   `json:"cm,omitempty"`
	IPv6       bool   `json:"ipv6,omitempty"` // of the client's own address
	Both       *both  `json:"both,omitempty"` // the server sends too
	Remote     remote `json:"remote"`
	Done       bool   `json:"done"` // no further measurement

	Group   netip.Addr `json:"group,omitzero"`    // the server's queue pairs are members of it
	Members int        `json:"members,omitempty"` // so many
}

// reply is the server's answer: its side, and at the end its counters.
type reply struct {
	Error    string        `json:"error,omitempty"`
	Remote   remote        `json:"remote"`
	Resent   uint64        `json:"resent"`
	Timeouts uint64        `json:"timeouts"`
	Errors   uint64        `json:"errors"`
	Lost     uint64        `json:"lost"`
	Received uint64        `json:"received"` // messages, of receives
	Sent     uint64        `json:"sent"`     // messages, with --bidirectional
	Timed    int           `json:"timed"`    // of these, those of the timed part
	Took     time.Duration `json:"took"`     // of that, nanoseconds
	Heard    bool          `json:"heard"`    // every member of the group has had a probe
	Members  []uint64      `json:"members"`  // messages that each has received
}

// runClient measures against a server.
func runClient(ctx context.Context, o *Options, p *Printer) (err error) {
	dev, err := open(o, o.Addrs, 1)
	if err != nil {
		return err
	}
	defer closeDevice(dev, &err)
	defer o.report(dev)
	if o.multicast() {
		return runCast(ctx, o, dev, p)
	}
	c, err := dial(ctx, o, o.Servers[0])
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	o.near = ownAddr(c)
	o.followConnection(dev)
	for _, size := range o.sizes(dev) {
		r, err := clientOnce(o.forSize(size), dev, c)
		if err != nil {
			return fmt.Errorf("%s, %d bytes: %w", o.Kind, size, err)
		}
		if err := p.Print(r); err != nil {
			return err
		}
	}
	return c.enc.Encode(hello{Version: protocolVersion, Done: true})
}

func clientOnce(o *Options, dev *verbs.Device, c *conn) (*Result, error) {
	e, err := newEndpoint(o, dev, true)
	if err != nil {
		return nil, err
	}
	defer e.close()
	own, err := e.local()
	if err != nil {
		return nil, err
	}
	addr, err := e.ownAddress()
	if err != nil {
		return nil, err
	}
	h := hello{Version: protocolVersion, Operation: o.Kind.String(), Transport: o.Transport, Size: o.Size, QueuePairs: o.QueuePairs, Depth: o.Depth,
		Inline: o.Inline, Check: o.Check, SRQ: o.SRQ, CM: o.CM, IPv6: addr.Is6(), Remote: own}
	if o.Both {
		h.Both = &both{o.Iterations, o.Duration, o.Rate, o.PostList}
	}
	server, err := c.exchange(h)
	if err != nil {
		return nil, err
	}
	defer c.endIfTold(o)()
	if o.CM {
		m, err := e.manage()
		if err != nil {
			return nil, err
		}
		defer m.close()
		err = m.dial(server.Remote.Listens)
		if err != nil {
			return nil, c.reason(err)
		}
	} else if err := e.connect(server.Remote); err != nil {
		return nil, err
	}
	r := o.result(e)
	defer o.Progress.start(o)()
	if o.Kind.Latency {
		if err := newPlayer(e, server.Remote).latency(r, nil); err != nil {
			return nil, c.reason(err)
		}
		end, err := c.exchange(wordDone)
		r.add(end.tally())
		return r, err
	}
	return r, clientBandwidth(e, server.Remote, c, r)
}

// ownAddr is the own address of a connection.
func ownAddr(c net.Conn) netip.Addr {
	if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// followConnection chooses the client's family, where none is asked for: that of the connection to the server, if the
// NIC has its address too, else that of which the NIC has addresses.
func (o *Options) followConnection(dev *verbs.Device) {
	if o.IPv4 || o.IPv6 {
		return
	}
	o.IPv6 = true
	for _, g := range dev.GIDs() {
		if g.GID.Addr() == o.near {
			o.IPv6 = o.near.Is6()
			return
		}
		if g.GID.Addr().Is4() {
			o.IPv6 = false
		}
	}
}

// serve serves one client and ends.
func serve(ctx context.Context, o *Options, p *Printer) (err error) {
	dev, err := open(o, o.Addrs, 0)
	if err != nil {
		return err
	}
	defer closeDevice(dev, &err)
	defer o.report(dev)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(o.TCPPort)))
	if err != nil {
		return fmt.Errorf("waiting for the client: %w", err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	if !p.JSON {
		fmt.Fprintf(p.W, "waiting for a client on TCP port %d\n", o.TCPPort)
	}
	raw, err := l.Accept()
	if err != nil {
		return fmt.Errorf("waiting for the client: %w", err)
	}
	c := newConn(raw)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	o.near = ownAddr(raw)
	for {
		var h hello
		if err := c.decode(&h); err != nil {
			return fmt.Errorf("the client is gone: %w", err)
		}
		if h.Done {
			return nil
		}
		if err := serveOnce(o, dev, c, &h); err != nil {
			_ = c.enc.Encode(reply{Error: err.Error()})
			return err
		}
	}
}

func serveOnce(o *Options, dev *verbs.Device, c *conn, h *hello) error {
	if h.Version != protocolVersion {
		return fmt.Errorf("the client speaks version %d of the protocol, this server %d: use the same rnic", h.Version, protocolVersion)
	}
	kind, err := ParseKind(h.Operation)
	if err != nil {
		return err
	}
	if kind != o.Kind {
		return fmt.Errorf("the client measures %s, this server was started for %s", kind, o.Kind)
	}
	own := *o
	own.Transport = h.Transport
	own.Size, own.QueuePairs, own.Depth, own.Inline, own.Check, own.SRQ = h.Size, h.QueuePairs, h.Depth, h.Inline, h.Check, h.SRQ
	own.CM = h.CM
	own.AllSizes, own.Histogram, own.Stages, own.Progress = false, false, false, nil // the client's affair
	own.Both, own.Rate = h.Both != nil, Rate{}
	if o.multicast() && h.Group != o.Group {
		return fmt.Errorf("the client sends to %v, this server was started for the group %v", h.Group, o.Group)
	}
	own.Group, own.Members, own.OwnMembers = h.Group, h.Members, 0
	if h.Both != nil {
		own.Iterations, own.Duration, own.Rate, own.PostList = h.Both.Iterations, h.Both.Duration, h.Both.Rate, h.Both.PostList
	}
	if err := own.Validate(); err != nil {
		return err
	}
	switch {
	case o.IPv4 || o.IPv6:
	case len(h.Remote.Endpoints) > 0:
		own.IPv6 = !h.Remote.Endpoints[0].GID.Addr().Is4()
	default: // the connection manager has not made them yet
		own.IPv6 = h.IPv6
	}
	if own.multicast() {
		return serveCast(&own, dev, c, h)
	}
	e, err := newEndpoint(&own, dev, false)
	if err != nil {
		return err
	}
	defer e.close()
	e.prepare()
	r := reply{}
	if r.Remote, err = e.local(); err != nil {
		return err
	}
	var m *managed
	if own.CM {
		if m, err = e.manage(); err != nil {
			return err
		}
		defer m.close()
		r.Remote.Listens, err = m.listen()
	} else {
		err = e.connect(h.Remote)
	}
	if err != nil {
		return err
	}
	before := e.counters()
	if err := c.enc.Encode(r); err != nil {
		return err
	}
	if own.CM {
		if err := c.whileThere(o.ctx, m.accept); err != nil {
			return err
		}
	}
	end, err := e.serveData(h.Remote, c)
	if err != nil {
		return err
	}
	n := e.counters().since(before)
	end.Resent, end.Timeouts, end.Errors, end.Lost = n.resent, n.timeouts, n.errs, n.lost
	return c.enc.Encode(end)
}

// serveData plays the server's part until the client says that it is done.
func (e *endpoint) serveData(client remote, c *conn) (end reply, err error) {
	if e.o.Both {
		if err := c.await(wordGo); err != nil {
			return end, err
		}
	}
	var done atomic.Bool
	timed, stop, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		if e.o.Both {
			err = c.await(wordTimed)
			if err == nil {
				close(timed)
			}
		}
		if err == nil {
			err = c.await(wordDone)
		}
		done.Store(true)
		close(stop)
		ended <- err
	}()
	switch {
	case !e.o.Kind.Latency:
		end, err = serveBandwidth(e, client, c, timed, stop)
	case e.o.Kind.Verb == "write" || e.o.Kind.Verb == "send":
		p := newPlayer(e, client)
		for i := 0; err == nil; i++ {
			err = p.answer(i, done.Load)
		}
		if errors.Is(err, errStopped) {
			err = nil
		}
	}
	if err != nil {
		select {
		case gone := <-ended: // then that is the reason
			return end, cmp.Or(gone, err)
		default:
			return end, err
		}
	}
	return end, <-ended
}

// closeDevice closes a NIC. What its capture could not write is an error of the command, if there is no other.
func closeDevice(d *verbs.Device, err *error) {
	if e := d.Close(); e != nil {
		*err = cmp.Or(*err, fmt.Errorf("closing the NIC: %w", e))
	}
}
