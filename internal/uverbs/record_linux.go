package uverbs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/roce"
)

// A record is something that is told to whoever watches a run: a command with its answer, an event that a program
// was given, a process or open device that has gone, a warning. It is shown as a line of text, or of JSON.
type record struct {
	typ     string        // recordCommand, ...
	at      time.Duration // since the run began
	pid     int
	process string // its name; "": not known
	name    string // of the command, of the event, of the warning

	args, result fields
	errno        syscall.Errno
	reason       string // why the command failed; of other records, what is said
}

// Types of records, as JSON has them.
const (
	recordCommand = "command"
	recordEvent   = "event"
	recordProcess = "process" // or its open device
	recordWarning = "warning"
)

// A field is an argument or a part of an answer.
type field struct {
	name string
	text string // as people read it, with bare without the name; "": for machines only
	bare bool
	json any

	missing bool // it names an object that there is not
}

type fields []field

func (f *fields) add(name, text string, v any) {
	*f = append(*f, field{name: name, text: text, json: v})
}

// num, hex and word are what they say.
func (f *fields) num(name string, v uint64)   { f.add(name, strconv.FormatUint(v, 10), v) }
func (f *fields) hex(name string, v uint64)   { f.add(name, fmt.Sprintf("%#x", v), v) }
func (f *fields) word(name, s string)         { f.add(name, s, s) }
func (f *fields) gid(name string, g [16]byte) { f.word(name, gidText(g)) }

// bare is shown by its text alone.
func (f *fields) bare(name, text string, v any) {
	*f = append(*f, field{name: name, text: text, bare: true, json: v})
}

// is adds a word of its own if v is set.
func (f *fields) is(name string, v bool) {
	if v {
		f.bare(name, name, true)
	}
}

// flags is a set of named bits: those without a name as a number.
func (f *fields) flags(name string, v uint64, names []bitName) {
	set := flagNames(v, names)
	text := strings.Join(set, "|")
	if text == "" {
		text = "0"
	}
	f.add(name, text, set)
}

// span is a length of time that a code stands for.
func (f *fields) span(name string, code uint8, nanos int64, none string) {
	text := none
	if nanos != 0 {
		text = shortDuration(time.Duration(nanos))
	}
	f.add(name, fmt.Sprintf("%d (%s)", code, text), code)
}

// shortDuration has two or three digits.
func shortDuration(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// gidText is a GID as the address that it is: ::ffff:10.0.0.2 is of IPv4.
func gidText(g [16]byte) string { return netip.AddrFrom16(roce.GID(g)).String() }

// line is the record as text, with a newline.
func (r *record) line(b *bytes.Buffer) {
	if r.typ == recordWarning {
		fmt.Fprintf(b, "rnic: warning: %s: %s [%s]\n", r.who(), r.reason, r.name)
		return
	}
	fmt.Fprintf(b, "%11.6f [%s] ", r.at.Seconds(), r.who())
	switch r.typ {
	case recordEvent:
		b.WriteString("<- ")
		r.call(b)
	case recordProcess:
		b.WriteString("-- " + r.reason)
	default:
		r.call(b)
		b.WriteString(" = ")
		r.outcome(b)
	}
	b.WriteByte('\n')
}

func (r *record) who() string {
	if r.pid == 0 {
		return "rnic"
	}
	if r.process == "" {
		return strconv.Itoa(r.pid)
	}
	return fmt.Sprintf("%d %s", r.pid, r.process)
}

func (r *record) call(b *bytes.Buffer) {
	b.WriteString(r.name)
	b.WriteByte('(')
	r.args.text(b)
	b.WriteByte(')')
}

func (r *record) outcome(b *bytes.Buffer) {
	switch {
	case r.errno != 0 && r.reason != "":
		fmt.Fprintf(b, "-%s (%s)", errnoName(r.errno), r.reason)
	case r.errno != 0:
		fmt.Fprintf(b, "-%s (%v)", errnoName(r.errno), r.errno)
	case len(r.result) == 0:
		b.WriteByte('0')
	default:
		r.result.text(b)
	}
}

func errnoName(e syscall.Errno) string {
	if e == syscall.EOPNOTSUPP { // which has another name too
		return "EOPNOTSUPP"
	}
	if s := unix.ErrnoName(e); s != "" {
		return s
	}
	return strconv.Itoa(int(e))
}

func (f fields) text(b *bytes.Buffer) {
	more := false
	for i := range f {
		if f[i].text == "" {
			continue
		}
		if more {
			b.WriteString(", ")
		}
		more = true
		if !f[i].bare {
			b.WriteString(f[i].name + "=")
		}
		b.WriteString(f[i].text)
	}
}

// MarshalJSON keeps the fields' order.
func (f fields) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i := range f {
		if i > 0 {
			b = append(b, ',')
		}
		v, err := json.Marshal(f[i].json)
		if err != nil {
			return nil, err
		}
		b = strconv.AppendQuote(b, f[i].name)
		b = append(append(b, ':'), v...)
	}
	return append(b, '}'), nil
}

// MarshalJSON is the line of JSON.
func (r *record) MarshalJSON() ([]byte, error) {
	f := fields{{name: "type", json: r.typ}, {name: "time", json: json.RawMessage(fmt.Sprintf("%.6f", r.at.Seconds()))}, {name: "pid", json: r.pid}}
	if r.process != "" {
		f.word("process", r.process)
	}
	f.word(r.typ, r.name)
	if r.typ == recordProcess {
		f[len(f)-1].name = "what"
	}
	if len(r.args) > 0 {
		f.add("args", "", r.args)
	}
	switch {
	case r.errno != 0:
		f.word("error", errnoName(r.errno))
		f.num("errno", uint64(r.errno))
	case len(r.result) > 0:
		f.add("result", "", r.result)
	}
	if r.reason != "" {
		f.word("reason", r.reason)
	}
	return f.MarshalJSON()
}

// printable is a name that a program has given itself, without what a terminal could take for commands.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if !strconv.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}
