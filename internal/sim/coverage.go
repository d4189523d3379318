package sim

import (
	"fmt"
	"io"
	"strings"

	"rnic/internal/nic"
	"rnic/internal/roce"
)

// FaultKind is something that happens to a packet.
type FaultKind uint8

// What happens to packets. Those that are lost count in the state that their queue pair has then, the others
// when they arrive.
const (
	FaultDrop FaultKind = iota
	FaultOutage
	FaultCorrupt
	FaultDuplicate
	FaultReorder
	FaultLate
	FaultMark   // ECN: congestion experienced
	FaultForged // it comes from somebody else, or from the peer without cause
	faultKinds
)

const faultLetters = "docurlmf"

var faultNames = [faultKinds]string{"dropped", "lost in an outage", "corrupted", "duplicated", "reordered", "late", "marked", "forged"}

func (k FaultKind) String() string { return faultNames[k] }

// Operation is what a packet is a part of: a kind of message or of response of a transport. The zero Operation
// is none.
type Operation uint8

const (
	states     = int(nic.Err) + 1
	operations = 40
)

// Coverage counts the packets that met a fault, by their operation, the state of the queue pair that they were
// for, and the fault.
type Coverage [operations][states][faultKinds]uint32

// operation describes an Operation.
type operation struct {
	name      string
	transport roce.Transport // of the queue pair
	response  bool
}

// operationTable are the operations, and byOpcode says which one a packet of an opcode is a part of. ACK is
// followed by NAK and RNR NAK, which have the same opcode.
var operationTable, byOpcode = func() (table []operation, by [256]Operation) {
	table = append(table, operation{})
	known := make(map[string]Operation)
	for op := range 256 {
		info := roce.Opcode(op).Info()
		if info == nil {
			continue
		}
		o := operation{name: operationName(info), transport: info.Transport, response: !info.Request && info.Kind != roce.KindCNP}
		if info.Kind == roce.KindCNP || info.Kind == roce.KindSelectiveAck {
			o.transport = roce.TransportRC
		}
		if known[o.name] == 0 {
			known[o.name] = Operation(len(table))
			table = append(table, o)
			if info.Kind == roce.KindAck {
				for _, name := range []string{"NAK", "RNR NAK"} {
					table = append(table, operation{transportNames[info.Transport] + " " + name, o.transport, true})
				}
			}
		}
		by[op] = known[o.name]
	}
	if len(table) > operations {
		panic(fmt.Sprintf("sim: %d operations, room for %d", len(table), operations))
	}
	return table, by
}()

var (
	transportNames = map[roce.Transport]string{roce.TransportRC: "RC", roce.TransportUC: "UC", roce.TransportUD: "UD", roce.TransportXRC: "XRC"}
	kindNames      = map[roce.Kind]string{roce.KindSend: "SEND", roce.KindWrite: "WRITE", roce.KindReadRequest: "READ",
		roce.KindReadResponse: "READ response", roce.KindAck: "ACK", roce.KindAtomicAck: "ATOMIC ACK", roce.KindCmpSwap: "COMPARE SWAP",
		roce.KindFetchAdd: "FETCH ADD", roce.KindFlush: "FLUSH", roce.KindAtomicWrite: "ATOMIC WRITE"}
)

func operationName(info *roce.OpInfo) string {
	switch info.Kind {
	case roce.KindCNP:
		return "RC CNP"
	case roce.KindSelectiveAck:
		return "RC selective ACK"
	}
	name := transportNames[info.Transport] + " " + kindNames[info.Kind]
	switch {
	case info.HasImm:
		name += " imm"
	case info.HasIETH:
		name += " inv"
	}
	return name
}

// operationOf is what a packet is a part of.
func operationOf(data []byte) Operation {
	if len(data) < roce.BTHSize {
		return 0
	}
	code := roce.BTH(data).Opcode()
	op := byOpcode[uint8(code)]
	if info := code.Info(); info != nil && info.Kind == roce.KindAck && len(data) >= info.HeaderLen {
		switch info.AETH(data).Syndrome().Kind() {
		case roce.SyndromeNAK:
			op++
		case roce.SyndromeRNRNAK:
			op += 2
		}
	}
	return op
}

// possible tells whether a queue pair in state s can be sent the operation, with the fault: SQE is not of reliable
// services (10.3.1.6), who has not been in RTS has asked for nothing that a response could be for, and the NIC
// declares only what it can slow down ECN capable: RC.
func (o *operation) possible(s nic.State, k FaultKind) bool {
	if k == FaultMark && o.transport != roce.TransportRC {
		return false
	}
	switch s {
	case nic.SQE:
		return o.transport == roce.TransportUC || o.transport == roce.TransportUD
	case nic.Init, nic.RTR:
		return !o.response
	}
	return true
}

// meet counts a packet for host h that met a fault.
func (w *world) meet(h *host, path *roce.Path, data []byte, kind FaultKind) {
	op := operationOf(data)
	if op == 0 {
		return
	}
	met := func(s nic.State) { w.met[op][min(s, nic.Err)][kind]++ }
	num := roce.BTH(data).DestQP()
	if path.Dst.IsMulticast() {
		if g := w.groupOf(path.Dst); g != nil {
			for _, q := range g.on(h) {
				met(q.qp.State())
			}
		}
		return
	}
	if q := h.byQPN[num]; q != nil && !q.gone {
		met(q.qp.State())
	} else if s := h.xrcs[num]; s != nil && num == s.tgt.Num() {
		met(s.tgt.State())
	} else if s != nil {
		met(s.qp.State())
	}
}

// meetAll counts a packet that arrives and met the faults that it carries.
func (w *world) meetAll(h *host, p *packet) {
	for k := range faultKinds {
		if p.faults&(1<<k) != 0 {
			w.meet(h, &p.path, p.data, k)
		}
	}
}

// Add adds o to c.
func (c *Coverage) Add(o *Coverage) {
	for i := range o {
		for s := range o[i] {
			for k := range o[i][s] {
				c[i][s][k] += o[i][s][k]
			}
		}
	}
}

// Met is how many packets of a named operation met the fault, for a queue pair in state s.
func (c *Coverage) Met(name string, s nic.State, k FaultKind) uint32 {
	for i := range operationTable {
		if operationTable[i].name == name {
			return c[i][s][k]
		}
	}
	return 0
}

// Share is how many combinations were met, of how many: those that are possible, or were met.
func (c *Coverage) Share() (met, of int) {
	for i := 1; i < len(operationTable); i++ {
		for s := range states {
			for k, n := range c[i][s] {
				if n > 0 {
					met++
				}
				if n > 0 || operationTable[i].possible(nic.State(s), FaultKind(k)) {
					of++
				}
			}
		}
	}
	return met, of
}

// Report prints the combinations that were met as a table, with a letter for each fault, and those that were not
// as a list.
func (c *Coverage) Report(out io.Writer) {
	fmt.Fprint(out, "\nWhat met which fault, by the state of the queue pair that it was for:")
	for k := range faultKinds {
		fmt.Fprintf(out, " %c %v", faultLetters[k], k)
		if k < faultKinds-1 {
			fmt.Fprint(out, ",")
		}
	}
	header := fmt.Sprintf("%-18s", "")
	for s := range states {
		header += fmt.Sprintf(" %-*v", int(faultKinds), nic.State(s))
	}
	fmt.Fprintf(out, ".\n%s", strings.TrimRight(header, " "))
	var never strings.Builder
	for i := 1; i < len(operationTable); i++ {
		o := &operationTable[i]
		line, list := fmt.Sprintf("%-18s", o.name), ""
		for s := range states {
			letters, missing := o.letters(nic.State(s), &c[i][s])
			line += " " + letters
			if missing != "" {
				list += fmt.Sprintf(" %v: %s;", nic.State(s), missing)
			}
		}
		fmt.Fprintf(out, "\n%s", strings.TrimRight(line, " "))
		if list != "" {
			fmt.Fprintf(&never, "%-18s%s\n", o.name, strings.TrimSuffix(list, ";"))
		}
	}
	fmt.Fprintf(out, "\n\nNever met:\n%s", never.String())
}

// letters are those of the faults that were met, a point for those that could have been, and these in words.
func (o *operation) letters(s nic.State, m *[faultKinds]uint32) (letters, missing string) {
	var never []string
	could := 0
	for k, n := range m {
		possible := o.possible(s, FaultKind(k))
		if possible {
			could++
		}
		switch {
		case n > 0:
			letters += faultLetters[k : k+1]
		case possible:
			letters += "."
			never = append(never, faultNames[k])
		default:
			letters += " "
		}
	}
	if len(never) == could && could > 0 {
		return letters, "all"
	}
	return letters, strings.Join(never, ", ")
}
