package hostmem

// A List is a batch of segments, in the order in which they must happen, with atomics between
// them. The NIC's core writes it, the engine (or the simulator) runs it, and the core reads what
// failed: lists out, results in. All of it is reused from batch to batch.
type List struct {
	Segs    []Segment
	Atomics []Atomic
	Failed  []Failure
}

// An Atomic is one atomic operation of a List.
type Atomic struct {
	Space            Space
	Addr             uint64
	Op               AtomicOp
	Operand, Compare uint64
	Lane             uint32
	After            int    // performed when Segs[:After] have been
	Old              uint64 // result: the word found
	Done             bool   // result: performed; false where Lane had failed before
	Err              error  // result: non-nil if the access failed
}

// A Failure names a segment that could not be transferred, or an atomic.
type Failure struct {
	Index  int // in Segs, or in Atomics
	Atomic bool
	Lane   uint32
	Err    error
}

// Reset empties the list and keeps its memory.
func (l *List) Reset() {
	// No reference to a dead program's memory is kept.
	clear(l.Segs)
	clear(l.Atomics)
	clear(l.Failed)
	l.Segs = l.Segs[:0]
	l.Atomics = l.Atomics[:0]
	l.Failed = l.Failed[:0]
}

// Add appends a segment.
func (l *List) Add(s Segment) { l.Segs = append(l.Segs, s) }

// AddAtomic appends an atomic behind all segments so far.
func (l *List) AddAtomic(a Atomic) int {
	a.After = len(l.Segs)
	l.Atomics = append(l.Atomics, a)
	return len(l.Atomics) - 1
}

// Empty tells whether there is nothing to do.
func (l *List) Empty() bool { return len(l.Segs) == 0 && len(l.Atomics) == 0 }

// laneFailed tells whether something of this lane failed already.
func (l *List) laneFailed(lane uint32) bool {
	for i := range l.Failed {
		if l.Failed[i].Lane == lane {
			return true
		}
	}
	return false
}

// Gather reads every segment from the programs' memories: as few calls as neighbours in one space
// allow. After a failure the rest of that lane is left out and noted nowhere: the first failure of
// a lane decides.
func (l *List) Gather() { l.transfer(0, len(l.Segs), false) }

// Scatter writes every segment and performs the atomics, with Gather's treatment of failures.
func (l *List) Scatter() {
	from := 0
	for i := range l.Atomics {
		a := &l.Atomics[i]
		l.transfer(from, a.After, true)
		from = a.After
		if l.laneFailed(a.Lane) {
			continue
		}
		a.Old, a.Err = a.Space.Atomic(a.Addr, a.Op, a.Operand, a.Compare)
		a.Done = a.Err == nil
		if a.Err != nil {
			l.Failed = append(l.Failed, Failure{Index: i, Atomic: true, Lane: a.Lane, Err: a.Err})
		}
	}
	l.transfer(from, len(l.Segs), true)
}

func (l *List) transfer(from, to int, write bool) {
	for from < to {
		if len(l.Failed) > 0 && l.laneFailed(l.Segs[from].Lane) {
			from++
			continue
		}
		end := from + 1
		for end < to && l.Segs[end].Space == l.Segs[from].Space &&
			(len(l.Failed) == 0 || !l.laneFailed(l.Segs[end].Lane)) {
			end++
		}
		run := l.Segs[from:end]
		var n int
		var err error
		if write {
			n, err = run[0].Space.WriteV(run)
		} else {
			n, err = run[0].Space.ReadV(run)
		}
		from += n
		if n < len(run) {
			if err == nil {
				err = ErrFault
			}
			l.Failed = append(l.Failed, Failure{Index: from, Lane: l.Segs[from].Lane, Err: err})
			from++
		}
	}
}
