package cm_test

import (
	"io"
	"testing"
	"time"
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
