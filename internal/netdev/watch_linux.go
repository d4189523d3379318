package netdev

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Watcher follows the changes of links and addresses in one network namespace.
type Watcher struct {
	sel    Selection
	socket *os.File        // of rtnetlink's groups; the runtime waits for it
	handle *netlink.Handle // of the same namespace, whatever thread asks
	stop   chan struct{}
	done   chan struct{}
	known  map[netip.Addr]bool // of the last call
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
	w := &Watcher{sel: sel, socket: os.NewFile(uintptr(fd), "rtnetlink"), handle: h, stop: make(chan struct{}), done: make(chan struct{})}
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
		if entries, ok := w.read(); ok {
			changed(entries)
		}
		if _, err := w.socket.Read(message); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return // closed
		}
		w.drain(message)
	}
}

// drain drops the messages that wait: one look answers them all. Of a thousand interfaces that come at once each look is long.
func (w *Watcher) drain(message []byte) {
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return // closed: the next Read says so
	}
	_ = raw.Read(func(fd uintptr) bool {
		for {
			switch _, err := unix.Read(int(fd), message); err {
			case nil, unix.EINTR, unix.ENOBUFS:
			default:
				return true
			}
		}
	})
}

// read is the chosen addresses as they are, once those that are new can be used.
func (w *Watcher) read() (entries []Entry, ok bool) {
	for range settleLooks {
		if entries, ok = w.look(); !ok || w.settled(entries) {
			break
		}
		select {
		case <-w.stop:
			return nil, false
		case <-time.After(settlePause):
		}
	}
	if ok {
		w.known = make(map[netip.Addr]bool, len(entries))
		for _, e := range entries {
			w.known[e.Addr] = true
		}
	}
	return entries, ok
}

// How often, and how long, a new address is waited for. It is told of then in any case.
const (
	settleLooks = 200
	settlePause = 5 * time.Millisecond
)

// settled tells whether packets to the new ones of the addresses arrive. The kernel lists an IPv6 address at once, and makes it one of
// this machine a little later, in the background. Who sends from it before that gets no answer, not even his neighbour's link
// address, for which the kernel asks again a second later only: longer than a reliable connection tries.
func (w *Watcher) settled(entries []Entry) bool {
	for i := range entries {
		e := &entries[i]
		if e.Addr.Is4() || !e.Up || !e.Running && !e.Loopback || w.known[e.Addr] {
			continue
		}
		if r, err := w.handle.RouteGet(e.Addr.AsSlice()); err != nil || len(r) == 0 || r[0].Type != unix.RTN_LOCAL {
			return false
		}
	}
	return true
}

// look reads everything. The table may change while it is read: then there is another message, or another attempt.
func (w *Watcher) look() (entries []Entry, ok bool) {
	const attempts = 5
	for range attempts {
		ifaces, err := readNetlink(w.handle)
		if err == nil {
			entries, ok = observe(ifaces, w.sel), true
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return entries, ok
}

// Close ends the watch: when it returns, changed is not being called and will not be.
func (w *Watcher) Close() {
	close(w.stop)
	_ = w.socket.Close()
	<-w.done
}
