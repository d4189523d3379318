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
	var err error
	if p.files.Mem != nil {
		// ReadAt takes no offset of 2^63 and beyond, where no program has memory.
		if int64(addr) < 0 {
			return hostmem.ErrFault
		}
		if _, err = p.files.Mem.ReadAt(b[:], int64(addr)); err != nil {
			return hostmem.ErrFault
		}
		return nil
	}
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	for {
		_, err = unix.ProcessVMReadv(p.pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
			continue
		}
		return p.explain(err)
	}
}
