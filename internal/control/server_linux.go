package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// requestTime is how long a client may take to send its line.
const requestTime = 5 * time.Second

// Handler carries out an operation. args, null if there were none, is not trusted. An error before Stream.Reply is
// the answer; nil without Reply answers {"ok":null}. ctx ends when the client has closed the connection, or the server is closed.
type Handler = func(ctx context.Context, args json.RawMessage, conn *Stream) error

// Server lets commands reach the NICs of this process.
type Server struct {
	l      *net.UnixListener
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	about About
	ops   map[string]Handler
	conns map[*net.UnixConn]struct{}
}

// Listen makes the socket of this process and serves it. Operations may be added at any time.
func Listen(about About) (*Server, error) {
	s := &Server{about: about, ops: map[string]Handler{}, conns: map[*net.UnixConn]struct{}{}}
	err := errNames
	for name := range names {
		if s.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("socket for commands to this NIC: %w", err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.Handle(opAbout, func(_ context.Context, _ json.RawMessage, c *Stream) error { return c.Reply(s.whatItHas()) })
	s.work.Go(s.accept)
	return s, nil
}

// Handle makes f carry out op.
func (s *Server) Handle(op string, f Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops[op] = f
}

// AddDevice tells that the process has one more device, which operations may name.
func (s *Server) AddDevice(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.about.Devices = append(slices.Clip(s.about.Devices), name)
}

func (s *Server) whatItHas() About {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.about
}

// Close ends all connections and returns when every handler has.
func (s *Server) Close() {
	s.mu.Lock()
	s.cancel()
	for c := range s.conns {
		c.SetReadDeadline(time.Now()) // a handler sees its context end and may say a last word
		c.SetWriteDeadline(time.Now().Add(time.Second))
	}
	s.mu.Unlock()
	s.l.Close()
	s.work.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			select { // out of descriptors, most likely
			case <-s.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if cred, err := peer(c); err != nil || !mayAsk(cred) { // before it is counted: strangers use up no place
			refuse(c, fmt.Sprintf("this NIC is %v", ErrRefused))
			continue
		}
		if !s.add(c) {
			refuse(c, fmt.Sprintf("%d commands are connected to this NIC already: end one of them", MaxConnections))
			continue
		}
		s.work.Go(func() {
			defer s.remove(c)
			s.serve(c)
		})
	}
}

// add counts a connection in; false: there are enough.
func (s *Server) add(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= MaxConnections || s.ctx.Err() != nil {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *net.UnixConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func refuse(c *net.UnixConn, why string) {
	c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_ = writeLine(c, reply{Error: why})
	c.Close()
}

// serve carries out the one operation of a connection.
func (s *Server) serve(c *net.UnixConn) {
	st := &Stream{conn: c, in: bufio.NewReaderSize(c, MaxRequest)}
	s.deadline(c, time.Now().Add(requestTime))
	line, err := st.in.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			st.fail(fmt.Errorf("the request is longer than %d bytes", MaxRequest))
		}
		return
	}
	var q request
	if err := json.Unmarshal(line, &q); err != nil {
		st.fail(fmt.Errorf("the request is no JSON object with op and args: %v", err))
		return
	}
	s.mu.Lock()
	f := s.ops[q.Op]
	s.mu.Unlock()
	s.deadline(c, time.Time{})
	if f == nil {
		st.fail(fmt.Errorf("this NIC (rnic %s) has no operation %q", s.whatItHas().Version, clean(q.Op, 32)))
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	st.watch(cancel)
	err = f(ctx, append(json.RawMessage(nil), q.Args...), st)
	switch {
	case st.replied:
	case err != nil:
		st.fail(err)
	default:
		_ = st.Reply(nil)
	}
	c.CloseWrite()
}

// deadline bounds reading, unless the server is closing and has done so.
func (s *Server) deadline(c *net.UnixConn, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		c.SetReadDeadline(t)
	}
}

// Stream is the connection of an operation.
type Stream struct {
	conn    *net.UnixConn
	in      *bufio.Reader
	replied bool
}

// Reply answers the request, once; v is encoded as JSON. Afterwards Write streams bytes.
func (s *Stream) Reply(v any) error {
	if s.replied {
		return errors.New("control: a request was answered twice")
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > MaxReply-64 {
		return fmt.Errorf("the answer would be longer than %d bytes", MaxReply)
	}
	s.replied = true
	return writeLine(s.conn, reply{OK: b})
}

// Write streams bytes to the client, after Reply. It waits while the client does not read.
func (s *Stream) Write(b []byte) (int, error) { return s.conn.Write(b) }

// SetWriteDeadline bounds how long Write waits.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.conn.SetWriteDeadline(t) }

func (s *Stream) fail(err error) {
	s.replied = true
	s.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = writeLine(s.conn, reply{Error: clean(err.Error(), MaxReply/8)})
}

// watch calls gone when the client closes. What it sends behind its request is thrown away.
func (s *Stream) watch(gone func()) {
	go func() {
		_, _ = io.Copy(io.Discard, s.in)
		gone()
	}()
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// peer is who is at the other end.
func peer(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		err = e
	}
	return cred, err
}

// mayAsk tells whether a client with these credentials may use this process's NICs.
func mayAsk(c *unix.Ucred) bool { return c.Uid == 0 || int(c.Uid) == os.Geteuid() }
