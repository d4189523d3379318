package ucm

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/cma"
	"rnic/internal/sandbox"
)

// file is one event channel: an open file of the program.
type file struct {
	drv *Driver

	mu      sync.Mutex
	sandbox *sandbox.File
	w       int   // write end of the pipe, -1: closed
	watch   int32 // its number among the pipes that are watched, 0: none
	token   bool
	queue   []event
	more    chan struct{} // closed, and made anew, when an event comes or the file ends
}

// event is one event in a file, with what is counted when it is fetched.
type event struct {
	id     *id // whose it is: of a request the listener's
	conn   *id // of a request the new one
	member *member
	e      cma.Event
	// counted: it was on its way to the program, which waits for it if it has destroyed the id since.
	counted bool
}

// maxEvents bounds what waits for a program that does not fetch; more is dropped, but for requests, which the backlogs bound.
const maxEvents = 1 << 17

func (d *Driver) newFile() (f *file, readEnd int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, fmt.Errorf("creating an event channel: %w", err)
	}
	_ = unix.SetNonblock(fds[1], true)
	f = &file{drv: d, w: fds[1], more: make(chan struct{})}
	d.mu.Lock()
	d.files[f] = struct{}{}
	d.mu.Unlock()
	return f, fds[0], nil
}

func (f *file) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w >= 0 {
		f.drv.pipes.Remove(f.watch)
		unix.Close(f.w)
		f.w = -1
		close(f.more)
	}
	f.queue = nil
}

// put queues an event. It does not block.
func (f *file) put(e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w < 0 || len(f.queue) >= maxEvents && e.conn == nil {
		return
	}
	f.queue = append(f.queue, e)
	f.level()
	close(f.more)
	f.more = make(chan struct{})
}

// level keeps the pipe readable exactly while events wait. mu is held.
func (f *file) level() {
	switch {
	case f.w < 0 || f.token == (len(f.queue) > 0):
	case !f.token:
		_, err := unix.Write(f.w, []byte{0})
		f.token = err == nil
	default:
		// The program has the only read end: another is opened for a moment.
		r, err := unix.Open("/proc/self/fd/"+strconv.Itoa(f.w), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		var b [16]byte
		unix.Read(r, b[:])
		unix.Close(r)
		f.token = false
	}
}

// take takes the oldest event. more is closed when there may be another; ended: the file is closed.
func (f *file) take() (e event, ok bool, more chan struct{}, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w < 0 {
		return e, false, nil, true
	}
	if len(f.queue) == 0 {
		return e, false, f.more, false
	}
	e = f.queue[0]
	f.queue[0] = event{}
	f.queue = f.queue[1:]
	f.level()
	return e, true, nil, false
}

// putBack makes an event that could not be given the oldest again.
func (f *file) putBack(e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w < 0 {
		return
	}
	f.queue = append([]event{e}, f.queue...)
	f.level()
	close(f.more)
	f.more = make(chan struct{})
}

// drop takes out the events that want matches, and returns them.
func (f *file) drop(match func(*event) bool) (out []event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.queue[:0:0]
	for i := range f.queue {
		if match(&f.queue[i]) {
			out = append(out, f.queue[i])
		} else {
			kept = append(kept, f.queue[i])
		}
	}
	f.queue = kept
	f.level()
	return out
}

// patience is how often a call that waits looks whether its thread has a signal to handle.
const patience = 20 * time.Millisecond
