package perf

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is the connection on which client and server tell each other what a measurement needs: JSON values, of the client's each of
// which the server answers or takes as a word. Unasked the server says only what has gone wrong.
type conn struct {
	net.Conn
	enc   *json.Encoder
	dec   *json.Decoder
	in    *bufio.Reader
	asked atomic.Bool   // an answer is due
	watch chan struct{} // nil, or closed when the next value, or the end, has been seen
}

func newConn(c net.Conn) *conn {
	in := bufio.NewReader(c)
	return &conn{Conn: c, enc: json.NewEncoder(c), dec: json.NewDecoder(in), in: in}
}

// look calls f when the other side says something, or has gone, for the reason in err. Until the next decode.
func (c *conn) look(f func(err error)) {
	seen := make(chan struct{})
	c.watch = seen
	go func() {
		defer close(seen)
		for {
			b, err := c.in.Peek(1)
			if err == nil && (b[0] == '\n' || b[0] == ' ') { // the end of what was read before
				_, _ = c.in.Discard(1)
				continue
			}
			f(err)
			return
		}
	}()
}

// decode reads the next value.
func (c *conn) decode(v any) error {
	if c.watch != nil {
		<-c.watch
		c.watch = nil
	}
	return c.dec.Decode(v)
}

// whileThere runs f for the server, with a context that ends with the client.
func (c *conn) whileThere(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.look(func(err error) {
		if err != nil {
			cancel(fmt.Errorf("the client is gone: %w", err))
		}
	})
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// endIfTold ends the client's measurement, whose options o are, when the server says unasked that it has failed, or goes; reason then
// says why. The function returned is called when the measurement has ended.
func (c *conn) endIfTold(o *Options) (done func()) {
	var end context.CancelFunc
	o.ctx, end = context.WithCancel(o.ctx)
	c.asked.Store(false)
	c.look(func(error) {
		if !c.asked.Load() {
			end()
		}
	})
	return end
}

// exchange sends one message and reads the answer.
func (c *conn) exchange(m any) (r reply, err error) {
	c.asked.Store(true)
	if err = c.enc.Encode(m); err == nil {
		err = c.decode(&r)
	}
	if gone(err) {
		err = fmt.Errorf("the server is gone: %w", err)
	}
	if err == nil && r.Error != "" {
		err = fmt.Errorf("the server says: %s", r.Error)
	}
	return r, err
}

// gone tells whether the other side has closed the connection.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// await waits for a word of the client's.
func (c *conn) await(word string) error {
	var got string
	if err := c.decode(&got); err != nil {
		return fmt.Errorf("the client is gone: %w", err)
	}
	if got != word {
		return fmt.Errorf("the client says %q where %q is due", got, word)
	}
	return nil
}

// reason is why a measurement failed: what the server has said, if it failed before, or err.
func (c *conn) reason(err error) error {
	var r reply
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	said := c.decode(&r)
	switch {
	case said == nil && r.Error != "":
		return fmt.Errorf("the server says: %s", r.Error)
	case gone(said) && (errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled)):
		return fmt.Errorf("the server is gone: %w", said)
	}
	return err
}
