package fault

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"rnic/internal/roce"
)

// Set is the faults of one NIC: rules that come and go while packets pass, and perhaps a Scenario that gives and takes them. After Guard it
// is safe for concurrent use; packets that pass one after the other meet the same faults each time.
//
// A packet meets the rules in the order in which they were given; one that is dropped meets no later one.
type Set struct {
	active      atomic.Bool  // packets, or the time, concern the set
	completions atomic.Bool  // there are rules for completions
	fronts      atomic.Bool  // there are rules that refuse requests
	due         atomic.Int64 // when Advance has something to do; 0: never

	mu       Lock
	rules    []*setRule
	lastID   int
	downFrom int64    // the port is down since; 0: it is up
	downTo   int64    // and until; 0: until told otherwise
	downBy   *setRule // the rule that says so; nil: a scenario's own step
	onPort   func(down bool)
	totals   [2]Counters
	lost     uint64 // packets, while the port was down
	seen     []uint32
	script   *script
}

// setRule is a rule of a Set.
type setRule struct {
	id    int
	name  string
	in    *Injector
	at    int64
	downs bool // Down has begun, or is begun by packets
}

// maxRules bounds the rules of a Set at a time.
const maxRules = 256

// ErrRule is wrapped by errors of Set's methods.
var ErrRule = errors.New("no such fault")

// NewSet returns a Set with these rules. They begin with the first packet.
func NewSet(specs ...Spec) *Set {
	s := &Set{mu: unguarded{}, seen: make([]uint32, 0, maxOrdinals)}
	for i := range specs {
		if specs[i].Active() {
			s.add(0, "", specs[i], false)
		}
	}
	s.update()
	return s
}

// Lock is what the caller provides where a Set is used concurrently, such as a sync.Mutex.
type Lock interface {
	Lock()
	Unlock()
}

// unguarded is the lock of a Set that one goroutine uses.
type unguarded struct{}

func (unguarded) Lock()   {}
func (unguarded) Unlock() {}

// Guard has every method that is not called cheap hold mu. It is called before the others.
func (s *Set) Guard(mu Lock) { s.mu = mu }

// Start has the rules given so far begin now.
func (s *Set) Start(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rules {
		r.at = now
		r.in.Begin(now)
	}
	s.advance(now)
}

// OnPort has f called when the port is to go down or up. It must not block, nor call the Set.
func (s *Set) OnPort(f func(down bool)) {
	s.mu.Lock()
	s.onPort = f
	s.mu.Unlock()
}

// Active tells whether packets have to be shown to Decide. Cheap.
func (s *Set) Active() bool { return s.active.Load() }

// WantsFront tells whether Packet.Front is looked at. Cheap.
func (s *Set) WantsFront() bool { return s.fronts.Load() }

// Next is when Advance has something to do; 0: never. Cheap.
func (s *Set) Next() int64 { return s.due.Load() }

// Add adds a rule that begins now, and returns its number.
func (s *Set) Add(now int64, spec Spec) (id int, err error) {
	if !spec.Active() {
		return 0, fmt.Errorf("%w: no rule says what goes wrong: add one, such as drop=100%%", ErrSpec)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rules) >= maxRules {
		return 0, fmt.Errorf("%w: %d faults are planted, more are not possible: clear some", ErrSpec, maxRules)
	}
	r := s.add(now, "", spec, true)
	s.advance(now)
	return r.id, nil
}

func (s *Set) add(now int64, name string, spec Spec, begin bool) *setRule {
	s.lastID++
	r := &setRule{id: s.lastID, name: name, in: New(spec), at: now}
	if begin {
		r.in.Begin(now)
	}
	s.rules = append(s.rules, r)
	return r
}

// Clear takes a rule away, by its number. What it holds back still comes when it is due.
func (s *Set) Clear(now int64, id int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.rules, func(r *setRule) bool { return r.id == id })
	if i < 0 {
		return fmt.Errorf("%w: number %d", ErrRule, id)
	}
	s.remove(i, now)
	s.advance(now)
	return nil
}

// ClearAll takes all rules away, brings the port up again and returns how many rules there were. A scenario goes on.
func (s *Set) ClearAll(now int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.rules)
	for len(s.rules) > 0 {
		s.remove(0, now)
	}
	s.portUp()
	s.advance(now)
	return n
}

// remove takes the i-th rule away. If it has taken the port down, that comes up.
func (s *Set) remove(i int, now int64) {
	r := s.rules[i]
	s.rules = slices.Delete(s.rules, i, i+1)
	if r == s.downBy {
		s.portUp()
	}
	if s.script != nil {
		s.script.retire(r)
	}
}

// Status is one rule of a Set.
type Status struct {
	ID       int
	Name     string // of a scenario's
	Spec     string
	State    string // "waiting", "active" or "over"
	Counters Counters
}

// List tells of the rules.
func (s *Set) List(now int64) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Status
	for _, r := range s.rules {
		out = append(out, Status{r.id, r.name, r.in.spec.text(), r.in.state(now, s.downFrom != 0), r.in.counters})
	}
	return out
}

// text is the specification as it was given, without what New adds.
func (s Spec) text() string {
	if s.ReorderDepth == DefaultReorderDepth {
		s.ReorderDepth = 0
	}
	if (s.Blackhole > 0 || s.Down > 0) && s.Every == 0 {
		s.Times = 0
	}
	return s.String()
}

func (in *Injector) state(now int64, down bool) string {
	s := &in.spec
	over := in.end != 0 && now >= in.end || s.Times > 0 && in.hits >= s.Times && in.burst == 0 && now >= in.holeUntil ||
		s.onlyNth() && len(in.nth) == 0 && in.burst == 0 && now >= in.holeUntil
	switch {
	case len(in.refusing) > 0:
	case s.Down > 0 && in.counters.LinkDowns > 0 && down:
	case over, s.Down > 0 && !s.triggered() && in.counters.LinkDowns > 0:
		return "over"
	case !in.begun || now < in.start || s.Blackhole+s.Down > 0 && s.triggered() && now >= in.holeUntil:
		return "waiting"
	}
	return "active"
}

// onlyNth tells whether there is nothing left to do once the last of Nth has come.
func (s *Spec) onlyNth() bool {
	return len(s.Nth) > 0 && !s.faultsAtRates() && s.Completion == 0
}

// Counters are the sums over all rules that there have been, of what was sent and received. A packet counts once, however many
// rules it met.
func (s *Set) Counters() (send, recv Counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals[Send], s.totals[Recv]
}

// LostWhileDown is how many packets were lost because the port was down.
func (s *Set) LostWhileDown() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// Decide decides about the next packet of a direction.
func (s *Set) Decide(now int64, dir Direction, p *Packet) (d Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if due := s.due.Load(); due != 0 && due <= now {
		s.advance(now)
	}
	p.ordinal = s.ordinal(p)
	t := &s.totals[dir]
	if s.downFrom != 0 {
		s.lost++
		t.Seen++
		t.Dropped++
		return Decision{Drop: true}
	}
	met, selected := false, false
	var downBy *setRule
	for _, r := range s.rules {
		if !r.in.spec.Direction.has(dir) || !r.in.spec.packets() && r.in.spec.Down == 0 {
			continue
		}
		before := r.in.counters.Selected
		one := r.in.DecideAt(now, p)
		met, selected = true, selected || r.in.counters.Selected != before
		if one.down > d.down {
			downBy = r
		}
		d.merge(&one)
		if d.Drop {
			break
		}
	}
	if met {
		t.Seen++
	}
	if selected {
		t.Selected++
	}
	if d.Drop {
		d = Decision{Drop: true, NAK: d.NAK, down: d.down}
	}
	t.count(&d)
	down := d.down
	d.down = 0
	if down > 0 {
		s.portDown(now, int64(down), downBy)
	}
	if s.script != nil && s.script.see(s, now, dir, p) || down > 0 {
		s.advance(now)
	}
	return d
}

// merge adds what another rule does to a packet.
func (d *Decision) merge(o *Decision) {
	d.Drop = d.Drop || o.Drop
	d.Duplicate = d.Duplicate || o.Duplicate
	if o.Corrupt && !d.Corrupt {
		d.Corrupt, d.CorruptBit = true, o.CorruptBit
	}
	d.Hold = max(d.Hold, o.Hold)
	d.DelayNanos += o.DelayNanos
	d.Mark = d.Mark || o.Mark
	if o.NAK != 0 {
		d.NAK = o.NAK
	}
	d.down = max(d.down, o.down)
}

// gsi is the queue pair of management datagrams.
const gsi = 1

// ordinal is the place of a packet's queue pair among those seen, from 1; 0 if there were too many before it.
func (s *Set) ordinal(p *Packet) uint32 {
	if p.QP <= gsi || p.QP == 0xffffff {
		return 0
	}
	for i, n := range s.seen {
		if n == p.QP {
			return uint32(i + 1)
		}
	}
	if len(s.seen) == maxOrdinals {
		return 0
	}
	s.seen = append(s.seen, p.QP)
	return uint32(len(s.seen))
}

// CompletionDelay decides about the next completion of a queue pair.
func (s *Set) CompletionDelay(now int64, qp uint32) (nanos int64) {
	if !s.completions.Load() {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ordinal := uint32(0)
	if i := slices.Index(s.seen, qp); i >= 0 {
		ordinal = uint32(i + 1)
	}
	for _, r := range s.rules {
		nanos += r.in.completionDelay(now, qp, ordinal)
	}
	if nanos > 0 {
		s.totals[Send].DelayedCompletions++
	}
	return nanos
}

// Advance does what the time has come for.
func (s *Set) Advance(now int64) {
	if due := s.due.Load(); due == 0 || due > now {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(now)
}

// advance does what is due and notes when to look again.
func (s *Set) advance(now int64) {
	if s.downFrom != 0 && s.downTo != 0 && s.downTo <= now {
		s.portUp()
	}
	for _, r := range s.rules {
		sp := &r.in.spec
		if sp.Down == 0 || r.downs || sp.triggered() {
			continue
		}
		if !r.in.begun {
			r.in.Begin(now)
		}
		if r.in.start <= now {
			r.downs = true
			r.in.counters.LinkDowns++
			r.in.hits++
			s.totals[Send].LinkDowns++
			s.portDown(now, int64(sp.Down), r)
		}
	}
	if s.script != nil {
		s.script.run(s, now)
	}
	s.update()
}

// update brings up to date what is looked at without the lock.
func (s *Set) update() {
	packets, completions, fronts := s.downFrom != 0, false, false
	due := int64(0)
	at := func(t int64) {
		if due == 0 || t < due {
			due = t
		}
	}
	for _, r := range s.rules {
		sp := &r.in.spec
		packets = packets || sp.packets() || sp.Down > 0
		completions = completions || sp.Completion > 0
		fronts = fronts || sp.NAK > 0
		if sp.Down > 0 && !r.downs && !sp.triggered() {
			at(max(r.in.start, 1))
		}
	}
	if s.downFrom != 0 && s.downTo != 0 {
		at(s.downTo)
	}
	if s.script != nil {
		packets = packets || s.script.watches()
		if t := s.script.wakeAt; t != 0 {
			at(t)
		}
	}
	for _, r := range s.rules { // queue pairs are counted by their packets, also for rules about completions
		packets = packets || slices.ContainsFunc(r.in.spec.QPs, func(q QueuePair) bool { return q.Ordinal })
	}
	s.active.Store(packets)
	s.completions.Store(completions)
	s.fronts.Store(fronts)
	s.due.Store(due)
}

// portDown takes the port down for so long; 0 is until told otherwise.
func (s *Set) portDown(now, nanos int64, by *setRule) {
	was := s.downFrom != 0
	to := int64(0)
	if nanos > 0 {
		to = now + nanos
	}
	if was && (s.downTo == 0 || to != 0 && to < s.downTo) {
		return // it is down for longer already
	}
	s.downTo, s.downBy = to, by
	if !was {
		s.downFrom = max(now, 1)
		if s.onPort != nil {
			s.onPort(true)
		}
	}
}

func (s *Set) portUp() {
	if s.downFrom == 0 {
		return
	}
	s.downFrom, s.downTo, s.downBy = 0, 0, nil
	if s.onPort != nil {
		s.onPort(false)
	}
}

// Front is what a link has to know of a queue pair to refuse a request in its peer's place, or in its own.
type Front struct {
	Unacknowledged roce.PSN // of the requester: the oldest
	Expected       roce.PSN // of the responder: the next to be executed
	MSN            uint32   // of the responder
	Peer           uint32   // queue pair it is connected to
}
