//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Live files of the tests: each read makes a number greater by one.
const (
	liveFile  = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
	liveOther = "/sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts"
)

// number is what a live file says.
func number(b []byte, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	line, ok := strings.CutSuffix(string(b), "\n")
	n, err := strconv.Atoi(line)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q is no line with a number", b)
	}
	return n, nil
}

// again reads an open file from its beginning, as perftest does.
func again(fd int) (int, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return 0, err
	}
	var b [32]byte
	n, err := unix.Read(fd, b[:])
	return number(b[:max(n, 0)], err)
}

// grows fails unless each number is greater than the one before.
func grows(reads ...func() (int, error)) error {
	last := 0
	for i, read := range reads {
		n, err := read()
		if err != nil || n <= last {
			return fmt.Errorf("read %d: %d after %d: %w", i, n, last, err)
		}
		last = n
	}
	return nil
}

// clientLive reads a live file in every way.
func clientLive([]string) error {
	fd, err := unix.Open(liveFile, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	byPread := func() (int, error) {
		var b [32]byte
		n, err := unix.Pread(fd, b[:], 0)
		return number(b[:max(n, 0)], err)
	}
	dir, err := unix.Open("/sys/class/infiniband/rxe0/ports", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	below := func() (int, error) {
		fd, err := unix.Openat(dir, "1/hw_counters/sent_pkts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		if n, err := again(fd); err != nil {
			return n, err
		}
		return again(fd)
	}
	whole := func() (int, error) { return number(os.ReadFile(liveFile)) }
	seek := func() (int, error) { return again(fd) }
	copied := func() (int, error) {
		c, err := unix.Dup(fd)
		if err != nil {
			return 0, err
		}
		defer unix.Close(c)
		return again(c)
	}
	if err := grows(seek, seek, byPread, whole, below, seek, copied, seek, byPread); err != nil {
		return err
	}
	if n, err := number(os.ReadFile(liveOther)); err != nil || n > 110 {
		return fmt.Errorf("a file of the same name elsewhere: %d, %v", n, err)
	}
	return liveModes()
}

// liveModes: what the kernel says of a read-only attribute of sysfs.
func liveModes() error {
	var st unix.Stat_t
	if err := unix.Stat(liveFile, &st); err != nil || st.Mode != unix.S_IFREG|0o444 || st.Size != 4096 {
		return fmt.Errorf("stat: mode %o size %d, %v", st.Mode, st.Size, err)
	}
	for what, want := range map[int]error{unix.O_WRONLY: unix.EACCES, unix.O_RDWR: unix.EACCES, unix.O_RDONLY | unix.O_DIRECTORY: unix.ENOTDIR, unix.O_RDONLY | unix.O_TRUNC: unix.EACCES} {
		if fd, err := unix.Open(liveFile, what, 0); err != want {
			return fmt.Errorf("open with flags %#x: %d, %v", what, fd, err)
		}
	}
	if err := unix.Access(liveFile, unix.W_OK); err != unix.EACCES {
		return fmt.Errorf("access: %v", err)
	}
	return nil
}

// clientLiveMany reads parts, so that the number has more digits when the rest is read, then opens more than the range holds.
func clientLiveMany([]string) error {
	fd, err := unix.Open(liveFile, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	var two, rest [8]byte
	if _, err := unix.Read(fd, two[:2]); err != nil {
		return err
	}
	for range 20 { // of two digits before, of three now
		if _, err := os.ReadFile(liveFile); err != nil {
			return err
		}
	}
	if n, err := unix.Read(fd, rest[:]); err != nil || string(two[:2])+string(rest[:n]) != "99\n" {
		return fmt.Errorf("in two parts: %q and %q, %v", two[:2], rest[:n], err)
	}
	open := []int{fd}
	for range 100 {
		fd, err := unix.Open(liveFile, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		if _, err := again(fd); err != nil {
			return err
		}
		open = append(open, fd)
	}
	most := supervisorFiles()
	for _, fd := range open {
		unix.Close(fd)
	}
	for most < len(open) || supervisorFiles() > most-len(open) { // or the test never ends
		time.Sleep(time.Millisecond)
	}
	return nil
}

// supervisorFiles counts the descriptors of the client's supervisor.
func supervisorFiles() int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getppid()))
	return len(list)
}

func TestLiveFiles(t *testing.T) {
	must(t, "client", "live")
	must(t, "client", "livemany")
	ordinaryRun := launch(t, "client", "live")
	ordinary(t, ordinaryRun)
	mustRun(t, ordinaryRun)
}
