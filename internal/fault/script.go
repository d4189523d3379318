package fault

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// script is a Scenario at work. It is the Set's, under its lock.
type script struct {
	sc      *Scenario
	next    int // step
	begun   bool
	began   int64
	left    uint64 // packets to wait for
	waiting bool   // the step that waits has begun
	wakeAt  int64  // 0: no step waits for the time
	done    []fired
	gone    map[string]Counters // of faults taken away
}

// fired is a step that has happened.
type fired struct {
	step *step
	at   int64 // nanoseconds since the beginning
}

// Play begins a scenario. A Set plays one at most.
func (s *Set) Play(now int64, sc *Scenario) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = &script{sc: sc, gone: map[string]Counters{}, begun: true, began: now}
	s.advance(now)
}

// watches tells whether a packet may be what the scenario waits for, or matters to a name of a queue pair that it will use.
func (c *script) watches() bool {
	for i := c.next; i < len(c.sc.steps); i++ {
		if k := c.sc.steps[i].kind; k == waitPackets || k == waitFault || len(c.sc.steps[i].spec.QPs) > 0 {
			return true
		}
	}
	return false
}

// see looks at a packet that has been decided about, and tells whether the scenario may go on. It may be what the
// scenario waits for: what comes then is for the next packet.
func (c *script) see(s *Set, now int64, dir Direction, p *Packet) bool {
	if c.next >= len(c.sc.steps) {
		return false
	}
	st := &c.sc.steps[c.next]
	switch st.kind {
	case waitFault:
		return c.happened(s, st)
	case waitPackets:
		if !st.spec.Direction.has(dir) || !st.spec.selects(p) {
			return false
		}
		c.left--
		return c.left == 0
	}
	return false
}

func (c *script) happened(s *Set, st *step) bool {
	n := c.counters(s, st.name)
	return n.Faults() >= st.count
}

// counters are those of a fault by its name.
func (c *script) counters(s *Set, name string) Counters {
	for _, r := range s.rules {
		if r.name == name {
			return r.in.counters
		}
	}
	return c.gone[name]
}

// retire keeps the counters of a rule that is taken away.
func (c *script) retire(r *setRule) {
	if r.name != "" {
		c.gone[r.name] = r.in.counters
	}
}

// run does steps until one waits.
func (c *script) run(s *Set, now int64) {
	c.wakeAt = 0
	for ; c.next < len(c.sc.steps); c.next++ {
		st := &c.sc.steps[c.next]
		first := !c.waiting
		c.waiting = true
		switch st.kind {
		case waitPackets:
			if first {
				c.left = st.count
			}
			if c.left > 0 {
				return
			}
		case waitTime:
			if first {
				c.left = uint64(now) + uint64(st.time)
			}
			if now < int64(c.left) {
				c.wakeAt = int64(c.left)
				return
			}
		case waitFault:
			if !c.happened(s, st) {
				return
			}
		default:
			c.do(s, st, now)
		}
		c.waiting = false
		c.done = append(c.done, fired{st, now - c.began})
	}
}

func (c *script) do(s *Set, st *step, now int64) {
	switch st.kind {
	case plant:
		r := s.add(now, st.name, st.spec, true)
		if sp := &r.in.spec; sp.Down > 0 && !sp.triggered() && r.in.start <= now {
			r.downs = true
			r.in.counters.LinkDowns++
			s.totals[Send].LinkDowns++
			s.portDown(now, int64(sp.Down), r)
		}
	case clearFault:
		for i := len(s.rules) - 1; i >= 0; i-- {
			if r := s.rules[i]; r.name == st.name || st.name == "all" && r.name != "" {
				s.remove(i, now)
			}
		}
	case linkDown:
		s.totals[Send].LinkDowns++
		s.portDown(now, int64(st.time), nil)
	case linkUp:
		s.portUp()
	}
}

// Result is what a scenario has come to.
type Result struct {
	Name    string
	Fired   []FiredStep
	Waiting *FiredStep // the step that the scenario was waiting in when it ended, nil: all have happened
	Left    int        // steps behind that
	Faults  []Status   // of the scenario, in the order in which they were planted
	Failed  []string   // expectations that were not met, each a line
	Met     int
}

// FiredStep is a step of a scenario.
type FiredStep struct {
	Line int
	Text string
	At   time.Duration // since the beginning
}

// Judge tells what the scenario that the Set plays has come to. value gives the NIC's counters and the program's exit code,
// by subject and counter.
func (s *Set) Judge(now int64, value func(subject, counter string) uint64) *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(now)
	c := s.script
	if c == nil {
		return nil
	}
	r := &Result{Name: c.sc.Name}
	for _, f := range c.done {
		r.Fired = append(r.Fired, FiredStep{f.step.line, f.step.text, time.Duration(f.at)})
		if f.step.kind == plant {
			n := c.counters(s, f.step.name)
			state := "over"
			if i := slices.IndexFunc(s.rules, func(r *setRule) bool { return r.name == f.step.name }); i >= 0 {
				state = s.rules[i].in.state(now, s.downFrom != 0)
			}
			r.Faults = append(r.Faults, Status{Name: f.step.name, Spec: f.step.spec.String(), State: state, Counters: n})
		}
	}
	if c.next < len(c.sc.steps) {
		st := &c.sc.steps[c.next]
		r.Waiting, r.Left = &FiredStep{Line: st.line, Text: st.text}, len(c.sc.steps)-c.next-1
		r.Failed = append(r.Failed, fmt.Sprintf("line %d: %s: it did not come to that", st.line, st.text))
	}
	s.judgeExpectations(r, value)
	return r
}

func (s *Set) judgeExpectations(r *Result, value func(subject, counter string) uint64) {
	c := s.script
	for i := range c.sc.expects {
		e := &c.sc.expects[i]
		var v uint64
		switch e.Subject {
		case SubjectLink:
			v = s.totals[Send].LinkDowns + s.totals[Recv].LinkDowns
		case SubjectNIC, SubjectProgram:
			v = value(e.Subject, e.Counter)
		default:
			n := c.counters(s, e.Subject)
			v = faultCounters[e.Counter](&n)
		}
		if e.holds(v) {
			r.Met++
		} else {
			r.Failed = append(r.Failed, fmt.Sprintf("line %d: %s: it is %d", e.Line, e.Text, v))
		}
	}
}

// Write tells of the result, each line behind a prefix.
func (r *Result) Write(w io.Writer, prefix string) {
	say := func(format string, args ...any) { fmt.Fprintf(w, prefix+format+"\n", args...) }
	for _, f := range r.Fired {
		say("scenario %s: %9.6f s: line %d: %s", r.Name, f.At.Seconds(), f.Line, f.Text)
	}
	if r.Waiting != nil {
		say("scenario %s: still waiting in line %d: %s; %d further steps", r.Name, r.Waiting.Line, r.Waiting.Text, r.Left)
	}
	for _, f := range r.Faults {
		say("scenario %s: fault %s: %s", r.Name, f.Name, f.Counters.String())
	}
	for _, f := range r.Failed {
		say("scenario %s: FAILED: %s", r.Name, f)
	}
	if r.Met > 0 {
		say("scenario %s: %d expectations met", r.Name, r.Met)
	}
}

// String tells what has happened, without what has not.
func (c Counters) String() string {
	out := fmt.Sprintf("%d packets seen, %d selected", c.Seen, c.Selected)
	for _, n := range []struct {
		n    uint64
		what string
	}{
		{c.Dropped, "dropped"}, {c.Refused, "of these refused"}, {c.Duplicated, "duplicated"}, {c.Corrupted, "corrupted"}, {c.Reordered, "reordered"},
		{c.Delayed, "delayed"}, {c.Marked, "marked"}, {c.LinkDowns, "times the port went down"}, {c.DelayedCompletions, "completions delayed"},
	} {
		if n.n > 0 {
			out += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	return out
}
