// Command cmpeer is the Go side of connections with librdmacm's programs: it speaks what rping, rdma_client and
// rdma_server, and ucmatose say to each other, on package cm.
//
//	cmpeer -own 127.0.0.2 rping                      as rping -s
//	cmpeer -own 127.0.0.2 rping 127.0.0.1            as rping -c -V -a 127.0.0.1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"rnic/cm"
	"rnic/verbs"
)

var (
	own    = flag.String("own", "127.0.0.1", "own `address` of the NIC")
	count  = flag.Int("C", 10, "messages, or of ucmatose connections")
	size   = flag.Int("S", 64, "bytes of a message of rping")
	reject = flag.Bool("reject", false, "refuse the request, with the reason in words")
)

// protocol is what a pair of programs says to each other.
type protocol struct {
	port           uint16
	server, client func(*peer) error
}

var protocols = map[string]protocol{
	"rping":    {7174, rpingServer, rpingClient},
	"rdma":     {7471, rdmaServer, rdmaClient},
	"ucmatose": {7471, ucmatoseServer, ucmatoseClient},
}

func main() {
	flag.Parse()
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "cmpeer:", err)
		os.Exit(1)
	}
	fmt.Println("cmpeer: done")
}

func run(args []string) error {
	if len(args) < 1 || len(args) > 2 || protocols[args[0]].server == nil {
		return errors.New("usage: cmpeer [options] rping|rdma|ucmatose [address of the server]")
	}
	p := protocols[args[0]]
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	e, err := open(ctx)
	if err != nil {
		return err
	}
	defer e.close()
	if len(args) == 2 {
		to, err := netip.ParseAddr(args[1])
		if err != nil {
			return err
		}
		e.server = netip.AddrPortFrom(to, p.port)
		return p.client(e)
	}
	if e.listener, err = e.mgr.Listen(netip.AddrPortFrom(e.addr, p.port), cm.ListenConfig{}); err != nil {
		return err
	}
	fmt.Println("cmpeer: in state LISTEN")
	if *reject {
		r, err := e.listener.Accept(ctx)
		if err != nil {
			return err
		}
		return r.Reject(0, []byte("not today"))
	}
	return p.server(e)
}

// peer is a NIC with its connection manager.
type peer struct {
	ctx      context.Context
	addr     netip.Addr
	dev      *verbs.Device
	mgr      *cm.Manager
	vc       *verbs.Context
	pd       *verbs.PD
	server   netip.AddrPort
	listener *cm.Listener
}

func open(ctx context.Context) (*peer, error) {
	addr, err := netip.ParseAddr(*own)
	if err != nil {
		return nil, err
	}
	p := &peer{ctx: ctx, addr: addr}
	if p.dev, err = verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{addr}}); err != nil {
		return nil, err
	}
	if p.mgr, err = cm.New(p.dev); err != nil {
		return nil, err
	}
	p.vc = p.dev.Open()
	p.pd, err = p.vc.AllocPD()
	return p, err
}

func (p *peer) close() {
	p.mgr.Close()
	p.dev.Close()
}

// link is one connection, with its queue and memory: the first half of it receives messages, of length bytes each.
type link struct {
	p      *peer
	conn   *cm.Conn
	cq     *verbs.CQ
	mr     *verbs.MR
	length int
	half   int
	got    int // receives that have completed while something else was waited for
}

// prepare makes what a connection needs, with receives posted.
func (p *peer) prepare(length, receives int) (*link, cm.Config, error) {
	l := &link{p: p, length: length, half: length * receives}
	var err error
	if l.cq, err = p.vc.CreateCQ(2*receives + 16); err != nil {
		return nil, cm.Config{}, err
	}
	if l.mr, err = p.pd.AllocMR(2*l.half, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite); err != nil {
		return nil, cm.Config{}, err
	}
	return l, cm.Config{PD: p.pd, QP: verbs.QPConfig{SendCQ: l.cq, RecvCQ: l.cq, MaxSend: receives + 8, MaxRecv: receives}, Prepare: func(qp *verbs.QP) error {
		for i := range receives {
			if err := l.receive(qp, i); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

const receiveID = 1 << 32 // of work requests: a receive

func (l *link) receive(qp *verbs.QP, slot int) error {
	_, err := qp.PostRecv(&verbs.RecvWR{ID: receiveID | uint64(slot), SGE: l.mr.Slice(slot*l.length, l.length)})
	return err
}

func (p *peer) dial(length, receives int) (*link, error) {
	l, cfg, err := p.prepare(length, receives)
	if err != nil {
		return nil, err
	}
	cfg.Source = netip.AddrPortFrom(p.addr, 0)
	l.conn, err = p.mgr.Dial(p.ctx, p.server, cfg)
	return l, err
}

func (p *peer) accept(length, receives int) (*link, error) {
	r, err := p.listener.Accept(p.ctx)
	if err != nil {
		return nil, err
	}
	l, cfg, err := p.prepare(length, receives)
	if err != nil {
		return nil, err
	}
	l.conn, err = r.Accept(p.ctx, cfg)
	return l, err
}

// wait takes one completion of a send, or else of a receive: those of the other kind are kept.
func (l *link) wait(receive bool) error {
	if receive && l.got > 0 {
		l.got--
		return nil
	}
	for {
		var wc [1]verbs.WC
		if _, err := l.cq.Next(l.p.ctx, wc[:]); err != nil {
			return err
		}
		switch w := wc[0]; {
		case w.Status != verbs.StatusSuccess:
			return fmt.Errorf("work request %#x: %v", w.ID, w.Status)
		case w.ID&receiveID != 0 == receive:
			return nil
		case receive:
		default:
			l.got++
		}
	}
}

// do posts a request and waits until it is done.
func (l *link) do(wr *verbs.SendWR) error {
	wr.Flags |= verbs.Signaled
	if _, err := l.conn.QP().PostSend(wr); err != nil {
		return err
	}
	return l.wait(false)
}

// send sends the second half's first message.
func (l *link) send() error {
	return l.do(&verbs.SendWR{Opcode: verbs.OpSend, SGE: l.mr.Slice(l.half, l.length)})
}

// finish waits for the peer's end of the connection.
func (l *link) finish() error {
	select {
	case <-l.conn.Done():
		return l.conn.Close()
	case <-l.p.ctx.Done():
		return l.p.ctx.Err()
	}
}
