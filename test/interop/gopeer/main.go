// Command gopeer is a Go program on package verbs that speaks the exchanges of programs which run on other devices:
//
//	gopeer pingpong [options]                  ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong
//	gopeer operations [options] [OPERATION...] rawqp: the client has the operations
//
// The server is that without -c. Exit status 0 only when everything was right.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/verbs"
)

// options are those of both exchanges.
type options struct {
	transport, address, peer, from string
	port, mtu, size, iterations    int
	faults                         []string
	operations                     []string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gopeer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("which exchange: pingpong or operations")
	}
	var o options
	f := flag.NewFlagSet("gopeer", flag.ContinueOnError)
	f.StringVar(&o.transport, "t", "rc", "rc, uc or ud")
	f.StringVar(&o.address, "a", "", "own `address`")
	f.StringVar(&o.peer, "c", "", "`address` of the server")
	f.StringVar(&o.from, "f", "client", "who executes the operations: client, server or both")
	f.IntVar(&o.port, "p", 18515, "TCP port of the exchange")
	f.IntVar(&o.mtu, "m", 1024, "path MTU in bytes")
	f.IntVar(&o.size, "s", 4096, "size of a message in bytes")
	f.IntVar(&o.iterations, "n", 1000, "messages each way")
	f.Func("fault", "`SPEC` of faults; repeatable", func(s string) error { o.faults = append(o.faults, s); return nil })
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	o.operations = f.Args()
	e, err := newEnd(&o)
	if err != nil {
		return err
	}
	defer e.dev.Close()
	switch args[0] {
	case "pingpong":
		return e.pingpong(&o)
	case "operations":
		return e.rawqp(&o)
	}
	return fmt.Errorf("unknown exchange %q", args[0])
}

// Sizes of memory.
const (
	area = 256 << 10 // rawqp's: bytes each of what goes out and what comes in
	grh  = 40        // in front of what a UD queue pair receives (InfiniBand vol. 1, 11.4.1.2)
)

// end is a NIC with one queue pair and one region.
type end struct {
	dev   *verbs.Device
	index int // of the own address
	own   verbs.Endpoint
	pd    *verbs.PD
	mr    *verbs.MR
	send  *verbs.CQ
	recv  *verbs.CQ
	qp    *verbs.QP
	typ   verbs.QPType

	peer   verbs.Endpoint
	ah     *verbs.AH // UD
	qkey   uint32
	tcp    net.Conn
	reader *bufio.Reader
	theirs struct { // the peer's memory
		key  uint32
		addr uint64
	}
}

// patience is how long one completion or one line of the peer may take.
const patience = 30 * time.Second

func newEnd(o *options) (*end, error) {
	address, err := netip.ParseAddr(o.address)
	if err != nil {
		return nil, fmt.Errorf("-a: %w", err)
	}
	types := map[string]verbs.QPType{"rc": verbs.RC, "uc": verbs.UC, "ud": verbs.UD}
	e := &end{typ: types[o.transport]}
	if e.typ == 0 {
		return nil, fmt.Errorf("-t %s: rc, uc or ud", o.transport)
	}
	cfg := device.Config{Name: "gopeer", Addrs: []netip.Addr{address}}
	if cfg.Faults, err = fault.ParseRules(o.faults); err != nil {
		return nil, err
	}
	nic, err := device.New(cfg)
	if err != nil {
		return nil, err
	}
	e.dev = verbs.Wrap(nic)
	ctx := e.dev.Open()
	if e.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if e.mr, err = e.pd.AllocMR(max(2*area, 2*(o.size+grh)), access); err != nil {
		return nil, err
	}
	if e.send, err = ctx.CreateCQ(1024); err != nil {
		return nil, err
	}
	if e.recv, err = ctx.CreateCQ(1024); err != nil {
		return nil, err
	}
	if e.qp, err = e.pd.CreateQP(verbs.QPConfig{Type: e.typ, SendCQ: e.send, RecvCQ: e.recv, MaxRecv: 512}); err != nil {
		return nil, err
	}
	want := verbs.GID(address.As16())
	for _, g := range e.dev.GIDs() {
		if g.GID == want {
			e.index = g.Index
		}
	}
	// Close to the end of the sequence numbers, so that they wrap.
	e.own, err = e.qp.Local(e.index, 0xffffff-uint32(time.Now().UnixNano()%16))
	return e, err
}

// connect makes the queue pair ready to talk to the peer.
func (e *end) connect(mtu, rdAtomic int, qkey uint32) (err error) {
	if e.typ == verbs.UD {
		e.qkey = qkey
		if err := e.qp.Activate(qkey); err != nil {
			return err
		}
		e.ah, err = e.pd.AHTo(e.peer.GID, e.index)
		return err
	}
	return e.qp.Connect(e.peer, verbs.ConnectOptions{GIDIndex: e.index, PSN: e.own.PSN, MTU: mtu, RDAtomic: rdAtomic,
		Timeout: 16, RetryCount: 7, RNRRetry: 7})
}

// meet makes the TCP connection of the exchange, from which both sides go on.
func (e *end) meet(o *options) error {
	if o.peer == "" {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(o.port))
		if err != nil {
			return err
		}
		defer l.Close()
		if e.tcp, err = l.Accept(); err != nil {
			return err
		}
	} else {
		var err error
		if e.tcp, err = net.DialTimeout("tcp", net.JoinHostPort(o.peer, strconv.Itoa(o.port)), patience); err != nil {
			return err
		}
	}
	e.reader = bufio.NewReader(e.tcp)
	return nil
}

// next waits for a completion of a queue and checks that it is a success.
func next(cq *verbs.CQ, what string) (verbs.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := cq.Next(ctx, wc[:]); err != nil {
		return wc[0], fmt.Errorf("no completion of the %s in %v: %w", what, patience, err)
	}
	return wc[0], wc[0].Err()
}

// to completes a work request with what a datagram needs.
func (e *end) to(wr *verbs.SendWR) *verbs.SendWR {
	wr.Flags |= verbs.Signaled
	if e.typ == verbs.UD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah, e.peer.QPN, e.qkey
	}
	return wr
}

// header is how many bytes stand before what is received.
func (e *end) header() int {
	if e.typ == verbs.UD {
		return grh
	}
	return 0
}

// gidText is a GID as the pingpong programs write it: 32 hexadecimal digits.
func gidText(g verbs.GID) string { return fmt.Sprintf("%x", g[:]) }

func parseGID(text string) (g verbs.GID, err error) {
	if len(text) != 32 {
		return g, fmt.Errorf("GID %q: not 32 digits", text)
	}
	for i := range 4 {
		word, err := strconv.ParseUint(text[8*i:8*i+8], 16, 32)
		if err != nil {
			return g, fmt.Errorf("GID %q: %w", text, err)
		}
		binary.BigEndian.PutUint32(g[4*i:], uint32(word))
	}
	return g, nil
}

// line reads a line of the peer.
func (e *end) line() (string, error) {
	e.tcp.SetReadDeadline(time.Now().Add(patience))
	text, err := e.reader.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the other side is gone: %w", err)
	}
	return strings.TrimSuffix(text, "\n"), nil
}

func (e *end) tell(format string, args ...any) error {
	_, err := fmt.Fprintf(e.tcp, format+"\n", args...)
	return err
}
