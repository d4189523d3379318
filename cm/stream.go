package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"rnic/verbs"
)

// Sizes of a stream's queues, on each side.
const (
	streamBuffer  = 16 << 10 // of a message, in bytes
	streamCredits = 32       // messages with data that may be on their way or unread
	streamSlots   = 32       // messages with data that are not acknowledged
	streamControl = 16       // others
	// streamSpare are receives beyond the credits, for messages without data. A side tells of credits when half of them can be
	// given back, so that no more than two such messages are on their way at a time; and there is one FIN.
	streamSpare = 4
	// streamLinger bounds how long data and the FIN are waited for after Close.
	streamLinger = 5 * time.Second
)

// Immediate data of a message: what the low 16 bits give back in credits, and what the message is.
const (
	immFIN     = 1 << 16 // the sender sends nothing any more
	immData    = 1 << 17 // it has taken a credit
	immCredits = immFIN - 1
	controlID  = 1 << 32
)

var errReset = fmt.Errorf("%w: %w", ErrDisconnected, syscall.ECONNRESET)

// Addr is the address of a stream's end, for net.Conn.
type Addr netip.AddrPort

// Network is "rdma".
func (Addr) Network() string  { return "rdma" }
func (a Addr) String() string { return netip.AddrPort(a).String() }

// Stream is a byte stream over an RC connection: a net.Conn. Bytes travel in SENDs into buffers that the peer has posted for them; a side sends only
// what it has credits for, so that no message finds the receive queue empty. docs/cm.md has the protocol.
type Stream struct {
	m        *Manager
	c        *Conn
	mem      []byte // receive buffers, then send buffers. Of the heap: Read and Write may hold it when the connection has gone
	mr       *verbs.MR
	rcq, scq *verbs.CQ
	src, dst Addr
	ctx      context.Context
	stop     context.CancelFunc
	helper   sync.WaitGroup

	// Each is taken before mu, and none while a caller's Reader is at work.
	rmu     sync.Mutex // one Read at a time
	wmu     sync.Mutex // one Write at a time
	finSent bool       // guarded by wmu

	mu       sync.Mutex
	rcond    sync.Cond
	wcond    sync.Cond
	rlimit   deadline
	wlimit   deadline
	ready    []segment
	owed     int // credits to be given back
	credits  int
	window   int // most credits that the peer gives
	most     int // bytes of a message
	free     []int
	control  int // messages without data that are not acknowledged
	helping  bool
	eof      bool  // the peer's FIN is there
	finished bool  // own writes are over
	closed   bool  // by Close
	err      error // the connection is over
	cause    error // why, if a send failed for a reason of its own
	flying   int   // messages with data that are not acknowledged
	rwc, swc [32]verbs.WC
	alive
}

// segment is a receive buffer with bytes that have not been read.
type segment struct{ buf, off, end int }

// recvBuf and sendOff say where buffers lie in the region.
func (s *Stream) recvBuf(g segment) []byte { return s.mem[g.buf*streamBuffer:][g.off:g.end] }

func sendOff(slot int) int { return (streamCredits + streamSpare + slot) * streamBuffer }

// LocalAddr and RemoteAddr are of type Addr.
func (s *Stream) LocalAddr() net.Addr  { return s.src }
func (s *Stream) RemoteAddr() net.Addr { return s.dst }

func (s *Stream) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: s.src, Addr: s.dst, Err: err}
}

// readable waits until there are bytes, and says why there will be none. mu and rmu are held.
func (s *Stream) readable() error {
	for {
		switch {
		case s.closed:
			return s.fail("read", ErrClosed)
		case s.rlimit.passed:
			return s.fail("read", os.ErrDeadlineExceeded)
		case len(s.ready) > 0:
			return nil
		case s.eof:
			return io.EOF
		case s.err != nil:
			return s.fail("read", s.err)
		}
		s.rcond.Wait()
	}
}

// Read implements net.Conn. io.EOF: the peer has closed, or closed its writing side.
func (s *Stream) Read(b []byte) (n int, err error) {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(b) == 0 && !s.closed && !s.rlimit.passed {
		return 0, nil
	}
	if err := s.readable(); err != nil {
		return 0, err
	}
	for n < len(b) && len(s.ready) > 0 {
		k := copy(b[n:], s.recvBuf(s.ready[0]))
		n += k
		s.consume(k)
	}
	return n, nil
}

// WriteTo implements io.WriterTo: w gets the receive buffers themselves, without a copy.
func (s *Stream) WriteTo(w io.Writer) (total int64, err error) {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	for {
		s.mu.Lock()
		if err := s.readable(); err != nil {
			s.mu.Unlock()
			if err == io.EOF {
				err = nil
			}
			return total, err
		}
		b := s.recvBuf(s.ready[0])
		s.mu.Unlock()
		n, err := w.Write(b) // nobody else takes the buffer: rmu is held, and the memory is there until then
		total += int64(n)
		s.mu.Lock()
		s.consume(min(max(n, 0), len(b)))
		s.mu.Unlock()
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
}

// consume takes n bytes off the first segment. An empty buffer is posted again.
func (s *Stream) consume(n int) {
	g := &s.ready[0]
	if g.off += n; g.off < g.end {
		return
	}
	buf := g.buf
	if s.ready = s.ready[1:]; len(s.ready) == 0 {
		s.ready = nil
	}
	s.give(buf)
}

// give posts a buffer that had data, and gives its credit back some time.
func (s *Stream) give(buf int) {
	s.repost(buf)
	s.owed++
	s.giveBack()
}

// repost fails only when the connection is over, of which the flushed receives tell.
func (s *Stream) repost(buf int) { _ = s.postRecv(s.c.qp, buf) }

func (s *Stream) postRecv(qp *verbs.QP, buf int) error {
	_, err := qp.PostRecv(&verbs.RecvWR{ID: uint64(buf), SGE: s.mr.Slice(buf*streamBuffer, streamBuffer)})
	return err
}

// giveBack tells the peer of credits, if they are many and no data has carried them.
func (s *Stream) giveBack() {
	if s.owed < streamCredits/2 || s.err != nil || s.closed {
		return
	}
	if s.sendControl(uint32(s.owed)) {
		s.owed = 0
	}
}

// sendControl sends a message without data; false: later.
func (s *Stream) sendControl(imm uint32) bool {
	s.reap()
	if s.control >= streamControl {
		s.help()
		return false
	}
	_, err := s.c.qp.PostSend(&verbs.SendWR{ID: controlID, Opcode: verbs.OpSendImm, Flags: verbs.Signaled | verbs.Solicited, Imm: imm})
	if err == nil {
		s.control++
	}
	return err == nil
}

// pollSends takes completions of sends, and does what has waited for them. mu is held.
func (s *Stream) pollSends() {
	if s.reap() {
		s.giveBack()
	}
}

// reap is pollSends without credits, for who gives them back.
func (s *Stream) reap() (progress bool) {
	for {
		n, err := s.scq.Poll(s.swc[:])
		if err != nil || n == 0 {
			return progress
		}
		progress = true
		s.wcond.Broadcast()
		for _, w := range s.swc[:n] {
			s.heard = s.heard || w.Status == verbs.StatusSuccess
			switch w.ID {
			case controlID:
				s.control--
			case probeID:
				s.answered(w.Err())
			default:
				s.flying--
				s.free = append(s.free, int(w.ID))
			}
			// That does not end the stream: what the peer sent before may still be in the other queue, in front of the receives
			// that are flushed now, and end it.
			if err := w.Err(); err != nil && s.cause == nil && !errors.Is(err, verbs.ErrFlushed) {
				s.cause = err
			}
		}
	}
}

// over ends the stream because of the connection.
func (s *Stream) over(cause error) {
	if s.err != nil {
		return
	}
	s.reap() // a send may say more
	if errors.Is(cause, verbs.ErrFlushed) {
		cause = s.cause
	}
	s.err = errReset
	if cause != nil {
		s.err = fmt.Errorf("%w: %w", errReset, cause)
	}
	s.rcond.Broadcast()
	s.wcond.Broadcast()
}

// help has completions of sends looked at when they come: of those alone nobody is told.
func (s *Stream) help() {
	if s.helping || s.closed || s.err != nil {
		return
	}
	s.helping = true
	s.helper.Go(func() {
		err := s.scq.Wait(s.ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.helping = false
		if err != nil {
			return
		}
		s.pollSends()
	})
}

// run takes what arrives until Close, then ends the connection when everything has been sent.
func (s *Stream) run() {
	for s.rcq.Wait(s.ctx) == nil {
		s.mu.Lock()
		for {
			n, err := s.rcq.Poll(s.rwc[:])
			if err != nil || n == 0 {
				break
			}
			for _, w := range s.rwc[:n] {
				s.received(&w)
			}
		}
		over := s.err != nil
		s.mu.Unlock()
		if over {
			_ = s.c.Disconnect() // the peer may not know
		}
	}
	s.mu.Lock()
	if !s.closed {
		s.over(ErrClosed) // the NIC has been
	}
	s.mu.Unlock()
	s.helper.Wait()
	s.finish()
	s.release()
}

// received takes one completion of a receive: what is in it is the peer's word.
func (s *Stream) received(w *verbs.WC) {
	buf := int(w.ID)
	if w.Status != verbs.StatusSuccess {
		s.over(w.Err())
		return
	}
	s.heard = true
	data, back := w.Imm&immData != 0, int(w.Imm&immCredits)
	if !w.HasImm || w.Imm>>18 != 0 || !data && w.ByteLen != 0 || s.credits+back > s.window || data && (s.eof || len(s.ready)+s.owed >= streamCredits) {
		s.over(fmt.Errorf("the peer does not keep to the protocol of streams: %w", syscall.EPROTO))
		return
	}
	if back > 0 {
		s.credits += back
		s.wcond.Broadcast()
	}
	switch {
	case !data:
		s.repost(buf)
	case w.ByteLen == 0:
		s.give(buf)
	default:
		s.ready = append(s.ready, segment{buf, 0, w.ByteLen})
		s.rcond.Broadcast()
	}
	if w.Imm&immFIN != 0 {
		s.eof = true
		s.rcond.Broadcast()
	}
}
