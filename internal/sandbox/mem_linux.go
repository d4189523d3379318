//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pathMax  = 4096 // PATH_MAX, the terminating zero included
	pageSize = 4096 // the smallest page: memory up to a multiple of it is mapped or not as one
)

// copyMem moves len(p) bytes between p and the memory of thread tid with one process_vm call
// (SYS_PROCESS_VM_READV or WRITEV), which obeys the page protections of tid. It returns the bytes
// moved.
func copyMem(call uintptr, tid int, addr uint64, p []byte) (int, syscall.Errno) {
	if len(p) == 0 {
		return 0, 0
	}
	local := unix.Iovec{Base: &p[0], Len: uint64(len(p))}
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(p)}
	n, _, e := unix.Syscall6(call, uintptr(tid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// tryMem copies memory of this process itself, which nothing forbids (mm_access in the kernel) but a filter for system calls: that
// of a container, say. Without it the program would start and find no device.
func tryMem() error {
	var b [1]byte
	for _, call := range []uintptr{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV} {
		if _, e := copyMem(call, unix.Getpid(), uint64(uintptr(unsafe.Pointer(&b[0]))), b[:]); e == unix.EPERM || e == unix.ENOSYS {
			return fmt.Errorf("%w: process_vm_readv and process_vm_writev: %w: a filter for system calls forbids them; start a container with --cap-add SYS_PTRACE", ErrMemory, e)
		}
	}
	return nil
}

func readMem(tid int, addr uint64, p []byte) error {
	return allOf(len(p))(copyMem(unix.SYS_PROCESS_VM_READV, tid, addr, p))
}

func writeMem(tid int, addr uint64, p []byte) error {
	return allOf(len(p))(copyMem(unix.SYS_PROCESS_VM_WRITEV, tid, addr, p))
}

// allOf makes a partial copy a fault.
func allOf(want int) func(int, syscall.Errno) error {
	return func(n int, e syscall.Errno) error {
		switch {
		case e != 0:
			return e
		case n != want:
			return syscall.EFAULT
		}
		return nil
	}
}

// readPath reads a path into buf, which holds pathMax bytes, and stops early with nil when the
// first bytes show that it cannot be in the tree. A path that is too long or not readable is nil
// too: the kernel will find the same and say so.
func readPath(tid int, addr uint64, buf []byte) []byte {
	have := 0
	for have < pathMax {
		chunk := min(pageSize-int(addr%pageSize), pathMax-have)
		if have == 0 {
			chunk = min(chunk, 128) // enough for nearly every path, and cheaper than a page
		}
		n, e := copyMem(unix.SYS_PROCESS_VM_READV, tid, addr, buf[have:have+chunk])
		if e != 0 || n == 0 {
			return nil
		}
		if i := bytes.IndexByte(buf[have:have+n], 0); i >= 0 {
			return buf[:have+i]
		}
		have, addr = have+n, addr+uint64(n)
		if !mayBeInTree(buf[:have]) {
			return nil
		}
	}
	return nil
}
