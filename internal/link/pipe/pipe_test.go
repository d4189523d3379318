package pipe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"rnic/internal/link"
	"rnic/internal/roce"
)

var path = roce.Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 50000, TOS: 2, TTL: 3}

// numbered makes packets of 64 bytes with room, numbered from first.
func numbered(first, n int) []link.Packet {
	pkts := make([]link.Packet, n)
	for i := range pkts {
		data := make([]byte, 64)
		binary.BigEndian.PutUint32(data[8:], uint32(first+i))
		pkts[i] = link.Packet{Path: path, Data: data}
	}
	return pkts
}

func number(p link.Packet) int { return int(binary.BigEndian.Uint32(p.Data[8:])) }

func mustSend(t *testing.T, l link.Link, pkts []link.Packet, want int) {
	t.Helper()
	if n, err := l.Send(pkts); n != want || err != nil {
		t.Fatalf("Send = %d, %v, want %d", n, err, want)
	}
}

func TestPairBothDirectionsInOrder(t *testing.T) {
	a, b := Pair(Config{})
	mustSend(t, a, numbered(0, 20), 20)
	mustSend(t, b, numbered(100, 5), 5)
	in := make([]link.Packet, 64)
	n, _ := b.Recv(in[:7])
	m, _ := b.Recv(in[7:])
	if n != 7 || m != 13 {
		t.Fatalf("received %d and %d, want 7 and 13", n, m)
	}
	for i, p := range in[7:20] {
		if number(p) != 7+i || p.Path != path || len(p.Data) != 60 {
			t.Errorf("packet %d: number %d, %d bytes, path %+v", 7+i, number(p), len(p.Data), p.Path)
		}
	}
	if n, _ := a.Recv(in); n != 5 || number(in[0]) != 100 {
		t.Errorf("other direction: %d packets", n)
	}
	if s := b.Stats(); s.Received != 20 || s.ReceivedBytes != 20*64 || s.Sent != 5 || s.SentBytes != 5*64 {
		t.Errorf("%+v", s)
	}
}

// The contract of link.Link: the sender may overwrite its data at once, and
// received data stays until the next Recv.
func TestDataIsCopied(t *testing.T) {
	a, b := Pair(Config{Capacity: 2})
	pkts := numbered(1, 2)
	mustSend(t, a, pkts, 2)
	clear(pkts[0].Data)
	in := make([]link.Packet, 1)
	b.Recv(in)
	first := in[0]
	for i := range 5 { // must not go where first lies
		a.Send(numbered(50+i, 1))
	}
	if number(first) != 1 {
		t.Errorf("number %d, want 1: the data changed", number(first))
	}
	b.Recv(in)
	if number(in[0]) != 2 {
		t.Errorf("number %d, want 2", number(in[0]))
	}
}

func TestLoopByReference(t *testing.T) {
	l := Loop(Config{Reference: true})
	pkts := numbered(1, 3)
	mustSend(t, l, pkts, 3)
	in := make([]link.Packet, 8)
	if n, _ := l.Recv(in); n != 3 {
		t.Fatalf("received %d, want 3", n)
	}
	if &in[1].Data[0] != &pkts[1].Data[0] || cap(in[1].Data) != 60 {
		t.Error("not the sender's own bytes, or room to write behind them")
	}
}

func TestFullPipeAcceptsLess(t *testing.T) {
	a, b := Pair(Config{Capacity: 4})
	pkts := numbered(0, 6)
	mustSend(t, a, pkts, 4)
	mustSend(t, a, pkts[4:], 0)
	in := make([]link.Packet, 8)
	b.Recv(in[:3])
	mustSend(t, a, pkts[4:], 0) // the three are still the receiver's
	b.Recv(in[:1])
	mustSend(t, a, pkts[4:], 2)
	b.Recv(in)
	if number(in[0]) != 4 || number(in[1]) != 5 {
		t.Errorf("numbers %d, %d, want 4, 5", number(in[0]), number(in[1]))
	}
}

func TestCorruptAndShortAreDroppedOnArrival(t *testing.T) {
	a, b := Pair(Config{})
	pkts := numbered(0, 4)
	pkts[1].Corrupt = 100
	pkts[2].Data = pkts[2].Data[:15]
	mustSend(t, a, pkts, 4)
	in := make([]link.Packet, 8)
	if n, _ := b.Recv(in); n != 2 || number(in[1]) != 3 {
		t.Errorf("received %d, want packets 0 and 3", n)
	}
	if s := b.Stats(); s.BadICRC != 1 || s.Malformed != 1 {
		t.Errorf("%+v, want one bad ICRC and one malformed", s)
	}
	if !bytes.Equal(pkts[1].Data, numbered(1, 1)[0].Data) {
		t.Error("the sender's data was changed")
	}
}

func TestClosed(t *testing.T) {
	l := Loop(Config{})
	l.Close()
	if _, err := l.Send(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	if _, err := l.Recv(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv: %v", err)
	}
}

func BenchmarkLoop(b *testing.B) {
	for _, reference := range []bool{false, true} {
		name := "copy"
		if reference {
			name = "reference"
		}
		b.Run(name, func(b *testing.B) {
			l := Loop(Config{Reference: reference, Capacity: 64})
			pkts := make([]link.Packet, 16)
			for i := range pkts {
				pkts[i] = link.Packet{Path: path, Data: make([]byte, 4116)}
			}
			in := make([]link.Packet, 64)
			b.SetBytes(16 * 4116)
			b.ReportAllocs()
			for b.Loop() {
				l.Send(pkts)
				l.Recv(in)
			}
		})
	}
}

func TestNoAllocation(t *testing.T) {
	l := Loop(Config{Capacity: 64})
	pkts, in := numbered(0, 16), make([]link.Packet, 64)
	round := func() { l.Send(pkts); l.Recv(in) }
	for range 8 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations in a batch", n)
	}
}
