package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Conn is a client's connection to a NIC's process. It carries one operation.
type Conn struct {
	conn     *net.UnixConn
	in       *bufio.Reader
	pid, uid int
}

// Dial connects to a NIC that Find has found. ErrRefused: somebody else listens there; ErrNone: nobody does.
func Dial(ctx context.Context, n *NIC) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", n.address)
	if err != nil {
		return nil, fmt.Errorf("reaching NIC %s: %w: %v", n, ErrNone, err)
	}
	u := c.(*net.UnixConn)
	cred, err := peer(u)
	if err == nil && cred.Uid != 0 && int(cred.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		err = ErrRefused
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("reaching NIC %s: %w", n, err)
	}
	return &Conn{conn: u, in: bufio.NewReaderSize(u, 64<<10), pid: int(cred.Pid), uid: int(cred.Uid)}, nil
}

// Call sends the operation of this connection and decodes its answer into result, unless that is nil. A *RemoteError is what the NIC's process
// answered. Until ctx ends.
func (c *Conn) Call(ctx context.Context, op string, args, result any) error {
	undo := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Now()) })
	defer undo()
	err := c.call(op, args, result)
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

func (c *Conn) call(op string, args, result any) error {
	q := request{Op: op}
	var err error
	if args != nil {
		if q.Args, err = json.Marshal(args); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := writeLine(c.conn, q); err != nil {
		return fmt.Errorf("%s: asking the NIC's process: %w", op, err)
	}
	line, err := c.line()
	if err != nil {
		return fmt.Errorf("%s: answer of the NIC's process: %w", op, err)
	}
	var r reply
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("%s: answer of the NIC's process: %w", op, err)
	}
	if r.Error != "" {
		return &RemoteError{op, clean(r.Error, MaxReply)}
	}
	if result == nil || len(r.OK) == 0 {
		return nil
	}
	if err := json.Unmarshal(r.OK, result); err != nil {
		return fmt.Errorf("%s: answer of the NIC's process: %w", op, err)
	}
	return nil
}

// line reads the answer, of bounded length.
func (c *Conn) line() ([]byte, error) {
	var b bytes.Buffer
	for {
		part, err := c.in.ReadSlice('\n')
		b.Write(part)
		switch {
		case err == nil:
			return b.Bytes(), nil
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case b.Len() > MaxReply:
			return nil, fmt.Errorf("longer than %d bytes", MaxReply)
		}
	}
}

// Read reads what the operation streams, after Call.
func (c *Conn) Read(b []byte) (int, error) { return c.in.Read(b) }

// CloseWrite tells the operation that this side has had enough; what it still sends can be read.
func (c *Conn) CloseWrite() error { return c.conn.CloseWrite() }

// Close ends the connection, and the operation with it.
func (c *Conn) Close() error { return c.conn.Close() }
