package dma

import (
	"bytes"
	"fmt"
	"os"
)

// End says that the process has ended: its number may be another's from now on, so nothing is reached by it any more.
// Every access is hostmem.ErrGone.
func (p *Process) End() { p.ended.Store(true) }

// Exited tells whether process pid is no more, but for its number: it is a zombie, or has been waited for.
func Exited(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// "pid (name) state ...": the name may hold anything.
	i := bytes.LastIndexByte(b, ')')
	return i < 0 || len(b) < i+3 || b[i+2] == 'Z' || b[i+2] == 'X'
}
