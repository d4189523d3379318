package sim

import (
	"fmt"
	"strings"
	"testing"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// The runs meet what matters: every operation under every fault of the links where it is used, and in the other
// states at least some of what is late or comes twice.
func TestCoverage(t *testing.T) {
	if raceEnabled {
		t.Skip("400 runs take too long under the race detector; TestCleanSeeds has it look at some")
	}
	sum := cleanSeeds()
	c := &sum.Coverage
	links := []FaultKind{FaultDrop, FaultDuplicate, FaultReorder, FaultLate}
	for i := range operationTable {
		o := &operationTable[i]
		switch rare := o.name == "RC CNP" || o.name == "RC SEND inv" || o.name == "RC RNR NAK"; {
		case o.transport == roce.TransportRC && o.name != "" && !rare:
			mustMeet(t, c, o.name, nic.RTS, append(links, FaultMark)...)
		case o.transport == roce.TransportUC, o.transport == roce.TransportUD:
			mustMeet(t, c, o.name, nic.RTS, FaultDuplicate, FaultReorder)
		}
	}
	for _, name := range []string{"RC SEND", "RC WRITE", "RC READ", "RC READ response", "RC ACK"} {
		mustMeet(t, c, name, nic.RTS, FaultOutage, FaultCorrupt, FaultForged)
		mustMeet(t, c, name, nic.Err, FaultDuplicate, FaultForged)
		mustMeet(t, c, name, nic.SQD, FaultDuplicate, FaultReorder)
	}
	for _, name := range []string{"RC SEND", "RC WRITE", "RC READ", "RC COMPARE SWAP", "RC FETCH ADD"} {
		for _, s := range []nic.State{nic.SQD, nic.Err} {
			mustMeetOne(t, c, name, s, links...)
		}
	}
	for _, name := range []string{"RC SEND", "RC WRITE"} {
		mustMeet(t, c, name, nic.Err, FaultReorder, FaultLate)
		mustMeetOne(t, c, name, nic.Reset, links...)
		mustMeetOne(t, c, name, nic.RTR, links...)
		mustMeetOne(t, c, name, nic.Init, append(links, FaultMark)...)
	}
	for _, name := range []string{"UC SEND", "UC WRITE"} {
		mustMeet(t, c, name, nic.RTS, append(links, FaultCorrupt, FaultForged)...)
		for _, s := range []nic.State{nic.Init, nic.RTR, nic.SQD, nic.SQE, nic.Err} {
			mustMeetOne(t, c, name, s, append(links, FaultForged)...)
		}
	}
	mustMeet(t, c, "UD SEND", nic.RTS, append(links, FaultCorrupt, FaultForged)...)
	for _, s := range []nic.State{nic.Init, nic.RTR, nic.SQE, nic.Err} {
		mustMeetOne(t, c, "UD SEND", s, links...)
	}
	for _, name := range []string{"XRC SEND", "XRC WRITE", "XRC READ", "XRC READ response", "XRC FETCH ADD", "XRC ATOMIC ACK", "XRC ACK", "XRC RNR NAK"} {
		mustMeetOne(t, c, name, nic.RTS, links...)
	}
	mustMeet(t, c, "XRC SEND", nic.RTS, FaultForged, FaultOutage)
	mustMeetOne(t, c, "UD SEND", nic.SQD, append(links, FaultOutage)...)
	mustMeetOne(t, c, "UC SEND", nic.Reset, append(links, FaultForged)...)
}

// mustMeetOne is mustMeet for where the seeds decide which of the faults it is.
func mustMeetOne(t *testing.T, c *Coverage, name string, s nic.State, kinds ...FaultKind) {
	t.Helper()
	for _, k := range kinds {
		if c.Met(name, s, k) > 0 {
			return
		}
	}
	t.Errorf("no %s met any of %v in %v", name, kinds, s)
}

func mustMeet(t *testing.T, c *Coverage, name string, s nic.State, kinds ...FaultKind) {
	t.Helper()
	for _, k := range kinds {
		if c.Met(name, s, k) == 0 {
			t.Errorf("no %s was %v in %v", name, k, s)
		}
	}
}

// A packet counts as what it is a part of, and the report shows what was met, and what was not.
func TestCoverageReport(t *testing.T) {
	ack := make([]byte, roce.RCAck.Info().HeaderLen)
	roce.BTH(ack).Encode(&roce.BTHFields{Opcode: roce.RCAck})
	var c Coverage
	for syndrome, name := range map[roce.Syndrome]string{roce.ACKSyndrome(31): "RC ACK", roce.NAKSequence: "RC NAK", roce.RNRSyndrome(4): "RC RNR NAK"} {
		roce.RCAck.Info().AETH(ack).Encode(&roce.AETHFields{Syndrome: syndrome})
		op := operationOf(ack)
		if operationTable[op].name != name {
			t.Errorf("syndrome %#x counts as %q, not as %q", uint8(syndrome), operationTable[op].name, name)
		}
		c[op][nic.RTS][FaultDrop]++
	}
	if operationOf(ack[:4]) != 0 || operationOf(nil) != 0 {
		t.Error("a runt counts as an operation")
	}
	met, of := c.Share()
	if met != 3 || of < 1000 {
		t.Errorf("%d of %d met, want 3 of some more", met, of)
	}
	var out strings.Builder
	c.Report(&out)
	want := fmt.Sprintf("\n%-18s %-8s %8s %8s %s %s %8s %s\n", "RC ACK", "........", "", "", "d.......", "........", "", "........")
	if text := out.String(); !strings.Contains(text, want) || !strings.Contains(text, "RC ACK             RESET: all; RTS: lost in an outage,") {
		t.Errorf("the report has no line %q, or does not name what was not met:\n%s", want, text)
	}
}
