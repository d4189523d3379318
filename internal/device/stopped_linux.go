package device

import (
	"bytes"
	"fmt"
	"os"
)

// processStopped tells whether a process is stopped, or traced and stopped: the third field of /proc/PID/stat (proc(5)), which
// comes behind a name that may hold anything.
func processStopped(pid int) bool {
	if pid <= 0 || pid == os.Getpid() {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := b[bytes.LastIndexByte(b, ')')+1:]
	return len(state) > 1 && (state[1] == 'T' || state[1] == 't')
}
