package join

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"rnic/internal/dma"
)

// filesOf makes files of two passed descriptors, of memory and mappings.
func filesOf(fds []int) dma.Files {
	return dma.Files{Mem: os.NewFile(uintptr(fds[0]), "mem"), Maps: os.NewFile(uintptr(fds[1]), "maps")}
}

// ofProc tells whether descriptors are of /proc: any other file could make the NIC wait, and all its runs.
func ofProc(fds []int) bool {
	for _, fd := range fds {
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) != nil || st.Type != unix.PROC_SUPER_MAGIC {
			return false
		}
	}
	return true
}

// errno is the number in an error, EIO for any other.
func errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return unix.EIO
}
