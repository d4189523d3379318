package udp

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// bell is an eventfd that is readable while it rings.
type bell struct{ fd int }

func newBell() (bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return bell{fd}, err
}

func (b bell) ring() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(b.fd, one[:])
}

func (b bell) clear() {
	var count [8]byte
	_, _ = unix.Read(b.fd, count[:])
}

func (b bell) fds() []int { return []int{b.fd} }
func (b bell) close()     { _ = unix.Close(b.fd) }

// dontFragment sets DF, and with it the identification of IPv4.
func dontFragment(fd uintptr, is4 bool) error {
	if is4 {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
}

func plainError(err error) error { return err }

// tooLong is never: a datagram is cut.
func tooLong(error) bool { return false }
