package join

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// protocol is the version of what follows. Both sides must be of one.
const protocol = 3

// Kinds of messages. In parentheses: numbers, body, descriptors.
const (
	// Guest to host, on the socket of calls.
	kindHello = 'h' // (protocol; hello as JSON; sockets of notices and updates, then the run's files)
	kindOpen  = 'o' // (flags, thread, process, RLIMIT_FSIZE or 0, device)
	kindIoctl = 'i' // (file, argument, thread, process, descriptor)
	kindWrite = 'w' // (file, address, length, thread, process, descriptor)

	// Host to guest, while the call waits. The answer is of the same kind.
	kindInject   = 'j' // (range, close on exec, file; ; descriptor); answer (number, file, errno)
	kindValid    = 'v' // (); answer (0 or 1)
	kindFileAt   = 'f' // (descriptor number); answer (file or 0)
	kindNonblock = 'n' // (descriptor number); answer (0 or 1)
	kindSignal   = 's' // (); answer (0 or 1)
	kindStranded = 't' // (); answer (0 or 1)
	kindMemory   = 'm' // (); answer (errno; ; memory, mappings)

	// Host to guest: the end of the call.
	kindReply    = 'r' // (value)
	kindFail     = 'e' // (errno)
	kindContinue = 'c'
	kindLater    = 'L' // (call); then, on the socket of updates, kindReply, kindFail or kindContinue (value; call)

	// Host to guest: the tree, before kindReady on the socket of calls, later on that of updates.
	kindDir     = 'd' // (; path)
	kindFile    = 'F' // (length of the path; path, content)
	kindSymlink = 'l' // (length of the path; path, target)
	kindDevice  = 'D' // (major, minor, device; path)
	kindLive    = 'V' // (number of the file; path)
	kindRemove  = 'x' // (; path)
	kindForget  = 'g' // (file)
	kindReady   = 'R'
	kindRefused = 'X' // (; reason)

	// Guest to host, on the socket of notices. The answer is of the same kind.
	kindClosed  = 'C' // (file)
	kindGone    = 'G' // (process)
	kindAbandon = 'B' // (call); answer (1: given up, 0: it has been answered)
	kindRead    = 'q' // (file's number); answer (1: here is, 0: there is none; content) of a live file
	kindAsk     = 'A' // (; question); answers (more follow; part of the answer), the last with more 0
)

const (
	numbers    = 6
	headLength = 1 + 8*numbers
	maxBody    = 64 << 10
	maxConfig  = 32 << 10 // of Request.Config, which is encoded within a body
	maxFiles   = 8        // descriptors of a message
)

// message is one datagram of the protocol.
type message struct {
	kind byte
	num  [numbers]uint64
	body []byte // valid until the next receive
	fds  []int  // the receiver's
}

// conn is one end of a connection. One goroutine may send while another receives.
type conn struct {
	fd   int
	once sync.Once

	sendMu   sync.Mutex
	out      []byte
	in, ctrl []byte
}

func newConn(fd int) *conn {
	return &conn{fd: fd, in: make([]byte, headLength+maxBody), ctrl: make([]byte, unix.CmsgSpace(4*maxFiles))}
}

func (c *conn) close() { c.once.Do(func() { unix.Close(c.fd) }) }

// hangUp makes both ends see the end of the connection, whoever waits there.
func (c *conn) hangUp() { unix.Shutdown(c.fd, unix.SHUT_RDWR) }

// errEnded says that the other side is gone.
var errEnded = errors.New("join: connection ended")

// errNoDescriptors says that passed descriptors found no room.
var errNoDescriptors = errors.New("its process has no file descriptors left: give the first run a higher limit (ulimit -n)")

// send writes one message; fds stay the caller's.
func (c *conn) send(m message) error {
	if len(m.body) > maxBody {
		return fmt.Errorf("join: message of %d bytes", len(m.body))
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.out = append(c.out[:0], m.kind)
	for _, n := range m.num {
		c.out = binary.LittleEndian.AppendUint64(c.out, n)
	}
	c.out = append(c.out, m.body...)
	var rights []byte
	if len(m.fds) > 0 {
		rights = unix.UnixRights(m.fds...)
	}
	for {
		err := unix.Sendmsg(c.fd, c.out, rights, nil, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}

// receive reads one message. Whatever is wrong with it ends the connection.
func (c *conn) receive() (m message, err error) {
	for {
		n, on, flags, _, err := unix.Recvmsg(c.fd, c.in, c.ctrl, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return m, errEnded
		}
		m.fds = rightsOf(c.ctrl[:on])
		if n < headLength || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			closeAll(m.fds)
			if flags&unix.MSG_CTRUNC != 0 {
				return message{}, errNoDescriptors
			}
			return message{}, fmt.Errorf("join: malformed message of %d bytes", n)
		}
		m.kind = c.in[0]
		for i := range m.num {
			m.num[i] = binary.LittleEndian.Uint64(c.in[1+8*i:])
		}
		m.body = c.in[headLength:n]
		return m, nil
	}
}

// ask sends one message and receives the answer, which must be of the same kind.
func (c *conn) ask(m message) (message, error) {
	if err := c.send(m); err != nil {
		return message{}, err
	}
	a, err := c.receive()
	if err == nil && a.kind != m.kind {
		closeAll(a.fds)
		err = fmt.Errorf("join: answer %q to %q", a.kind, m.kind)
	}
	return a, err
}

// receiveWithin is receive, but ends with errEnded when the time is over.
func (c *conn) receiveWithin(d time.Duration) (message, error) {
	limit := func(d time.Duration) error {
		t := unix.NsecToTimeval(int64(d)) // 0: none
		return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t)
	}
	if err := limit(d); err != nil {
		return message{}, err
	}
	m, err := c.receive()
	return m, cmp.Or(err, limit(0))
}

func rightsOf(b []byte) (fds []int) {
	cms, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil
	}
	for i := range cms {
		if f, err := unix.ParseUnixRights(&cms[i]); err == nil {
			fds = append(fds, f...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// splitBody takes a path and what follows it apart.
func (m *message) splitBody() (path, rest string, ok bool) {
	n := m.num[0]
	if n > uint64(len(m.body)) {
		return "", "", false
	}
	return string(m.body[:n]), string(m.body[n:]), true
}

// sameUser checks who is at the other end.
func sameUser(fd int) (pid int, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	if int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("process %d there belongs to user %d", cred.Pid, cred.Uid)
	}
	if int(cred.Uid) == overflowUID && !wholeUserNamespace() {
		return 0, fmt.Errorf("this user namespace shows every user that it has no number for as %d: who process %d belongs to cannot be told", overflowUID, cred.Pid)
	}
	return int(cred.Pid), nil
}

// overflowUID is what a user without a number in a user namespace looks like there (user_namespaces(7)).
const overflowUID = 65534

// wholeUserNamespace tells whether every user has a number here, as in the initial user namespace.
func wholeUserNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	var first, outside, n uint64
	_, err2 := fmt.Sscan(string(b), &first, &outside, &n)
	return err == nil && err2 == nil && first == 0 && outside == 0 && n == 1<<32-1
}

// othersMayTrace tells whether any process of this user may reach the memory of any other anyway: then it makes no
// difference whom a guest lets the host reach. With Yama's ptrace_scope a host reaches its own descendants, which no guest may.
func othersMayTrace() bool {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	return err != nil || os.Geteuid() == 0 || strings.TrimSpace(string(b)) == "0"
}

// hello is how a guest introduces itself.
type hello struct {
	Version      string // of the program: both must be of one
	PIDNamespace uint64
	FilesOnly    bool // see Request
	Config       []byte
}

// pidNamespace identifies the pid namespace of this process; 0 if unknown.
func pidNamespace() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil {
		return 0
	}
	return st.Ino
}
