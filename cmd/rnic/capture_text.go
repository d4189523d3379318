package main

import (
	"bufio"
	"bytes"
	"io"
	"time"

	"rnic/internal/explain"
)

// textSink prints a line for each packet.
type textSink struct {
	out  *bufio.Writer
	in   bytes.Buffer
	r    *explain.Reader
	read explain.Dissected
}

func newTextSink(w io.Writer) *textSink { return &textSink{out: bufio.NewWriter(w)} }

func (s *textSink) open() error { return nil }

func (s *textSink) block(_ uint32, b []byte) (err error) {
	s.in.Write(b)
	if s.r == nil {
		s.r, err = explain.NewReader(&s.in)
		return err
	}
	for {
		f, err := s.r.Next()
		if err == io.EOF { // what there is
			return s.out.Flush()
		}
		if err != nil {
			return err
		}
		explain.Dissect(&f, &s.read)
		for i := range s.read.Packets {
			s.out.WriteString(time.Unix(0, f.Nanos).Format("15:04:05.000000 "))
			s.out.WriteString(s.read.Packets[i].Line())
			s.out.WriteByte('\n')
		}
	}
}

func (s *textSink) close() error { return s.out.Flush() }
