package sim

import (
	"os"
	"strings"
	"sync"
	"testing"

	"rnic/internal/nic"
)

// cleanSeeds are the runs that TestCleanSeeds and TestCoverage both look at.
var cleanSeeds = sync.OnceValue(func() Summary {
	seeds := uint64(400)
	if raceEnabled {
		seeds = 24
	}
	return RunMany(Options{Start: 1, Seeds: seeds})
})

// Clean runs keep every promise: bytes, completions, atomics, and the rules of the wire.
func TestCleanSeeds(t *testing.T) {
	sum := cleanSeeds()
	if f := sum.Failed; f != nil {
		f.ReportFailure(os.Stderr, nic.PlantedNone)
		t.Fatalf("seed %d: %v", f.Seed, f.Violation)
	}
	if raceEnabled {
		return // whether everything was met is asked of the larger number of runs
	}
	c := &sum.Counters
	for _, x := range []struct {
		what string
		n    uint64
	}{{"packets dropped", c.Dropped}, {"packets corrupted", c.Corrupted}, {"packets duplicated", c.Duplicated},
		{"packets reordered", c.Reordered}, {"packets delayed", c.Delayed}, {"datagrams", c.PostedUD}, {"notifications of congestion", c.CNPs}, {"copies of multicast datagrams", c.MulticastCopies},
		{"messages of unreliable connections", c.DeliveredUC}, {"messages to queues of XRC", c.DeliveredXRC},
		{"RNR NAKs", c.RNRNAKs}, {"sequence NAKs", c.SequenceNAKs}, {"retransmitted packets", c.Retransmitted},
		{"intended errors", c.Intended}, {"error completions", c.Errors}, {"flush completions", c.Flushed},
		{"shared receives", c.SharedRecvs}, {"limit events of shared receive queues", c.Limits}, {"resized queues", c.Resizes},
		{"reregistered regions", c.Reregistered}, {"queue pairs moved to other units", c.Moves}, {"connections that repeat selectively", c.Selective},
		{"ends of connections that were armed", c.Armed}, {"migrations that were asked for", c.Migrations}, {"migrations for want of retries", c.Failovers},
		{"migrations that were impossible", c.PathErrors}, {"addresses that went down", c.PortChanges},
		{"messages dropped with a shared receive", c.DroppedShared}, {"messages of XRC through memory windows", c.XRCWindows},
		{"completion events", c.Events}} {
		if x.n == 0 {
			t.Errorf("%d runs saw no %s: nothing of it was tested", c.Runs, x.what)
		}
	}
	for op, name := range OpNames {
		if c.Posted[op] == 0 {
			t.Errorf("%d runs posted no %s", c.Runs, name)
		}
	}
}

// The same seed gives the same packets at the same times; another one gives others.
func TestSameSeedSamePackets(t *testing.T) {
	seen := make(map[uint64]uint64)
	for seed := uint64(1000); seed < 1006; seed++ {
		a, b := Run(Config{Seed: seed}), Run(Config{Seed: seed})
		if a.Hash != b.Hash || a.Counters != b.Counters {
			t.Errorf("seed %d gave packets %016x with %+v, then %016x with %+v", seed, a.Hash, a.Counters, b.Hash, b.Counters)
		}
		if a.Counters.Packets == 0 {
			t.Errorf("seed %d sent no packet", seed)
		}
		if other, ok := seen[a.Hash]; ok {
			t.Errorf("seeds %d and %d gave the same packets", other, seed)
		}
		seen[a.Hash] = seed
	}
}

// Every fault that is planted into the NIC is noticed within 200 seeds, and the failure says how to
// repeat it.
func TestPlantedFaultsAreCaught(t *testing.T) {
	for _, name := range PlantedNames() {
		t.Run(name, func(t *testing.T) {
			p, err := PlantedByName(name)
			if err != nil {
				t.Fatal(err)
			}
			sum := RunMany(Options{Start: 1, Seeds: 200, Planted: p})
			if sum.Failed == nil {
				t.Fatalf("not caught in %d seeds", sum.Counters.Runs)
			}
			if strings.HasPrefix(sum.Failed.Violation.What, "panic") {
				t.Fatalf("the NIC or the simulator panicked instead: %s", sum.Failed.Violation.What)
			}
			again := Run(Config{Seed: sum.Failed.Seed, Planted: p})
			if again.Violation == nil || again.Violation.What != sum.Failed.Violation.What {
				t.Errorf("seed %d does not repeat: first %v, then %v", sum.Failed.Seed, sum.Failed.Violation, again.Violation)
			}
			var out strings.Builder
			sum.Failed.ReportFailure(&out, p)
			if want := sum.Failed.Replay(p); !strings.Contains(out.String(), want) || !strings.Contains(want, name) {
				t.Errorf("the report does not say %q", want)
			}
			t.Logf("seed %d: %v", sum.Failed.Seed, sum.Failed.Violation)
		})
	}
}
