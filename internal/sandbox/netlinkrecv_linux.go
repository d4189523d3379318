//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// Receiving works natively, but for one thing: the kernel's messages come from port 0, and careful clients look. So the
// supervisor receives in the program's place, and gives that address. Where it may not take a copy of the program's
// descriptor (pidfd_getfd), or nothing is there yet, the program receives by itself, and sees the supervisor's port ID.

// received is where a receive call wants its result.
type received struct {
	buffers        []span
	name           uint64 // struct sockaddr_nl, nameSize bytes of it; 0: not wanted
	nameSize       uint32
	nameSizeAt     uint64 // where its size goes
	flags          int
	controlLenAt   uint64 // of recvmsg, as the next
	messageFlagsAt uint64
}

// netlinkReceive answers recvfrom and recvmsg on a number of the range.
func (s *server) netlinkReceive(n *notif, k callKind) {
	sock := s.netlinkArg(n)
	if sock == nil || !s.l.valid(n.id) {
		s.proceed(n)
		return
	}
	c := s.newCall(n, nil, 0)
	if s.replay != nil && s.replay.begin(c) {
		return
	}
	r, e := receivedArgs(c, k)
	if e != 0 {
		c.Fail(e)
		return
	}
	fd, err := s.borrow(n, sock.file())
	if err != nil {
		c.Continue()
		return
	}
	defer unix.Close(fd)
	got, e := s.netlink.receive(fd, sock, &r)
	switch {
	case e == unix.EAGAIN: // to wait is the kernel's business
		c.Continue()
	case e != 0:
		c.Fail(e)
	case !c.Valid():
		c.Fail(unix.EINTR)
	default:
		if e := r.write(c, &got); e != 0 {
			c.Fail(e)
			return
		}
		c.Reply(int64(got.result))
	}
}

// receivedArgs reads the arguments of a receive call.
func receivedArgs(c *call, k callKind) (r received, e syscall.Errno) {
	a := &c.n.args
	if k == callRecvfrom {
		r = received{buffers: []span{{a[1], a[2]}}, flags: int(int32(a[3])), name: a[4], nameSizeAt: a[5]}
		var size [4]byte
		if r.name != 0 && c.ReadMem(r.nameSizeAt, size[:]) != nil {
			return r, unix.EFAULT
		}
		r.nameSize = binary.LittleEndian.Uint32(size[:])
		return r, 0
	}
	h, e := readMessageHeader(c, a[1])
	if e != 0 {
		return r, e
	}
	r = received{buffers: h.buffers, flags: int(int32(a[2])), name: h.name, nameSize: h.nameSize,
		nameSizeAt: a[1] + 8, controlLenAt: a[1] + 40, messageFlagsAt: a[1] + 48}
	return r, 0
}

// datagram is what was received: result is what the call returns.
type datagram struct {
	data   []byte
	result int
	flags  int
}

// receive takes the next datagram of ours off a program's socket, if there is one; others' are dropped, which nobody but
// the kernel can send on NETLINK_RDMA. EAGAIN: there is none.
func (nl *netlink) receive(fd int, sock *netlinkSocket, r *received) (d datagram, e syscall.Errno) {
	room := 0
	for _, b := range r.buffers {
		room += int(min(b.size, uint64(netlinkMax-room)))
	}
	buf := make([]byte, room)
	flags := unix.MSG_DONTWAIT | r.flags&(unix.MSG_PEEK|unix.MSG_TRUNC)
	flushed := false
	for range 256 { // others may send as fast as we drop
		n, _, got, from, err := unix.Recvmsg(fd, buf, nil, flags)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN && !flushed: // what waits for room has it now
			flushed = true
			nl.mu.Lock()
			if len(sock.backlog) > 0 {
				nl.flush(sock, sock.port)
			}
			nl.mu.Unlock()
			continue
		case err != nil:
			return d, errnoOf(err)
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != nl.port {
			if flags&unix.MSG_PEEK != 0 {
				unix.Recvmsg(fd, nil, nil, unix.MSG_DONTWAIT)
			}
			continue
		}
		return datagram{buf[:min(n, len(buf))], n, got}, 0
	}
	return d, unix.EAGAIN
}

// write puts a datagram into the program's memory.
func (r *received) write(c *call, d *datagram) syscall.Errno {
	word := func(addr uint64, v uint64, size int) bool {
		b := binary.LittleEndian.AppendUint64(nil, v)[:size]
		return addr == 0 || c.WriteMem(addr, b) == nil
	}
	rest := d.data
	for _, b := range r.buffers {
		n := int(min(b.size, uint64(len(rest))))
		if n > 0 && c.WriteMem(b.addr, rest[:n]) != nil {
			return unix.EFAULT
		}
		rest = rest[n:]
	}
	kernel := [12]byte{unix.AF_NETLINK}
	if r.name != 0 {
		n := min(int(r.nameSize&(1<<31-1)), len(kernel))
		if n > 0 && c.WriteMem(r.name, kernel[:n]) != nil || !word(r.nameSizeAt, uint64(len(kernel)), 4) {
			return unix.EFAULT
		}
	}
	if !word(r.controlLenAt, 0, 8) || !word(r.messageFlagsAt, uint64(d.flags&unix.MSG_TRUNC), 4) {
		return unix.EFAULT
	}
	return 0
}
