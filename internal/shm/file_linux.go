package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultDir is where the files live.
const DefaultDir = "/dev/shm"

// Errors, for errors.Is.
var (
	// ErrNoRoom says that the tmpfs is full, missing, or that a limit of file sizes leaves no
	// room: ENOMEM to the program.
	ErrNoRoom = errors.New("no room in shared memory")
	// ErrGone says that the program truncated its file below a queue.
	ErrGone = errors.New("the program truncated its shared file")
)

const (
	pageSize = 4096
	// doorbellBase is where the doorbells begin: far behind every queue.
	doorbellBase = 1 << 40
	// minRoom is the least useful size of each half of the file, queues and doorbells.
	minRoom = 1 << 20
)

// File is the file of one open device, as the supervisor holds it. It is not safe for concurrent
// use; its Log has rules of its own.
type File struct {
	fd    int
	base  int64 // of the doorbells
	space space
	log   Log
}

// Options of Create.
type Options struct {
	Dir string // default DefaultDir
	// SizeLimit is RLIMIT_FSIZE of the program in bytes, 0 for none: a write behind it would
	// kill the program.
	SizeLimit uint64
}

// Create makes a file and returns it with the program's descriptor: an open file description of its
// own, read and write, positioned where the doorbells go. The caller hands a duplicate of app to
// the program and closes app, and keeps the File until the program has closed its own
// (IN_CLOSE_WRITE of the file).
func Create(o Options) (f *File, app int, err error) {
	dir := o.Dir
	if dir == "" {
		dir = DefaultDir
	}
	base, end, err := layout(o.SizeLimit, ownSizeLimit())
	if err != nil {
		return nil, -1, err
	}
	fd, err := unnamed(dir)
	if err != nil {
		return nil, -1, fmt.Errorf("%w: creating a file in %s: %w", ErrNoRoom, dir, err)
	}
	f = &File{fd: fd, base: base, space: space{fd: fd, limit: base}}
	if err := f.log.open(fd, base, end); err != nil {
		f.Close()
		return nil, -1, fmt.Errorf("%w: doorbell log in %s (enlarge it: mount -o remount,size=...): %w", ErrNoRoom, dir, err)
	}
	app, err = unix.Open(procPath(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Seek(app, base, 0)
	}
	if err != nil {
		if app >= 0 {
			unix.Close(app)
		}
		f.Close()
		return nil, -1, fmt.Errorf("opening the program's side of a shared file: %w", err)
	}
	return f, app, nil
}

// unnamed creates a file without a name: nothing to collide with, nothing to leave behind.
func unnamed(dir string) (int, error) {
	for {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// layout divides the file: queues below base, doorbells from base to end. Both limits are
// RLIMIT_FSIZE, of the program and of this process, 0 for none.
func layout(program, own uint64) (base, end int64, err error) {
	limit := uint64(math.MaxInt64)
	for _, l := range []uint64{program, own} {
		if l != 0 && l < limit {
			limit = l
		}
	}
	if limit/2 >= doorbellBase {
		return doorbellBase, int64(limit), nil
	}
	if limit/2 < minRoom {
		return 0, 0, fmt.Errorf("%w: the limit of file sizes, %d bytes, is too small (raise it: ulimit -f)", ErrNoRoom, limit)
	}
	base = int64(limit / 2 &^ (logChunk - 1))
	return base, int64(limit), nil
}

// ownSizeLimit is this process's RLIMIT_FSIZE, raised as far as allowed; 0 for none.
func ownSizeLimit() uint64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &r) != nil {
		return 0
	}
	if r.Cur < r.Max {
		if unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: r.Max, Max: r.Max}) == nil {
			r.Cur = r.Max
		}
	}
	if r.Cur == unix.RLIM_INFINITY {
		return 0
	}
	return r.Cur
}

// SizeLimit is RLIMIT_FSIZE of process pid in bytes, 0 for none (/proc/PID/limits, proc(5)).
func SizeLimit(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0, fmt.Errorf("limits of process %d: %w", pid, err)
	}
	return parseSizeLimit(string(b))
}

func parseSizeLimit(limits string) (uint64, error) {
	for line := range strings.Lines(limits) {
		rest, ok := strings.CutPrefix(line, "Max file size")
		if !ok {
			continue
		}
		soft := strings.Fields(rest)
		if len(soft) == 0 {
			break
		}
		if soft[0] == "unlimited" {
			return 0, nil
		}
		n, err := strconv.ParseUint(soft[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("shm: file size limit %q: %w", soft[0], err)
		}
		return max(n, 1), nil // 0 bytes is a limit too
	}
	return 0, errors.New("shm: no file size limit listed")
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Log is the file's doorbells.
func (f *File) Log() *Log { return &f.log }

// Alloc allocates room for a queue of size bytes, all zero. The error is ErrNoRoom.
func (f *File) Alloc(size int) (Area, error) { return f.space.alloc(int64(size)) }

// Free gives an area back: its pages go back to the system at once, its place is used again.
// Precondition: nothing here uses its memory any more.
func (f *File) Free(a Area) { f.space.free(a) }

// Close unmaps everything and closes the supervisor's descriptor. Precondition: the log and the
// queues are not used any more.
func (f *File) Close() {
	f.log.close()
	f.space.close()
	if f.fd >= 0 {
		unix.Close(f.fd)
		f.fd = -1
	}
}
