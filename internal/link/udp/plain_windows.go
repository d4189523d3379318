package udp

import (
	"errors"
	"fmt"
	"syscall"
)

// dontFragment sets DF (IP_DONTFRAGMENT and IPV6_DONTFRAG of ws2ipdef.h, both 14).
func dontFragment(fd uintptr, is4 bool) error {
	const dontFragmentOption = 14
	level := syscall.IPPROTO_IPV6
	if is4 {
		level = syscall.IPPROTO_IP
	}
	_ = syscall.SetsockoptInt(syscall.Handle(fd), level, dontFragmentOption, 1)
	return nil
}

// plainError adds the number by which callers know an error to that of Windows Sockets.
func plainError(err error) error {
	const wsaEADDRINUSE, wsaEADDRNOTAVAIL = syscall.Errno(10048), syscall.Errno(10049)
	switch {
	case errors.Is(err, wsaEADDRINUSE):
		return fmt.Errorf("%w (%w)", err, syscall.EADDRINUSE)
	case errors.Is(err, wsaEADDRNOTAVAIL):
		return fmt.Errorf("%w (%w)", err, syscall.EADDRNOTAVAIL)
	}
	return err
}

// tooLong tells of a datagram that did not fit, of which Windows makes an error. Anybody may send such.
func tooLong(err error) bool {
	const wsaEMSGSIZE = syscall.Errno(10040)
	return errors.Is(err, wsaEMSGSIZE)
}
