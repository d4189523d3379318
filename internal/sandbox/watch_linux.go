//go:build linux && (amd64 || arm64)

package sandbox

import (
	"sync"

	"golang.org/x/sys/unix"
)

// watcher tells the devices what ends: files by their last close, address spaces by exec or exit.
type watcher struct {
	epoll int
	stop  int // eventfd
	files *files
	tree  *tree
	done  chan struct{}

	mu    sync.Mutex
	procs map[int]int // pid to pidfd, of processes for which Call.PID was asked
	pids  map[int]int // the reverse
}

func newWatcher(f *files, t *tree) (*watcher, error) {
	w := &watcher{files: f, tree: t, done: make(chan struct{}), procs: map[int]int{}, pids: map[int]int{}}
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if w.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	for _, fd := range []int{w.stop, f.inotify} {
		if err := w.add(fd); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *watcher) add(fd int) error {
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// run serves until finish is called.
func (w *watcher) run() {
	defer close(w.done)
	var evs [16]unix.EpollEvent
	for {
		n, err := unix.EpollWait(w.epoll, evs[:], -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for _, e := range evs[:max(n, 0)] {
			switch int(e.Fd) {
			case w.stop:
				return
			case w.files.inotify:
				w.reportClosed(w.files.closed())
			default:
				w.exited(int(e.Fd))
			}
		}
	}
}

func (w *watcher) reportClosed(fs []*File) {
	for _, f := range fs {
		f.reg.node.dev.Closed(f)
	}
}

// finish ends run, then reports every file that is left as closed.
func (w *watcher) finish() {
	unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-w.done
	for _, f := range w.files.all() {
		if w.files.remove(f) {
			f.reg.node.dev.Closed(f)
		}
	}
}

// track watches process pid until its memory is gone. It reports false if there is no such process, or no
// descriptor to watch it with: its memory must not be touched then, as it may become another's unnoticed.
func (w *watcher) track(pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.procs[pid]; ok {
		return true
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	if w.add(fd) != nil {
		unix.Close(fd)
		return false
	}
	w.procs[pid], w.pids[fd] = fd, pid
	return true
}

// tracking reports whether any process is watched: if none is, an exec needs no look.
func (w *watcher) tracking() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.procs) > 0
}

// tracks reports whether process pid is watched.
func (w *watcher) tracks(pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.procs[pid]
	return ok
}

// memoryGone tells the devices, once, that pid's memory is going away, if pid is watched.
func (w *watcher) memoryGone(pid int) {
	w.mu.Lock()
	fd, ok := w.procs[pid]
	if ok {
		w.drop(pid, fd)
	}
	w.mu.Unlock()
	if ok {
		w.tell(pid)
	}
}

func (w *watcher) exited(pidfd int) {
	w.mu.Lock()
	pid, ok := w.pids[pidfd]
	if ok {
		w.drop(pid, pidfd)
	}
	w.mu.Unlock()
	if ok {
		w.tell(pid)
	}
}

func (w *watcher) drop(pid, fd int) {
	delete(w.procs, pid)
	delete(w.pids, fd)
	unix.Close(fd)
}

func (w *watcher) tell(pid int) {
	for _, d := range w.tree.devices() {
		d.MemoryGone(pid)
	}
}
