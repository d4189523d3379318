package cm

import (
	"context"
	"net"
	"net/netip"
	"time"

	"rnic/verbs"
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

// SetStreamIdle changes the time of silence after which peers of streams that are made from now on are asked.
func (m *Manager) SetStreamIdle(t time.Duration) { m.streams.idle = t }

// Probes is how often the peer has answered that it is there.
func (s *Stream) Probes() int {
	defer s.Hold()()
	return s.answers
}

// Impatient has the connection given up at the first acknowledgement that does not come within 34 ms.
func (s *Stream) Impatient() error {
	defer s.Hold()()
	set := func(a verbs.Attr, mask verbs.AttrMask) error { return s.c.qp.Modify(&a, verbs.AttrState|mask) }
	err := set(verbs.Attr{State: verbs.StateSQD}, 0)
	for range 30000 { // the queue drains
		if err = set(verbs.Attr{State: verbs.StateSQD, Timeout: 13}, verbs.AttrTimeout|verbs.AttrRetryCnt); err == nil {
			return set(verbs.Attr{State: verbs.StateRTS}, 0)
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// DialStreams and ListenStreams are DialStream and ListenStream with addresses that have been looked up.
func (m *Manager) DialStreams(ctx context.Context, addrs []netip.AddrPort) (net.Conn, error) {
	return m.dialStreams(ctx, addrs)
}

func (m *Manager) ListenStreams(addrs []netip.AddrPort) (net.Listener, error) {
	return m.listenStreams(addrs)
}
