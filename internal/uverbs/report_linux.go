package uverbs

import (
	"log/slog"
	"syscall"
	"time"
)

// Report is a command or an event of another front of the run, which is told among the device's own: of the connection manager.
type Report struct {
	At           time.Time // when it began
	PID          int
	Event        bool
	Name         string
	Args, Result []slog.Attr
	Errno        syscall.Errno
	Reason       string
}

// Tells says whether reports are wanted.
func (d *Driver) Tells() bool { return d.journal.tellsCommands() }

// Tell tells of a command that is about to be answered, or of an event. Nothing may be held that this process's programs wait for.
func (d *Driver) Tell(r Report) {
	j := d.journal
	if !j.tellsCommands() {
		return
	}
	rec := &record{typ: recordCommand, at: r.At.Sub(j.start), pid: r.PID, process: j.learnName(r.PID), name: r.Name,
		args: attrFields(r.Args), result: attrFields(r.Result), errno: r.Errno, reason: printable(r.Reason)}
	if r.Event {
		rec.typ = recordEvent
	}
	j.command(rec)
}

// attrFields are attributes as fields: truths as words of their own, all else by name.
func attrFields(list []slog.Attr) (f fields) {
	for _, a := range list {
		if a.Value.Kind() == slog.KindBool {
			f.is(a.Key, a.Value.Bool())
			continue
		}
		f.add(a.Key, a.Value.String(), a.Value.Any())
	}
	return f
}
