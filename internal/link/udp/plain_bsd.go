//go:build darwin || freebsd

package udp

import "golang.org/x/sys/unix"

// dontFragment sets DF, with which the identification of IPv4 is 0 here. macOS before 11 refuses it for IPv4: then the identification is random.
func dontFragment(fd uintptr, is4 bool) error {
	if is4 {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_DONTFRAG, 1)
	} else {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1)
	}
	return nil
}

func plainError(err error) error { return err }

// tooLong is never: a datagram is cut.
func tooLong(error) bool { return false }
