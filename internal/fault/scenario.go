package fault

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrScenario is wrapped by every error of ParseScenario.
var ErrScenario = errors.New("bad scenario")

// Scenario is a list of things that go wrong one after the other, on packets and on time, and of what is expected
// in the end. ParseScenario reads one.
type Scenario struct {
	Name    string // of its file, for messages
	steps   []step
	expects []Expectation
}

type stepKind uint8

const (
	waitPackets stepKind = iota // for count packets that spec selects
	waitTime                    // for so long
	waitFault                   // until a fault has happened count times since it was given
	plant                       // a fault
	clearFault                  // one, or all
	linkDown                    // for so long, or until told otherwise
	linkUp
)

type step struct {
	kind  stepKind
	line  int
	text  string
	name  string // of a fault
	spec  Spec
	count uint64
	time  time.Duration
}

// Expectation is a line "expect SUBJECT COUNTER OPERATOR NUMBER".
type Expectation struct {
	Line                       int
	Text                       string
	Subject, Counter, Operator string
	Number                     uint64
}

// Subjects of expectations that are not names of faults.
const (
	SubjectNIC     = "nic"     // the counters of the NIC
	SubjectProgram = "program" // its exit code
	SubjectLink    = "link"    // how often the port went down
)

// Limits of a scenario.
const (
	maxScenario = 1 << 20
	maxSteps    = 10_000
)

// ParseScenario reads a scenario. Each line is one of these; # begins a comment:
//
//	seed N                            where the decisions of faults without a seed of their own start from
//	after N packets [SELECTION]       wait until N more packets of these have passed: "[send:|recv:|both:]op=WRITE,qp=#1"
//	after TIME                        wait
//	after fault NAME [N times]        wait until this fault has happened, so often in all
//	fault NAME SPEC                   plant a fault, as for --fault
//	clear NAME                        take it away; "clear all": all
//	link down [TIME]                  the port goes down, for so long or until "link up"
//	link up
//	expect NAME COUNTER OP N          in the end, of a fault: seen, selected, dropped, duplicated, corrupted, reordered, delayed,
//	                                  marked, refused, link_downs or delayed_completions
//	expect nic COUNTER OP N           of the NIC's counters, which known tells
//	expect link downs OP N            how often the port went down
//	expect program exit OP N          the program's exit code
//
// OP is =, !=, <, <=, > or >=. Things happen in the order of the lines. known tells of the names of the NIC's counters; nil takes all.
// An error is one line, names the line of the file, and wraps ErrScenario.
func ParseScenario(name, text string, known func(counter string) bool) (*Scenario, error) {
	p := scenarioParser{sc: &Scenario{Name: name}, faults: map[string]bool{}, known: known}
	if len(text) > maxScenario {
		return nil, fmt.Errorf("%w: %s: %d bytes: at most %d are possible", ErrScenario, name, len(text), maxScenario)
	}
	for line := range strings.Lines(text) {
		p.line++
		line = strings.TrimSpace(cutComment(line))
		if line == "" {
			continue
		}
		if err := p.parse(line); err != nil {
			return nil, fmt.Errorf("%w: %s:%d: %q: %w", ErrScenario, name, p.line, line, err)
		}
	}
	for i := range p.sc.expects {
		if e := &p.sc.expects[i]; !isSubject(e.Subject) && !p.faults[e.Subject] {
			return nil, fmt.Errorf("%w: %s:%d: %q: no fault of this scenario has the name %s", ErrScenario, name, e.Line, e.Text, e.Subject)
		}
	}
	if len(p.sc.steps) == 0 && len(p.sc.expects) == 0 {
		return nil, fmt.Errorf("%w: %s: nothing happens, and nothing is expected", ErrScenario, name)
	}
	return p.sc, nil
}

// cutComment takes a comment away; the # of qp=#1 is none.
func cutComment(line string) string {
	for i, r := range line {
		if r == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}

func isSubject(s string) bool { return s == SubjectNIC || s == SubjectProgram || s == SubjectLink }

// Expectations are the lines "expect".
func (sc *Scenario) Expectations() []Expectation { return sc.expects }

type scenarioParser struct {
	sc     *Scenario
	line   int
	seed   uint64
	faults map[string]bool
	known  func(string) bool
}

func (p *scenarioParser) parse(line string) error {
	if len(p.sc.steps)+len(p.sc.expects) >= maxSteps {
		return fmt.Errorf("more than %d lines", maxSteps)
	}
	f := strings.Fields(line)
	s := step{line: p.line, text: strings.Join(f, " ")}
	var err error
	switch f[0] {
	case "seed":
		return p.parseSeed(f)
	case "expect":
		return p.expect(f, s.text)
	case "after":
		err = p.after(&s, f)
	case "fault":
		err = p.fault(&s, f)
	case "clear":
		if len(f) != 2 || f[1] != "all" && !p.faults[f[1]] {
			return errors.New("want clear and the name of a fault planted before, or all")
		}
		s.kind, s.name = clearFault, f[1]
	case "link":
		err = s.link(f)
	default:
		return errors.New("want a line that begins with seed, after, fault, clear, link or expect")
	}
	if err == nil {
		p.sc.steps = append(p.sc.steps, s)
	}
	return err
}

func (p *scenarioParser) parseSeed(f []string) error {
	var s Spec
	if len(f) != 2 || parseSeed(&s, f[1]) != "" {
		return errors.New("want seed and a whole number of 64 bits")
	}
	p.seed = s.Seed
	return nil
}

func (p *scenarioParser) after(s *step, f []string) (err error) {
	const want = "want after N packets SELECTION, after TIME, or after fault NAME [N times]"
	switch {
	case len(f) == 2:
		s.kind = waitTime
		if parseTime(&s.time, f[1], maxTime) != "" {
			return errors.New(want + ": a time is such as 500ms or 2s")
		}
		return nil
	case (len(f) == 3 || len(f) == 5 && (f[4] == "times" || f[4] == "time")) && f[1] == "fault":
		s.kind, s.name, s.count = waitFault, f[2], 1
		if !p.faults[s.name] {
			return fmt.Errorf("no fault with the name %s was planted before", s.name)
		}
		if len(f) == 5 && parseCount(&s.count, f[3]) != "" {
			return errors.New(want)
		}
		return nil
	case (len(f) == 3 || len(f) == 4) && (f[2] == "packets" || f[2] == "packet"):
		s.kind = waitPackets
		if parseCount(&s.count, f[1]) != "" {
			return errors.New(want + ": N is from 1")
		}
		if len(f) == 4 {
			s.spec, err = ParseSelection(f[3])
		} else {
			s.spec.Direction = Both
		}
		return err
	}
	return errors.New(want)
}

func (p *scenarioParser) fault(s *step, f []string) (err error) {
	if len(f) != 3 {
		return errors.New("want fault NAME SPEC, without spaces in the specification")
	}
	s.kind, s.name = plant, f[1]
	if isSubject(s.name) || s.name == "all" || strings.Trim(s.name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
		return fmt.Errorf("%q is no name for a fault: letters, digits, - and _, and not nic, link, program or all", s.name)
	}
	if p.faults[s.name] {
		return fmt.Errorf("the name %s is used before", s.name)
	}
	if s.spec, err = ParseRule(f[2]); err != nil {
		return err
	}
	if !s.spec.Active() {
		return fmt.Errorf("%w: %s: no rule says what goes wrong: add one, such as drop=100%%", ErrSpec, f[2])
	}
	if s.spec.Seed == 0 {
		s.spec.Seed = p.seed
	}
	p.faults[s.name] = true
	return nil
}

func (s *step) link(f []string) error {
	switch {
	case len(f) == 2 && f[1] == "up":
		s.kind = linkUp
		return nil
	case len(f) == 2 && f[1] == "down", len(f) == 3 && f[1] == "down" && parseTime(&s.time, f[2], maxTime) == "":
		s.kind = linkDown
		return nil
	}
	return errors.New("want link down, link down TIME, or link up")
}

var operators = []string{"=", "!=", "<", "<=", ">", ">="}

// faultCounters are the counters of a fault, as expectations and JSON name them.
var faultCounters = map[string]func(c *Counters) uint64{
	"seen": func(c *Counters) uint64 { return c.Seen }, "selected": func(c *Counters) uint64 { return c.Selected },
	"dropped": func(c *Counters) uint64 { return c.Dropped }, "duplicated": func(c *Counters) uint64 { return c.Duplicated },
	"corrupted": func(c *Counters) uint64 { return c.Corrupted }, "reordered": func(c *Counters) uint64 { return c.Reordered },
	"delayed": func(c *Counters) uint64 { return c.Delayed }, "marked": func(c *Counters) uint64 { return c.Marked },
	"refused": func(c *Counters) uint64 { return c.Refused }, "link_downs": func(c *Counters) uint64 { return c.LinkDowns },
	"delayed_completions": func(c *Counters) uint64 { return c.DelayedCompletions },
}

func (p *scenarioParser) expect(f []string, text string) error {
	e := Expectation{Line: p.line, Text: text}
	if len(f) != 5 {
		return errors.New("want expect NAME COUNTER OPERATOR NUMBER, such as expect lost-ack dropped = 1")
	}
	e.Subject, e.Counter, e.Operator = f[1], f[2], f[3]
	if !slices.Contains(operators, e.Operator) {
		return fmt.Errorf("want one of %s between counter and number", strings.Join(operators, " "))
	}
	n, err := strconv.ParseUint(f[4], 10, 64)
	if err != nil {
		return fmt.Errorf("%q is no number", f[4])
	}
	e.Number = n
	known := faultCounters[e.Counter] != nil
	switch e.Subject {
	case SubjectProgram:
		known = e.Counter == "exit"
	case SubjectLink:
		known = e.Counter == "downs"
	case SubjectNIC:
		known = p.known == nil || p.known(e.Counter)
	}
	if !known {
		return fmt.Errorf("%s has no counter %s", e.Subject, e.Counter)
	}
	p.sc.expects = append(p.sc.expects, e)
	return nil
}

// holds tells whether an expectation is met by a value.
func (e *Expectation) holds(v uint64) bool {
	switch e.Operator {
	case "=":
		return v == e.Number
	case "!=":
		return v != e.Number
	case "<":
		return v < e.Number
	case "<=":
		return v <= e.Number
	case ">":
		return v > e.Number
	}
	return v >= e.Number
}
