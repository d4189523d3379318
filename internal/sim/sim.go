// Package sim runs the NIC's core under a seeded simulator. One seed is one run: a few hosts with a
// NIC each, random programs, links that lose, duplicate, reorder, delay and corrupt packets, paths that
// fail, addresses and ports that go down (what the device tells its NIC of its interfaces, the simulator
// tells), and virtual time. A model beside it knows what the programs asked for and checks every byte of
// memory, every completion, every atomic and some rules of the wire. The same seed gives the same
// packets, byte for byte, so that a failure is replayed by its seed alone.
package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"

	"rnic/internal/nic"
)

// Config is one run.
type Config struct {
	Seed    uint64
	Planted nic.Planted // tests only: the fault to plant into every NIC
	Trace   io.Writer   // every step of the run, one line each; nil for none
}

// Result is what a run came to.
type Result struct {
	Seed      uint64
	Hash      uint64 // of every packet sent, with its time: equal for equal seeds
	Counters  Counters
	Coverage  Coverage
	Violation *Violation // nil: everything held
}

// A Violation says which promise was broken.
type Violation struct {
	What    string
	AtNanos int64    // virtual time since the run began
	Tail    []string // the last steps before it
}

func (v *Violation) Error() string {
	return fmt.Sprintf("at %s: %s", clock(v.AtNanos), v.What)
}

const (
	startNanos      = int64(1_000_000_000) // the clock's zero must not matter
	maxVirtualNanos = startNanos + 1800*1_000_000_000
	maxEvents       = 3_000_000
)

// world is one run: everything in it, and the model's knowledge.
type world struct {
	cfg    Config
	rng    *rand.Rand
	now    int64
	events eventHeap
	hosts  []*host
	conns  []*conn
	uds    []*qpair
	groups []*mgroup
	qkey   uint32 // of multicast groups
	paths  bool   // paths fail, and connections may have another
	ucs    []*qpair
	xrcs   []*xrcGroup
	works  []*work // by work request id, from workBase on
	free   []*packet
	cm     *cmWorld // nil: no communication managers
	hash   uint64
	count  Counters
	met    Coverage
	trace  tracer
}

// Run makes one run.
func Run(cfg Config) (res Result) { return run(cfg, (*world).build) }

// run makes one run of what build has made.
func run(cfg Config, build func(*world)) (res Result) {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x726e6963)), now: startNanos}
	w.trace.out = cfg.Trace
	res.Seed = cfg.Seed
	defer func() {
		w.release()
		res.Hash, res.Counters, res.Coverage = w.hash, w.count, w.met
		res.Counters.VirtualNanos = w.now - startNanos
		if p := recover(); p != nil {
			v, ok := p.(*Violation)
			if !ok {
				v = &Violation{What: fmt.Sprintf("panic: %v\n%s", p, debug.Stack())}
			}
			v.AtNanos, v.Tail = w.now-startNanos, w.trace.tail()
			res.Violation = v
		}
	}()
	build(w)
	for n := 0; w.events.len() > 0; n++ {
		if n > maxEvents {
			w.fail("liveness: %d events and no end; %s", n, w.outstanding())
		}
		e := w.events.pop()
		if e.at > maxVirtualNanos {
			w.fail("liveness: %s of virtual time and no end; %s", clock(e.at-startNanos), w.outstanding())
		}
		w.now = e.at
		if e.pkt != nil {
			e.host.arrive(e.pkt)
			continue
		}
		e.fn()
	}
	w.finish()
	return res
}

// fail ends the run with a violation.
func (w *world) fail(format string, args ...any) {
	panic(&Violation{What: fmt.Sprintf(format, args...)})
}

// must is for commands that a correct program issues: they may not be refused.
func (w *world) must(err error, what string) {
	if err != nil {
		w.fail("%s was refused: %v", what, err)
	}
}

// after runs fn in d nanoseconds.
func (w *world) after(d int64, fn func()) {
	w.events.push(event{at: w.now + max(d, 0), fn: fn})
}

func (w *world) chance(percent int) bool   { return w.rng.IntN(100) < percent }
func (w *world) between(lo, hi int) int    { return lo + w.rng.IntN(hi-lo+1) }
func (w *world) nanos(lo, hi int64) int64  { return lo + w.rng.Int64N(hi-lo+1) }
func pick[T any](w *world, choices ...T) T { return choices[w.rng.IntN(len(choices))] }
func clock(nanos int64) string             { return fmt.Sprintf("%d.%03d us", nanos/1000, nanos%1000) }
