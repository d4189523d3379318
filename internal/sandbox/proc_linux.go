//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// statusField returns one field of /proc/TID/status, without blanks, or "".
func statusField(tid int, name string) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return ""
	}
	return fieldOf(b, name)
}

// fieldOf finds "name: value" in b, a file of lines.
func fieldOf(b []byte, name string) string {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return string(bytes.TrimSpace(rest))
		}
	}
	return ""
}

// threadGroup returns the process of thread tid, or 0.
func threadGroup(tid int) int {
	n, _ := strconv.Atoi(statusField(tid, "Tgid"))
	return n
}

// onlyThread reports that the process of a thread has no other. One that has ended and is kept for its process's sake counts.
func onlyThread(tid int) bool {
	d, err := os.Open("/proc/" + strconv.Itoa(tid) + "/task")
	if err != nil {
		return false
	}
	defer d.Close()
	names, err := d.Readdirnames(2)
	return err == nil && len(names) == 1
}

// signalPending reports a signal sent to the thread or its process that the thread does not block.
// Ignored signals are never pending unless blocked.
func signalPending(tid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return false
	}
	set := func(name string) uint64 {
		v, _ := strconv.ParseUint(fieldOf(b, name), 16, 64)
		return v
	}
	return (set("SigPnd")|set("ShdPnd"))&^set("SigBlk") != 0
}

// openFlags returns the flags of descriptor fd of thread tid as fcntl(F_GETFL) would.
func openFlags(tid, fd int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseInt(fieldOf(b, "flags"), 8, 64)
	return int(v)
}

// setName sets the name of the main thread as ps shows it; at most 15 bytes count.
func setName(name string) {
	b := append([]byte(name), 0)
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&b[0])), 0, 0, 0)
}
