//go:build linux && (amd64 || arm64)

package sandbox

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// exec tells the devices that the memory of the caller's process goes away before the kernel
// replaces it: what the NIC writes to that process afterwards would land in the new program.
//
// An execve that fails leaves the process as it was, and execvp(3) tries one per directory of PATH;
// so the file is looked at first. An error that shows only later (no interpreter, too long
// arguments) finds the regions gone.
func (s *server) exec(n *notif, k callKind) {
	if !s.watch.tracking() {
		s.proceed(n)
		return
	}
	pid := threadGroup(int(n.tid))
	switch {
	case !s.l.valid(n.id): // then the number says nothing
	case pid == 0: // no descriptor left for /proc: the memory must not be replaced unnoticed
		s.fail(n, unix.ENFILE)
	case !s.watch.tracks(pid):
		s.proceed(n)
	default:
		// To look at the file may take long, or for ever where a process of this run serves the file
		// system: the others' calls go on.
		go func(n notif) {
			if s.execLooksGood(&n, k) && s.l.valid(n.id) {
				s.watch.memoryGone(pid)
			}
			s.proceed(&n)
		}(*n)
	}
}

// execLooksGood reports that the file to execute exists, is regular and has an execute permission, or
// that it is not known.
func (s *server) execLooksGood(n *notif, k callKind) bool {
	dirfd, addr, flags := int32(unix.AT_FDCWD), n.args[0], uint64(0)
	if k == callExecveat {
		dirfd, addr, flags = int32(n.args[0]), n.args[1], n.args[4]
	}
	var buf [pathMax]byte
	p, err := readString(int(n.tid), addr, buf[:])
	if err != nil {
		return false // EFAULT or ENAMETOOLONG
	}
	proc := "/proc/" + strconv.Itoa(int(n.tid))
	var st unix.Stat_t
	switch {
	case p == "" && flags&unix.AT_EMPTY_PATH == 0:
		return false
	case p == "":
		err = unix.Stat(fdPath(int(n.tid), int(dirfd)), &st)
	case p[0] == '/':
		err = statInRoot(proc+"/root", p, &st)
	case dirfd == unix.AT_FDCWD:
		err = unix.Stat(proc+"/cwd/"+p, &st)
	default:
		err = unix.Stat(fdPath(int(n.tid), int(dirfd))+"/"+p, &st)
	}
	switch err {
	case nil:
		return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG:
		return false
	}
	return true
}

// statInRoot is stat of an absolute path, symbolic links included, as a process with that root sees
// it.
func statInRoot(root, p string, st *unix.Stat_t) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return unix.EPERM // not known
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, st)
}

// readString reads a string that ends in zero within buf.
func readString(tid int, addr uint64, buf []byte) (string, error) {
	for have := 0; have < len(buf); {
		chunk := min(pageSize-int(addr%pageSize), len(buf)-have)
		n, e := copyMem(unix.SYS_PROCESS_VM_READV, tid, addr, buf[have:have+chunk])
		if e != 0 || n == 0 {
			return "", unix.EFAULT
		}
		for i := have; i < have+n; i++ {
			if buf[i] == 0 {
				return string(buf[:i]), nil
			}
		}
		have, addr = have+n, addr+uint64(n)
	}
	return "", unix.ENAMETOOLONG
}
