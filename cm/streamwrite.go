package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"rnic/verbs"
)

// unwritable says why nothing can be written any more; nil: it can, now or later. mu is held.
func (s *Stream) unwritable() error {
	switch {
	case s.closed:
		return s.fail("write", ErrClosed)
	case s.wlimit.passed:
		return s.fail("write", os.ErrDeadlineExceeded)
	case s.finished, s.err != nil:
		return s.fail("write", fmt.Errorf("%w: %w", ErrDisconnected, syscall.EPIPE))
	}
	return nil
}

// slot waits for a credit and a buffer.
func (s *Stream) slot() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if len(s.free) == 0 {
			s.pollSends()
		}
		if err := s.unwritable(); err != nil {
			return 0, err
		}
		switch {
		case s.credits > 0 && len(s.free) > 0:
			slot := s.free[len(s.free)-1]
			s.free = s.free[:len(s.free)-1]
			s.credits--
			return slot, nil
		case s.credits > 0:
			s.help()
		}
		s.wcond.Wait()
	}
}

// unslot gives back what slot has given, unused.
func (s *Stream) unslot(slot int) {
	s.mu.Lock()
	s.free = append(s.free, slot)
	s.credits++
	s.mu.Unlock()
}

// send sends n bytes of a buffer. wmu is held.
func (s *Stream) send(slot, n int) error {
	s.mu.Lock()
	if s.closed || s.finished {
		err := s.unwritable()
		s.mu.Unlock()
		s.unslot(slot)
		return err
	}
	back := min(s.owed, immCredits)
	s.owed -= back
	s.flying++
	s.mu.Unlock()
	_, err := s.c.qp.PostSend(&verbs.SendWR{ID: uint64(slot), Opcode: verbs.OpSendImm, Flags: verbs.Signaled | verbs.Solicited,
		Imm: immData | uint32(back), SGE: s.mr.Slice(sendOff(slot), n)})
	if err != nil {
		s.mu.Lock()
		s.owed += back
		s.flying--
		s.mu.Unlock()
		s.unslot(slot)
		return s.fail("write", fmt.Errorf("%w: %w", err, syscall.EPIPE))
	}
	return nil
}

func (s *Stream) buffer(slot int) []byte { return s.mem[sendOff(slot):][:s.most] }

// Write implements net.Conn. It returns when b has been copied, not when the peer has it.
func (s *Stream) Write(b []byte) (n int, err error) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if len(b) == 0 { // which must not wait for a credit
		s.mu.Lock()
		defer s.mu.Unlock()
		return 0, s.unwritable()
	}
	for {
		slot, err := s.slot()
		if err != nil {
			return n, err
		}
		k := copy(s.buffer(slot), b[n:])
		if err := s.send(slot, k); err != nil {
			return n, err
		}
		if n += k; n == len(b) {
			return n, nil
		}
	}
}

// ReadFrom implements io.ReaderFrom: r reads into the send buffers themselves, without a copy.
func (s *Stream) ReadFrom(r io.Reader) (total int64, err error) {
	for {
		slot, err := s.slot()
		if err != nil {
			return total, err
		}
		n, rerr := r.Read(s.buffer(slot))
		if n > 0 {
			s.wmu.Lock()
			err := s.send(slot, n)
			s.wmu.Unlock()
			if err != nil {
				return total, err
			}
			total += int64(n)
		} else {
			s.unslot(slot)
		}
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}

// CloseWrite ends the writing side: the peer reads io.EOF after what has been written.
func (s *Stream) CloseWrite() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return s.fail("close", ErrClosed)
	}
	s.sendFIN()
	return nil
}

// sendFIN sends it, once, behind the last data. Whoever comes second waits until it has been sent.
func (s *Stream) sendFIN() {
	s.mu.Lock()
	s.finished = true
	s.wcond.Broadcast() // a Write under way ends
	s.mu.Unlock()
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if s.finSent {
		return
	}
	s.finSent = true
	// There is room for it beyond that of the others.
	_, err := s.c.qp.PostSend(&verbs.SendWR{ID: controlID, Opcode: verbs.OpSendImm, Flags: verbs.Signaled | verbs.Solicited, Imm: immFIN})
	if err == nil {
		s.mu.Lock()
		s.control++
		s.mu.Unlock()
	}
}

// Close implements net.Conn. What has been written still reaches the peer, if it takes it within 5 seconds: the connection
// ends in the background.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.fail("close", ErrClosed)
	}
	s.closed = true
	s.rcond.Broadcast()
	s.wcond.Broadcast()
	s.rlimit.stop()
	s.wlimit.stop()
	s.timer.Stop()
	s.stop()
	return nil
}

// finish is what is left to do after Close.
func (s *Stream) finish() {
	s.sendFIN()
	ctx, cancel := context.WithTimeout(context.Background(), streamLinger)
	defer cancel()
	for {
		s.mu.Lock()
		s.pollSends()
		done := s.err != nil || s.control == 0 && s.flying == 0
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.c.done:
			return
		default:
		}
		if err := s.scq.Wait(ctx); err != nil {
			return
		}
	}
}

// release ends the connection and frees everything, when everything has been sent or will never be.
func (s *Stream) release() {
	if s.c != nil {
		_ = s.c.Disconnect()
		_ = s.c.Close()
	}
	s.discard()
	s.m.disown(s)
}

// deadline is that of reads or of writes.
type deadline struct {
	passed bool
	timer  *time.Timer
	number int
}

func (d *deadline) stop() {
	d.number++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// set is called with mu held; f runs without.
func (s *Stream) set(d *deadline, t time.Time, wake func()) {
	d.stop()
	d.passed = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		wake()
		return
	}
	number := d.number
	d.timer = time.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if d.number == number {
			d.passed = true
			wake()
		}
	})
}

func (s *Stream) limit(t time.Time, read, write bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.fail("set deadline", ErrClosed)
	}
	if read {
		s.set(&s.rlimit, t, s.rcond.Broadcast)
	}
	if write {
		s.set(&s.wlimit, t, s.wcond.Broadcast)
	}
	return nil
}

// SetDeadline, SetReadDeadline and SetWriteDeadline implement net.Conn.
func (s *Stream) SetDeadline(t time.Time) error      { return s.limit(t, true, true) }
func (s *Stream) SetReadDeadline(t time.Time) error  { return s.limit(t, true, false) }
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.limit(t, false, true) }

var errNotStream = errors.New("cm: the peer speaks another protocol than that of streams")
