//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Messages between front and supervisor, and between supervisor and helper: SEQPACKET, so one send
// is one receive, of a kind byte and a body.
const (
	msgConfig  = 'c' // front: Options.Nice (4 bytes) and Options.Config
	msgSignal  = 's' // front: a signal number for the program; 1 if the terminal has sent it to the program, if that is there
	msgBye     = 'b' // front: has the exit code and leaves
	msgStarted = 'l' // helper, passed on to the front: the listener descriptor; body: see started
	msgStopped = 't' // supervisor: the program has been stopped (job control)
	msgExited  = 'x' // supervisor, which now exits: the program's exit code, 4 bytes
	msgLeft    = 'y' // the same of a supervisor that stays, because processes are left
	msgFailed  = 'f' // supervisor, helper: see failure

	msgFailedLeft = 'g' // the same of a supervisor that stays, because others use its NIC
)

// maxMessage bounds a message: the configuration is the longest.
const maxMessage = 128<<10 + 16

type message struct {
	kind byte
	body []byte
	fd   int // passed descriptor or -1
}

// pair makes a connected pair of control sockets.
func pair() (a, b int, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("control socket: %w", err)
	}
	return p[0], p[1], nil
}

// tell sends one message, with descriptor fd unless it is negative. It may block but not raise
// SIGPIPE.
func tell(sock int, kind byte, body []byte, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	for {
		err := unix.Sendmsg(sock, append([]byte{kind}, body...), rights, nil, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}

// errPeerGone: the other process closed its end, by dying or by exec.
var errPeerGone = errors.New("control socket closed")

// hear receives one message.
func hear(sock int) (message, error) {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	for {
		n, on, _, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return message{fd: -1}, errPeerGone
		}
		m := message{kind: buf[0], body: buf[1:n], fd: -1}
		if cms, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && len(cms) == 1 {
			if fds, err := unix.ParseUnixRights(&cms[0]); err == nil && len(fds) == 1 {
				m.fd = fds[0]
			}
		}
		return m, nil
	}
}

// sentinels are the errors that keep their identity on the way to the front.
var sentinels = []error{nil, ErrUnsupported, ErrNested, ErrNotFound, ErrNotExecutable, ErrNICDied, ErrOptions, ErrJudged, ErrMemory}

// failure is an error of Run with its exit code, as it crosses the processes: a byte with the place
// in sentinels, a byte of exit code, the text.
type failure struct {
	code int
	kind error
	text string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.kind }

func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	f = &failure{code: ExitFailure, text: err.Error()}
	var with interface{ ExitCode() int }
	if errors.As(err, &with) {
		f.code = with.ExitCode()
	}
	for _, s := range sentinels[1:] {
		if errors.Is(err, s) {
			f.kind = s
		}
	}
	return f
}

func (f *failure) encode() []byte {
	b := []byte{0, byte(f.code)}
	for i, s := range sentinels {
		if f.kind == s {
			b[0] = byte(i)
		}
	}
	return append(b, f.text[:min(len(f.text), 4096)]...)
}

func decodeFailure(b []byte) *failure {
	if len(b) < 2 || int(b[0]) >= len(sentinels) {
		return &failure{code: ExitFailure, text: "malformed report of a failure"}
	}
	return &failure{code: int(b[1]), kind: sentinels[b[0]], text: string(b[2:])}
}

// started is what the helper says of the filter that it installed.
type started struct {
	ranges   ranges
	killable bool
}

func (s started) encode() []byte {
	b := make([]byte, 13)
	binary.LittleEndian.PutUint32(b, s.ranges.verbs)
	binary.LittleEndian.PutUint32(b[4:], s.ranges.cm)
	binary.LittleEndian.PutUint32(b[8:], s.ranges.end)
	if s.killable {
		b[12] = 1
	}
	return b
}

func decodeStarted(b []byte) (started, error) {
	if len(b) != 13 {
		return started{}, os.ErrInvalid
	}
	u := binary.LittleEndian.Uint32
	return started{ranges{u(b), u(b[4:]), u(b[8:])}, b[12] != 0}, nil
}
