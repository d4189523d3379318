//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A program that opens a socket of NETLINK_RDMA gets one of NETLINK_USERSOCK, the protocol that is left to
// programs: bind, getsockname, the options of SOL_NETLINK and poll work natively, with the port ID that the kernel gave
// the socket, and the supervisor sends answers to that port ID from a socket of its own. Notified is only
// what the program sends, because the kernel's own port, 0, cannot be taken, and what it receives, for the
// sender's address. So that no other sends and receives are, the sockets have a range of descriptor numbers of their own.
//
// What differs: a copy of the descriptor that dup2 makes at a number outside of the range cannot send (ECONNREFUSED).

// netlinkMax bounds a datagram that a program sends, and netlinkSockets the sockets that are known: the least
// recently opened one is forgotten, which then cannot send any more.
const (
	netlinkMax     = 16 << 10
	netlinkSockets = 1024
	netlinkBacklog = 32 << 20 // bytes of answers that programs have not received, in all
)

// netlink serves the sockets of one run.
type netlink struct {
	answer NetlinkHandler
	port   uint32 // that answers come from

	mu      sync.RWMutex
	socket  int // answers are sent from it; -1: closed
	known   map[fileID]*netlinkSocket
	order   []*netlinkSocket
	waiting int // bytes in all backlogs
}

// netlinkSocket is a socket of a program. Its fields are guarded by netlink.mu.
type netlinkSocket struct {
	id      fileID
	port    uint32 // 0: not known yet
	backlog [][]byte
	busy    bool // a goroutine sends the backlog
}

// file is what stands for the socket where its descriptor is copied.
func (sock *netlinkSocket) file() *File { return &File{reg: file{id: sock.id, place: rangeNetlink}} }

// AnswerNetlink makes sockets of NETLINK_RDMA work: what a program sends there goes to h. Call it before Serve. The error
// says why that is not possible here; without, programs get EPROTONOSUPPORT and look into the tree instead.
func (s *Supervisor) AnswerNetlink(h NetlinkHandler) error {
	nl := &netlink{answer: h, known: map[fileID]*netlinkSocket{}}
	var err error
	if nl.socket, err = netlinkOpen(); err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	nl.port, err = netlinkPort(nl.socket)
	if err == nil {
		err = nl.try()
	}
	if err != nil {
		unix.Close(nl.socket)
		return fmt.Errorf("send from one netlink socket to another: %w", err)
	}
	s.netlink = nl
	return nil
}

// netlinkOpen makes a bound socket.
func netlinkOpen() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// try sends a datagram to another socket, as answers are.
func (nl *netlink) try() error {
	fd, err := netlinkOpen()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	port, err := netlinkPort(fd)
	if err != nil {
		return err
	}
	return nl.send(port, []byte{0, 0, 0, 0})
}

// netlinkPort is the port ID of a socket of ours, 0 if it is not bound.
func netlinkPort(fd int) (uint32, error) {
	a, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	n, ok := a.(*unix.SockaddrNetlink)
	if !ok {
		return 0, unix.EPROTOTYPE
	}
	return n.Pid, nil
}

// send never waits. EAGAIN: the receiver's buffer is full; ECONNREFUSED: there is no receiver any more.
func (nl *netlink) send(port uint32, b []byte) error {
	for {
		err := unix.Sendto(nl.socket, b, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
		if err != unix.EINTR {
			return err
		}
	}
}

// close ends the service; what was not received is dropped. Without a service there is nothing to do.
func (nl *netlink) close() {
	if nl == nil {
		return
	}
	nl.mu.Lock()
	defer nl.mu.Unlock()
	unix.Close(nl.socket)
	nl.socket = -1
}

// netlinkSocket answers socket(AF_NETLINK, type, NETLINK_RDMA).
func (s *server) netlinkSocket(n *notif) {
	c := s.newCall(n, nil, 0)
	if s.replay != nil && s.replay.begin(c) {
		return
	}
	got, e := s.netlinkInject(c, int(int32(n.args[1])))
	if e != 0 {
		c.Fail(e)
		return
	}
	c.Reply(int64(got))
}

// netlinkInject gives the program a socket of a type.
func (s *server) netlinkInject(c *call, typ int) (int, syscall.Errno) {
	kind := typ &^ (unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK)
	switch {
	case s.netlink == nil:
		return -1, unix.EPROTONOSUPPORT
	case kind != unix.SOCK_RAW && kind != unix.SOCK_DGRAM:
		return -1, unix.ESOCKTNOSUPPORT
	}
	fd, err := unix.Socket(unix.AF_NETLINK, typ|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		return -1, errnoOf(err)
	}
	defer unix.Close(fd)
	id, _, err := identify(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, errnoOf(err)
	}
	s.netlink.add(id)
	got, e := s.inject(c.TID(), c.id.Load(), fd, rangeNetlink, 0, typ&unix.SOCK_CLOEXEC != 0)
	c.void.Store(e == unix.ENOENT)
	return got, e
}

func (nl *netlink) add(id fileID) {
	nl.mu.Lock()
	defer nl.mu.Unlock()
	if len(nl.order) == netlinkSockets {
		old := nl.order[0]
		nl.order = append(nl.order[:0], nl.order[1:]...)
		if nl.known[old.id] == old {
			delete(nl.known, old.id)
		}
	}
	sock := &netlinkSocket{id: id}
	nl.known[id] = sock
	nl.order = append(nl.order, sock)
}

// netlinkArg is the socket at descriptor args[0], or nil: not one of ours.
func (s *server) netlinkArg(n *notif) *netlinkSocket {
	if s.netlink == nil {
		return nil
	}
	id, ok := fileAt(int(n.tid), int(int32(n.args[0])))
	if !ok {
		return nil
	}
	s.netlink.mu.RLock()
	defer s.netlink.mu.RUnlock()
	return s.netlink.known[id]
}

// netlinkConnect answers connect on a number of the range: to the kernel, port 0, it changes nothing. The socket that
// stands for the real one must stay unconnected, or it would take nothing from the supervisor.
func (s *server) netlinkConnect(n *notif) {
	if s.netlinkArg(n) == nil || !s.l.valid(n.id) {
		s.proceed(n)
		return
	}
	c := s.newCall(n, nil, 0)
	if e := toKernel(c, n.args[1], uint32(n.args[2])); e != 0 {
		c.Fail(e)
		return
	}
	c.Reply(0)
}

// netlinkSend answers sendto and sendmsg on a number of the range.
func (s *server) netlinkSend(n *notif, k callKind) {
	sock := s.netlinkArg(n)
	if sock == nil || !s.l.valid(n.id) {
		s.proceed(n)
		return
	}
	c := s.newCall(n, nil, n.args[1])
	if s.replay != nil && s.replay.begin(c) {
		return
	}
	// The handler may have to wait for a command that is under way: other calls go on.
	go func() {
		defer func() {
			if r := recover(); r != nil {
				fmt.Fprintf(os.Stderr, "rnic run: internal error in a message of NETLINK_RDMA: %v\n%s", r, debug.Stack())
				c.Fail(unix.EIO)
			}
		}()
		sent, e := s.netlinkMessage(c, sock, k)
		if e != 0 {
			c.Fail(e)
			return
		}
		c.Reply(int64(sent))
	}()
}

// netlinkMessage takes what is sent, and sends the answers.
func (s *server) netlinkMessage(c *call, sock *netlinkSocket, k callKind) (sent int, e syscall.Errno) {
	b, e := sentMessage(c, k)
	if e != 0 {
		return 0, e
	}
	if !c.Valid() {
		return 0, unix.EINTR
	}
	port, err := s.netlinkBound(c, sock)
	if err != nil {
		return 0, errnoOf(err)
	}
	return len(b), s.netlink.deliver(sock, port, s.netlink.answer(b, port, mayAdminister(c.TID())))
}

// sentMessage copies a message from the program's memory. EMSGSIZE: longer than netlinkMax.
func sentMessage(c *call, k callKind) ([]byte, syscall.Errno) {
	if k == callSendto {
		if e := toKernel(c, c.n.args[4], uint32(c.n.args[5])); e != 0 {
			return nil, e
		}
		return gather(c, []span{{c.n.args[1], c.n.args[2]}})
	}
	h, e := readMessageHeader(c, c.n.args[1])
	if e != 0 {
		return nil, e
	}
	if e := toKernel(c, h.name, h.nameSize); e != 0 {
		return nil, e
	}
	return gather(c, h.buffers)
}

// span is a part of the program's memory.
type span struct{ addr, size uint64 }

// messageHeader is what we need of struct user_msghdr.
type messageHeader struct {
	name     uint64
	nameSize uint32
	buffers  []span
}

// readMessageHeader reads the header at addr: name, namelen, iov, iovlen, control, controllen, flags.
func readMessageHeader(c *call, addr uint64) (h messageHeader, e syscall.Errno) {
	const maxSpans = 64
	var b [56]byte
	if c.ReadMem(addr, b[:]) != nil {
		return h, unix.EFAULT
	}
	u := binary.LittleEndian.Uint64
	count := u(b[24:])
	if count > maxSpans {
		return h, unix.EMSGSIZE
	}
	iov := make([]byte, 16*count)
	if c.ReadMem(u(b[16:]), iov) != nil {
		return h, unix.EFAULT
	}
	h = messageHeader{name: u(b[0:]), nameSize: binary.LittleEndian.Uint32(b[8:]), buffers: make([]span, count)}
	for i := range h.buffers {
		h.buffers[i] = span{u(iov[16*i:]), u(iov[16*i+8:])}
	}
	return h, 0
}

func gather(c *call, spans []span) ([]byte, syscall.Errno) {
	var b []byte
	for _, s := range spans {
		if s.size > uint64(netlinkMax-len(b)) {
			return nil, unix.EMSGSIZE
		}
		part := make([]byte, s.size)
		if s.size > 0 && c.ReadMem(s.addr, part) != nil {
			return nil, unix.EFAULT
		}
		b = append(b, part...)
	}
	return b, 0
}

// toKernel checks the struct sockaddr_nl of a message: none, or the kernel's own, is what we answer for. To send to
// others on NETLINK_RDMA is not permitted to programs without privileges (NL_CFG_F_NONROOT_SEND), and here to none.
func toKernel(c *call, addr uint64, size uint32) syscall.Errno {
	var a [12]byte // family, pad, pid, groups
	switch {
	case addr == 0 || size == 0:
		return 0
	case int32(size) < int32(len(a)):
		return unix.EINVAL
	case c.ReadMem(addr, a[:]) != nil:
		return unix.EFAULT
	case binary.LittleEndian.Uint16(a[:]) != unix.AF_NETLINK:
		return unix.EINVAL
	case binary.LittleEndian.Uint64(a[4:]) != 0:
		return unix.EPERM
	}
	return 0
}

// netlinkBound is the port ID of a program's socket, which is bound if it is not yet, as sending does.
func (s *server) netlinkBound(c *call, sock *netlinkSocket) (uint32, error) {
	nl := s.netlink
	nl.mu.RLock()
	port := sock.port
	nl.mu.RUnlock()
	if port != 0 {
		return port, nil
	}
	port, err := netlinkListed(sock.id.ino)
	if err == nil && port == 0 {
		port, err = s.netlinkBind(c, sock)
	}
	if err != nil {
		return 0, err
	}
	nl.mu.Lock()
	sock.port = port
	nl.mu.Unlock()
	return port, nil
}

// netlinkListed finds a bound socket in /proc/net/netlink by its inode, which needs no right over the program. 0:
// it is not there.
func netlinkListed(inode uint64) (uint32, error) {
	b, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return 0, unix.ENOTCONN
	}
	want := strconv.FormatUint(inode, 10)
	for line := range bytes.Lines(b) {
		// sk, protocol, port ID, groups, ..., inode
		f := bytes.Fields(line)
		if len(f) < 4 || string(f[len(f)-1]) != want || string(f[1]) != strconv.Itoa(unix.NETLINK_USERSOCK) {
			continue
		}
		port, err := strconv.ParseUint(string(f[2]), 10, 32)
		return uint32(port), err
	}
	return 0, nil
}

// netlinkBind binds a socket that the program has not bound.
func (s *server) netlinkBind(c *call, sock *netlinkSocket) (uint32, error) {
	fd, err := s.borrow(&c.n, sock.file())
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	return netlinkPort(fd)
}

// mayAdminister reports CAP_NET_ADMIN in the thread's effective set.
func mayAdminister(tid int) bool {
	v, err := strconv.ParseUint(statusField(tid, "CapEff"), 16, 64)
	return err == nil && v&(1<<unix.CAP_NET_ADMIN) != 0
}

// deliver sends answers in order. Those for which the program has no room are sent when it has, as the kernel goes on
// with a dump. ENOBUFS: too many wait already; then none of these is sent.
func (nl *netlink) deliver(sock *netlinkSocket, port uint32, answers [][]byte) syscall.Errno {
	nl.mu.Lock()
	defer nl.mu.Unlock()
	size := 0
	for _, a := range answers {
		size += len(a)
	}
	if size > netlinkBacklog-nl.waiting {
		return unix.ENOBUFS
	}
	sock.backlog = append(sock.backlog, answers...)
	nl.waiting += size
	if !sock.busy && !nl.flush(sock, port) {
		sock.busy = true
		go nl.drain(sock, port)
	}
	return 0
}

// flush sends what there is room for, and reports that nothing is left, or nobody to take it.
//
// Preconditions: mu is held.
func (nl *netlink) flush(sock *netlinkSocket, port uint32) bool {
	for len(sock.backlog) > 0 {
		err := error(unix.EBADF)
		if nl.socket >= 0 {
			err = nl.send(port, sock.backlog[0])
		}
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if err != nil { // the socket is closed
			for _, b := range sock.backlog {
				nl.waiting -= len(b)
			}
			sock.backlog = nil
			return true
		}
		nl.waiting -= len(sock.backlog[0])
		sock.backlog = sock.backlog[1:]
	}
	sock.backlog = nil
	return true
}

// drain sends the backlog as the program makes room, which nothing tells of: it looks, more and more seldom while
// nothing changes.
func (nl *netlink) drain(sock *netlinkSocket, port uint32) {
	const shortest, longest = time.Millisecond, 32 * time.Millisecond
	for wait := shortest; ; wait = min(2*wait, longest) {
		time.Sleep(wait)
		nl.mu.Lock()
		before := len(sock.backlog)
		done := nl.flush(sock, port)
		if len(sock.backlog) != before {
			wait = shortest / 2
		}
		if done {
			sock.busy = false
		}
		nl.mu.Unlock()
		if done {
			return
		}
	}
}
