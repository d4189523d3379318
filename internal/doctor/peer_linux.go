package doctor

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/roce"
)

const (
	protocolVersion = 1
	maxLine         = 1 << 18                // of a message over TCP
	talkTimeout     = 5 * time.Second        // for an answer over TCP
	arrivalTimeout  = 700 * time.Millisecond // for probes on their way,
	quietTime       = 250 * time.Millisecond // and after the last that came
	maxProbePacket  = 8192
)

// message is a line of JSON over the TCP connection, in either direction.
type message struct {
	Version int    `json:"version,omitempty"`
	Op      string `json:"op,omitempty"`      // hello, report, send, of the client
	Session uint64 `json:"session,omitempty"` // random, in every probe
	Port    uint16 `json:"port,omitempty"`    // UDP port
	Error   string `json:"error,omitempty"`

	Self, Other netip.Addr     // hello's answer: the server's own address, and the client's as the server sees it
	Refused     map[int]string `json:"refused,omitempty"`
	Arrivals    *arrivals      `json:"arrivals,omitempty"`
}

// talk is the TCP connection.
type talk struct {
	conn net.Conn
	in   *bufio.Scanner
}

func newTalk(c net.Conn) *talk {
	t := &talk{conn: c, in: bufio.NewScanner(c)}
	t.in.Buffer(nil, maxLine)
	return t
}

func (t *talk) say(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	t.conn.SetWriteDeadline(time.Now().Add(talkTimeout))
	_, err = t.conn.Write(append(b, '\n'))
	return err
}

func (t *talk) hear() (m message, err error) {
	t.conn.SetReadDeadline(time.Now().Add(talkTimeout))
	if !t.in.Scan() {
		if err = t.in.Err(); err == nil {
			err = io.EOF
		}
		return m, err
	}
	if err := json.Unmarshal(t.in.Bytes(), &m); err != nil {
		return m, fmt.Errorf("this is no rnic doctor: %w", err)
	}
	if m.Error != "" {
		return m, errors.New(m.Error)
	}
	return m, nil
}

func (t *talk) ask(m message) (message, error) {
	if err := t.say(m); err != nil {
		return message{}, err
	}
	return t.hear()
}

// local and remote are the addresses of the connection.
func (t *talk) local() netip.Addr  { return addrOf(t.conn.LocalAddr()) }
func (t *talk) remote() netip.Addr { return addrOf(t.conn.RemoteAddr()) }

func addrOf(a net.Addr) netip.Addr {
	tcp, _ := a.(*net.TCPAddr)
	if tcp == nil {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// PeerOptions say how a peer is examined, or served.
type PeerOptions struct {
	Port    uint16 // UDP, at both ends
	Control uint16 // TCP, at the end that listens
	Addr    string // listen at this address only; empty: all
}

// Listen answers peers until ctx is done, and says on log who came.
func Listen(ctx context.Context, o PeerOptions, log io.Writer) error {
	l, err := net.Listen("tcp", net.JoinHostPort(o.Addr, fmt.Sprint(o.Control)))
	if err != nil {
		return fmt.Errorf("doctor: listen: %w", err)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	fmt.Fprintf(log, "rnic doctor listens on %s (TCP), for probes to UDP port %d; on the other machine: rnic doctor --peer %s\n", l.Addr(), o.Port, thisHost())
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("doctor: accept: %w", err)
		}
		who := c.RemoteAddr()
		err = serve(newTalk(c), o) // one at a time: there is one UDP port
		c.Close()
		if err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintf(log, "%s: %v\n", who, err)
			continue
		}
		fmt.Fprintf(log, "%s was served\n", who)
	}
}

func thisHost() string {
	name, err := os.Hostname()
	if err != nil {
		return "HOST"
	}
	return name
}

// serve answers one peer. It sends probes to the address alone that the TCP connection comes from, and each only once.
func serve(t *talk, o PeerOptions) error {
	hello, err := t.hear()
	if err != nil {
		return err
	}
	if hello.Op != "hello" || hello.Version != protocolVersion {
		return t.say(message{Error: "the other end is a different version of rnic"})
	}
	s, err := openStation(netip.AddrPortFrom(t.local(), o.Port), hello.Session)
	if err != nil {
		t.say(message{Error: "at the peer: " + err.Error()})
		return err
	}
	defer s.close()
	if err := t.say(message{Version: protocolVersion, Self: t.local(), Other: t.remote(), Port: o.Port}); err != nil {
		return err
	}
	sent := false
	for {
		m, err := t.hear()
		if err != nil {
			return err
		}
		switch {
		case m.Op == "report":
			a := s.wait()
			err = t.say(message{Arrivals: &a})
		case m.Op == "send" && !sent:
			sent = true
			err = t.say(message{Refused: s.sendAll(netip.AddrPortFrom(t.remote(), hello.Port))})
		default:
			err = t.say(message{Error: "unexpected request"})
		}
		if err != nil {
			return err
		}
	}
}

// Peer examines the way to host, where rnic doctor --listen runs, and back.
func Peer(ctx context.Context, host string, o PeerOptions) Report {
	findings, err := examinePeer(ctx, host, o)
	if err != nil {
		findings = append(findings, peerFailure(host, o, err))
	}
	return NewReport(findings)
}

// errOneMachine: both ends would want the same address and port.
var errOneMachine = errors.New("it is this machine, under the same address")

func peerFailure(host string, o PeerOptions, err error) Finding {
	if errors.Is(err, errOneMachine) {
		return Finding{"connection", Problem, fmt.Sprintf("%s: %v", host, err), "What is examined is the way between two machines; within one there is none.",
			[]string{"rnic doctor --listen     # on the other machine, whose name or address belongs behind --peer", "rnic doctor              # for this one"}}
	}
	f := Finding{"connection", Problem, err.Error(), "The two ends talk over TCP; nothing was learnt of UDP.",
		[]string{fmt.Sprintf("rnic doctor --listen     # on %s; TCP port %d must be open, besides UDP port %d", host, o.Control, o.Port)}}
	if errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), "address already in use") {
		f.Found += "; a NIC of rnic run holds the port, most likely"
		f.Means = "Probes need the port for themselves."
		f.Fix = []string{
			fmt.Sprintf("rnic doctor --listen --port %d     # another port, at both ends", o.Port+1),
			fmt.Sprintf("rnic doctor --peer %s --port %d", host, o.Port+1)}
	}
	return f
}

func examinePeer(ctx context.Context, host string, o PeerOptions) ([]Finding, error) {
	d := net.Dialer{Timeout: talkTimeout}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(o.Control)))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	t := newTalk(c)
	if t.local() == t.remote() {
		return nil, errOneMachine
	}
	var random [8]byte
	rand.Read(random[:])
	session := binary.BigEndian.Uint64(random[:])
	s, err := openStation(netip.AddrPortFrom(t.local(), o.Port), session)
	if err != nil {
		return nil, err
	}
	defer s.close()
	hello, err := t.ask(message{Version: protocolVersion, Op: "hello", Session: session, Port: o.Port})
	if err != nil {
		return nil, err
	}
	if hello.Port != o.Port {
		return nil, fmt.Errorf("the peer looks at UDP port %d, this end at %d: give --port to both", hello.Port, o.Port)
	}
	// The way there: what is dialled is where the packets of a NIC would go.
	to := direction{name: "to the peer", sender: "here", receiver: "at the peer", claimed: s.self, dest: netip.AddrPortFrom(t.remote(), o.Port), ttl: probeTTL}
	to.refused = s.sendAll(netip.AddrPortFrom(t.remote(), o.Port))
	answer, err := t.ask(message{Op: "report"})
	if err != nil || answer.Arrivals == nil {
		return nil, fmt.Errorf("asking the peer what arrived: %w", orEOF(err))
	}
	to.arrivals = *answer.Arrivals
	to.arrivals.Seen = dedupe(to.arrivals.Seen)
	findings := to.judge()

	from := direction{name: "from the peer", sender: "at the peer", receiver: "here", claimed: netip.AddrPortFrom(hello.Self, hello.Port), dest: netip.AddrPortFrom(hello.Other, o.Port), ttl: probeTTL}
	if answer, err = t.ask(message{Op: "send"}); err != nil {
		return findings, fmt.Errorf("asking the peer to send: %w", err)
	}
	from.refused = answer.Refused
	from.arrivals = s.wait()
	from.arrivals.Seen = dedupe(from.arrivals.Seen)
	findings = append(findings, from.judge()...)
	return append(findings, connections(t, hello)...), nil
}

func orEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// connections finds address translation that the TCP connection shows, should no probe have come through.
func connections(t *talk, hello message) []Finding {
	const means = "Addresses are translated between the machines, for TCP at least: RoCEv2 cannot pass that way."
	switch {
	case hello.Other != t.local():
		return []Finding{{"connection", Problem, fmt.Sprintf("the peer sees this machine as %s, which is %s", hello.Other, t.local()), means, nil}}
	case hello.Self != t.remote():
		return []Finding{{"connection", Problem, fmt.Sprintf("%s is %s to itself", t.remote(), hello.Self), means, nil}}
	}
	return ok("connection", "%s and %s see each other under these addresses", t.local(), t.remote())
}

// station is one end's UDP socket, with what has arrived for the session.
type station struct {
	self    netip.AddrPort
	session uint64
	conn    *net.UDPConn
	raw     net.PacketConn // nil without CAP_NET_RAW, and over IPv6

	mu      sync.Mutex
	seen    []observation
	headers []header
}

func openStation(self netip.AddrPort, session uint64) (*station, error) {
	s := &station{self: self, session: session}
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(self))
	if err != nil {
		return nil, err
	}
	s.conn = conn
	if err := s.control(func(fd int) error { return configure(fd, self.Addr().Is4()) }); err != nil {
		conn.Close()
		return nil, err
	}
	if self.Addr().Is4() {
		if s.raw, err = net.ListenPacket("ip4:udp", self.Addr().String()); err != nil {
			s.raw = nil
		}
	}
	go s.receive()
	if s.raw != nil {
		go s.receiveRaw()
	}
	return s, nil
}

func (s *station) close() {
	s.conn.Close()
	if s.raw != nil {
		s.raw.Close()
	}
}

func (s *station) control(f func(fd int) error) error {
	rc, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := rc.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// configure asks for the header fields of what is received, and forbids fragments without regard to what is known of the
// way (PMTUDISC_PROBE): what is too long for the way shall get lost there.
func configure(fd int, v4 bool) error {
	options := [][3]int{
		{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE}, {unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1},
		{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1}, {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
		{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, probeTTL}, {unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
	}
	if v4 {
		options = [][3]int{
			{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}, {unix.IPPROTO_IP, unix.IP_PKTINFO, 1},
			{unix.IPPROTO_IP, unix.IP_RECVTOS, 1}, {unix.IPPROTO_IP, unix.IP_RECVTTL, 1}, {unix.IPPROTO_IP, unix.IP_TTL, probeTTL},
		}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// sendAll sends the plan and returns what the system refused.
func (s *station) sendAll(to netip.AddrPort) map[int]string {
	v4 := to.Addr().Is4()
	refused := map[int]string{}
	path := roce.Path{Src: s.self.Addr(), Dst: to.Addr(), SrcPort: s.self.Port()}
	for _, p := range plan() {
		err := s.control(func(fd int) error { return prepare(fd, v4, p) })
		if err == nil {
			_, err = s.conn.WriteToUDPAddrPort(p.marshal(path, s.session), to)
		}
		// What an earlier probe met (ECONNREFUSED) is not this one's.
		if errors.Is(err, syscall.ECONNREFUSED) {
			_, err = s.conn.WriteToUDPAddrPort(p.marshal(path, s.session), to)
		}
		if err != nil {
			refused[p.seq] = reason(err)
		}
		time.Sleep(200 * time.Microsecond) // no burst: queues on the way are not what is looked at
	}
	return refused
}

// reason is the system's word in an error of package net.
func reason(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e.Error()
	}
	return err.Error()
}

// prepare sets traffic class and checksum for one probe.
func prepare(fd int, v4 bool, p probe) error {
	without := 0
	if p.kind == kindNoChecksum {
		without = 1
	}
	if v4 {
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, int(p.tos)), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, without))
	}
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(p.tos)), unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, without))
}

// receive notes the session's probes until the socket is closed.
func (s *station) receive() {
	buf, oob := make([]byte, maxProbePacket), make([]byte, 512)
	for {
		n, k, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier probe
		}
		seq, ok := parseProbe(buf[:n], s.session)
		if !ok {
			continue
		}
		o := observation{Seq: seq, Src: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Dst: s.self.Addr(), Size: n}
		o.control(oob[:k])
		path := roce.Path{Src: o.Src.Addr(), Dst: o.Dst, SrcPort: o.Src.Port()}
		_, o.ICRC = roce.Verify(&path, buf[:n])
		s.mu.Lock()
		if len(s.seen) < 4*len(plan()) {
			s.seen = append(s.seen, o)
		}
		s.mu.Unlock()
	}
}

// control takes traffic class, time to live and destination out of control data.
func (o *observation) control(oob []byte) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range list {
		switch {
		case len(m.Data) == 0:
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TOS,
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_TCLASS:
			o.TOS = m.Data[0]
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL,
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT:
			o.TTL = m.Data[0]
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			o.Dst, _ = netip.AddrFromSlice(m.Data[8:12]) // ipi_addr, after ipi_ifindex and ipi_spec_dst
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			o.Dst, _ = netip.AddrFromSlice(m.Data[:16])
		}
	}
}

// receiveRaw notes the IPv4 headers of the session's probes.
func (s *station) receiveRaw() {
	rc, ok := s.raw.(*net.IPConn)
	if !ok {
		return
	}
	buf := make([]byte, maxProbePacket)
	sys, err := rc.SyscallConn()
	if err != nil {
		return
	}
	for {
		var n int
		var failed error
		// Read by the descriptor: package net cuts the header off.
		if err := sys.Read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), buf, 0)
			return failed != unix.EAGAIN
		}); err != nil {
			return
		}
		if failed == nil {
			s.noteHeader(buf[:n])
		}
	}
}

func (s *station) noteHeader(b []byte) {
	if len(b) < 20 {
		return
	}
	head := int(b[0]&15) * 4
	if head < 20 || len(b) < head+roce.UDPHeaderSize {
		return
	}
	seq, ok := parseProbe(b[head+roce.UDPHeaderSize:], s.session)
	// Loopback shows what is sent as well: only what comes to our port is ours.
	if !ok || binary.BigEndian.Uint16(b[head+2:]) != s.self.Port() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.headers) < 4*len(plan()) {
		s.headers = append(s.headers, header{Seq: seq, Ident: binary.BigEndian.Uint16(b[4:]), DF: b[6]&0x40 != 0})
	}
}

// wait gives probes on their way time to arrive and returns what has.
func (s *station) wait() arrivals {
	last, quiet := 0, time.Now()
	for end := time.Now().Add(arrivalTimeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		n := len(s.seen)
		s.mu.Unlock()
		if n != last {
			last, quiet = n, time.Now()
		}
		if n >= len(plan()) || n > 0 && time.Since(quiet) > quietTime {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return arrivals{Seen: s.seen, Headers: s.headers, Raw: s.raw != nil}
}
