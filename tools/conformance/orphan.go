package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of what its descendants leave behind (prctl(2)): a program that has got
// away from its process group would hold the NIC, and the next case's run would join it.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopting orphans: %w", err)
	}
	return nil
}

// children are the processes whose parent this one is.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// endOrphans gives the children that are not in before some seconds to end, and kills them then. What it kills it says.
func endOrphans(before []int) (killed []string) {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		left := slices.DeleteFunc(children(), func(pid int) bool {
			if slices.Contains(before, pid) {
				return true
			}
			got, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil)
			return got == pid
		})
		switch waited := time.Since(begin); {
		case len(left) == 0 || waited > 6*time.Second:
			return killed
		case waited > 3*time.Second && killed == nil:
			for _, pid := range left {
				name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				killed = append(killed, strings.TrimSpace(string(name)))
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}
