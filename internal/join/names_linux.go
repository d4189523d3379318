package join

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// prefix begins the abstract names of this user's NICs in the network namespace. What follows is the key.
func prefix() string { return fmt.Sprintf("@rnic/%d/", os.Geteuid()) }

// MaxKey is the greatest length of a key in bytes (struct sockaddr_un, unix(7)).
const MaxKey = 80

// Keys lists the NICs of this user that runs of this network namespace may join (/proc/net/unix, unix(7)).
func Keys() ([]string, error) {
	f, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("looking for a NIC to join: %w", err)
	}
	defer f.Close()
	seen := map[string]bool{}
	p := prefix()
	// Anybody may take such a name: only what a key may contain goes to somebody's terminal.
	plain := func(s string) bool {
		return strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) < 0
	}
	for s := bufio.NewScanner(f); s.Scan(); {
		// Num RefCount Protocol Flags Type St Inode Path: listening sockets have the flag 0x10000.
		w := strings.Fields(s.Text())
		if len(w) == 8 && w[3] == "00010000" && strings.HasPrefix(w[7], p) && plain(w[7]) {
			seen[strings.TrimPrefix(w[7], p)] = true
		}
	}
	keys := make([]string, 0, len(seen))
	for k := range seen {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys, nil
}

func socket() (int, error) {
	return unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
}

func address(key string) (*unix.SockaddrUnix, error) {
	if key == "" || len(key) > MaxKey || strings.ContainsAny(key, " \t\n\x00") {
		return nil, fmt.Errorf("join: name %q of a NIC: 1 to %d characters, no blanks", key, MaxKey)
	}
	return &unix.SockaddrUnix{Name: prefix() + key}, nil
}

// listen binds the name. ErrTaken if it is in use.
func listen(key string) (int, error) {
	a, err := address(key)
	if err != nil {
		return -1, err
	}
	fd, err := socket()
	if err != nil {
		return -1, fmt.Errorf("socket for runs that join: %w", err)
	}
	if err = unix.Bind(fd, a); err == nil {
		err = unix.Listen(fd, 64)
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return -1, ErrTaken
		}
		return -1, fmt.Errorf("socket for runs that join, %s: %w", a.Name, err)
	}
	return fd, nil
}

// connect reaches whoever listens at the name. ErrNone if nobody does.
func connect(key string) (fd, pid int, err error) {
	a, err := address(key)
	if err != nil {
		return -1, 0, err
	}
	if fd, err = socket(); err != nil {
		return -1, 0, fmt.Errorf("socket to join a NIC: %w", err)
	}
	for {
		if err = unix.Connect(fd, a); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) {
			return -1, 0, ErrNone
		}
		return -1, 0, fmt.Errorf("joining NIC %s: %w", key, err)
	}
	if pid, err = sameUser(fd); err != nil {
		unix.Close(fd)
		return -1, 0, fmt.Errorf("joining NIC %s: %w: %v; the name %s, which is for your runs, is taken: "+
			"end that process, or let this run have a NIC of its own under another name: --addr 127.0.0.2, or --addr with another address of this machine",
			key, ErrRefused, err, a.Name)
	}
	return fd, pid, nil
}
