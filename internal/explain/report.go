package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"rnic/internal/roce"
)

// Severity says how much a finding matters.
type Severity string

// The severities: something failed; something was lost and made good, or soon fails; something to know.
const (
	Failure Severity = "failure"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// The codes of findings, for programs.
const (
	CodeLost         = "packet-lost"          // the responder's NAK said so
	CodeNoAck        = "no-acknowledgement"   // sent again, and answered in the end
	CodeRetries      = "retries-exceeded"     // sent again and again, and never answered
	CodeNoAnswer     = "no-answer"            // likewise, and nothing at all comes from there
	CodeLate         = "late-acknowledgement" // sent again, though nothing was lost
	CodeAckLost      = "acknowledgement-lost" // sent again though it was acknowledged
	CodeReadLost     = "read-response-lost"
	CodeRNR          = "receiver-not-ready"
	CodeRNRStorm     = "rnr-storm"
	CodeAccess       = "remote-access-error" // wrong key, address or rights
	CodeRequest      = "invalid-request"
	CodeOperational  = "remote-operational-error"
	CodeMTU          = "mtu-mismatch"
	CodePathMTU      = "path-mtu"
	CodeFragments    = "ip-fragments"
	CodeUnreachable  = "unreachable"
	CodeNeighbour    = "neighbour-unknown"
	CodeTranslation  = "address-translation"
	CodeICRC         = "bad-icrc"
	CodeICRCAll      = "bad-icrc-throughout"
	CodePort         = "source-port-changed"
	CodePKey         = "partition-mismatch"
	CodeUCLost       = "unreliable-packets-lost"
	CodeNotCaptured  = "not-captured"
	CodeMalformed    = "malformed"
	CodeOpcode       = "unknown-opcode"
	CodeCongestion   = "congestion"
	CodeRejected     = "cm-rejected"
	CodeCMNoAnswer   = "cm-no-answer"
	CodeNIC          = "nic-comment" // what a capture of rnic says the NIC has decided
	CodeOneDirection = "one-direction"
	CodeSegments     = "before-segmentation"
	CodeReordered    = "reordered"        // overtaken on the way, not lost
	CodeCopies       = "copies"           // of the network or the capture; not sent again
	CodeReused       = "new-connection"   // with the queue pair number of one before
	CodeSilent       = "requester-silent" // in the middle of a message
)

// Finding is one thing that is to be said.
type Finding struct {
	Code       string   `json:"code"`
	Severity   Severity `json:"severity"`
	Connection string   `json:"connection,omitempty"`
	QPN        uint32   `json:"qp,omitempty"` // destination of the packets concerned
	Text       string   `json:"text"`
	Advice     string   `json:"advice,omitempty"`
	Packets    []int    `json:"packets"` // numbers in the file, the first few
	Count      int      `json:"count"`   // of such packets or events
}

// Connection is one direction of traffic, in the summary.
type Connection struct {
	Name         string `json:"name"`
	Transport    string `json:"transport"`
	Packets      int    `json:"packets"`
	PayloadBytes int    `json:"payload_bytes"`
	MTU          int    `json:"path_mtu,omitempty"`
	Resent       int    `json:"resent"`
	PeerQPN      uint32 `json:"peer_qp,omitempty"`
}

// Report is what a capture tells.
type Report struct {
	Frames      int          `json:"frames"`
	RoCE        int          `json:"roce_packets"`
	Seconds     float64      `json:"seconds"`
	Truncated   int          `json:"truncated_packets,omitempty"`
	Ignored     int          `json:"ignored_packets,omitempty"`
	Connections []Connection `json:"connections"`
	More        int          `json:"more_connections,omitempty"`
	Findings    []Finding    `json:"findings"`
	MoreFound   int          `json:"more_findings,omitempty"`
}

const (
	maxFindings    = 200
	maxRefs        = 16 // packet numbers of a finding
	maxConnections = 100
)

// Report says what has been found.
func (a *Analyzer) Report() *Report {
	r := &Report{Frames: a.frames, RoCE: a.roce, Seconds: float64(a.last.nanos-a.first.nanos) / 1e9, Truncated: a.truncated.count, Ignored: a.left,
		Connections: []Connection{}, Findings: []Finding{}}
	for _, f := range a.order {
		if len(r.Connections) == maxConnections {
			r.More = len(a.order) - maxConnections
			break
		}
		c := Connection{Name: f.name(), Transport: transportName(f.key.transport), Packets: f.packets, PayloadBytes: f.payload, MTU: f.mtu, Resent: f.resent.count}
		if f.peer != nil {
			c.PeerQPN = f.peer.key.qpn
		}
		r.Connections = append(r.Connections, c)
	}
	a.general(r)
	for _, d := range a.cm.order {
		a.connecting(r, d)
	}
	for _, f := range a.order {
		a.ofFlow(r, f)
		if f.absent != nil && f.peer == nil {
			a.ofFlow(r, f.absent)
		}
	}
	rank := map[Severity]int{Failure: 0, Warning: 1, Info: 2}
	slices.SortStableFunc(r.Findings, func(x, y Finding) int {
		return cmp.Or(rank[x.Severity]-rank[y.Severity], consequence[x.Code]-consequence[y.Code])
	})
	if n := len(r.Findings); n > maxFindings {
		r.Findings, r.MoreFound = r.Findings[:maxFindings], n-maxFindings
	}
	return r
}

// consequence puts what follows from something else, or repeats it, behind that.
var consequence = map[string]int{CodeReadLost: 1, CodeAckLost: 1, CodeNoAck: 2, CodeNotCaptured: 3, CodeNIC: 4, CodeCopies: 5, CodeSegments: 6}

func (r *Report) add(f Finding) {
	if f.Packets == nil {
		f.Packets = []int{}
	}
	f.Packets = slices.DeleteFunc(f.Packets, func(n int) bool { return n == 0 })
	slices.Sort(f.Packets)
	f.Packets = slices.Compact(f.Packets)
	f.Packets = f.Packets[:min(len(f.Packets), maxRefs)]
	if f.Count == 0 {
		f.Count = len(f.Packets)
	}
	r.Findings = append(r.Findings, f)
}

func transportName(t roce.Transport) string {
	switch t {
	case roce.TransportRC:
		return "RC"
	case roce.TransportUC:
		return "UC"
	case roce.TransportUD:
		return "UD"
	case roce.TransportXRC:
		return "XRC"
	}
	return fmt.Sprintf("transport %d", t)
}

// name is the flow in words.
func (f *flow) name() string {
	if f.key.qpn == 0 && f.requests == 0 { // withoutRequests
		return fmt.Sprintf("%s -> %s (requests not captured)", f.key.src, f.key.dst)
	}
	s := fmt.Sprintf("%s -> %s QP 0x%x", f.key.src, f.key.dst, f.key.qpn)
	if f.peer != nil {
		s += fmt.Sprintf(" (from QP 0x%x)", f.peer.key.qpn)
	}
	return s
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func duration(nanos int64) string {
	d := time.Duration(nanos)
	switch {
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(10 * time.Microsecond)
	}
	return d.String()
}

func psns(list []roce.PSN, count int) string {
	var s []string
	for _, p := range list {
		if t := fmt.Sprint(uint32(p)); !slices.Contains(s, t) {
			s = append(s, t)
		}
	}
	text := strings.Join(s, ", ")
	if count > len(list) {
		text += ", ..."
	}
	return text
}

// OK tells whether nothing went wrong.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity != Info })
}

// Write prints the report.
func (r *Report) Write(w io.Writer) error {
	p := &printer{w: w}
	p.f("%s, %s of RoCEv2", plural(r.Frames, "packet"), plural(r.RoCE, "packet"))
	if r.Seconds > 0 {
		p.f(", in %s", duration(int64(r.Seconds*1e9)))
	}
	p.f(".\n")
	if r.Truncated > 0 {
		p.f("%s cut by the capture: their ICRC could not be checked.\n", plural(r.Truncated, "packet"))
	}
	if r.Ignored > 0 {
		p.f("%s of further connections left out: more than %d.\n", plural(r.Ignored, "packet"), maxFlows)
	}
	if len(r.Connections) > 0 {
		p.f("\nConnections\n")
	}
	for _, c := range r.Connections[:min(20, len(r.Connections))] {
		p.f("  %-4s %s: %s, %d bytes", c.Transport, c.Name, plural(c.Packets, "packet"), c.PayloadBytes)
		if c.MTU > 0 {
			p.f(", path MTU %d", c.MTU)
		}
		if c.Resent > 0 {
			p.f(", %d sent again", c.Resent)
		}
		p.f("\n")
	}
	if n := len(r.Connections) + r.More - 20; n > 0 {
		p.f("  and %d more\n", n)
	}
	switch {
	case r.RoCE == 0:
		p.f("\nThere is no RoCEv2 packet (UDP port 4791) in this capture.\n")
	case r.OK():
		p.f("\nNothing went wrong in this capture.\n")
	default:
		p.f("\nFindings\n")
	}
	for i, f := range r.Findings {
		if r.OK() && i == 0 {
			p.f("\nTo know\n")
		}
		p.finding(&f)
	}
	if r.MoreFound > 0 {
		p.f("  and %d more findings (--json has %d too)\n", r.MoreFound, maxFindings)
	}
	return p.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) finding(f *Finding) {
	p.f("\n* %s", f.Code)
	if f.Connection != "" {
		p.f(", %s", f.Connection)
	}
	p.f(" [%s]\n", f.Severity)
	p.wrap(f.Text)
	if len(f.Packets) > 0 {
		var n []string
		for _, x := range f.Packets {
			n = append(n, fmt.Sprint(x))
		}
		text := "Packets " + strings.Join(n, ", ")
		if f.Count > len(f.Packets) {
			text += fmt.Sprintf(", ... (%d)", f.Count)
		}
		p.wrap(text + ".")
	}
	if f.Advice != "" {
		p.wrap("What to do: " + f.Advice)
	}
}

// wrap prints a paragraph in lines of bearable length.
func (p *printer) wrap(text string) {
	line := " "
	for _, w := range strings.Fields(text) {
		if len(line)+1+len(w) > 110 && line != " " {
			p.f("%s\n", line)
			line = " "
		}
		line += " " + w
	}
	p.f("%s\n", line)
}
