//go:build !linux && !darwin && !freebsd && !windows

package udp

// dontFragment is not known here: the system decides on DF and the identification of IPv4.
func dontFragment(uintptr, bool) error { return nil }

func plainError(err error) error { return err }

// tooLong is never: a datagram is cut.
func tooLong(error) bool { return false }
