package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"rnic/verbs"
)

// A station is a NIC with members of the group, of this process or a server's.
type station interface {
	// hears tells whether every member has had a probe.
	hears() (bool, error)
	// step does what is to do here: the caller waits for messages.
	step() error
	// counts ends the reception, and returns how many messages each member has received, and the NIC's counters.
	counts() ([]uint64, tally, error)
}

// named is a station as the results name it.
type named struct {
	station
	name    string
	own     bool
	first   uint32 // number of the queue pair that answers
	count   int    // of members
	samples []int64
	heard   time.Time // when an answer has come last
}

// here is a station of this process. For send-bw it receives in a goroutine; for send-lat its caller drives it.
type here struct {
	*members
	name string
	stop chan struct{}
	mu   sync.Mutex // guards what members has, while a goroutine receives
	done chan error
}

func newHere(m *members, name string) *here {
	h := &here{members: m, name: name, stop: make(chan struct{}), done: make(chan error, 1)}
	if !m.o.Kind.Latency {
		go func() { h.done <- h.receive(h.stop) }()
	}
	return h
}

// receive takes messages until stop is closed and nothing has come for a while.
func (h *here) receive(stop <-chan struct{}) error {
	var quiet time.Time
	for {
		h.mu.Lock()
		n, err := h.members.step()
		h.mu.Unlock()
		if err != nil {
			return err
		}
		if n > 0 {
			quiet = time.Time{}
			continue
		}
		select {
		case <-stop:
			if quiet.IsZero() {
				quiet = time.Now()
			} else if time.Since(quiet) > settleTime {
				return h.silent(h.name)
			}
		default:
		}
		pause()
	}
}

func (h *here) hears() (bool, error) {
	if err := h.step(); err != nil {
		return false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unheard == 0, nil
}

func (h *here) step() error {
	if !h.o.Kind.Latency {
		return nil
	}
	_, err := h.members.step()
	return err
}

func (h *here) counts() ([]uint64, tally, error) {
	close(h.stop)
	if h.o.Kind.Latency {
		h.done <- h.receive(h.stop)
	}
	err := <-h.done
	return h.got, tally{}, err
}

// there is a station of a server.
type there struct{ c *conn }

const wordHeard = "heard" // the client asks whether all members have had a probe

func (t there) hears() (bool, error) {
	r, err := t.c.exchange(wordHeard)
	return r.Heard, err
}

func (there) step() error { return nil }

func (t there) counts() ([]uint64, tally, error) {
	r, err := t.c.exchange(wordDone)
	return r.Members, r.tally(), err
}

// cast is the client's side of a measurement with a multicast group.
type cast struct {
	*endpoint
	group    destination
	stations []*named
	sent     uint64 // messages, without probes
	wr       verbs.SendWR
	sge      [1]verbs.SGE
	scratch  []byte
}

// newCast makes the queue pairs that send. Stations are added to it.
func newCast(o *Options, dev *verbs.Device) (*cast, error) {
	e, err := newEndpoint(o, dev, true)
	if err != nil {
		return nil, err
	}
	c := &cast{endpoint: e, group: destination{qpn: verbs.MulticastQPN}}
	if c.group.ah, err = e.pd.AHTo(verbs.GIDOf(o.Group), e.gid); err != nil {
		e.close()
		return nil, err
	}
	for i, q := range e.qps {
		if err := q.Activate(qkey); err != nil {
			e.close()
			return nil, err
		}
		e.dest = append(e.dest, c.group)
		for s := 0; o.Kind.Latency && s < o.recvSlots(); s++ {
			if err := e.postRecv(i, s); err != nil {
				e.close()
				return nil, err
			}
		}
	}
	return c, nil
}

// addHere adds count members on a NIC of this process.
func (c *cast) addHere(dev *verbs.Device, count int, own bool) error {
	if count == 0 {
		return nil
	}
	self, err := c.local()
	if err != nil {
		return err
	}
	m, err := newMembers(c.o, dev, count, self.Endpoints)
	if err != nil {
		return err
	}
	gid, _ := c.o.pickGID(dev)
	name := dev.GIDs()[0].GID.Addr().String()
	for _, g := range dev.GIDs() {
		if g.Index == gid {
			name = g.GID.Addr().String()
		}
	}
	c.stations = append(c.stations, &named{station: newHere(m, name), name: name, own: own, first: m.qps[0].Num(), count: count})
	return nil
}

// end closes everything that is of this process.
func (c *cast) end() {
	for _, s := range c.stations {
		if h, is := s.station.(*here); is {
			select {
			case <-h.stop: // counts has been called
			default:
				close(h.stop)
				if !c.o.Kind.Latency {
					<-h.done
				}
			}
			h.members.close()
		}
	}
	c.close()
}

// hearTimeout is how long the members may need until they hear the sender: switches learn memberships. A test shortens it.
var hearTimeout = 5 * time.Second

// awaitMembers sends probes until every member has had one: switches learn memberships, and neighbours have to be found.
func (c *cast) awaitMembers() error {
	begin := time.Now()
	deaf := c.stations
	for probes := 0; ; probes++ {
		if err := c.send(probe); err != nil {
			return err
		}
		for next := time.Now().Add(10 * time.Millisecond); time.Now().Before(next); {
			if err := c.step(); err != nil {
				return err
			}
			pause()
		}
		var still []*named
		for _, s := range deaf {
			ok, err := s.hears()
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if !ok {
				still = append(still, s)
			}
		}
		if deaf = still; len(deaf) == 0 {
			return nil
		}
		if time.Since(begin) > hearTimeout {
			return fmt.Errorf("not every member at %s hears what is sent to %s: does the network carry multicast between the two?", deaf[0].name, c.o.Group)
		}
	}
}

// send sends a message with immediate data to the group, and waits for its completion.
func (c *cast) send(imm uint32) error {
	b := c.source(0, 0)
	c.wr = verbs.SendWR{Opcode: verbs.OpSendImm, Flags: verbs.Signaled, Imm: imm}
	switch {
	case len(b) > 0 && len(b) <= c.o.Inline:
		c.wr.Inline = b
	case len(b) > 0:
		c.sge[0] = c.mr.SGE(c.off(0, 0), len(b))
		c.wr.SGE = c.sge[:]
	}
	if c.o.Check && c.o.Kind.Latency {
		fill(b, 0, int(imm))
	}
	c.address(&c.wr, 0)
	if _, err := c.qps[0].PostSend(&c.wr); err != nil {
		return err
	}
	for {
		n, err := c.cq.Poll(c.wc[:1])
		if n > 0 {
			err = c.wc[0].Err()
		}
		if n > 0 || err != nil {
			return err
		}
		if err := c.o.interrupted(); err != nil {
			return err
		}
	}
}

// step drives the stations of this process.
func (c *cast) step() error {
	for _, s := range c.stations {
		if err := s.step(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return c.o.interrupted()
}

// measure measures, once every member hears the sender.
func (c *cast) measure(r *Result) error {
	if err := c.awaitMembers(); err != nil {
		return err
	}
	defer c.o.Progress.start(c.o)()
	var err error
	if c.o.Kind.Latency {
		err = c.latency(r)
	} else {
		b := newBandwidth(c.endpoint, remote{}, nil)
		b.between = func() error { c.o.settle(); return nil } // the last round must find room
		err = b.measure(r)
		c.sent = uint64(b.sent)
	}
	if err != nil {
		return err
	}
	return c.collect(r)
}

// collect asks every station what has come.
func (c *cast) collect(r *Result) error {
	r.Multicast = &Multicast{Group: c.o.Group, Sent: c.sent}
	for _, s := range c.stations {
		got, t, err := s.counts()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if len(got) != s.count {
			return fmt.Errorf("%s: it counts for %d members, not %d", s.name, len(got), s.count)
		}
		r.add(t)
		for k, n := range got {
			m := Member{Receiver: s.name, Member: k, Own: s.own, Received: n, Lost: c.sent - min(c.sent, n)}
			if k == 0 {
				m.LatencyNS = summary(s.samples)
			}
			*r.LostPackets += m.Lost
			r.Multicast.Members = append(r.Multicast.Members, m)
		}
	}
	return nil
}

// roundTimeout is how long a round waits for the answers: one that has not come by then is lost.
const roundTimeout = 100 * time.Millisecond

// latency sends one message after the other, each when all stations have answered the one before. The times are half
// round trips: of each station, and of the last answer.
func (c *cast) latency(r *Result) error {
	before := c.counters()
	warm := min(1000, max(10, c.o.Iterations/10))
	var all []int64
	start := time.Now()
	for _, s := range c.stations {
		s.heard = start
	}
	for i := 0; ; i++ {
		if i == warm {
			start = time.Now()
		}
		if c.o.Duration > 0 && i > warm && time.Since(start) >= c.o.Duration || c.o.Duration == 0 && i == warm+c.o.Iterations {
			break
		}
		took, complete, err := c.round(uint32(i)%probe, i >= warm)
		if err != nil {
			return err
		}
		if i >= warm {
			c.o.Progress.add(1)
			if complete {
				all = append(all, int64(took)/2)
			}
		}
	}
	if len(all) == 0 {
		return errors.New("no message was answered by all receivers")
	}
	r.rate(len(all), time.Since(start))
	r.latency(all)
	if c.o.Histogram {
		r.Histogram = histogram(all)
	}
	r.add(c.counters().since(before))
	return nil
}

// round is one message and its answers: how long the last one took, and whether all have come.
func (c *cast) round(i uint32, count bool) (took time.Duration, complete bool, err error) {
	begin := time.Now()
	if err := c.send(i); err != nil {
		return 0, false, err
	}
	c.sent++
	for missing := len(c.stations); missing > 0; {
		if err := c.step(); err != nil {
			return 0, false, err
		}
		n, err := c.rcq.Poll(c.wc)
		if err != nil {
			return 0, false, err
		}
		now := time.Now()
		took = now.Sub(begin)
		for k := range c.wc[:n] {
			s, err := c.answered(&c.wc[k], i)
			if err != nil {
				return 0, false, err
			}
			if s == nil {
				continue
			}
			s.heard = now
			if missing--; count {
				s.samples = append(s.samples, int64(took)/2)
			}
		}
		if n == 0 && took > roundTimeout {
			return took, false, c.gone(now)
		}
		if n == 0 && took > time.Millisecond {
			pause()
		}
	}
	return took, true, nil
}

// answered takes an answer, and returns the station that it is of; nil if it is of another round, too late.
func (c *cast) answered(wc *verbs.WC, i uint32) (*named, error) {
	if err := wc.Err(); err != nil {
		return nil, err
	}
	_, slot := fromWRID(wc.ID)
	var from *named
	for _, s := range c.stations {
		if s.first == wc.SrcQP && wc.HasImm && wc.Imm == i && wc.ByteLen == c.o.Size+grhSize {
			from = s
		}
	}
	if from != nil && c.o.Check {
		if err := verify(c.target(0, slot), 1, int(i), &c.scratch); err != nil {
			return nil, fmt.Errorf("answer of %s: %w", from.name, err)
		}
	}
	return from, c.postRecv(0, slot)
}

// gone is the error if a station has not answered for long.
func (c *cast) gone(now time.Time) error {
	for _, s := range c.stations {
		if now.Sub(s.heard) > stallTimeout {
			return fmt.Errorf("%s has not answered for %v", s.name, stallTimeout)
		}
	}
	return nil
}

// loopbackCast measures between the NICs of this process.
func loopbackCast(o *Options, sdev, cdev *verbs.Device) (*Result, error) {
	c, err := newCast(o, cdev)
	if err != nil {
		return nil, err
	}
	defer c.end()
	if err := c.addHere(sdev, o.Members, false); err != nil {
		return nil, err
	}
	if err := c.addHere(cdev, o.OwnMembers, true); err != nil {
		return nil, err
	}
	r := o.result(c.endpoint)
	return r, c.measure(r)
}

// runCast measures with the members at servers, and the client's own.
func runCast(ctx context.Context, o *Options, dev *verbs.Device, p *Printer) error {
	var conns []*conn
	for _, server := range o.Servers {
		c, err := dial(ctx, o, server)
		if err != nil {
			return err
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		conns = append(conns, c)
		if near := ownAddr(c); near.Is6() == o.Group.Is6() && !o.near.IsValid() {
			o.near = near
		}
	}
	for _, size := range o.sizes(dev) {
		r, err := castOnce(o.forSize(size), dev, conns)
		if err != nil {
			return fmt.Errorf("%s, %d bytes: %w", o.Kind, size, err)
		}
		if err := p.Print(r); err != nil {
			return err
		}
	}
	for _, c := range conns {
		if err := c.enc.Encode(hello{Version: protocolVersion, Done: true}); err != nil {
			return err
		}
	}
	return nil
}

func castOnce(o *Options, dev *verbs.Device, conns []*conn) (*Result, error) {
	c, err := newCast(o, dev)
	if err != nil {
		return nil, err
	}
	defer c.end()
	self, err := c.local()
	if err != nil {
		return nil, err
	}
	h := hello{Version: protocolVersion, Operation: o.Kind.String(), Transport: o.Transport, Size: o.Size, QueuePairs: o.QueuePairs, Depth: o.Depth,
		Inline: o.Inline, Check: o.Check, Group: o.Group, Members: o.Members, Remote: self}
	for i, conn := range conns {
		r, err := conn.exchange(h)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Servers[i], err)
		}
		if len(r.Remote.Endpoints) != o.Members {
			return nil, fmt.Errorf("%s: it has %d members, not %d", o.Servers[i], len(r.Remote.Endpoints), o.Members)
		}
		c.mtu = min(c.mtu, r.Remote.MTU)
		c.stations = append(c.stations, &named{station: there{conn}, name: o.Servers[i], first: r.Remote.Endpoints[0].QPN, count: o.Members})
	}
	if err := c.fitsMTU(); err != nil {
		return nil, err
	}
	if err := c.addHere(dev, o.OwnMembers, true); err != nil {
		return nil, err
	}
	r := o.result(c.endpoint)
	return r, c.measure(r)
}

// serveCast is the server's side: o has been adopted from h.
func serveCast(o *Options, dev *verbs.Device, c *conn, h *hello) error {
	if len(h.Remote.Endpoints) != o.QueuePairs {
		return fmt.Errorf("the client names %d queue pairs, and has %d", len(h.Remote.Endpoints), o.QueuePairs)
	}
	m, err := newMembers(o, dev, o.Members, h.Remote.Endpoints)
	if err != nil {
		return err
	}
	defer m.close()
	before := countersOf(dev)
	r := reply{Remote: remote{MTU: dev.MTU()}}
	gid, err := o.pickGID(dev)
	if err != nil {
		return err
	}
	for _, q := range m.qps {
		ep, err := q.Local(gid, 0)
		if err != nil {
			return err
		}
		r.Remote.Endpoints = append(r.Remote.Endpoints, ep)
	}
	if err := c.enc.Encode(r); err != nil {
		return err
	}
	st := &here{members: m, name: "this server", stop: make(chan struct{}), done: make(chan error, 1)}
	var failed atomic.Bool
	go func() {
		err := st.receive(st.stop)
		failed.Store(err != nil)
		st.done <- err
	}()
	err = st.converse(c, &failed)
	close(st.stop)
	if err := cmp.Or(err, <-st.done); err != nil {
		return err
	}
	n := countersOf(dev).since(before)
	return c.enc.Encode(reply{Resent: n.resent, Timeouts: n.timeouts, Errors: n.errs, Lost: n.lost, Members: m.got})
}

// converse answers the client until it has sent everything, or the reception has failed.
func (h *here) converse(c *conn, failed *atomic.Bool) error {
	for {
		var word string
		if err := c.decode(&word); err != nil {
			return fmt.Errorf("the client is gone: %w", err)
		}
		switch {
		case failed.Load() || word == wordDone:
			return nil
		case word != wordHeard:
			return fmt.Errorf("the client says %q", word)
		}
		h.mu.Lock()
		heard := h.unheard == 0
		h.mu.Unlock()
		if err := c.enc.Encode(reply{Heard: heard}); err != nil {
			return err
		}
	}
}

// dial connects to a server.
func dial(ctx context.Context, o *Options, server string) (*conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	raw, err := d.DialContext(ctx, "tcp", net.JoinHostPort(server, strconv.Itoa(o.TCPPort)))
	if err != nil {
		return nil, fmt.Errorf("connecting to the server: %w: is `rnic perf %s` running there?", err, o.Kind)
	}
	return newConn(raw), nil
}

// print writes a line for each member below the row of the result.
func (m *Multicast) print(w io.Writer) {
	if m == nil {
		return
	}
	fmt.Fprintf(w, "  %d messages to %s\n", m.Sent, m.Group)
	for _, k := range m.Members {
		var b strings.Builder
		fmt.Fprintf(&b, "  member %d of %s", k.Member, k.Receiver)
		if k.Own {
			b.WriteString(" (the sender's NIC)")
		}
		fmt.Fprintf(&b, ": %d received, %d lost (%.3f%%)", k.Received, k.Lost, 100*float64(k.Lost)/float64(max(1, m.Sent)))
		if l := k.LatencyNS; l != nil {
			fmt.Fprintf(&b, ", answers p50 %.2f us, p99 %.2f us", float64(l.P50)/1000, float64(l.P99)/1000)
		}
		fmt.Fprintln(w, b.String())
	}
}
