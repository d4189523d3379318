//go:build !race

package nic

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// The race detector has nothing to find here, and makes these ten times slower.

func TestRandomPacketsInAnyState(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for range 150 {
		coreIsHarmless(t, coreSeed(rng, 100+rng.IntN(1000)))
	}
}

func TestRingsThatChange(t *testing.T) {
	rng := rand.New(rand.NewPCG(53, 54))
	for range 150 {
		ringsAreHarmless(t, coreSeed(rng, 100+rng.IntN(1000)))
	}
}

// witness ends a test that is expected to fail.
type witness struct{ why string }

func (witness) Helper() {}

func (witness) Fatalf(format string, args ...any) { panic(witness{fmt.Sprintf(format, args...)}) }

// The world sees what it is there for: faults that are planted into the NIC.
func TestCoreWorldSeesFaults(t *testing.T) {
	for p, name := range map[Planted]string{PlantedBoundsWrap: "bounds that wrap", PlantedLostFlush: "a lost flush", PlantedReorderedCompletion: "completions out of order",
		PlantedSharedTwice: "a shared receive twice"} {
		rng, why := rand.New(rand.NewPCG(25, 26)), ""
		for i := 0; i < 3000 && why == ""; i++ {
			func() {
				defer func() {
					if r := recover(); r != nil {
						why = r.(witness).why
					}
				}()
				coreRun(witness{}, Config{Planted: p}, coreSeed(rng, 600))
			}()
		}
		if t.Logf("%s: %s", name, why); why == "" {
			t.Errorf("%s: not seen", name)
		}
	}
}
