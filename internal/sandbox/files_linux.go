//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileID identifies an open file whatever the number, process or copy of its descriptor.
type fileID struct{ dev, ino uint64 }

// identify tells what is at path relative to dirfd (flags as of statx(2)), and its type. It asks no server for
// it (AT_STATX_DONT_SYNC): the file may be anybody's, on a network or in FUSE, where one that waits for
// us would never answer.
func identify(dirfd int, path string, flags int) (id fileID, typ uint16, err error) {
	var st unix.Statx_t
	err = unix.Statx(dirfd, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO, &st)
	return fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, st.Mode & unix.S_IFMT, err
}

// file is the sandbox's part of a File.
type file struct {
	id    fileID
	node  *node
	place Range
	watch int32 // inotify watch descriptor, or -1
}

// fdPath is the path of descriptor fd of thread tid. It goes by the thread, which may have unshared
// its descriptor table.
func fdPath(tid, fd int) string {
	b := make([]byte, 0, 40)
	b = append(b, "/proc/"...)
	b = strconv.AppendInt(b, int64(tid), 10)
	b = append(b, "/fd/"...)
	return string(strconv.AppendInt(b, int64(fd), 10))
}

// fileAt identifies what is open at fd of thread tid.
func fileAt(tid, fd int) (fileID, bool) {
	if fd < 0 {
		return fileID{}, false
	}
	id, _, err := identify(unix.AT_FDCWD, fdPath(tid, fd), 0)
	return id, err == nil
}

// files are the injected files of the run.
type files struct {
	inotify int

	mu      sync.RWMutex
	byID    map[fileID]*File
	byWatch map[int32]*File
}

func newFiles() (*files, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify instance (see fs.inotify.max_user_instances): %w", err)
	}
	return &files{inotify: fd, byID: map[fileID]*File{}, byWatch: map[int32]*File{}}, nil
}

func (t *files) find(id fileID) *File {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// add registers what descriptor fd of ours refers to, before a program can use it. fresh is false
// if it was registered already.
func (t *files) add(fd int, n *node, place Range, data any) (f *File, fresh bool, err error) {
	id, typ, err := identify(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.byID[id]; f != nil {
		return f, false, nil
	}
	f = &File{Data: data, reg: file{id: id, node: n, place: place, watch: -1}}
	if typ == unix.S_IFREG {
		last := uint32(unix.IN_CLOSE_WRITE)
		if n.live { // opened for reading, and by us for writing
			last = unix.IN_CLOSE_NOWRITE
		}
		w, err := unix.InotifyAddWatch(t.inotify, "/proc/self/fd/"+strconv.Itoa(fd), last)
		if err != nil {
			return nil, false, fmt.Errorf("watch an injected file (see fs.inotify.max_user_watches): %w", err)
		}
		f.reg.watch = int32(w)
		t.byWatch[f.reg.watch] = f
	}
	t.byID[id] = f
	return f, true, nil
}

// remove drops f and reports that it was there.
func (t *files) remove(f *File) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[f.reg.id] != f {
		return false
	}
	delete(t.byID, f.reg.id)
	if f.reg.watch >= 0 {
		delete(t.byWatch, f.reg.watch)
		unix.InotifyRmWatch(t.inotify, uint32(f.reg.watch)) // EINVAL if the inode is gone already
	}
	return true
}

// closed reads the pending events of the watches and returns the files whose last close they tell.
func (t *files) closed() []*File {
	var out []*File
	var buf [4096]byte
	for {
		n, err := unix.Read(t.inotify, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return out
		}
		for off := 0; off+unix.SizeofInotifyEvent <= n; {
			ev := (*unix.InotifyEvent)(unsafe.Pointer(&buf[off]))
			off += unix.SizeofInotifyEvent + int(ev.Len)
			t.mu.RLock()
			f := t.byWatch[ev.Wd]
			t.mu.RUnlock()
			if f != nil && t.remove(f) {
				out = append(out, f)
			}
		}
	}
}

// all returns every file that is left.
func (t *files) all() []*File {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]*File, 0, len(t.byID))
	for _, f := range t.byID {
		out = append(out, f)
	}
	return out
}
