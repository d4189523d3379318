package cm_test

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"rnic/cm"
	"rnic/internal/fault"
	"rnic/verbs"
)

// What the peer sent before its end is read, also when an own message, which found the connection ended, is noticed first.
func TestStreamLastWords(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	c, s := streamPair(t, a, b)
	release := s.Hold()
	io.WriteString(c, "last words")
	c.Close()
	<-s.Over()
	err := s.SendLate()
	release()
	if err != nil {
		t.Errorf("what has come is not read: %v", err)
	}
	if got, err := io.ReadAll(s); err != nil || string(got) != "last words" {
		t.Errorf("%q, %v", got, err)
	}
	s.Close()
}

// Close, while another goroutine is in CloseWrite, does not end the connection before the peer is told of the end of the file.
func TestStreamCloseWriteAndClose(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	c, s := streamPair(t, a, b)
	io.WriteString(c, "all of it")
	release := c.HoldWrites()
	closed := make(chan error)
	go func() { closed <- c.CloseWrite() }()
	eventually(t, "CloseWrite is under way", c.Finished)
	c.Close()
	select { // of which there is nothing to see if all is well
	case <-c.Over():
	case <-time.After(100 * time.Millisecond):
	}
	release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(s); err != nil || string(got) != "all of it" {
		t.Errorf("%q, %v", got, err)
	}
	s.Close()
}

// A peer that has died, or cannot be reached any more, ends a stream on which nothing is sent: as TCP's keepalive does.
func TestStreamSilentPeer(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	b.mgr.SetStreamIdle(50 * time.Millisecond)
	c, s := streamPair(t, a, b)
	// One that has nothing to say is asked, answers, and stays.
	eventually(t, "the peer is asked ten times", func() bool { return s.Probes() >= 10 })
	io.WriteString(c, "x")
	if _, err := s.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Impatient(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.dev.Unwrap().AddFault(fault.Spec{Direction: fault.Both, Drop: 1}); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() { _, err := s.Read(make([]byte, 1)); read <- err }()
	select {
	case err := <-read:
		if !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, cm.ErrDisconnected) || !errors.Is(err, verbs.ErrRetryExceeded) {
			t.Errorf("read from a peer that is silent: %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Error("a reader waits for a peer that is gone")
	}
	b.dev.Unwrap().ClearFaults() // or Close waits
	s.Close()
	c.Close()
}
