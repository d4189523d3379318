package dma

import "testing"

// throughFiles makes reach go by the process's files.
var throughFiles bool

// reach is the memory of a process, the way that is being tested.
func reach(t *testing.T, pid, limit int) *Process {
	t.Helper()
	if !throughFiles {
		return NewProcessLimit(pid, limit)
	}
	f, err := OpenFiles(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return NewProcessFiles(pid, f)
}

// Memory reached by files that somebody else opened behaves as memory reached by rights.
func TestThroughFiles(t *testing.T) {
	throughFiles = true
	defer func() { throughFiles = false }()
	for name, test := range map[string]func(*testing.T){
		"reads": TestReadsManySegments, "writes": TestWritesManySegments, "faults": TestFaultNamesItsSegment,
		"last byte": TestLastByteOfAWriteLandsLast, "atomics": TestProcessAtomics, "gone": TestProcessGone,
		"check": TestProcessCheck, "addresses": TestAddressesOutsideOfUserSpace, "allocation": TestProcessDoesNotAllocate,
	} {
		t.Run(name, test)
	}
}

// A process that has ended is not reachable; this one's own child is.
func TestReachable(t *testing.T) {
	c := startChild(t)
	pid := c.PID()
	if !Reachable(pid) {
		t.Error("a child's memory is not reachable")
	}
	c.end()
	if Reachable(pid) {
		t.Error("the memory of a process that has ended is reachable")
	}
}
