package wire

import (
	"fmt"
	"path/filepath"
	"testing"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/test/rig"
	"rnic/verbs"
)

const patience = rig.Patience

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
	s := must(fault.Parse(text))
	return &s
}

// open makes NIC n, with a capture to file unless that is empty.
func open(t *testing.T, n byte, file string, change func(*device.Config)) *verbs.Device {
	t.Helper()
	return rig.NIC(t, func(cfg *device.Config) {
		cfg.Name, cfg.Capture, cfg.Seed = fmt.Sprintf("rnic%d", n), file, uint64(n)
		if change != nil {
			change(cfg)
		}
	})
}

// side is a program: a queue pair, its completion queue and one region.
type side struct{ *rig.Program }

func newSide(t *testing.T, d *verbs.Device, cfg verbs.QPConfig) *side {
	t.Helper()
	cfg.SignalAll = true
	return &side{rig.New(t, d, 1<<20, rig.Everything, cfg)}
}

// connect connects two sides; each has options of its own.
func connect(a, b *side, ao, bo verbs.ConnectOptions) {
	rig.Connect(a.Program, b.Program, 1000, 2000, ao, bo)
}

// do posts a request and waits for its completion.
func (s *side) do(t *testing.T, wr verbs.SendWR) verbs.WC {
	t.Helper()
	s.Post(&wr)
	return s.Next()
}

// ok is do for what must succeed.
func (s *side) ok(t *testing.T, wr verbs.SendWR) {
	t.Helper()
	if wc := s.do(t, wr); wc.Err() != nil {
		t.Fatalf("opcode %d: %v", wr.Opcode, wc.Err())
	}
}

func (s *side) receive(t *testing.T, n int) {
	t.Helper()
	for range n {
		s.Receive(0, 512<<10, 64<<10)
	}
}

// to aims a request at the peer's region.
func (s *side) to(peer *side, op verbs.Opcode, n int) verbs.SendWR {
	return verbs.SendWR{Opcode: op, SGE: s.MR.Slice(0, n), RemoteAddr: peer.MR.Addr(0), RKey: peer.MR.RKey()}
}

func captureFile(t *testing.T, name string) string { return filepath.Join(t.TempDir(), name+".pcapng") }
