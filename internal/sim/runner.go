package sim

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"rnic/internal/nic"
)

// Options are many runs.
type Options struct {
	Start, Seeds uint64 // seeds Start to Start+Seeds-1
	Planted      nic.Planted
	Parallel     int       // runs at a time; 0: as many as there are processors
	Trace        io.Writer // every step of every run; runs follow one another then
}

// Summary is what many runs came to.
type Summary struct {
	Counters Counters
	Coverage Coverage
	Hash     uint64  // of the hashes of all runs
	Failed   *Result // the failing run of the lowest seed, nil: none
}

// RunMany runs seeds until one fails. Runs are spread over the processors; which seed is reported as
// failed does not depend on that.
func RunMany(o Options) Summary {
	workers := o.Parallel
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	if o.Trace != nil {
		workers = 1
	}
	var (
		next   atomic.Uint64
		failed atomic.Bool
		mu     sync.Mutex
		sum    Summary
		wg     sync.WaitGroup
	)
	for range workers {
		wg.Go(func() {
			for !failed.Load() {
				i := next.Add(1) - 1
				if i >= o.Seeds {
					return
				}
				res := Run(Config{Seed: o.Start + i, Planted: o.Planted, Trace: o.Trace})
				mu.Lock()
				sum.add(&res)
				mu.Unlock()
				if res.Violation != nil {
					failed.Store(true) // seeds below this one are all under way or done
				}
			}
		})
	}
	wg.Wait()
	return sum
}

func (s *Summary) add(res *Result) {
	s.Counters.Add(&res.Counters)
	s.Counters.Runs++
	s.Coverage.Add(&res.Coverage)
	s.Hash ^= res.Hash*0x9e3779b97f4a7c15 + res.Seed // the order of the runs does not matter
	if res.Violation != nil && (s.Failed == nil || res.Seed < s.Failed.Seed) {
		s.Failed = res
	}
}

// Replay is the command that repeats a run.
func (r *Result) Replay(p nic.Planted) string {
	cmd := fmt.Sprintf("rnic sim --seeds 1 --start %d", r.Seed)
	if p != nic.PlantedNone {
		cmd += " --planted " + plantedName(p)
	}
	return cmd + " -v"
}
