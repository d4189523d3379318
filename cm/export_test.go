package cm

import (
	"time"
)

// Hold keeps the stream from taking completions, and all its other methods out, until the function returned is called.
func (s *Stream) Hold() (release func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// HoldWrites keeps writers out.
func (s *Stream) HoldWrites() (release func()) {
	s.wmu.Lock()
	return s.wmu.Unlock
}

// Over is closed when the connection has ended.
func (s *Stream) Over() <-chan struct{} { return s.c.done }

// SendLate sends a message without data, takes its completion, and says what Read would, if that need not wait. The stream is held.
func (s *Stream) SendLate() error {
	s.sendControl(0)
	for range 30000 {
		if s.reap(); s.control == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return s.readable()
}

// Finished tells whether the own writing side has been ended.
func (s *Stream) Finished() bool {
	defer s.Hold()()
	return s.finished
}
