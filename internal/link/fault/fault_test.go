package fault

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"rnic/internal/fault"
	"rnic/internal/link"
	"rnic/internal/link/pipe"
	"rnic/internal/roce"
)

var path = roce.Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: roce.Port}

// numbered makes n packets back to back in one arena, numbered from first.
func numbered(first, n int) []link.Packet {
	const size = 64
	arena := make([]byte, n*size)
	pkts := make([]link.Packet, n)
	for i := range pkts {
		data := arena[i*size : (i+1)*size]
		roce.BTH(data).Encode(&roce.BTHFields{Opcode: roce.RCSendOnly, PKey: 0xffff})
		binary.BigEndian.PutUint32(data[20:], uint32(first+i))
		pkts[i] = link.Packet{Path: path, Data: data}
	}
	return pkts
}

func number(p link.Packet) int { return int(binary.BigEndian.Uint32(p.Data[20:])) }

func spec(t testing.TB, text string) fault.Spec {
	t.Helper()
	s, err := fault.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// drain receives all there is, a few at a time, and checks that what was
// handed out by one Recv stays until the next.
func drain(t *testing.T, l link.Link) []int {
	t.Helper()
	var got []int
	in := make([]link.Packet, 5)
	for {
		n, err := l.Recv(in)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return got
		}
		for _, p := range in[:n] {
			if len(p.Data) != 60 {
				t.Fatalf("packet of %d bytes, want 60", len(p.Data))
			}
			got = append(got, number(p))
		}
	}
}

func send(t *testing.T, l link.Link, pkts []link.Packet) {
	t.Helper()
	if n, err := l.Send(pkts); n != len(pkts) || err != nil {
		t.Fatalf("Send = %d, %v, want %d", n, err, len(pkts))
	}
}

// side is one way to put faults between two ends.
type side struct {
	name string
	make func(cfg pipe.Config, s fault.Spec) (from, to link.Link, decorated *Link)
}

var sides = []side{
	{"send", func(cfg pipe.Config, s fault.Spec) (link.Link, link.Link, *Link) {
		a, b := pipe.Pair(cfg)
		l := New(a, Config{Send: s})
		return l, b, l
	}},
	{"receive", func(cfg pipe.Config, s fault.Spec) (link.Link, link.Link, *Link) {
		a, b := pipe.Pair(cfg)
		l := New(b, Config{Recv: s})
		return a, l, l
	}},
}

func bothSides(t *testing.T, run func(t *testing.T, s side)) {
	for _, s := range sides {
		t.Run(s.name, func(t *testing.T) { run(t, s) })
	}
}

func TestDropExactly(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, l := s.make(pipe.Config{}, spec(t, "nth=3,nth=5"))
		send(t, from, numbered(1, 8))
		if got := drain(t, to); !slices.Equal(got, []int{1, 2, 4, 6, 7, 8}) {
			t.Errorf("received %v", got)
		}
		out, in := l.Injected()
		if out.Dropped+in.Dropped != 2 {
			t.Errorf("counted %v dropped, want 2", out.Dropped+in.Dropped)
		}
	})
}

func TestDuplicate(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, _ := s.make(pipe.Config{}, spec(t, "dup=100%"))
		send(t, from, numbered(1, 7))
		want := []int{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}
		if got := drain(t, to); !slices.Equal(got, want) {
			t.Errorf("received %v, want %v", got, want)
		}
	})
}

func TestCorruptIsDroppedByTheReceiver(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, _ := s.make(pipe.Config{}, spec(t, "corrupt=30%,seed=3"))
		send(t, from, numbered(1, 200))
		got := drain(t, to)
		bad := to.Stats().BadICRC
		if bad == 0 || uint64(len(got))+bad != 200 {
			t.Errorf("%d received, %d with a bad ICRC, want 200 together", len(got), bad)
		}
	})
}

func TestReorder(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, l := s.make(pipe.Config{}, spec(t, "reorder=20%,seed=5"))
		send(t, from, numbered(0, 300))
		got := drain(t, to)
		l.SetNow(holdNanos) // those that nothing has overtaken any more
		send(t, from, nil)
		got = append(got, drain(t, to)...)
		if slices.IsSorted(got) {
			t.Error("nothing was reordered")
		}
		for i, n := range got {
			if d := i - n; d > 12 || d < -12 {
				t.Errorf("packet %d arrived at place %d: further away than reordering may bring it", n, i)
			}
		}
		complete(t, got, 300)
	})
}

// complete checks that each of 0..n-1 is there once.
func complete(t *testing.T, got []int, n int) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(got))
	for i := range max(n, len(sorted)) {
		if i >= len(sorted) || i >= n || sorted[i] != i {
			t.Fatalf("%d packets arrived, want each of %d once; %v", len(got), n, got)
		}
	}
}

// The last packet of a burst, held back, passes when its time is up, and
// NextDelayed says when that is.
func TestHeldPacketWithNoSuccessor(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, l := s.make(pipe.Config{}, spec(t, "reorder=100%"))
		l.SetNow(1000)
		send(t, from, numbered(7, 1))
		if got := drain(t, to); len(got) != 0 {
			t.Fatalf("received %v at once", got)
		}
		at := l.NextDelayed()
		if at != 1000+holdNanos {
			t.Fatalf("NextDelayed = %d", at)
		}
		l.SetNow(at)
		send(t, from, nil)
		if got := drain(t, to); !slices.Equal(got, []int{7}) || l.NextDelayed() != 0 {
			t.Errorf("received %v, next at %d", got, l.NextDelayed())
		}
	})
}

func TestDelay(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, l := s.make(pipe.Config{}, spec(t, "delay=50%:1ms-3ms,seed=2"))
		l.SetNow(5)
		send(t, from, numbered(0, 100))
		got := drain(t, to)
		if len(got) < 20 || len(got) > 80 || !slices.IsSorted(got) {
			t.Fatalf("%d packets passed at once, want about half, in order", len(got))
		}
		last := int64(5)
		for l.NextDelayed() != 0 {
			at := l.NextDelayed()
			if at <= last-1 || at < 1_000_005 || at > 3_000_005 {
				t.Fatalf("NextDelayed = %d after %d", at, last)
			}
			last = at
			l.SetNow(at - 1)
			send(t, from, nil)
			if early := drain(t, to); len(early) != 0 {
				t.Fatalf("%v came early", early)
			}
			l.SetNow(at)
			send(t, from, nil)
			due := drain(t, to)
			if len(due) == 0 {
				t.Fatal("nothing came when it was due")
			}
			got = append(got, due...)
		}
		complete(t, got, 100)
	})
}

// recorder counts the batches that reach the inner link.
type recorder struct {
	link.Link
	batches []int
}

func (r *recorder) Send(pkts []link.Packet) (int, error) {
	r.batches = append(r.batches, len(pkts))
	return r.Link.Send(pkts)
}

func TestBatchWithHolesIsOneSend(t *testing.T) {
	a, _ := pipe.Pair(pipe.Config{})
	r := &recorder{Link: a}
	l := New(r, Config{Send: spec(t, "nth=3,nth=9")})
	send(t, l, numbered(0, 16))
	if !slices.Equal(r.batches, []int{14}) {
		t.Errorf("batches of %v, want one of 14", r.batches)
	}
}

// A full link below: no packet is lost or decided about twice, order stays.
func TestInnerLinkFull(t *testing.T) {
	from, to, l := sides[0].make(pipe.Config{Capacity: 4}, spec(t, "nth=2,nth=15"))
	pkts := numbered(1, 20)
	var got []int
	for done, rounds := 0, 0; done < len(pkts) || l.NextDelayed() != 0; rounds++ {
		if rounds > 100 {
			t.Fatalf("no progress: %d sent, %v received", done, got)
		}
		n, err := from.Send(pkts[done:])
		if err != nil {
			t.Fatal(err)
		}
		done += n
		got = append(got, drain(t, to)...)
	}
	want := []int{1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20}
	if !slices.Equal(got, want) {
		t.Errorf("received %v, want %v", got, want)
	}
	out, _ := l.Injected()
	if out.Seen != 20 {
		t.Errorf("%d decisions for 20 packets", out.Seen)
	}
}

// Same seed, packets and times: the same packets at the same times.
func TestDeterminism(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		run := func(seed int) string {
			from, to, l := s.make(pipe.Config{}, spec(t, fmt.Sprintf("drop=10%%,dup=10%%,reorder=10%%,corrupt=5%%,delay=20%%:10us-90us,seed=%d", seed)))
			var log []byte
			for step := range int64(60) {
				l.SetNow(step * 7000)
				send(t, from, numbered(int(step)*10, 10))
				log = fmt.Appendf(log, "%v ", drain(t, to))
			}
			return string(log)
		}
		first, again := run(1), run(1)
		if first != again {
			t.Error("two runs with one seed differ")
		}
		if first == run(2) {
			t.Error("two seeds give the same run")
		}
	})
}

// With everything but loss, everything arrives, and nothing that was not sent.
func TestNothingIsLostOrInvented(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, l := s.make(pipe.Config{}, spec(t, "dup=20%,reorder=20%,delay=20%:1us-50us,seed=9"))
		var got []int
		for step := range 100 {
			l.SetNow(int64(step) * 3000)
			send(t, from, numbered(step*10, 10))
			got = append(got, drain(t, to)...)
		}
		l.SetNow(1 << 40)
		for range 3 { // held packets may have a delay still to come
			send(t, from, nil)
			got = append(got, drain(t, to)...)
			l.SetNow(l.now + 1<<40)
		}
		out, in := l.Injected()
		if want := 1000 + int(out.Duplicated+in.Duplicated); len(got) != want {
			t.Errorf("%d packets arrived, want %d", len(got), want)
		}
		complete(t, slices.Compact(slices.Sorted(slices.Values(got))), 1000)
	})
}

func TestInactiveSpecPassesThrough(t *testing.T) {
	a, b := pipe.Pair(pipe.Config{})
	r := &recorder{Link: a}
	l := New(r, Config{})
	send(t, l, numbered(0, 10))
	if got := drain(t, b); len(got) != 10 || len(r.batches) != 1 || l.NextDelayed() != 0 {
		t.Errorf("%d packets in %d batches", len(got), len(r.batches))
	}
}

// broken is a link whose next Send panics.
type broken struct {
	link.Link
	now bool
}

func (b *broken) Send(pkts []link.Packet) (int, error) {
	if b.now {
		b.now = false
		panic("a bug")
	}
	return b.Link.Send(pkts)
}

// A panic below ends a Send: what that was to hand on is lost and counted, not sent with what comes later; what was delayed
// comes when it is due, and no buffer is lost.
func TestPanicBelow(t *testing.T) {
	for _, faultsEnd := range []bool{false, true} {
		a, b := pipe.Pair(pipe.Config{})
		inner := &broken{Link: a}
		set := fault.NewSet()
		id, err := set.Add(1, spec(t, "dup=100%,delay=50%:1ms-1ms,seed=3"))
		if err != nil {
			t.Fatal(err)
		}
		l := New(inner, Config{Set: set})
		l.SetNow(1)
		send(t, l, numbered(0, 8)) // of each one is sent, and its other delayed or sent too
		first := drain(t, b)
		inner.now = true
		func() {
			defer func() { _ = recover() }()
			_, _ = l.Send(numbered(100, 8))
		}()
		if faultsEnd {
			if err := set.Clear(1, id); err != nil {
				t.Fatal(err)
			}
		}
		l.SetNow(2)
		send(t, l, numbered(200, 2))
		l.SetNow(3_000_000)
		send(t, l, nil)
		got := append(first, drain(t, b)...)
		count := map[int]int{}
		for _, n := range got {
			count[n]++
		}
		late, once := 0, 2
		if faultsEnd {
			once = 1
		}
		for n := range 8 {
			if count[n] != 2 {
				t.Errorf("faults end %v: packet %d comes %d times", faultsEnd, n, count[n])
			}
			if count[100+n] > 1 {
				t.Errorf("faults end %v: packet %d, which was lost, comes %d times", faultsEnd, 100+n, count[100+n])
			}
			late += count[100+n]
		}
		if lost := int(l.Stats().SendErrors); lost+late != 16 || count[200] != once || count[201] != once {
			t.Errorf("faults end %v: %d of 16 packets are lost, %d come late; then %v", faultsEnd, lost, late, count)
		}
		if len(l.copies) != 0 || !l.out.empty() {
			t.Errorf("faults end %v: buffers are kept", faultsEnd)
		}
	}
}

// What waits is bounded: a delay that is too long for the rate loses packets.
func TestWaitingIsBounded(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, _ := s.make(pipe.Config{}, spec(t, "delay=100%:1s-1s"))
		const rounds = maxWaiting/200 + 3
		for range rounds {
			send(t, from, numbered(0, 200))
			drain(t, to)
		}
		st, st2 := from.Stats(), to.Stats()
		if lost := st.SendErrors + st2.SocketDrops; lost != rounds*200-maxWaiting {
			t.Errorf("%d lost, want %d", lost, rounds*200-maxWaiting)
		}
	})
}

func TestNoAllocation(t *testing.T) {
	bothSides(t, func(t *testing.T, s side) {
		from, to, l := s.make(pipe.Config{Capacity: 64}, spec(t, "drop=10%,dup=10%,reorder=10%,delay=10%:1us-5us"))
		pkts, in := numbered(0, 16), make([]link.Packet, 64)
		now := int64(0)
		round := func() {
			now += 3000
			l.SetNow(now)
			from.Send(pkts)
			for n := 1; n > 0; {
				n, _ = to.Recv(in)
			}
		}
		for range 500 {
			round()
		}
		if n := testing.AllocsPerRun(200, round); n != 0 {
			t.Errorf("%v allocations in a batch", n)
		}
	})
}

func BenchmarkSend(b *testing.B) {
	a, c := pipe.Pair(pipe.Config{})
	l := New(a, Config{Send: spec(b, "drop=1%,dup=1%,reorder=1%")})
	pkts, in := numbered(0, 16), make([]link.Packet, 64)
	b.ReportAllocs()
	for b.Loop() {
		l.Send(pkts)
		for n := 1; n > 0; {
			n, _ = c.Recv(in)
		}
	}
}
