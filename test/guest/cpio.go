package guest

import (
	"fmt"
	"io"
)

// cpio writes an archive in the "newc" format that the kernel unpacks as its
// first root file system (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	w     io.Writer
	inode int
	err   error
}

const (
	modeDir     = 0o040755
	modeFile    = 0o100755
	modeSymlink = 0o120777
)

func (c *cpio) dir(name string)               { c.entry(name, modeDir, nil) }
func (c *cpio) file(name string, data []byte) { c.entry(name, modeFile, data) }
func (c *cpio) symlink(name, target string)   { c.entry(name, modeSymlink, []byte(target)) }
func (c *cpio) close() error                  { c.entry("TRAILER!!!", 0, nil); return c.err }
func (c *cpio) write(data []byte)             { c.must(c.w.Write(data)) }
func (c *cpio) must(_ int, err error)         { c.err = firstError(c.err, err) }
func (c *cpio) pad(n int)                     { c.write(make([]byte, -n&3)) }

// entry writes one file: a header of thirteen numbers of eight hexadecimal
// digits, the name and the data, the latter two padded to four bytes.
func (c *cpio) entry(name string, mode int, data []byte) {
	c.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	c.write([]byte(header))
	c.pad(len(header))
	c.write(data)
	c.pad(len(data))
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
