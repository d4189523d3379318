package fault

import (
	"math"
	"slices"
	"testing"
	"time"

	"rnic/internal/roce"
)

// packet is 64 bytes from a BTH on.
func packet(op roce.Opcode, psn roce.PSN) []byte {
	pkt := make([]byte, 64)
	roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: op, PSN: psn})
	return pkt
}

func mustParse(t testing.TB, text string) Spec {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// decide returns the decisions about n packets of ascending PSN.
func decide(s Spec, n int) []Decision {
	in := New(s)
	out := make([]Decision, n)
	for i := range out {
		out[i] = in.Decide(packet(roce.RCSendOnly, roce.PSN(i)))
	}
	return out
}

// near fails unless got lies within five standard deviations of a binomial distribution.
func near(t *testing.T, what string, got uint64, n int, rate float64) {
	t.Helper()
	mean, dev := float64(n)*rate, math.Sqrt(float64(n)*rate*(1-rate))
	if math.Abs(float64(got)-mean) > 5*dev {
		t.Errorf("%s: %d of %d, want %.0f within %.0f", what, got, n, mean, 5*dev)
	}
}

// TestRates checks each rate, over many packets, and that faults of different kinds are independent.
func TestRates(t *testing.T) {
	const n = 200_000
	spec := mustParse(t, "drop=1%,dup=2%,reorder=3%:5,corrupt=4%,delay=5%:1ms-3ms,ecn=6%,seed=7")
	in := New(spec)
	var holds [6]uint64
	both := uint64(0)
	for i := range n {
		d := in.Decide(packet(roce.RCSendOnly, roce.PSN(i)))
		if d.Drop && d != (Decision{Drop: true}) {
			t.Fatalf("a dropped packet meets other faults: %+v", d)
		}
		if d.Hold < 0 || d.Hold > 5 {
			t.Fatalf("Hold = %d with depth 5", d.Hold)
		}
		holds[d.Hold]++
		if d.DelayNanos != 0 && (d.DelayNanos < 1e6 || d.DelayNanos > 3e6) {
			t.Fatalf("DelayNanos = %d, want 1 ms to 3 ms", d.DelayNanos)
		}
		if d.Corrupt && d.DelayNanos > 0 {
			both++
		}
	}
	c := in.Counters()
	if c.Seen != n || c.Selected != n {
		t.Errorf("seen %d, selected %d, want %d", c.Seen, c.Selected, n)
	}
	near(t, "dropped", c.Dropped, n, 0.01)
	near(t, "duplicated", c.Duplicated, n, 0.02*0.99)
	near(t, "reordered", c.Reordered, n, 0.03*0.99)
	near(t, "corrupted", c.Corrupted, n, 0.04*0.99)
	near(t, "delayed", c.Delayed, n, 0.05*0.99)
	near(t, "marked", c.Marked, n, 0.06*0.99)
	near(t, "corrupted and delayed", both, n, 0.04*0.05*0.99)
	for depth := 1; depth <= 5; depth++ {
		near(t, "held", holds[depth], n, 0.03*0.99/5)
	}
}

// TestSameSeedSameDecisions: a run replays from its seed, and another seed gives another run.
func TestSameSeedSameDecisions(t *testing.T) {
	spec := mustParse(t, "drop=10%,dup=10%,reorder=10%,corrupt=10%,delay=10%:1us-9us,seed=42")
	first := decide(spec, 5000)
	if !slices.Equal(first, decide(spec, 5000)) {
		t.Error("the same seed decides differently")
	}
	other := spec
	other.Seed++
	if slices.Equal(first, decide(other, 5000)) {
		t.Error("another seed decides the same")
	}
	fixed := mustParse(t, "drop=10%,seed=42")
	for i, d := range decide(fixed, 5000) {
		if d.Drop != first[i].Drop {
			t.Fatalf("packet %d: other rates moved a drop", i)
		}
	}
}

// TestNth: exactly the packets with these numbers are dropped, whatever their order in the Spec.
func TestNth(t *testing.T) {
	for i, d := range decide(mustParse(t, "nth=7,nth=3"), 100) {
		if want := i+1 == 3 || i+1 == 7; d != (Decision{Drop: want}) {
			t.Errorf("packet %d: %+v", i+1, d)
		}
	}
	for i, d := range decide(Spec{Nth: []uint64{2, 0, 2, 1}}, 100) {
		if want := i < 2; d != (Decision{Drop: want}) {
			t.Errorf("packet %d: %+v", i+1, d)
		}
	}
}

// TestSelection: rules with op and psn touch and count only such packets.
func TestSelection(t *testing.T) {
	in := New(mustParse(t, "op=RC_ACKNOWLEDGE,op=RC_SEND_LAST,nth=2"))
	for i, c := range []struct {
		op   roce.Opcode
		drop bool
	}{
		{roce.RCSendFirst, false}, {roce.RCSendLast, false}, {roce.RCSendMiddle, false},
		{roce.RCAck, true}, {roce.RCAck, false}, {roce.RCSendLast, false},
	} {
		if d := in.Decide(packet(c.op, 0)); d != (Decision{Drop: c.drop}) {
			t.Errorf("packet %d, %s: %+v", i, c.op, d)
		}
	}
	if c := in.Counters(); c != (Counters{Seen: 6, Selected: 4, Dropped: 1}) {
		t.Errorf("counters %+v", c)
	}
	in = New(mustParse(t, "op=RC_ACKNOWLEDGE,psn=5,psn=6,drop=100%"))
	for _, op := range []roce.Opcode{roce.RCAck, roce.RCSendOnly} {
		for psn := range roce.PSN(10) {
			want := op == roce.RCAck && (psn == 5 || psn == 6)
			if d := in.Decide(packet(op, psn)); d.Drop != want {
				t.Errorf("%s with PSN %d: drop is %v", op, psn, d.Drop)
			}
		}
	}
	if d := in.Decide(packet(roce.RCAck, 5)[:11]); d.Drop {
		t.Error("bytes too short for a BTH were selected by it")
	}
}

// TestCorruptBit: every bit that the ICRC covers may be flipped, no other, and none beyond the end.
func TestCorruptBit(t *testing.T) {
	for _, size := range []int{0, 1, 4, 5, 12, 16} {
		in := New(Spec{Corrupt: 1, Seed: 3})
		hit := make([]bool, 8*size)
		for range 20_000 {
			d := in.Decide(make([]byte, size))
			if d.Corrupt != (size > 0) {
				t.Fatalf("%d bytes: Corrupt is %v", size, d.Corrupt)
			}
			if d.Corrupt {
				hit[d.CorruptBit] = true
			}
		}
		for bit, got := range hit {
			if want := bit < 32 || bit >= 40; got != want {
				t.Errorf("%d bytes: bit %d was flipped is %v, want %v", size, bit, got, want)
			}
		}
	}
}

// TestCorruptionIsNoticed: a packet with the chosen bit flipped does not verify.
func TestCorruptionIsNoticed(t *testing.T) {
	path := roce.Path{
		Src: roce.GID{10: 0xff, 11: 0xff, 12: 192, 15: 1}.Addr(), Dst: roce.GID{10: 0xff, 11: 0xff, 12: 192, 15: 2}.Addr(), SrcPort: 50_000,
	}
	in := New(Spec{Corrupt: 1, Seed: 4})
	for i := range 5000 {
		pkt := packet(roce.RCSendOnly, roce.PSN(i))
		roce.PutICRC(&path, 0, pkt)
		if !roce.VerifyIdent(&path, 0, pkt) {
			t.Fatal("the packet does not verify before")
		}
		d := in.Decide(pkt)
		pkt[d.CorruptBit/8] ^= 1 << (d.CorruptBit % 8)
		if roce.VerifyIdent(&path, 0, pkt) {
			t.Fatalf("bit %d was flipped unnoticed", d.CorruptBit)
		}
	}
}

// TestNewKeepsNothing: changing a Spec's lists later does not change its Injector.
func TestNewKeepsNothing(t *testing.T) {
	spec := mustParse(t, "nth=1,op=CNP")
	in := New(spec)
	spec.Nth[0], spec.Ops[0] = 2, roce.RCAck
	if d := in.Decide(packet(roce.CNP, 0)); !d.Drop {
		t.Error("the Injector follows its caller's Spec")
	}
}

// TestOddSpecs: Specs that Parse never makes neither panic nor do harm.
func TestOddSpecs(t *testing.T) {
	for _, s := range []Spec{
		{Drop: math.NaN(), Delay: -1},
		{Delay: 2, DelayMin: 5, DelayMax: 3},
		{Delay: 1, DelayMin: -5, DelayMax: -3},
		{Delay: 1, DelayMin: math.MinInt64, DelayMax: math.MaxInt64},
		{Delay: 1, DelayMax: time.Duration(math.MaxInt64)},
		{Reorder: math.Inf(1), ReorderDepth: -1},
	} {
		for _, d := range decide(s, 1000) {
			if d.Drop || d.DelayNanos < 0 || d.Hold < 0 {
				t.Errorf("%+v: %+v", s, d)
				break
			}
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	in := New(mustParse(b, "drop=1%,dup=1%,reorder=1%,corrupt=1%,delay=1%:1ms-2ms,seed=1"))
	pkt := packet(roce.RCSendOnly, 1)
	b.ReportAllocs()
	for b.Loop() {
		in.Decide(pkt)
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	in := New(mustParse(t, "drop=20%,dup=20%,reorder=20%,corrupt=20%,delay=20%:1ms-2ms,op=RC_SEND_ONLY,nth=50"))
	pkt := packet(roce.RCSendOnly, 1)
	if n := testing.AllocsPerRun(1000, func() { in.Decide(pkt) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
