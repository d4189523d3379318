package uverbs

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"

	"rnic/internal/sandbox"
)

// tracer writes every ioctl and written command as text: a line for the call, one for each attribute
// as it came in, the result, one for each attribute that was answered.
type tracer struct {
	mu sync.Mutex
	w  io.Writer
}

// newTracer returns nil, which traces nothing, if w is.
func newTracer(w io.Writer) *tracer {
	if w == nil {
		return nil
	}
	return &tracer{w: w}
}

// traceEntry is one call. A nil entry takes everything and drops it.
type traceEntry struct {
	t       *tracer
	pid     int
	name    string // of the method
	command string // wrapped in it
	head    string
	in, out strings.Builder
}

func (t *tracer) begin(sys sandbox.Call, h *ioctlHeader, m *method) *traceEntry {
	if t == nil {
		return nil
	}
	e := &traceEntry{t: t, pid: sys.PID(), name: objectName(h.Object) + "." + fmt.Sprint(h.Method)}
	if m != nil {
		e.name = objectName(h.Object) + "." + m.name
	}
	e.head = fmt.Sprintf("(%#x,%#x; driver=%d len=%d nattr=%d)", h.Object, h.Method, h.Driver, h.Length, h.Attrs)
	return e
}

func (t *tracer) beginWrite(sys sandbox.Call, c *command, n int) *traceEntry {
	if t == nil {
		return nil
	}
	return &traceEntry{t: t, pid: sys.PID(), name: "write", command: c.name, head: fmt.Sprintf("len=%d", n)}
}

// note writes what happened outside of commands.
func (t *tracer) note(pid int, what string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if pid != 0 {
		what += fmt.Sprintf(" process %d", pid)
	}
	fmt.Fprintf(t.w, "# %s\n", what)
}

func (e *traceEntry) input(attrs []attr) {
	if e == nil {
		return
	}
	for i := range attrs {
		a := &attrs[i]
		fmt.Fprintf(&e.in, "   in  %#04x %-16s len %-4d flags %d  elem %d: ", a.id, a.name(), a.len, a.flags, a.enum)
		if a.spec != nil && a.spec.kind == attrIn && a.len > inlineLimit {
			hexWords(&e.in, a.value)
		} else {
			fmt.Fprintf(&e.in, "inline/ptr %#x", a.data)
		}
		e.in.WriteByte('\n')
	}
}

func (e *traceEntry) wraps(c *command) {
	if e != nil {
		e.command = c.name
	}
}

func (e *traceEntry) output(a *attr, b []byte) {
	if e == nil {
		return
	}
	fmt.Fprintf(&e.out, "   out %#04x %-16s len %-4d flags %d: ", a.id, a.name(), a.len, a.flags|flagValidOutput)
	hexWords(&e.out, b)
	e.out.WriteByte('\n')
}

func (e *traceEntry) number(a *attr, v uint64) {
	if e != nil {
		fmt.Fprintf(&e.out, "   out %#04x %-16s len %-4d flags %d data %#x\n", a.id, a.name(), a.len, a.flags, v)
	}
}

func (e *traceEntry) end(errno syscall.Errno) {
	if e == nil {
		return
	}
	result := "= 0\n" + e.out.String()
	if errno != 0 {
		result = fmt.Sprintf("= -1 %s\n", errno)
	}
	name := e.name
	if e.command != "" {
		name += " " + e.command
	}
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	fmt.Fprintf(e.t.w, "ioctl %s %s process %d\n%s   %s", name, e.head, e.pid, e.in.String(), result)
}

func (a *attr) name() string {
	if a.spec != nil {
		return a.spec.name
	}
	return "?"
}

func hexWords(w *strings.Builder, b []byte) {
	for len(b) > 0 {
		n := min(4, len(b))
		fmt.Fprintf(w, "%x ", b[:n])
		b = b[n:]
	}
}
