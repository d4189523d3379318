package capture

import (
	"io"
	"time"
)

// stream writes what a File has buffered from a goroutine of its own: whoever records a packet never waits for the
// reader.
type stream struct {
	room int
	wake chan struct{}
	stop chan struct{}
	done chan struct{}
}

// streamEvery is how long a packet waits at most for the reader.
const streamEvery = 50 * time.Millisecond

// lastWrite is how long the end of a pipe waits for its reader.
const lastWrite = time.Second

// blockOverhead is more than a packet costs in the file beyond its bytes.
const blockOverhead = 128

// NewStream writes to w, which it does not close, from a goroutine of its own. Packets for which room bytes are not
// enough, because w does not take them in time, are left out, and counted (Missing). Close waits for w.
func NewStream(w io.Writer, room int) *File {
	f := NewFile(w)
	f.mu.Lock()
	f.flusher.Stop()
	f.armed = true // for ever: the goroutine writes
	f.stream = &stream{room: max(room, bufferSize), wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	f.mu.Unlock()
	go f.run(f.stream)
	return f
}

func (s *stream) tell() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (f *File) run(s *stream) {
	defer close(s.done)
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	var spare []byte
	for last := false; !last; {
		select {
		case <-s.wake:
		case <-tick.C:
		case <-s.stop:
			last = true
		}
		f.mu.Lock()
		out := f.buf
		f.buf = spare[:0]
		failed := f.err != nil
		f.mu.Unlock()
		if len(out) > 0 && !failed {
			if _, err := f.w.Write(out); err != nil {
				f.mu.Lock()
				f.err = err
				f.mu.Unlock()
			}
		}
		spare = out
	}
}

// hasRoom tells whether a packet can be recorded, and counts it if not. The caller holds mu.
func (f *File) hasRoom(bytes int) bool {
	if f.stream == nil || len(f.buf)+bytes+blockOverhead <= f.stream.room {
		return true
	}
	f.missing++
	return false
}

// Missing counts the packets that were left out.
func (f *File) Missing() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.missing
}

// Err is the first error of the file.
func (f *File) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// closeStream ends the goroutine, which writes what is left. The caller holds mu, and holds it again afterwards.
func (f *File) closeStream() {
	f.closed = true
	if f.missing > 0 && f.interfaces > 0 {
		start := f.begin(blockStats)
		f.u32(0) // interface
		now := uint64(time.Now().UnixNano())
		f.u32(uint32(now >> 32))
		f.u32(uint32(now))
		f.u16(optMissing)
		f.u16(8)
		f.u32(uint32(f.missing))
		f.u32(uint32(f.missing >> 32))
		f.u32(optEnd)
		f.end(start)
	}
	// Whoever reads a pipe that was opened here may never read on.
	if d, ok := f.closer.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Now().Add(lastWrite))
	}
	close(f.stream.stop)
	f.mu.Unlock()
	<-f.stream.done
	f.mu.Lock()
}
