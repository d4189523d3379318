package netdev

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Watcher follows the changes of links and addresses in one network namespace.
type Watcher struct {
	sel    Selection
	socket *os.File        // of rtnetlink's groups; the runtime waits for it
	handle *netlink.Handle // of the same namespace, whatever thread asks
	done   chan struct{}
}

// Watch calls changed with the chosen addresses, those of interfaces that are down included, once at the
// beginning and after every change of links or addresses in the network namespace of the calling thread.
// The calls come one after another, from a goroutine of the Watcher. The order and the Index of the
// entries mean nothing. Errors: the system's, where rtnetlink is refused.
func Watch(sel Selection, changed func([]Entry)) (*Watcher, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch network interfaces: %w", err)
	}
	fd, err := subscribe()
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("watch network interfaces: %w", err)
	}
	w := &Watcher{sel: sel, socket: os.NewFile(uintptr(fd), "rtnetlink"), handle: h, done: make(chan struct{})}
	go w.run(changed)
	return w, nil
}

// subscribe opens a socket that hears of links and addresses (rtnetlink(7)).
func subscribe() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// run takes a message as the news that something has changed, and reads everything anew: what a lost
// message (ENOBUFS) said is not missed, and a message that was forged changes nothing.
func (w *Watcher) run(changed func([]Entry)) {
	defer close(w.done)
	defer w.handle.Close()
	message := make([]byte, 1<<15)
	for {
		// The table may change while it is read: then there is another message, or another attempt.
		const attempts = 5
		for range attempts {
			ifaces, err := readNetlink(w.handle)
			if err == nil {
				changed(observe(ifaces, w.sel))
			}
			if !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if _, err := w.socket.Read(message); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return // closed
		}
	}
}

// Close ends the watch: when it returns, changed is not being called and will not be.
func (w *Watcher) Close() {
	_ = w.socket.Close()
	<-w.done
}
