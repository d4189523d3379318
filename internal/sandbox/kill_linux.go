//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// becomeSubreaper makes orphans among our descendants our children, so that they can be
// found, traced under Yama and killed.
func becomeSubreaper() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// killDescendants kills every child until there is none. What a killed child leaves behind becomes a
// child of ours, so that no fork escapes.
//
// Preconditions: becomeSubreaper.
func killDescendants() {
	for {
		for _, pid := range children() {
			unix.Kill(pid, unix.SIGKILL)
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err == unix.ECHILD {
				return
			}
			if err == nil && pid == 0 {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// children lists the processes whose parent is this one, zombies not.
func children() []int {
	self := os.Getpid()
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var out []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if state, parent := stateOf(pid); parent == self && state != 'Z' {
			out = append(out, pid)
		}
	}
	return out
}

// stateOf reads the state letter and the parent from /proc/PID/stat; the command before them may
// contain anything.
func stateOf(pid int) (state byte, parent int) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(string(f[1]))
	return f[0][0], parent
}
