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
