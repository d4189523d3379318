package uverbs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"rnic/internal/nic"
	"rnic/internal/sandbox"
)

// Watch says what is told of what programs do. The zero value tells nothing, and costs nothing.
type Watch struct {
	// Text gets lines for people, JSON lines for machines, the last of which is a summary; see docs/run.md. Records of commands
	// go to JSON alone if it is set. A write that the system refuses ends that output.
	Text, JSON io.Writer
	// Commands: every command with its answer, events, and what goes.
	Commands bool
	// Pedantic: warnings of what works here and fails on hardware. They go to Text and to JSON.
	Pedantic bool
}

func (w *Watch) active() bool { return w.JSON != nil || w.Text != nil && (w.Commands || w.Pedantic) }

// journal writes what a Driver is told to tell. A nil journal tells nothing.
//
// Commands are written before they are answered, as strace does. All else is queued, because the NIC or the Driver is held
// when it happens, which must not wait for whoever reads the output: a goroutine writes it, or the next command,
// which it came before.
type journal struct {
	cfg      Watch
	start    time.Time
	commands atomic.Uint64 // executed, and
	failed   atomic.Uint64 // of these
	warnings atomic.Uint64

	out sync.Mutex // held while something is written
	buf bytes.Buffer

	mu     sync.Mutex // nothing blocks under it
	queue  []told     // a ring of maxTold
	oldest int
	queued int
	lost   uint64 // that found no room
	names  map[int]string

	wake chan struct{}
	stop chan struct{}
	done chan struct{}
}

// told is a record to be written, or an event of which one is made when its turn comes: whoever tells of events holds the NIC and
// makes nothing.
type told struct {
	rec   *record
	at    time.Time
	ctx   *verbsContext
	event nic.EventType
	kind  string // of the object that it is of; "": the port
	id    uint32 // the object's handle
	num   uint32 // the queue pair's number

	overrun bool // a warning is to be made of it
}

// since is when it was.
func (t *told) since(start time.Time) time.Duration {
	if t.rec != nil {
		return t.rec.at
	}
	return t.at.Sub(start)
}

// maxTold bounds what waits to be written.
const maxTold = 1024

func newJournal(cfg Watch) *journal {
	if !cfg.active() {
		return nil
	}
	j := &journal{cfg: cfg, start: time.Now(), queue: make([]told, maxTold), names: map[int]string{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go j.run()
	return j
}

// tellsCommands says whether commands and events are told.
func (j *journal) tellsCommands() bool { return j != nil && j.cfg.Commands }

// counts says whether queue pairs count what they do.
func (j *journal) counts() bool { return j != nil && (j.cfg.JSON != nil || j.cfg.Pedantic) }

func (j *journal) pedantic() bool { return j != nil && j.cfg.Pedantic }

// begin is the record of a command; nil if commands are not told.
func (j *journal) begin(sys sandbox.Call) *record {
	if !j.tellsCommands() {
		return nil
	}
	pid := sys.PID()
	if pid == 0 {
		pid = sys.TID()
	}
	return &record{typ: recordCommand, at: time.Since(j.start), pid: pid, process: j.learnName(pid)}
}

// learnName asks for the name of a process, and keeps it for when it is gone.
func (j *journal) learnName(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	name := printable(strings.TrimSuffix(string(b), "\n"))
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		return j.names[pid]
	}
	j.names[pid] = name
	return name
}

// command writes the record of a command that is about to be answered. Nothing is held.
func (j *journal) command(r *record) {
	if r == nil {
		return
	}
	j.out.Lock()
	defer j.out.Unlock()
	j.takeQueue(r.at)
	j.append(r)
	j.takeQueue(forEver) // what it has led to
	j.flush()
}

// tell queues a record.
func (j *journal) tell(r *record) {
	r.at = time.Since(j.start)
	j.push(told{rec: r})
}

// event queues an event that a program is given. The NIC may be held.
func (j *journal) event(t told) {
	t.at = time.Now()
	j.push(t)
}

func (j *journal) push(t told) {
	j.mu.Lock()
	if j.queued == len(j.queue) {
		j.lost++
	} else {
		j.queue[(j.oldest+j.queued)%len(j.queue)] = t
		j.queued++
	}
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

func (j *journal) run() {
	defer close(j.done)
	for {
		select {
		case <-j.wake:
		case <-j.stop:
			return
		}
		j.out.Lock()
		j.takeQueue(forEver)
		j.flush()
		j.out.Unlock()
	}
}

// forEver is later than all that is queued.
const forEver = time.Duration(1<<63 - 1)

// takeQueue moves what is queued, up to a time, to the buffer. out is held.
func (j *journal) takeQueue(until time.Duration) {
	for {
		j.mu.Lock()
		if j.queued > 0 && j.queue[j.oldest].since(j.start) > until {
			j.mu.Unlock()
			return
		}
		if j.queued == 0 {
			lost := j.lost
			j.lost = 0
			j.mu.Unlock()
			if lost > 0 {
				j.append(&record{typ: recordProcess, at: time.Since(j.start), name: "lost", reason: fmt.Sprintf("%d more events, faster than they could be written", lost)})
			}
			return
		}
		t := j.queue[j.oldest]
		j.queue[j.oldest] = told{}
		j.oldest = (j.oldest + 1) % len(j.queue)
		j.queued--
		j.mu.Unlock()
		switch {
		case t.overrun:
			t.rec = j.overrunRecord(&t)
		case t.rec == nil:
			t.rec = j.eventRecord(&t)
		}
		j.append(t.rec)
	}
}

func (j *journal) eventRecord(t *told) *record {
	r := &record{typ: recordEvent, at: t.at.Sub(j.start), pid: t.ctx.pid, process: t.ctx.process, name: "completion event"}
	if t.event != nic.EventCompletion {
		r.name = eventName(t.event)
	}
	switch t.kind {
	case "":
		r.args.num("port", portNumber)
	case "device": // of it as a whole
	case "qp":
		r.args.queuePair("qp", uint64(t.id), t.num)
	default:
		r.args.num(t.kind, uint64(t.id))
	}
	return r
}

// append puts a record into the buffer, or writes a warning to both. out is held.
func (j *journal) append(r *record) {
	if r.typ == recordWarning {
		j.warnings.Add(1)
		if j.cfg.Text != nil && j.cfg.JSON != nil {
			var b bytes.Buffer
			r.line(&b)
			j.write(&j.cfg.Text, b.Bytes())
		}
	}
	if j.cfg.JSON == nil {
		r.line(&j.buf)
		return
	}
	j.appendJSON(r)
}

func (j *journal) appendJSON(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b, _ = json.Marshal(map[string]string{"type": "error", "reason": err.Error()})
	}
	j.buf.Write(append(b, '\n'))
}

// flush writes the buffer. out is held.
func (j *journal) flush() {
	to := &j.cfg.Text
	if j.cfg.JSON != nil {
		to = &j.cfg.JSON
	}
	j.write(to, j.buf.Bytes())
	j.buf.Reset()
}

func (j *journal) write(to *io.Writer, b []byte) {
	if len(b) == 0 || *to == nil {
		return
	}
	var broken syscall.Errno
	if _, err := (*to).Write(b); errors.As(err, &broken) { // else it was full, and may have room again
		*to = io.Discard
	}
}

// close writes what is queued, and the summary. No more is told.
func (j *journal) close(summary func() any) {
	if j == nil {
		return
	}
	close(j.stop)
	<-j.done
	j.out.Lock()
	defer j.out.Unlock()
	j.takeQueue(forEver)
	if j.cfg.JSON != nil {
		j.appendJSON(summary())
	}
	j.flush()
}
