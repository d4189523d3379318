//go:build !linux

package control

import (
	"context"
	"encoding/json"
	"time"
)

// Handler carries out an operation.
type Handler = func(ctx context.Context, args json.RawMessage, conn *Stream) error

// Server does not exist on this system.
type Server struct{}

// Stream does not exist on this system.
type Stream struct{}

// Conn does not exist on this system.
type Conn struct{}

// Listen fails with ErrUnsupported.
func Listen(About) (*Server, error) { return nil, ErrUnsupported }

// Find fails with ErrUnsupported.
func Find() ([]NIC, error) { return nil, ErrUnsupported }

// Dial fails with ErrUnsupported.
func Dial(context.Context, *NIC) (*Conn, error) { return nil, ErrUnsupported }

func (*Server) Handle(string, Handler)           {}
func (*Server) AddDevice(string)                 {}
func (*Server) Close()                           {}
func (*Stream) Reply(any) error                  { return ErrUnsupported }
func (*Stream) Write([]byte) (int, error)        { return 0, ErrUnsupported }
func (*Stream) SetWriteDeadline(time.Time) error { return ErrUnsupported }

func (*Conn) Call(context.Context, string, any, any) error { return ErrUnsupported }
func (*Conn) Read([]byte) (int, error)                     { return 0, ErrUnsupported }
func (*Conn) CloseWrite() error                            { return ErrUnsupported }
func (*Conn) Close() error                                 { return ErrUnsupported }
