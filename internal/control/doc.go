// Package control is how a command reaches a NIC that runs in another process: rnic nics, capture and the like.
//
// Each process with a NIC listens on an abstract Unix stream socket, whose name space is that of the network
// (unix(7)). A connection carries one operation: the client sends a line of JSON, {"op":"capture","args":{...}},
// and the server answers with a line, {"ok":...} or {"error":"..."}. After {"ok":...} some operations stream bytes until
// either side closes.
//
// Both sides check that the other is the same user, or root (SO_PEERCRED). All that comes from the other side is bounded
// and checked; nothing here is on the way of packets.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Bounds of what a connection carries, and of how many there are.
const (
	MaxRequest     = 64 << 10 // bytes of a request's line
	MaxReply       = 1 << 20  // bytes of an answer's line
	MaxConnections = 16       // of one server at the same time
)

// Errors for errors.Is.
var (
	// ErrNone: no NIC runs here, or none of that name.
	ErrNone = errors.New("no such NIC runs here")
	// ErrSeveral: several NICs run, and nothing says which is meant.
	ErrSeveral = errors.New("several NICs run here")
	// ErrRefused: the other side is of another user.
	ErrRefused = errors.New("of another user")
	// ErrUnsupported: this system has no such sockets.
	ErrUnsupported = errors.New("running NICs can be reached on Linux only")
)

// RemoteError is what the NIC's process answered.
type RemoteError struct{ Op, Text string }

func (e *RemoteError) Error() string { return e.Op + ": " + e.Text }

// About describes a process with NICs.
type About struct {
	Devices []string `json:"devices"` // names of its devices
	Command string   `json:"command"` // what the process was started as
	Version string   `json:"version,omitempty"`
}

// NIC is a process with one or more NICs, as Find sees it.
type NIC struct {
	PID int // 0: in a process namespace that is not seen from here
	UID int
	About

	address string
}

func (n *NIC) String() string {
	return fmt.Sprintf("%s (process %d: %s)", strings.Join(n.Devices, ", "), n.PID, n.Command)
}

type request struct {
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args,omitempty"`
}

type reply struct {
	OK    json.RawMessage `json:"ok,omitempty"`
	Error string          `json:"error,omitempty"`
}

// opAbout is the operation that every server has.
const opAbout = "about"

// clean makes text of another process fit for a terminal, and short.
func clean(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > max {
		s = string(r[:max]) + "..."
	}
	return s
}
