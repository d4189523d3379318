package wire

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/verbs"
)

// patience is how long the tests wait for what comes in milliseconds, on a machine that is busy.
const patience = 60 * time.Second

// address is a loopback address that only this process uses: the NICs of others listen on the same port.
func address(n byte) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 132 + byte(pid>>16&31), byte(pid >> 8), byte(pid)&^3 | n&3})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// spec parses faults.
func spec(text string) *fault.Spec {
	if text == "" {
		return nil
	}
	s := must(fault.Parse(text))
	return &s
}

// open makes a NIC at an address, with a capture to file unless that is empty.
func open(t *testing.T, n byte, file string, change func(*device.Config)) *verbs.Device {
	t.Helper()
	cfg := device.Config{Name: fmt.Sprintf("rnic%d", n), Addrs: []netip.Addr{address(n)}, Capture: file, Seed: uint64(n), Limits: nic.DefaultLimits()}
	if change != nil {
		change(&cfg)
	}
	d, err := device.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return verbs.Wrap(d)
}

// side is a program: a queue pair, its completion queue and one region.
type side struct {
	ctx *verbs.Context
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

const everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind | verbs.AccessFlushGlobal

func newSide(d *verbs.Device, cfg verbs.QPConfig) *side {
	s := &side{ctx: d.Open()}
	s.pd = must(s.ctx.AllocPD())
	s.cq = must(s.ctx.CreateCQ(1024))
	s.mr = must(s.pd.AllocMR(1<<20, everything))
	cfg.SendCQ, cfg.RecvCQ = s.cq, s.cq
	cfg.SignalAll = true
	s.qp = must(s.pd.CreateQP(cfg))
	return s
}

// connect connects two sides; each has options of its own.
func connect(a, b *side, ao, bo verbs.ConnectOptions) {
	ea, eb := must(a.qp.Local(0, 1000)), must(b.qp.Local(0, 2000))
	ao.PSN, bo.PSN = ea.PSN, eb.PSN
	check(b.qp.Connect(ea, bo))
	check(a.qp.Connect(eb, ao))
}

// do posts a request and waits for its completion.
func (s *side) do(t *testing.T, wr verbs.SendWR) verbs.WC {
	t.Helper()
	if _, err := s.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	return s.next(t)
}

// ok is do for what must succeed.
func (s *side) ok(t *testing.T, wr verbs.SendWR) {
	t.Helper()
	if wc := s.do(t, wr); wc.Err() != nil {
		t.Fatalf("opcode %d: %v", wr.Opcode, wc.Err())
	}
}

func (s *side) next(t *testing.T) verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := s.cq.Next(ctx, wc[:]); err != nil {
		t.Fatal(err)
	}
	return wc[0]
}

func (s *side) receive(t *testing.T, n int) {
	t.Helper()
	for range n {
		if _, err := s.qp.PostRecv(&verbs.RecvWR{SGE: s.mr.Slice(512<<10, 64<<10)}); err != nil {
			t.Fatal(err)
		}
	}
}

// to aims a request at the peer's region.
func (s *side) to(peer *side, op verbs.Opcode, n int) verbs.SendWR {
	return verbs.SendWR{Opcode: op, SGE: s.mr.Slice(0, n), RemoteAddr: peer.mr.Addr(0), RKey: peer.mr.RKey()}
}

func captureFile(t *testing.T, name string) string { return filepath.Join(t.TempDir(), name+".pcapng") }
