//go:build race

package sim

// raceEnabled makes tests shorter where the race detector makes them ten times slower.
const raceEnabled = true
