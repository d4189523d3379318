package pipewatch

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher watches the write ends of pipes. Each stands for an item, which is the owner's.
type Watcher[T any] struct {
	tell  func(id int32, item T, gone bool)
	epoll int
	stop  int // eventfd
	done  chan struct{}

	mu    sync.Mutex
	last  int32
	items map[int32]watched[T] // by numbers that are not used again soon: a descriptor's may be another pipe's by the time of an event
}

type watched[T any] struct {
	fd   int
	item T
}

// New starts a watcher. tell is called by its goroutine: with gone when a pipe has no reader left, once or more until it is removed;
// else when the reader has made room, for those that are added with room.
func New[T any](tell func(id int32, item T, gone bool)) (*Watcher[T], error) {
	w := &Watcher[T]{tell: tell, done: make(chan struct{}), items: map[int32]watched[T]{}}
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("preparing to watch pipes: %w", err)
	}
	if w.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(w.epoll)
		return nil, fmt.Errorf("preparing to watch pipes: %w", err)
	}
	if err = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, w.stop, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}); err != nil {
		unix.Close(w.epoll)
		unix.Close(w.stop)
		return nil, fmt.Errorf("preparing to watch pipes: %w", err)
	}
	go w.run()
	return w, nil
}

// Add watches a write end. keep, if set, is called with the item's number before anything can be told of it.
func (w *Watcher[T]) Add(fd int, item T, room bool, keep func(id int32)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		w.last = max(w.last+1, 1)
		if _, used := w.items[w.last]; !used {
			break
		}
	}
	if keep != nil {
		keep(w.last)
	}
	// EPOLLERR, which is always watched for, is the end of the readers (poll(2)).
	e := unix.EpollEvent{Fd: w.last}
	if room {
		e.Events = unix.EPOLLOUT | unix.EPOLLET
	}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watching a pipe: %w", err)
	}
	w.items[w.last] = watched[T]{fd, item}
	return nil
}

// Remove forgets a pipe, before the owner closes it; ok: it was watched.
func (w *Watcher[T]) Remove(id int32) (item T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, ok := w.items[id]
	if ok {
		delete(w.items, id)
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, x.fd, nil)
	}
	return x.item, ok
}

// Items are those that are watched.
func (w *Watcher[T]) Items() (list []T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.items {
		list = append(list, x.item)
	}
	return list
}

func (w *Watcher[T]) run() {
	defer close(w.done)
	var ready [32]unix.EpollEvent
	for {
		n, err := unix.EpollWait(w.epoll, ready[:], -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for _, e := range ready[:max(n, 0)] {
			if e.Fd < 0 {
				return
			}
			w.mu.Lock()
			x, ok := w.items[e.Fd]
			w.mu.Unlock()
			if ok {
				w.tell(e.Fd, x.item, e.Events&unix.EPOLLERR != 0)
			}
		}
	}
}

// Close stops the watcher. The pipes stay the owner's.
func (w *Watcher[T]) Close() {
	one := [8]byte{1}
	_, _ = unix.Write(w.stop, one[:])
	<-w.done
	unix.Close(w.epoll)
	unix.Close(w.stop)
}
