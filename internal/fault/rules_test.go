package fault

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"rnic/internal/roce"
)

// dropped tells which of n packets, numbered from 1 and a millisecond apart, a rule drops.
func dropped(spec Spec, n int) (which []int) {
	in := New(spec)
	for i := range n {
		if in.DecideAt(int64(i)*1e6, &Packet{Data: packet(roce.RCSendOnly, roce.PSN(i))}).Drop {
			which = append(which, i+1)
		}
	}
	return which
}

func TestWhichPackets(t *testing.T) {
	for text, want := range map[string][]int{
		"drop=100%,skip=4,times=2":          {5, 6},
		"drop=100%,every=5":                 {5, 10, 15, 20},
		"drop=100%,skip=10,every=5,times=1": {15},
		"nth=3-5,nth=8":                     {3, 4, 5, 8},
		"nth=3,nth=10,burst=3":              {3, 4, 5, 10, 11, 12},
		"drop=100%,after=15ms":              {16, 17, 18, 19, 20},
		"drop=100%,after=5ms,for=3ms":       {6, 7, 8},
		"blackhole=3ms":                     {1, 2, 3},
		"blackhole=3ms,after=10ms":          {11, 12, 13},
		"blackhole=3ms,nth=6":               {6, 7, 8},
		"blackhole=3ms,nth=6,nth=12":        {6, 7, 8, 12, 13, 14},
		"blackhole=2ms,skip=4":              {5, 6},
		"blackhole=2ms,every=8":             {8, 9, 16, 17},
		"psn=2-4,drop=100%":                 {3, 4, 5},
		"op=SEND,nth=2":                     {2},
		"op=WRITE,nth=2":                    nil,
	} {
		if got := dropped(mustParse(t, text), 20); !slices.Equal(got, want) {
			t.Errorf("%s drops %v, want %v", text, got, want)
		}
	}
}

// TestBursts: at a rate, losses come in runs of the burst's length or more.
func TestBursts(t *testing.T) {
	which := dropped(mustParse(t, "drop=1%,burst=8,seed=5"), 20_000)
	near(t, "dropped in bursts of 8", uint64(len(which)), 20_000, 0.075)
	run := 1
	for i := 1; i < len(which)-8; i++ {
		if which[i] == which[i-1]+1 {
			run++
			continue
		}
		if run < 8 {
			t.Fatalf("a run of %d before packet %d", run, which[i])
		}
		run = 1
	}
}

func TestSelectsQueuePairAndPeer(t *testing.T) {
	set := NewSet(mustRule(t, "both:qp=#2,qp=0x77,drop=100%"), mustRule(t, "recv:peer=192.0.2.0/24,peer=2001:db8::1,drop=100%"))
	for _, c := range []struct {
		dir  Direction
		qp   uint32
		peer string
		drop bool
	}{
		{Send, 0x10, "192.0.2.1", false}, // the first
		{Send, 1, "192.0.2.1", false},    // management does not count
		{Recv, 0x20, "198.51.100.1", true}, {Send, 0x20, "192.0.2.1", true}, {Send, 0x10, "192.0.2.1", false},
		{Send, 0x77, "192.0.2.1", true}, {Send, 0, "192.0.2.1", false},
		{Recv, 0x10, "192.0.2.9", true}, {Recv, 0x10, "192.0.3.9", false}, {Recv, 0x10, "2001:db8::1", true}, {Recv, 0x10, "2001:db8::2", false},
	} {
		d := set.Decide(1, c.dir, &Packet{Data: packet(roce.RCSendOnly, 0), QP: c.qp, Peer: netip.MustParseAddr(c.peer)})
		if d.Drop != c.drop {
			t.Errorf("%+v: drop is %v", c, d.Drop)
		}
	}
}

func mustRule(t testing.TB, text string) Spec {
	t.Helper()
	s, err := ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSelectsKindOfAcknowledgement(t *testing.T) {
	for text, want := range map[string][]bool{"aeth=ack,drop=100%": {true, false, false}, "aeth=rnr,aeth=nak,op=ACK,drop=100%": {false, true, true}} {
		in := New(mustParse(t, text))
		for i, s := range []roce.Syndrome{roce.ACKSyndrome(5), roce.RNRSyndrome(5), roce.NAKSequence} {
			pkt := packet(roce.RCAck, 1)
			roce.AETH(pkt[roce.BTHSize:]).Encode(&roce.AETHFields{Syndrome: s})
			if got := in.Decide(pkt).Drop; got != want[i] {
				t.Errorf("%s: an acknowledgement %#x is dropped: %v", text, s, got)
			}
		}
		if in.Decide(packet(roce.RCSendOnly, 1)).Drop {
			t.Errorf("%s: dropped a SEND", text)
		}
	}
}

// TestBandwidth: packets leave at the line's rate, in order, and what does not fit into its queue is lost.
func TestBandwidth(t *testing.T) {
	in := New(mustParse(t, "bandwidth=1Mbit:1000"))
	pkt := &Packet{Data: make([]byte, 972)} // 1000 bytes with IP and UDP headers: 8 ms
	var due []int64
	for range 4 {
		if d := in.DecideAt(5, pkt); !d.Drop {
			due = append(due, d.DelayNanos)
		}
	}
	if !slices.Equal(due, []int64{8e6, 16e6}) {
		t.Errorf("delays %v: want the first after 8 ms, a second behind it, and no place for more", due)
	}
	if d := in.DecideAt(1e9, pkt); d.DelayNanos != 8e6 {
		t.Errorf("after a pause: %+v", d)
	}
	if c := in.Counters(); c.Dropped != 2 || c.Delayed != 3 {
		t.Errorf("counters %+v", c)
	}
}

// TestJitterKeepsOrder: later packets are never due before earlier ones, and all within the jitter.
func TestJitterKeepsOrder(t *testing.T) {
	in := New(mustParse(t, "jitter=5ms,seed=3"))
	last, apart := int64(0), map[int64]bool{}
	for i := range int64(1000) {
		now := i * 100_000
		d := in.DecideAt(now, &Packet{Data: packet(roce.RCSendOnly, 1)})
		if now+d.DelayNanos < last || d.DelayNanos > 5e6 {
			t.Fatalf("packet %d at %d is due at %d, the one before at %d", i, now, now+d.DelayNanos, last)
		}
		last = now + d.DelayNanos
		apart[d.DelayNanos] = true
	}
	if len(apart) < 100 {
		t.Errorf("only %d different delays", len(apart))
	}
}

// TestRefusesInOrder: a NAK also acknowledges what is before it (9.7.5.1). So a request that is to be refused is lost until
// all before it has been acknowledged, and refused then.
func TestRefusesInOrder(t *testing.T) {
	in := New(mustParse(t, "nak=remote-access,nth=3"))
	send := func(psn, front roce.PSN) Decision {
		return in.DecideAt(0, &Packet{Data: packet(roce.RCSendOnly, psn), QP: 9, Front: front, HasFront: true})
	}
	lost, passes, refused := Decision{Drop: true}, Decision{}, Decision{Drop: true, NAK: roce.NAKRemoteAccess}
	for i, c := range []struct {
		psn, front roce.PSN
		want       Decision
	}{
		{5, 5, passes}, {6, 5, passes}, {7, 5, lost}, {8, 5, passes}, {7, 6, lost}, {7, 7, refused}, {7, 7, passes},
	} {
		if got := send(c.psn, c.front); got != c.want {
			t.Errorf("packet %d, PSN %d with %d in front: %+v, want %+v", i, c.psn, c.front, got, c.want)
		}
	}
	if c := in.Counters(); c.Refused != 1 || c.Dropped != 3 {
		t.Errorf("counters %+v", c)
	}
	in = New(mustParse(t, "rnr=1ms"))
	for _, op := range []roce.Opcode{roce.RCAck, roce.RCReadResponseOnly, roce.UCSendOnly, roce.UDSendOnly} {
		if d := in.DecideAt(0, &Packet{Data: packet(op, 1), QP: 9, Front: 1, HasFront: true}); d != passes {
			t.Errorf("%s is refused: %+v", op, d)
		}
	}
	if d := in.DecideAt(0, &Packet{Data: packet(roce.RCSendOnly, 1), QP: 9}); d != passes {
		t.Errorf("of a queue pair that is not known: %+v", d)
	}
}

// TestSetChanges: rules come and go between packets, each counted by itself.
func TestSetChanges(t *testing.T) {
	set := NewSet()
	if set.Active() {
		t.Error("an empty set wants packets")
	}
	pass := func(dir Direction) bool {
		return !set.Decide(1, dir, &Packet{Data: packet(roce.RCSendOnly, 0)}).Drop
	}
	a, err := set.Add(1, mustRule(t, "recv:drop=100%"))
	if err != nil || !set.Active() || pass(Recv) || !pass(Send) {
		t.Fatalf("after the first: %v", err)
	}
	b, _ := set.Add(1, mustRule(t, "both:dup=100%"))
	if pass(Recv) || !pass(Send) {
		t.Error("after the second")
	}
	list := set.List(1)
	if len(list) != 2 || list[0].ID != a || list[0].Counters.Dropped != 2 || list[1].ID != b || list[1].Counters.Duplicated != 1 || list[1].Spec != "both:dup=100%" {
		t.Errorf("list %+v", list)
	}
	if err := set.Clear(1, a); err != nil || !pass(Recv) {
		t.Errorf("after Clear: %v", err)
	}
	if err := set.Clear(1, a); !errors.Is(err, ErrRule) {
		t.Errorf("twice: %v", err)
	}
	if n := set.ClearAll(1); n != 1 || set.Active() || len(set.List(1)) != 0 {
		t.Errorf("ClearAll = %d", n)
	}
	if _, err := set.Add(1, Spec{}); !errors.Is(err, ErrSpec) {
		t.Errorf("nothing: %v", err)
	}
	send, recv := set.Counters()
	if recv.Dropped != 2 || send.Duplicated != 1 {
		t.Errorf("what is cleared still counts: %+v, %+v", send, recv)
	}
}

// TestPortDown: the port goes down at its time, loses everything meanwhile, and comes up.
func TestPortDown(t *testing.T) {
	const ms = int64(time.Millisecond)
	set := NewSet()
	var port []bool
	set.OnPort(func(down bool) { port = append(port, down) })
	id, _ := set.Add(5*ms, mustRule(t, "down=20ms,after=10ms"))
	pass := func(now int64) bool {
		set.Advance(now)
		return !set.Decide(now, Send, &Packet{Data: packet(roce.RCSendOnly, 0)}).Drop
	}
	if set.Next() != 15*ms || !pass(14*ms) || pass(15*ms) || pass(34*ms) || set.Next() != 35*ms || !pass(35*ms) || set.Next() != 0 {
		t.Errorf("next at %d", set.Next())
	}
	if !slices.Equal(port, []bool{true, false}) {
		t.Errorf("port %v", port)
	}
	if set.LostWhileDown() != 2 || set.List(40 * ms)[0].State != "over" {
		t.Errorf("%d lost, %+v", set.LostWhileDown(), set.List(40*ms))
	}
	if set.Clear(40*ms, id); len(port) != 2 {
		t.Errorf("port %v", port)
	}
	id, _ = set.Add(50*ms, mustRule(t, "down=1h"))
	if pass(51 * ms) {
		t.Error("it passes")
	}
	if set.Clear(52*ms, id); !pass(52*ms) || len(port) != 4 {
		t.Errorf("the cleared rule keeps the port down: %v", port)
	}
	_, _ = set.Add(60*ms, mustRule(t, "down=5ms,op=WRITE,nth=2"))
	write := func(now int64) bool {
		return !set.Decide(now, Send, &Packet{Data: packet(roce.RCWriteOnly, 0)}).Drop
	}
	if !write(61*ms) || !pass(62*ms) || write(63*ms) || pass(67*ms) || !pass(68*ms) || len(port) != 6 {
		t.Errorf("by a packet: port %v", port)
	}
}

func TestCompletionDelay(t *testing.T) {
	set := NewSet(mustRule(t, "completion-delay=2ms-3ms,qp=7,every=2"))
	if set.Active() {
		t.Error("packets are none of its business")
	}
	var late int
	for range 10 {
		if set.CompletionDelay(1, 8) != 0 {
			t.Fatal("another queue pair")
		}
		if d := set.CompletionDelay(1, 7); d != 0 {
			late++
			if d < 2e6 || d > 3e6 {
				t.Errorf("%d ns", d)
			}
		}
	}
	if late != 5 || set.List(1)[0].Counters.DelayedCompletions != 5 {
		t.Errorf("%d of 10 late, %+v", late, set.List(1))
	}
}

func TestSetAllocatesNothing(t *testing.T) {
	set := NewSet(mustRule(t, "both:drop=20%,burst=3,qp=#1,peer=192.0.2.0/24"), mustRule(t, "rnr=10%:1ms"), mustRule(t, "bandwidth=1Gbit,jitter=1ms"))
	p := &Packet{Data: packet(roce.RCSendOnly, 1), QP: 5, Peer: netip.MustParseAddr("192.0.2.1"), Front: 1, HasFront: true}
	now := int64(1)
	if n := testing.AllocsPerRun(1000, func() { now += 1000; set.Decide(now, Send, p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A rule whose outage is over is cleared while another's lasts: the port stays down until that one is over, or cleared.
func TestClearingARuleLeavesAnothersOutage(t *testing.T) {
	set := NewSet()
	first, err := set.Add(1, mustRule(t, "down=1s"))
	if err != nil {
		t.Fatal(err)
	}
	down := func(now int64) bool {
		set.Advance(now)
		return set.Decide(now, Send, &Packet{Data: packet(roce.RCSendOnly, 1), QP: 5}).Drop
	}
	if !down(2) || down(2e9) {
		t.Fatal("the first outage is not of one second")
	}
	second, err := set.Add(3e9, mustRule(t, "down=10s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Clear(4e9, first); err != nil || !down(5e9) {
		t.Errorf("%v, or the other's outage has ended", err)
	}
	if err := set.Clear(6e9, second); err != nil || down(7e9) {
		t.Errorf("%v, or the port is still down", err)
	}
}
