//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// echo is the test's NetlinkHandler. A datagram "many N" is answered by N datagrams with their numbers, "panic" by a
// panic, any other by itself with the port ID in front and, for an administrator, "admin" behind it.
func echo(datagram []byte, port uint32, admin bool) [][]byte {
	text := string(datagram)
	if n, err := strconv.Atoi(strings.TrimPrefix(text, "many ")); err == nil {
		var out [][]byte
		for i := range n {
			out = append(out, bytes.Repeat([]byte{byte(i)}, 3000))
		}
		return out
	}
	if text == "panic" {
		panic("the test's handler is broken")
	}
	if admin {
		text += " admin"
	}
	return [][]byte{fmt.Appendf(nil, "%d %s", port, text)}
}

var kernelAddr = &unix.SockaddrNetlink{Family: unix.AF_NETLINK}

// rdmaSocket opens a socket of NETLINK_RDMA, bound as libmnl binds.
func rdmaSocket(flags int) (fd int, port uint32, err error) {
	if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, netlinkRDMA); err != nil {
		return -1, 0, fmt.Errorf("socket(NETLINK_RDMA): %w", err)
	}
	// An answer that does not come is an error, not a test that hangs.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
	if err = unix.Bind(fd, kernelAddr); err == nil {
		port, err = netlinkPort(fd)
	}
	if err == nil && port == 0 {
		err = errors.New("bound to port ID 0")
	}
	return fd, port, err
}

// expect receives a datagram, which must come from the kernel.
func expect(fd int, want string) error {
	b := make([]byte, 4096)
	n, from, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 || a.Groups != 0 {
		return fmt.Errorf("from %+v, not the kernel", from)
	}
	if string(b[:n]) != want {
		return fmt.Errorf("received %q, want %q", b[:n], want)
	}
	return nil
}

func suffix() string {
	if mayAdminister(os.Getpid()) {
		return " admin"
	}
	return ""
}

// clientNetlink does what clients do with sockets of NETLINK_RDMA.
func clientNetlink([]string) error {
	for _, f := range []func() error{netlinkTalk, netlinkUnbound, netlinkPoll, netlinkLongAnswer, netlinkRefusals, netlinkForeign, netlinkMemory, netlinkManySockets} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// netlinkTalk asks by sendto and sendmsg, with the address and without, and peeks before it receives.
func netlinkTalk() error {
	fd, port, err := rdmaSocket(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1); err != nil {
		return fmt.Errorf("SOL_NETLINK: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("fstat: mode %o, %v", st.Mode, err)
	}
	want := fmt.Sprintf("%d question%s", port, suffix())
	if err := unix.Sendto(fd, []byte("question"), 0, kernelAddr); err != nil {
		return fmt.Errorf("sendto: %w", err)
	}
	b := make([]byte, 4)
	n, _, flags, from, err := unix.Recvmsg(fd, b, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	if a, ok := from.(*unix.SockaddrNetlink); err != nil || n != len(want) || flags&unix.MSG_TRUNC == 0 || string(b) != want[:4] || !ok || a.Pid != 0 {
		return fmt.Errorf("peek: %d of %q, flags %#x, from %+v, %v", n, b, flags, from, err)
	}
	if err := expect(fd, want); err != nil {
		return err
	}
	if _, err := unix.SendmsgBuffers(fd, [][]byte{[]byte("que"), {}, []byte("stion")}, nil, kernelAddr, 0); err != nil {
		return fmt.Errorf("sendmsg: %w", err)
	}
	first, second := make([]byte, 3), make([]byte, 100)
	n, _, flags, from, err = unix.RecvmsgBuffers(fd, [][]byte{first, second}, nil, 0)
	if a, ok := from.(*unix.SockaddrNetlink); err != nil || flags != 0 || string(first)+string(second[:n-3]) != want || !ok || a.Pid != 0 {
		return fmt.Errorf("recvmsg: %q %q, flags %#x, from %+v, %v", first, second[:n-3], flags, from, err)
	}
	if err := unix.Connect(fd, kernelAddr); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("copy of the descriptor: %w", err)
	}
	defer unix.Close(other)
	if err := unix.Sendto(other, []byte("question"), 0, kernelAddr); err != nil {
		return fmt.Errorf("sendto on a copy, %d: %w", other, err)
	}
	if err := expect(fd, want); err != nil {
		return err
	}
	if _, err := unix.SendmsgN(fd, []byte("question"), nil, nil, 0); err != nil {
		return fmt.Errorf("send on a connected socket: %w", err)
	}
	return expect(fd, want)
}

// netlinkUnbound sends before it binds, which binds.
func netlinkUnbound() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM, netlinkRDMA)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC != 0 {
		return errors.New("close-on-exec, which was not asked for")
	}
	if err := unix.Sendto(fd, []byte("hello"), 0, kernelAddr); err != nil {
		return fmt.Errorf("send unbound: %w", err)
	}
	port, err := netlinkPort(fd)
	if err != nil || port == 0 {
		return fmt.Errorf("port ID %d, %v", port, err)
	}
	return expect(fd, fmt.Sprintf("%d hello%s", port, suffix()))
}

// netlinkPoll waits in the kernel, in poll and in receive.
func netlinkPoll() error {
	fd, port, err := rdmaSocket(unix.SOCK_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, err := unix.Recvfrom(fd, make([]byte, 10), 0); err != unix.EAGAIN {
		return fmt.Errorf("nothing there: %v, want EAGAIN", err)
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); n != 0 || err != nil {
		return fmt.Errorf("nothing there: poll says %d, %v", n, err)
	}
	if err := unix.Sendto(fd, []byte("x"), 0, kernelAddr); err != nil {
		return err
	}
	if n, err := unix.Poll(fds, 10_000); n != 1 || err != nil {
		return fmt.Errorf("an answer is there: poll says %d, %v", n, err)
	}
	return expect(fd, fmt.Sprintf("%d x%s", port, suffix()))
}

// netlinkLongAnswer gets more than its buffer holds, in order, reading late.
func netlinkLongAnswer() error {
	fd, _, err := rdmaSocket(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 32768); err != nil { // as libnl does
		return err
	}
	if err := unix.Sendto(fd, []byte("many 1000"), 0, kernelAddr); err != nil {
		return err
	}
	b := make([]byte, 4096)
	for i := range 1000 {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if a, ok := from.(*unix.SockaddrNetlink); err != nil || n != 3000 || b[0] != byte(i) || b[2999] != byte(i) || !ok || a.Pid != 0 {
			return fmt.Errorf("datagram %d of a long answer: %d bytes of %#x, from %+v, %v", i, n, b[0], from, err)
		}
	}
	// More than may wait: refused as a whole. The socket goes on.
	if err := unix.Sendto(fd, []byte("many 20000"), 0, kernelAddr); err != unix.ENOBUFS {
		return fmt.Errorf("an answer of 60 MB: %v, want ENOBUFS", err)
	}
	if err := unix.Sendto(fd, []byte("many 1"), 0, kernelAddr); err != nil {
		return err
	}
	return expect(fd, string(make([]byte, 3000)))
}

func netlinkRefusals() error {
	if _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_STREAM, netlinkRDMA); err != unix.ESOCKTNOSUPPORT {
		return fmt.Errorf("a stream: %v", err)
	}
	fd, port, err := rdmaSocket(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for what, c := range map[string]struct {
		to   unix.Sockaddr
		size int
		want error
	}{
		"to another program":  {&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}, 1, unix.EPERM},
		"to a group":          {&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}, 1, unix.EPERM},
		"too long":            {kernelAddr, 16<<10 + 1, unix.EMSGSIZE},
		"to another protocol": {&unix.SockaddrUnix{Name: "/nowhere/at/all"}, 1, unix.EINVAL},
	} {
		if err := unix.Sendto(fd, make([]byte, c.size), 0, c.to); err != c.want {
			return fmt.Errorf("sending %s: %v, want %v", what, err, c.want)
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != unix.EPERM {
		return fmt.Errorf("connecting to another program: %v", err)
	}
	// What is sent to nobody in particular, and ordinary sockets, are not concerned.
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup3(p[0], fd, 0); err != nil { // an ordinary socket at a number of the range
		return err
	}
	if _, err := unix.SendmsgN(fd, []byte("through"), nil, nil, 0); err != nil {
		return fmt.Errorf("an ordinary socket at number %d: %w", fd, err)
	}
	b := make([]byte, 10)
	if n, err := unix.Read(p[1], b); err != nil || string(b[:n]) != "through" {
		return fmt.Errorf("an ordinary socket at number %d: %q, %v", fd, b[:max(n, 0)], err)
	}
	return nil
}

// netlinkForeign: what others send to the port ID is not taken for the kernel's.
func netlinkForeign() error {
	fd, port, err := rdmaSocket(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	other, err := netlinkOpen() // of NETLINK_USERSOCK, which is not answered for
	if err != nil {
		return err
	}
	defer unix.Close(other)
	if err := unix.Sendto(other, []byte("forged"), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
		return err
	}
	if err := unix.Sendto(fd, []byte("x"), 0, kernelAddr); err != nil {
		return err
	}
	return expect(fd, fmt.Sprintf("%d x%s", port, suffix()))
}

// netlinkMemory gives addresses where nothing is.
func netlinkMemory() error {
	fd, _, err := rdmaSocket(unix.SOCK_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	u := uintptr(fd)
	b := make([]byte, 100)
	buf := uintptr(unsafe.Pointer(&b[0]))
	size := uint32(12)
	for what, call := range map[string][]uintptr{
		"sendto from nowhere":          {unix.SYS_SENDTO, u, 8, 4, 0, 0, 0},
		"sendto to nowhere":            {unix.SYS_SENDTO, u, buf, 4, 0, 8, 12},
		"sendmsg of nothing":           {unix.SYS_SENDMSG, u, 8, 0, 0, 0, 0},
		"recvmsg of nothing":           {unix.SYS_RECVMSG, u, 8, 0, 0, 0, 0},
		"recvfrom, address's size":     {unix.SYS_RECVFROM, u, buf, 100, 0, buf, 8},
		"recvfrom to nowhere":          {unix.SYS_RECVFROM, u, 8, 100, 0, 0, 0},
		"recvfrom, address to nowhere": {unix.SYS_RECVFROM, u, buf, 100, 0, 8, uintptr(unsafe.Pointer(&size))},
		"connect to nowhere":           {unix.SYS_CONNECT, u, 8, 12, 0, 0, 0},
	} {
		if call[0] == unix.SYS_RECVFROM {
			if err := unix.Sendto(fd, []byte("x"), 0, kernelAddr); err != nil {
				return err
			}
		}
		if _, _, e := unix.Syscall6(call[0], call[1], call[2], call[3], call[4], call[5], call[6]); e != unix.EFAULT {
			return fmt.Errorf("%s: %v, want EFAULT", what, e)
		}
		for { // what is left
			if _, _, err := unix.Recvfrom(fd, b, 0); err != nil {
				break
			}
		}
	}
	h := unix.Msghdr{Iovlen: 1 << 40, Iov: &unix.Iovec{}}
	if _, _, e := unix.Syscall(unix.SYS_SENDMSG, u, uintptr(unsafe.Pointer(&h)), 0); e != unix.EMSGSIZE {
		return fmt.Errorf("a header of too many buffers: %v", e)
	}
	return nil
}

// netlinkManySockets opens sockets until no number is left, and again after closing them; more in all than are known.
func netlinkManySockets() error {
	for round := range 100 {
		var fds []int
		for {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, netlinkRDMA)
			if err == unix.EMFILE {
				break
			}
			if err != nil {
				return err
			}
			fds = append(fds, fd)
		}
		if len(fds) != 16 {
			return fmt.Errorf("%d sockets in round %d, want 16", len(fds), round)
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	return netlinkTalk()
}

// On kernels before 5.19 too, where answers go by way of replay. The client's runtime sends itself no signals: each could
// fall into the gap that replay's comment describes, and cost a datagram. TestSignalsBeforeLinux519 is about signals.
func TestNetlinkBeforeLinux519(t *testing.T) {
	r := launch(t, "client", "netlink")
	r.Env = append(r.Env, "SANDBOX_TEST_NOT_KILLABLE=1", "GODEBUG=asyncpreemptoff=1")
	mustRun(t, r)
}

// A handler that fails costs the program EIO, not the run.
func TestNetlinkPanic(t *testing.T) {
	r := launch(t, "client", "netlinkpanic")
	if code := r.run(t); code != 0 || !strings.Contains(r.err.String(), "the test's handler is broken") {
		t.Errorf("exit code %d, stderr %q", code, r.err.String())
	}
}

func clientNetlinkPanic([]string) error {
	fd, _, err := rdmaSocket(0)
	if err != nil {
		return err
	}
	if err := unix.Sendto(fd, []byte("panic"), 0, kernelAddr); err != unix.EIO {
		return fmt.Errorf("%v, want EIO", err)
	}
	return netlinkTalk()
}

// Without a handler there is no NETLINK_RDMA, as with a kernel that has no RDMA.
func TestNoNetlink(t *testing.T) {
	r := launch(t, "client", "nonetlink")
	r.Env = append(r.Env, "SANDBOX_TEST_NO_NETLINK=1")
	mustRun(t, r)
}

func clientNoNetlink([]string) error {
	if _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, netlinkRDMA); err != unix.EPROTONOSUPPORT {
		return fmt.Errorf("socket(NETLINK_RDMA): %v", err)
	}
	return nil
}

// What a program does not read is gone with its socket, and the service's end waits for nobody.
func TestNetlinkBacklogEnds(t *testing.T) {
	s := &Supervisor{}
	if err := s.AnswerNetlink(echo); err != nil {
		t.Fatal(err)
	}
	nl := s.netlink
	fd, err := netlinkOpen()
	if err != nil {
		t.Fatal(err)
	}
	port, _ := netlinkPort(fd)
	sock := &netlinkSocket{port: port}
	if e := nl.deliver(sock, port, echo([]byte("many 1000"), port, false)); e != 0 {
		t.Fatal(e)
	}
	nl.mu.RLock()
	if !sock.busy || nl.waiting == 0 {
		t.Error("nothing waits of 3 MB")
	}
	nl.mu.RUnlock()
	unix.Close(fd)
	for idle := false; !idle; time.Sleep(time.Millisecond) {
		nl.mu.RLock()
		idle = !sock.busy && nl.waiting == 0 && sock.backlog == nil
		nl.mu.RUnlock()
	}
	nl.close()
	if e := nl.deliver(sock, port, [][]byte{{1}}); e != 0 || nl.waiting != 0 {
		t.Errorf("after the end: %v, %d bytes wait", e, nl.waiting)
	}
}
