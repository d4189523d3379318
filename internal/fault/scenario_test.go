package fault

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"rnic/internal/roce"
)

const lostAck = `
# The acknowledgement of the third WRITE is lost; later the port flaps.
seed 7
after 3 packets send:op=WRITE,qp=#1   # not of others
fault lost-ack recv:op=ACK,nth=1
after fault lost-ack
after 10ms
fault hole both:blackhole=5ms
after 20ms
clear hole
link down 30ms
after 40ms
link down
after 1ms
link up
expect lost-ack dropped = 1
expect hole dropped >= 1
expect link downs = 2
expect nic timeouts < 2
expect program exit = 0
`

// player plays packets to a scenario.
type player struct {
	t   *testing.T
	set *Set
	now int64
}

func play(t *testing.T, text string) *player {
	t.Helper()
	sc, err := ParseScenario("test.scenario", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &player{t: t, set: NewSet(), now: 1}
	p.set.Play(p.now, sc)
	return p
}

func (p *player) pass(dir Direction, qp uint32, op roce.Opcode) bool {
	return !p.set.Decide(p.now, dir, &Packet{Data: packet(op, 0), QP: qp}).Drop
}

func (p *player) wait(millis int64) {
	for range millis {
		p.now += 1e6
		p.set.Advance(p.now)
	}
}

func (p *player) is(what string, got, want bool) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s passes: %v", what, got)
	}
}

func TestScenario(t *testing.T) {
	p := play(t, lostAck)
	var port []bool
	p.set.OnPort(func(down bool) { port = append(port, down) })
	for range 2 {
		p.is("a WRITE", p.pass(Send, 5, roce.RCWriteOnly), true)
		p.is("an ACK", p.pass(Recv, 5, roce.RCAck), true)
		p.is("another's WRITE", p.pass(Send, 6, roce.RCWriteOnly), true)
	}
	p.is("the third WRITE", p.pass(Send, 5, roce.RCWriteOnly), true)
	p.is("its ACK", p.pass(Recv, 5, roce.RCAck), false)
	p.is("the next ACK", p.pass(Recv, 5, roce.RCAck), true)
	p.wait(9)
	p.is("before the hole", p.pass(Send, 5, roce.RCSendOnly), true)
	p.wait(1)
	p.is("in the hole", p.pass(Send, 5, roce.RCSendOnly), false)
	p.wait(6)
	p.is("behind the hole", p.pass(Send, 5, roce.RCSendOnly), true)
	p.wait(15)
	p.is("while the link is down", p.pass(Recv, 5, roce.RCAck), false)
	p.wait(100)
	p.is("in the end", p.pass(Recv, 5, roce.RCAck), true)
	if !slices.Equal(port, []bool{true, false, true, false}) {
		t.Errorf("port %v", port)
	}
	value := func(subject, counter string) uint64 {
		if subject == "nic" && counter == "timeouts" {
			return 1
		}
		return 0
	}
	r := p.set.Judge(p.now, value)
	if len(r.Failed) > 0 || r.Met != 5 || r.Waiting != nil || len(r.Fired) != 12 {
		t.Errorf("%+v", r)
	}
	r = p.set.Judge(p.now, func(string, string) uint64 { return 3 })
	var out strings.Builder
	r.Write(&out, "rnic: ")
	for _, want := range []string{"FAILED: line 19: expect nic timeouts < 2: it is 3", "FAILED: line 20: expect program exit = 0: it is 3",
		"line 5: fault lost-ack recv:op=ACK,nth=1", "fault lost-ack: ", "1 dropped", "3 expectations met"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestScenarioThatDidNotHappen: what a scenario still waited for is told, and counts as not met.
func TestScenarioThatDidNotHappen(t *testing.T) {
	p := play(t, "after 3 packets\nfault a drop=1%\nlink down")
	p.pass(Send, 5, roce.RCSendOnly)
	r := p.set.Judge(p.now, nil)
	if r.Waiting == nil || r.Waiting.Line != 1 || r.Left != 2 || len(r.Failed) != 1 || !strings.Contains(r.Failed[0], "line 1: after 3 packets: it did not come to that") {
		t.Errorf("%+v", r)
	}
}

func TestScenarioErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       `x.scenario: nothing happens`,
		"# only a comment":                       `nothing happens`,
		"\n\nwait 2s":                            `x.scenario:3: "wait 2s": want a line that begins with`,
		"after":                                  `x.scenario:1: "after": want after N packets SELECTION, after TIME`,
		"after 2":                                `a time is such as 500ms`,
		"after 0 packets":                        `N is from 1`,
		"after 3 packets drop=1%":                `only op=, psn=, qp=, peer= and aeth= choose packets`,
		"after 3 packets op=WRYTE":               `"op=WRYTE": want the name of an opcode`,
		"after fault x":                          `no fault with the name x was planted before`,
		"fault a drop=1%\nafter fault a 0 times": `x.scenario:2:`,
		"fault":                                  `want fault NAME SPEC`,
		"fault a drop=1% , dup=1%":               `without spaces`,
		"fault nic drop=1%":                      `"nic" is no name for a fault`,
		"fault a drop=1%\nfault a dup=1%":        `x.scenario:2: "fault a dup=1%": the name a is used before`,
		"fault a op=ACK":                         `only limit other rules`,
		"fault a drop=0%":                        `no rule says what goes wrong`,
		"clear a":                                `want clear and the name of a fault planted before, or all`,
		"link":                                   `want link down, link down TIME, or link up`,
		"link down soon":                         `want link down`,
		"seed x":                                 `want seed and a whole number`,
		"link up\nexpect a dropped = 1":          `x.scenario:2: "expect a dropped = 1": no fault of this scenario has the name a`,
		"expect nic bananas = 1":                 `nic has no counter bananas`,
		"expect program code = 1":                `program has no counter code`,
		"fault a drop=1%\nexpect a lost = 1":     `a has no counter lost`,
		"expect nic timeouts == 1":               `want one of = != < <= > >=`,
		"expect nic timeouts = -1":               `"-1" is no number`,
		"expect nic timeouts":                    `want expect NAME COUNTER OPERATOR NUMBER`,
	} {
		_, err := ParseScenario("x.scenario", text, func(c string) bool { return c == "timeouts" })
		if !errors.Is(err, ErrScenario) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want ...%s...", text, err, want)
		}
	}
}

// FuzzScenario: any text is a scenario that plays, or an error of one line.
func FuzzScenario(f *testing.F) {
	f.Add(lostAck)
	f.Add("fault a down=1ms,nth=1\nafter fault a 2 times\nclear all\nexpect a link_downs >= 1")
	f.Fuzz(func(t *testing.T, text string) {
		sc, err := ParseScenario("f", text, nil)
		if err != nil {
			if !errors.Is(err, ErrScenario) {
				t.Errorf("%v", err)
			}
			return
		}
		set := NewSet()
		set.Play(1, sc)
		for i := range 20 {
			now := int64(i) * 1e8
			set.Advance(now)
			set.Decide(now, Direction(i&1), &Packet{Data: packet(roce.Opcode(i), roce.PSN(i)), QP: uint32(i % 3)})
		}
		set.Judge(1e10, func(string, string) uint64 { return 1 })
	})
}
