package shm

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// chunkSize is the granularity at which the queue space is mapped: few mappings for many small
// queues. A queue larger than that gets a chunk of its own.
const chunkSize = 4 << 20

// Area is room for one queue: Offset and len(Mem) are what the program passes to mmap on its command
// descriptor. Both are multiples of the page size.
type Area struct {
	Offset int64
	Mem    []byte
}

// space is the queue part of a file.
type space struct {
	fd     int
	limit  int64 // bytes
	chunks []*chunk
}

// chunk is a mapped piece of the file.
type chunk struct {
	offset int64
	mem    []byte
	free   []extent // sorted, not touching each other
}

// extent is a free piece of a chunk, relative to it.
type extent struct{ off, len int64 }

// alloc finds n bytes, rounded up to pages, and makes sure that memory stands behind them: a
// full tmpfs is an error now instead of SIGBUS later. The bytes are zero: free punched them out, and the
// program has no business there before it is told of the area.
func (s *space) alloc(n int64) (Area, error) {
	n = (n + pageSize - 1) &^ (pageSize - 1)
	c, off, ok := s.place(n)
	if !ok {
		var err error
		if c, err = s.grow(n); err != nil {
			return Area{}, err
		}
		off, _ = c.take(n)
	}
	a := Area{Offset: c.offset + off, Mem: c.mem[off : off+n : off+n]}
	if err := retry(func() error { return unix.Fallocate(s.fd, 0, a.Offset, n) }); err != nil {
		c.give(extent{off, n})
		return Area{}, fmt.Errorf("%w: %d bytes for a queue: %w", ErrNoRoom, n, err)
	}
	return a, nil
}

func (s *space) place(n int64) (*chunk, int64, bool) {
	for _, c := range s.chunks {
		if off, ok := c.take(n); ok {
			return c, off, true
		}
	}
	return nil, 0, false
}

// grow maps one more chunk, behind the last one or in the first gap between two.
func (s *space) grow(n int64) (*chunk, error) {
	size := max(n, chunkSize)
	at, i := int64(0), 0
	for ; i < len(s.chunks); i++ {
		if s.chunks[i].offset-at >= size {
			break
		}
		at = s.chunks[i].offset + int64(len(s.chunks[i].mem))
	}
	if size > s.limit-at {
		size = n
	}
	if size > s.limit-at {
		return nil, fmt.Errorf("%w: %d bytes for a queue: all %d are in use", ErrNoRoom, n, s.limit)
	}
	mem, err := unix.Mmap(s.fd, at, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: mapping %d bytes: %w", ErrNoRoom, size, err)
	}
	c := &chunk{offset: at, mem: mem, free: []extent{{0, size}}}
	s.chunks = slices.Insert(s.chunks, i, c)
	return c, nil
}

// free releases the pages of a, and its chunk if that is empty and another one is left.
func (s *space) free(a Area) {
	n := int64(len(a.Mem))
	// A failure leaves old contents there: the next queue is formatted afresh all the same.
	_ = retry(func() error {
		return unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, a.Offset, n)
	})
	for i, c := range s.chunks {
		if a.Offset < c.offset || a.Offset >= c.offset+int64(len(c.mem)) {
			continue
		}
		c.give(extent{a.Offset - c.offset, n})
		if c.empty() && len(s.chunks) > 1 {
			unix.Munmap(c.mem)
			s.chunks = slices.Delete(s.chunks, i, i+1)
		}
		return
	}
}

func (s *space) close() {
	for _, c := range s.chunks {
		unix.Munmap(c.mem)
	}
	s.chunks = nil
}

// take cuts n bytes off the first free extent that has them.
func (c *chunk) take(n int64) (int64, bool) {
	for i := range c.free {
		e := &c.free[i]
		if e.len < n {
			continue
		}
		off := e.off
		e.off += n
		e.len -= n
		if e.len == 0 {
			c.free = slices.Delete(c.free, i, i+1)
		}
		return off, true
	}
	return 0, false
}

// give returns e to the free extents and joins it with its neighbours.
func (c *chunk) give(e extent) {
	i, _ := slices.BinarySearchFunc(c.free, e.off, func(f extent, off int64) int { return int(f.off - off) })
	c.free = slices.Insert(c.free, i, e)
	if i+1 < len(c.free) && c.free[i].off+c.free[i].len == c.free[i+1].off {
		c.free[i].len += c.free[i+1].len
		c.free = slices.Delete(c.free, i+1, i+2)
	}
	if i > 0 && c.free[i-1].off+c.free[i-1].len == c.free[i].off {
		c.free[i-1].len += c.free[i].len
		c.free = slices.Delete(c.free, i, i+1)
	}
}

func (c *chunk) empty() bool {
	return len(c.free) == 1 && c.free[0] == extent{0, int64(len(c.mem))}
}

// retry repeats a system call that a signal interrupted.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
