package join

import (
	"errors"
	"io"
	"os"
	"time"
)

// logLines is how many messages wait for a guest's standard error, and logPatience how long its end waits for them.
const (
	logLines    = 4096
	logPatience = time.Second
)

// logWriter writes to a file of the guest's, which may be a pipe that nobody reads: whoever writes a message does not
// wait for it, and what finds no room is dropped.
type logWriter struct {
	lines      chan []byte
	stop, gone chan struct{}
}

// Log is the guest's first file, its standard error, as a writer that never waits.
func (r *Run) Log() io.Writer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.passed) == 0 {
		return io.Discard
	}
	if r.log == nil {
		r.log = newLog(r.passed[0])
	}
	return r.log
}

func newLog(f *os.File) *logWriter {
	l := &logWriter{lines: make(chan []byte, logLines), stop: make(chan struct{}), gone: make(chan struct{})}
	go func() {
		defer close(l.gone)
		for {
			select {
			case b := <-l.lines:
				f.Write(b)
				continue
			default:
			}
			select {
			case b := <-l.lines:
				f.Write(b)
			case <-l.stop:
				if len(l.lines) == 0 {
					return
				}
			}
		}
	}()
	return l
}

var errFull = errors.New("message to a run that does not read: dropped")

// Write implements io.Writer.
func (l *logWriter) Write(b []byte) (int, error) {
	select {
	case l.lines <- append([]byte(nil), b...):
		return len(b), nil
	default:
		return 0, errFull
	}
}

func (l *logWriter) close() {
	if l == nil {
		return
	}
	close(l.stop)
	select {
	case <-l.gone:
	case <-time.After(logPatience):
	}
}
