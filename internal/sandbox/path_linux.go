//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pathArgs are the arguments of a call on a path, in the order of its *at form, whichever was used.
type pathArgs struct {
	dirfd int32
	path  uint64
	a     [3]uint64 // what follows the path
}

func pathArgsOf(n *notif, k callKind) pathArgs {
	switch k {
	case callOpen, callStat, callLstat, callAccess, callReadlink, callGetxattr, callListxattr:
		return pathArgs{unix.AT_FDCWD, n.args[0], [3]uint64{n.args[1], n.args[2], n.args[3]}}
	}
	return pathArgs{int32(n.args[0]), n.args[1], [3]uint64{n.args[2], n.args[3], n.args[4]}}
}

// pathCall answers a call on a path of the tree and lets the kernel answer all others. Those are
// thousands in the start of an interpreter: no allocation for them.
func (s *server) pathCall(n *notif, k callKind) {
	a := pathArgsOf(n, k)
	p := readPath(int(n.tid), a.path, s.path[:])
	if len(p) == 0 {
		if k == callFstatat && a.a[1]&unix.AT_EMPTY_PATH != 0 || k == callStatx && a.a[0]&unix.AT_EMPTY_PATH != 0 {
			s.statDescriptor(n, k, a)
			return
		}
		s.proceed(n)
		return
	}
	var nd *node
	if p[0] != '/' {
		if nd = s.tree.relative(int(n.tid), a.dirfd, p); nd == nil {
			s.proceed(n)
			return
		}
		p = []byte(nd.path)
	} else {
		if !mayBeInTree(p) {
			s.proceed(n)
			return
		}
		if p = cleanPath(p); !inTree(p) {
			s.proceed(n)
			return
		}
		nd = s.tree.node(p)
	}
	s.treeCall(n, k, a, string(p[1:]), nd)
}

// treeCall answers a call on the tree's entry at rel, a path relative to its root; nd is its device
// node, if it is one.
func (s *server) treeCall(n *notif, k callKind, a pathArgs, rel string, nd *node) {
	if !s.l.valid(n.id) {
		return
	}
	switch k {
	case callOpen, callOpenat, callOpenat2:
		s.open(n, k, a, rel, nd)
	case callStat, callLstat, callFstatat:
		flags := 0
		if k == callLstat || k == callFstatat && a.a[1]&unix.AT_SYMLINK_NOFOLLOW != 0 {
			flags = unix.AT_SYMLINK_NOFOLLOW
		}
		s.stat(n, a.a[0], nd, func(st *unix.Stat_t) error { return unix.Fstatat(s.tree.fd, rel, st, flags) })
	case callStatx:
		flags := int(uint32(a.a[0])) & (unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_FORCE_SYNC | unix.AT_STATX_DONT_SYNC)
		s.statx(n, a, nd, func(st *unix.Statx_t) error { return unix.Statx(s.tree.fd, rel, flags, int(uint32(a.a[1])), st) })
	case callAccess, callFaccessat:
		s.access(n, uint32(a.a[0]), rel, nd)
	case callReadlink, callReadlinkat:
		s.readlink(n, a.a[0], int(int32(a.a[1])), rel)
	case callGetxattr, callListxattr:
		s.xattr(n, k, rel)
	}
}

// errnoOf is the errno in an error of package unix.
func errnoOf(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok {
		return e
	}
	return unix.EIO
}

// openFlagsAllowed are the flags that mean something for the tree, which is read-only. Not among them is O_PATH: such a descriptor
// cannot be given to another process (EBADF of SECCOMP_IOCTL_NOTIF_ADDFD). One that can be read does what it does.
const openFlagsAllowed = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOATIME

func (s *server) open(n *notif, k callKind, a pathArgs, rel string, nd *node) {
	flags := a.a[0]
	if k == callOpenat2 { // a pointer to struct open_how: flags, mode, resolve, 8 bytes each
		var how [24]byte
		if a.a[1] < uint64(len(how)) {
			s.fail(n, unix.EINVAL)
			return
		}
		if readMem(int(n.tid), a.a[0], how[:]) != nil {
			s.fail(n, unix.EFAULT)
			return
		}
		flags = binary.LittleEndian.Uint64(how[:])
	}
	if flags&unix.O_PATH == 0 && (nd == nil || nd.live) {
		if e := s.writeRefused(flags, rel); e != 0 {
			s.fail(n, e)
			return
		}
	}
	if nd != nil && flags&unix.O_PATH == 0 {
		s.openDevice(n, nd, int(flags), k)
		return
	}
	fd, err := unix.Openat(s.tree.fd, rel, int(flags)&openFlagsAllowed|unix.O_CLOEXEC, 0)
	if err != nil {
		s.fail(n, errnoOf(err))
		return
	}
	defer unix.Close(fd)
	got, e := s.l.addFD(n.id, fd, -1, flags&unix.O_CLOEXEC != 0)
	if e != 0 {
		s.fail(n, e)
		return
	}
	s.reply(n, int64(got))
}

// writeRefused is the error of opening for writing or with creation, as sysfs has it for read-only
// attributes, whoever asks.
func (s *server) writeRefused(flags uint64, rel string) syscall.Errno {
	var st unix.Stat_t
	err := unix.Fstatat(s.tree.fd, rel, &st, 0)
	switch {
	case err == nil && flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL:
		return unix.EEXIST
	case err != nil && flags&unix.O_CREAT != 0:
		return unix.EACCES
	case err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY && flags&unix.O_TRUNC == 0:
		return 0
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	}
	return unix.EACCES
}

func (s *server) openDevice(n *notif, nd *node, flags int, k callKind) {
	switch {
	case flags&unix.O_DIRECTORY != 0:
		s.fail(n, unix.ENOTDIR)
		return
	case flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL:
		s.fail(n, unix.EEXIST)
		return
	}
	c := s.newCall(n, nd, 0)
	if s.replay != nil && s.replay.begin(c) {
		return
	}
	s.opens()
	nd.dev.Open(c, flags)
}

// liveSize is the size of a live file before it is read, as sysfs has it: a page.
const liveSize = 4096

// stat answers the stat family with what get finds, and a device node or file as what it stands for.
func (s *server) stat(n *notif, addr uint64, nd *node, get func(*unix.Stat_t) error) {
	var st unix.Stat_t
	if err := get(&st); err != nil {
		s.fail(n, errnoOf(err))
		return
	}
	switch {
	case nd == nil:
	case nd.live:
		st.Size, st.Blocks = liveSize, 0
	default:
		st.Mode = unix.S_IFCHR | 0o666
		st.Rdev = nd.rdev()
		st.Size, st.Blocks = 0, 0
	}
	s.copyOut(n, addr, unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)), 0)
}

func (s *server) statx(n *notif, a pathArgs, nd *node, get func(*unix.Statx_t) error) {
	var st unix.Statx_t
	if err := get(&st); err != nil {
		s.fail(n, errnoOf(err))
		return
	}
	switch {
	case nd == nil:
	case nd.live:
		st.Size, st.Blocks = liveSize, 0
	default:
		st.Mode = unix.S_IFCHR | 0o666
		st.Rdev_major, st.Rdev_minor = nd.major, nd.minor
		st.Size, st.Blocks = 0, 0
	}
	s.copyOut(n, a.a[2], unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)), 0)
}

// fstat answers fstat(args[0]) where the number is in a range.
func (s *server) fstat(n *notif) {
	s.statDescriptor(n, callFstat, pathArgs{dirfd: int32(n.args[0]), a: [3]uint64{n.args[1]}})
}

// statDescriptor answers stat by descriptor (fstat, or an empty path) if it is one of our device
// files.
func (s *server) statDescriptor(n *notif, k callKind, a pathArgs) {
	if !s.ranges.contains(uint64(uint32(a.dirfd))) {
		s.proceed(n)
		return
	}
	f := s.fileArg(n)
	if f == nil || f.reg.place == RangeLow || !s.l.valid(n.id) {
		s.proceed(n)
		return
	}
	p := fdPath(int(n.tid), int(a.dirfd))
	if k == callStatx {
		s.statx(n, a, f.reg.node, func(st *unix.Statx_t) error { return unix.Statx(unix.AT_FDCWD, p, 0, int(uint32(a.a[1])), st) })
		return
	}
	s.stat(n, a.a[0], f.reg.node, func(st *unix.Stat_t) error { return unix.Stat(p, st) })
}

// access answers for a tree that everyone may read, whose device nodes everyone may write.
func (s *server) access(n *notif, mode uint32, rel string, nd *node) {
	var st unix.Stat_t
	err := unix.Fstatat(s.tree.fd, rel, &st, 0)
	switch {
	case mode&^(unix.R_OK|unix.W_OK|unix.X_OK) != 0:
		s.fail(n, unix.EINVAL)
	case err != nil:
		s.fail(n, errnoOf(err))
	case mode&unix.W_OK != 0 && (nd == nil || nd.live):
		s.fail(n, unix.EACCES)
	case mode&unix.X_OK != 0 && st.Mode&unix.S_IFMT != unix.S_IFDIR:
		s.fail(n, unix.EACCES)
	default:
		s.reply(n, 0)
	}
}

func (s *server) readlink(n *notif, addr uint64, size int, rel string) {
	if size <= 0 {
		s.fail(n, unix.EINVAL)
		return
	}
	buf := make([]byte, min(size, pathMax))
	k, err := unix.Readlinkat(s.tree.fd, rel, buf)
	if err != nil {
		s.fail(n, errnoOf(err))
		return
	}
	s.copyOut(n, addr, buf[:k], int64(k))
}

// xattr answers that nothing in the tree has extended attributes; ls -l asks for access control
// lists.
func (s *server) xattr(n *notif, k callKind, rel string) {
	var st unix.Stat_t
	err := unix.Fstatat(s.tree.fd, rel, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err != nil:
		s.fail(n, errnoOf(err))
	case k == callGetxattr:
		s.fail(n, unix.ENODATA)
	default:
		s.reply(n, 0)
	}
}

// copyOut writes a result into the caller's memory and ends the call with v.
func (s *server) copyOut(n *notif, addr uint64, b []byte, v int64) {
	if !s.l.valid(n.id) {
		return
	}
	if writeMem(int(n.tid), addr, b) != nil {
		s.fail(n, unix.EFAULT)
		return
	}
	s.reply(n, v)
}
