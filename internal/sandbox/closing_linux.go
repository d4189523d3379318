//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// A kernel's write holds its file: when another thread closes the descriptor meanwhile, a write that waits goes on waiting.
// librdmacm's programs live by that: one thread waits for events (rdma_get_cm_event writes RDMA_USER_CM_CMD_GET_EVENT),
// the other destroys the channel and exits, and an error in the first would end the program with a failure. Here the
// descriptor can be closed between the write and the moment at which the supervisor looks at it.

// waitSize is the size of the only command of RangeCM that waits: RDMA_USER_CM_CMD_GET_EVENT, a header and an address
// (rdma_user_cm.h). Others are of that size too, which do not wait: cmdGetEvent, in the header, tells it from them.
const waitSize = 16

const cmdGetEvent = 12

// Waits reports that a write of n bytes at addr to a file of RangeCM, of a program whose memory read reads, is a command that waits.
func Waits(read func(addr uint64, p []byte) error, addr, n uint64) bool {
	var head [4]byte
	return n == waitSize && read(addr, head[:]) == nil && binary.LittleEndian.Uint32(head[:]) == cmdGetEvent
}

// WaitClosed is how long a command that waits is held when its descriptor turns out to be closed, before it gets EBADF: nothing
// tells whether the close came before or after it, and a program that ends does so sooner.
const WaitClosed = 2 * time.Second

// holdClosed holds such a command, unless the number is in use.
func (s *server) holdClosed(n *notif) bool {
	if fd := uint32(n.args[0]); n.args[2] != waitSize || fd < s.ranges.cm || fd >= s.ranges.end {
		return false
	}
	if _, open := fileAt(int(n.tid), int(int32(n.args[0]))); open {
		return false
	}
	if !Waits(func(addr uint64, p []byte) error { return readMem(int(n.tid), addr, p) }, n.args[1], n.args[2]) {
		return false
	}
	c := s.newCall(n, nil, n.args[1])
	if s.replay != nil && s.replay.begin(c) {
		return true
	}
	go func() {
		end := time.Now().Add(WaitClosed)
		for time.Now().Before(end) && c.Valid() {
			if c.SignalPending() {
				c.Fail(unix.EINTR)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		c.Fail(unix.EBADF)
	}()
	return true
}
