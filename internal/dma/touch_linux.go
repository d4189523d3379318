package dma

import (
	"golang.org/x/sys/unix"

	"rnic/internal/hostmem"
)

// Touch reads a byte of the program's memory, so that its page is there. Unlike a transfer it may wait as long as the page takes, for a
// file system or a handler that does not answer: it is a system call that the scheduler of Go knows of, and others go on.
func (p *Process) Touch(addr uint64) error {
	if p.ended.Load() {
		return hostmem.ErrGone
	}
	var b [1]byte
	if files := p.byFiles(); files != nil {
		return touchFile(files, addr)
	}
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	for {
		_, err := unix.ProcessVMReadv(p.pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
			continue
		case unix.ESRCH:
			if p.survivor() {
				return touchFile(p.byFiles(), addr)
			}
		}
		return p.explain(err)
	}
}
