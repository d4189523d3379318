package sim

import (
	"fmt"
	"io"

	"rnic/internal/roce"
)

// traceKept is how many steps a failure shows.
const traceKept = 60

// tracer keeps the last steps of a run, and prints all of them if asked. Steps are kept as they
// come and put into words only when somebody reads them.
type tracer struct {
	out  io.Writer
	ring [traceKept]step
	n    int
}

// step is one line of a trace: a packet, or words.
type step struct {
	at   int64
	host int
	what string
	args []any
	// A packet: its headers.
	pkt  bool
	head [roce.MaxHeaderSize]byte
	size int
}

func (t *tracer) add(s step) {
	t.ring[t.n%traceKept] = s
	t.n++
	if t.out != nil {
		fmt.Fprintln(t.out, s.String())
	}
}

// note records a step in words.
func (w *world) note(h *host, format string, args ...any) {
	w.trace.add(step{at: w.now - startNanos, host: h.index, what: format, args: args})
}

// notePacket records what happened to a packet.
func (w *world) notePacket(h *host, what string, data []byte) {
	s := &w.trace.ring[w.trace.n%traceKept]
	*s = step{at: w.now - startNanos, host: h.index, what: what, pkt: true, size: len(data)}
	copy(s.head[:], data)
	w.trace.n++
	if w.trace.out != nil {
		fmt.Fprintln(w.trace.out, s.String())
	}
}

func (t *tracer) tail() []string {
	var lines []string
	for i := max(0, t.n-traceKept); i < t.n; i++ {
		lines = append(lines, t.ring[i%traceKept].String())
	}
	return lines
}

func (s *step) String() string {
	line := fmt.Sprintf("%14s  host %d  ", clock(s.at), s.host)
	if !s.pkt {
		return line + fmt.Sprintf(s.what, s.args...)
	}
	return line + s.what + " " + describe(s.head[:min(s.size, len(s.head))], s.size)
}

// describe puts the headers of a packet of size bytes into words.
func describe(head []byte, size int) string {
	if len(head) < roce.BTHSize {
		return "a runt"
	}
	b := roce.BTH(head)
	line := fmt.Sprintf("%s to %06x psn %06x, %d bytes", b.Opcode(), b.DestQP(), uint32(b.PSN()), size)
	if b.AckReq() {
		line += ", ack requested"
	}
	info := b.Opcode().Info()
	if info == nil || len(head) < info.HeaderLen {
		return line
	}
	if h := info.RETH(head); h != nil {
		line += fmt.Sprintf(", address %#x key %#x length %d", h.VA(), h.RKey(), h.Length())
	}
	if h := info.AtomicETH(head); h != nil {
		line += fmt.Sprintf(", address %#x key %#x", h.VA(), h.RKey())
	}
	if h := info.AETH(head); h != nil {
		line += fmt.Sprintf(", syndrome %#02x msn %d", uint8(h.Syndrome()), h.MSN())
	}
	return line
}
