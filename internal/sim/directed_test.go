package sim

import (
	"testing"

	"rnic/internal/nic"
)

// directed runs seeds of a world that build makes of two hosts, or three, and fails the test if one breaks a promise. It
// returns what they came to.
func directed(t *testing.T, hosts int, seeds uint64, build func(w *world)) (sum Summary) {
	t.Helper()
	for seed := range seeds {
		res := run(Config{Seed: seed}, func(w *world) { direct(w, hosts, build) })
		if sum.add(&res); res.Violation != nil {
			t.Fatalf("seed %d: %v", seed, res.Violation)
		}
	}
	return sum
}

func direct(w *world, hosts int, build func(w *world)) {
	w.paths = true
	for i := range hosts {
		w.addHost(i)
	}
	w.addWires()
	build(w)
	w.start()
}

// twoPaths are connections of each type between two hosts.
func twoPaths(w *world) {
	w.addConn(w.hosts[0], w.hosts[1])
	w.addConn(w.hosts[0], w.hosts[1])
	w.addUnreliable(w.hosts[0], w.hosts[1], nil)
	w.addXRC(w.hosts[1])
}

// 17.2.8: whatever path fails, when and in which direction, and whatever the programs say, every request completes once,
// the bytes are right, and the events of migration come when they must.
func TestMigration(t *testing.T) {
	c := directed(t, 2, 20, twoPaths).Counters
	if c.Armed < 10 || c.Migrations < 5 || c.Failovers < 1 || c.Silences == 0 {
		t.Errorf("armed %d times, %d migrations asked for, %d for want of retries, %d silences: too few to tell", c.Armed, c.Migrations, c.Failovers, c.Silences)
	}
}

// Each fault planted into migration is found within forty seeds of the same.
func TestMigrationFindsPlantedFaults(t *testing.T) {
	for _, p := range []nic.Planted{nic.PlantedNeverArmed, nic.PlantedMigrateDeaf, nic.PlantedMigrateSpent} {
		found := false
		for seed := uint64(0); seed < 40 && !found; seed++ {
			v := run(Config{Seed: seed, Planted: p}, func(w *world) { direct(w, 2, twoPaths) }).Violation
			if found = v != nil; found {
				t.Logf("%s: seed %d: %v", plantedName(p), seed, v)
			}
		}
		if !found {
			t.Errorf("%s is not found", plantedName(p))
		}
	}
}

// Addresses and ports go down, vanish from the GID table and come back, under traffic (17.2.8.1.3, 11.6.3.2): what is
// armed leaves them at once, or says that it cannot; what is not lives on, or gives up.
func TestPortChanges(t *testing.T) {
	c := directed(t, 3, 12, func(w *world) {
		twoPaths(w)
		w.addConn(w.hosts[2], w.hosts[1])
		w.addDatagrams(w.hosts[0], nil)
		w.addDatagrams(w.hosts[1], nil)
		for _, h := range w.hosts {
			w.after(w.nanos(20_000, 1_000_000), func() { w.changePort(h, 5) })
		}
	}).Counters
	if c.PortChanges < 30 || c.Migrations == 0 || c.PathErrors == 0 {
		t.Errorf("%d port changes, %d migrations, %d that were impossible: too few to tell", c.PortChanges, c.Migrations, c.PathErrors)
	}
}

// Unreliable connections take receives from a shared queue, which reliable ones take from too (9.9.3, class E), and
// write through memory windows that are bound and invalidated meanwhile.
func TestUnreliableShared(t *testing.T) {
	c := directed(t, 2, 20, func(w *world) {
		w.addShared(w.hosts[1])
		for _, p := range w.hosts[1].pools {
			w.addSharedUnreliable(w.hosts[0], w.hosts[1], p)
		}
	}).Counters
	if c.DeliveredUC < 100 || c.DroppedShared == 0 {
		t.Errorf("%d messages delivered, %d dropped with a shared receive: too few to tell", c.DeliveredUC, c.DroppedShared)
	}
}

// XRC with errors, in every state, and through memory windows that other connections have bound.
func TestXRCMix(t *testing.T) {
	sum := directed(t, 2, 30, func(w *world) {
		w.addStar(0)
		w.addStar(1)
		w.addXRC(w.hosts[1])
		w.addXRC(w.hosts[0])
	})
	c := sum.Counters
	if c.DeliveredXRC < 100 || c.XRCWindows == 0 || c.Intended == 0 {
		t.Errorf("%d messages delivered, %d through windows, %d intended errors: too few to tell", c.DeliveredXRC, c.XRCWindows, c.Intended)
	}
	all := []FaultKind{FaultDrop, FaultOutage, FaultDuplicate, FaultReorder, FaultLate}
	drained := uint32(0)
	for _, name := range []string{"XRC WRITE", "XRC SEND", "XRC READ", "XRC ACK", "XRC READ response"} {
		for _, k := range all {
			drained += sum.Coverage.Met(name, nic.SQD, k)
		}
	}
	if drained == 0 {
		t.Error("no end of XRC met any fault in SQD")
	}
	for _, s := range []nic.State{nic.RTS, nic.Err} {
		mustMeetOne(t, &sum.Coverage, "XRC WRITE", s, all...)
	}
	for _, name := range []string{"XRC ACK", "XRC READ response", "XRC NAK"} {
		mustMeetOne(t, &sum.Coverage, name, nic.RTS, all...)
	}
}
