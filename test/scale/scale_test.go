// Package scale runs many queue pairs at once between two NICs.
package scale

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"rnic/internal/device"
	"rnic/internal/testnet"
	"rnic/verbs"
)

// What each queue pair does (the size of a message is a page).
const (
	messages    = 100
	messageSize = 4096
	receives    = 4 // posted of each queue pair
)

// socketBuffer is what a Linux socket has without asking: net.core.rmem_default.
const socketBuffer = 212992

// limit is how long the run may take; it is far from that.
const limit = 120 * time.Second

// completions is how many a completion queue holds here: all receives of this many queue pairs.
const (
	perCQ       = 2000
	completions = perCQ * (receives + 1)
)

// count is how many queue pairs: few in the usual run, as many as asked for in the long one.
func count(t *testing.T) int {
	text := os.Getenv("RNIC_SCALE_QPS")
	if text == "" {
		return 500
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("RNIC_SCALE_QPS=%s is no number of queue pairs", text)
	}
	return n
}

func get[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// side is one NIC with its queue pairs.
type side struct {
	dev  *verbs.Device
	cqs  []*verbs.CQ
	qps  []*verbs.QP
	mr   *verbs.MR
	slot int // buffers of each queue pair
	wc   []verbs.WC
}

func loopback(n byte) netip.Addr { return testnet.Loopback(180, n) }

func newSide(t *testing.T, addr netip.Addr, qps, slots int) *side {
	t.Helper()
	d := get(device.New(device.Config{Addrs: []netip.Addr{addr}, SocketBuffer: socketBuffer}))
	s := &side{dev: verbs.Wrap(d), slot: slots, wc: make([]verbs.WC, 256)}
	t.Cleanup(func() { s.dev.Close() })
	if n := d.SocketBuffer(); n > socketBuffer {
		t.Fatalf("the receive socket has %d bytes, more than %d", n, socketBuffer)
	}
	ctx := s.dev.Open()
	pd := get(ctx.AllocPD())
	s.mr = get(pd.AllocMR(qps*slots*messageSize, verbs.AccessLocalWrite))
	for i := range qps {
		if i%perCQ == 0 {
			s.cqs = append(s.cqs, get(ctx.CreateCQ(completions)))
		}
		cq := s.cqs[i/perCQ]
		s.qps = append(s.qps, get(pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: receives})))
	}
	return s
}

func (s *side) buffer(q, slot int) []byte {
	at := (q*s.slot + slot) * messageSize
	return s.mr.Bytes()[at : at+messageSize]
}

func (s *side) receive(q, slot int) error {
	_, err := s.qps[q].PostRecv(&verbs.RecvWR{ID: uint64(q)<<8 | uint64(slot), SGE: s.mr.Slice((q*s.slot+slot)*messageSize, messageSize)})
	return err
}

// poll hands every completion to f.
func (s *side) poll(f func(*verbs.WC) error) (n int, err error) {
	for _, cq := range s.cqs {
		k, err := cq.Poll(s.wc)
		if err != nil {
			return n, err
		}
		for i := range s.wc[:k] {
			if err := s.wc[i].Err(); err != nil {
				return n, err
			}
			if err := f(&s.wc[i]); err != nil {
				return n, err
			}
		}
		n += k
	}
	return n, nil
}

// fill writes message n of queue pair q: every word says where it belongs.
func fill(b []byte, q, n int) {
	x := uint64(q)<<32 | uint64(n)<<16
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], (x|uint64(i))*0x9e3779b97f4a7c15)
	}
}

func verify(b []byte, q, n int) error {
	x := uint64(q)<<32 | uint64(n)<<16
	for i := 0; i < len(b); i += 8 {
		if got, want := binary.LittleEndian.Uint64(b[i:]), (x|uint64(i))*0x9e3779b97f4a7c15; got != want {
			return fmt.Errorf("message %d of queue pair %d: the word at byte %d is %#x, want %#x", n, q, i, got, want)
		}
	}
	return nil
}

// Thousands of RC queue pairs between two NICs move messages in random order through receive sockets of
// the usual size; everything arrives, once, in the order of its queue pair, with the right contents.
func TestQueuePairs(t *testing.T) {
	n := count(t)
	begin := time.Now()
	a, b := newSide(t, loopback(1), n, 1), newSide(t, loopback(2), n, receives)
	for i := range n {
		to, from := get(b.qps[i].Local(0, uint32(i*977))), get(a.qps[i].Local(0, uint32(i*331)))
		if err := a.qps[i].Connect(to, verbs.ConnectOptions{PSN: from.PSN}); err != nil {
			t.Fatal(err)
		}
		if err := b.qps[i].Connect(from, verbs.ConnectOptions{PSN: to.PSN}); err != nil {
			t.Fatal(err)
		}
		for slot := range receives {
			if err := b.receive(i, slot); err != nil {
				t.Fatal(err)
			}
		}
	}
	connected := time.Since(begin)

	rng := rand.New(rand.NewPCG(1, 2))
	sent, got := make([]int, n), make([]int, n)
	ready := rng.Perm(n) // queue pairs that may send, in random order
	post := func() error {
		k := rng.IntN(len(ready))
		q := ready[k]
		ready[k] = ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		fill(a.buffer(q, 0), q, sent[q])
		sent[q]++
		_, err := a.qps[q].PostSend(&verbs.SendWR{ID: uint64(q), Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: a.mr.Slice(q*messageSize, messageSize)})
		return err
	}
	arrived, ended := 0, 0
	sendDone := func(wc *verbs.WC) error {
		q := int(wc.ID)
		ended++
		if sent[q] < messages {
			ready = append(ready, q)
		}
		return nil
	}
	recvDone := func(wc *verbs.WC) error {
		q, slot := int(wc.ID>>8), int(wc.ID&0xff)
		if wc.ByteLen != messageSize {
			return fmt.Errorf("queue pair %d received %d bytes", q, wc.ByteLen)
		}
		if err := verify(b.buffer(q, slot), q, got[q]); err != nil {
			return err
		}
		got[q]++
		arrived++
		if got[q]+receives <= messages {
			return b.receive(q, slot)
		}
		return nil
	}
	start := time.Now()
	for arrived < n*messages || ended < n*messages {
		for k := 0; k < 64 && len(ready) > 0; k++ {
			if err := post(); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []struct {
			side *side
			f    func(*verbs.WC) error
		}{{b, recvDone}, {a, sendDone}} {
			if _, err := s.side.poll(s.f); err != nil {
				t.Fatalf("after %d of %d messages: %v", arrived, n*messages, err)
			}
		}
		if time.Since(start) > limit {
			t.Fatalf("only %d of %d messages in %v\nsender: %+v\nreceiver: %+v", arrived, n*messages, limit, a.dev.Stats(), b.dev.Stats())
		}
	}
	_, more := a.poll(func(wc *verbs.WC) error { return fmt.Errorf("one completion too many: %+v", *wc) })
	if more != nil {
		t.Error(more)
	}
	sa, sb := a.dev.Stats(), b.dev.Stats()
	net, _ := b.dev.Unwrap().LinkStats()
	t.Logf("%d queue pairs connected in %v, %d messages of %d bytes in %v; %d packets resent, %d timeouts, %d packets lost at the socket",
		n, connected.Round(time.Millisecond), arrived, messageSize, time.Since(start).Round(time.Millisecond),
		sa.RetransmittedPackets+sb.RetransmittedPackets, sa.Timeouts+sb.Timeouts, net.SocketDrops)
}
