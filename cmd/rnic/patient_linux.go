package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outputPatience is how long an output waits for who reads it.
const outputPatience = time.Second

// patientFile is the file of an option, which may be a FIFO that nobody reads: a write waits a moment for room, once; from then on, until
// there is room again, records are dropped and counted. To a file on a disk every record is written.
type patientFile struct {
	*os.File

	mu      sync.Mutex
	rest    []byte // of a record that was begun
	stalled bool
	lost    int
	note    func(lost int) string // what is written when there is room again
}

// Write implements io.Writer for whole records.
func (p *patientFile) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.SetWriteDeadline(time.Now().Add(outputPatience)) != nil { // none for files on disks, which always take what is written
		return p.File.Write(b)
	}
	if err := p.put(nil); err != nil {
		p.lost++
		return 0, err
	}
	if p.lost > 0 {
		note := p.note(p.lost)
		p.lost = 0
		if err := p.put([]byte(note)); err != nil {
			p.lost++
			return 0, err
		}
	}
	if err := p.put(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// put writes a record behind what is left of the one before.
func (p *patientFile) put(b []byte) error {
	p.rest = append(p.rest, b...)
	if len(p.rest) == 0 {
		return nil
	}
	write := p.File.Write
	if p.stalled {
		write = p.writeNow
	}
	n, err := write(p.rest)
	p.stalled = errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil && !p.stalled {
		n = len(p.rest) // nobody will ever read it
	}
	p.rest = append(p.rest[:0], p.rest[n:]...)
	return err
}

// writeNow writes what there is room for.
func (p *patientFile) writeNow(b []byte) (n int, err error) {
	raw, err := p.SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Write(func(fd uintptr) bool { n, err = unix.Write(int(fd), b); return true }); e != nil {
		return 0, e
	}
	if err == unix.EAGAIN || err == nil && n < len(b) {
		err = os.ErrDeadlineExceeded
	}
	return max(n, 0), err
}

// patientTrace and patientJSON are the outputs of --trace and --json.
func patientTrace(f *os.File) io.Writer {
	return &patientFile{File: f, note: func(lost int) string {
		return fmt.Sprintf("# %d entries lost: nobody read them\n", lost)
	}}
}

func patientJSON(f *os.File) io.Writer {
	return &patientFile{File: f, note: func(lost int) string {
		return fmt.Sprintf("{\"type\":\"lost\",\"records\":%d}\n", lost)
	}}
}
