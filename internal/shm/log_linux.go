package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A doorbell is struct ib_uverbs_cmd_hdr with struct ib_uverbs_post_send (rdma/ib_user_verbs.h) as the
// rxe provider of rdma-core writes it after every post: 32 bytes.
const (
	// RecordSize is the size of a doorbell.
	RecordSize = 32

	cmdPostSend = 28
	offCommand  = 0  // u32
	offHandle   = 16 // u32 qp_handle
	offWQESize  = 28 // u32, never 0: sizeof(struct ibv_send_wr) of the program
)

const (
	// logChunk is the piece of the log that is mapped at a time, and given back when it is done.
	logChunk = 64 << 10
	// logWindow is the mapping: one page more, to look past the last record of the chunk.
	logWindow = logChunk + pageSize
	// maxDrain bounds the records of one Drain, so that one program cannot hold up the others.
	maxDrain = 4096
	// A position that the program moved is looked for after so many empty Drains, then after twice
	// as many, and so on.
	firstLook, lastLook = 64, 1 << 16
)

// Log is the doorbells of one program, in the order of its writes. It implements
// engine.Doorbells. Its methods are called by one goroutine at a time (the holder of the processing
// unit), with debug.SetPanicOnFault(true) in Drain.
//
// What the program does to its log can cost it doorbells, and nothing else: a record that is not a
// doorbell is skipped, a position moved ahead by lseek is found again after a while, a truncated file
// ends the log. While the tmpfs is full, which may be another program's doing, the log stands still.
type Log struct {
	fd    int
	limit int64  // no doorbell begins behind it
	chunk int64  // file offset of mem
	mem   []byte // logWindow bytes, read-only
	off   int    // next record in mem, below logChunk
	seen  int64  // size of the file when the program's position was last looked for
	idle  int    // empty Drains since the last doorbell
	look  int    // look for the program's position when idle reaches this

	watch   map[int]int // inotify descriptor -> watch
	dead    error
	rung    uint64
	skipped uint64
	others  uint64 // see LogStats
}

// LogStats count what happened to a log.
type LogStats struct {
	Doorbells uint64
	Skipped   uint64 // records that were not doorbells
	// Others has bit N set if a record was skipped, or stands there still, that looks like the write command N (rdma/ib_user_verbs.h).
	Others uint64
	Dead   error // non-nil: why the log ended before the program
}

// Stats returns the counters. The caller holds the processing unit.
func (l *Log) Stats() LogStats {
	// A command whose last word is 0 is no whole record until another stands behind it, and the last ones may not have been looked at.
	// The file is read, not the mapping, of which the program may have cut the end off.
	var rest [64 * RecordSize]byte
	others := l.others
	n, _ := unix.Pread(l.fd, rest[:], l.chunk+int64(l.off))
	for at := 0; at+RecordSize <= n; at += RecordSize {
		others |= commandBit(binary.NativeEndian.Uint32(rest[at+offCommand:]))
	}
	return LogStats{l.rung, l.skipped, others, l.dead}
}

// commandBit is the bit of a command in LogStats.Others; 0 for none, and for a doorbell.
func commandBit(command uint32) uint64 {
	if command == 0 || command == cmdPostSend || command >= 64 {
		return 0
	}
	return 1 << command
}

func (l *Log) open(fd int, base, limit int64) error {
	*l = Log{fd: fd, limit: limit, look: firstLook, watch: map[int]int{}}
	return l.mapAt(base)
}

// mapAt moves the window to file offset at, and makes the file reach beyond it.
func (l *Log) mapAt(at int64) error {
	if at > l.limit-logWindow {
		return fmt.Errorf("the log has reached the limit of file sizes, %d bytes", l.limit)
	}
	// fallocate never shrinks a file: ftruncate could cut off what the program wrote in between.
	end := at + logWindow
	if err := retry(func() error { return unix.Fallocate(l.fd, 0, end-pageSize, pageSize) }); err != nil {
		return fmt.Errorf("extending the doorbell log: %w", err)
	}
	mem, err := unix.Mmap(l.fd, at, logWindow, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping the doorbell log: %w", err)
	}
	if l.mem != nil {
		unix.Munmap(l.mem)
	}
	l.mem, l.chunk, l.off = mem, at, 0
	l.seen = max(l.seen, end)
	return nil
}

// punch gives a chunk that has been read back to the system.
func (l *Log) punch(chunk int64) {
	_ = retry(func() error {
		return unix.Fallocate(l.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, chunk, logChunk)
	})
}

// Drain calls ring with the handle of every doorbell since the last call. It returns how many records
// it went past, at most some thousand: 0 says that there are no more for now.
func (l *Log) Drain(ring func(handle uint32)) (n int) {
	if l.dead != nil {
		return 0
	}
	defer l.ended()
	for n < maxDrain {
		if l.off >= logChunk && !l.forward() {
			return n
		}
		handle, state := l.next()
		switch state {
		case recordNone:
			l.rest(n)
			return n
		case recordDoorbell:
			l.rung++
			ring(handle)
		case recordGarbage:
			l.skipped++
			l.others |= commandBit(load32(l.mem[l.off+offCommand:]))
		}
		n++
		l.off += RecordSize
	}
	return n
}

// forward moves the window on when all of it has been read; false: not now, or never.
func (l *Log) forward() bool {
	l.punch(l.chunk) // first: the tmpfs may be full
	err := l.mapAt(l.chunk + logChunk)
	if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.ENOMEM) {
		l.dead = err
	}
	return err == nil
}

// ended is deferred by Drain: a fault ends the log if the file has become shorter. Else the tmpfs is full,
// and has no page to show for a place that nothing was written to.
func (l *Log) ended() {
	r := recover()
	if r == nil {
		return
	}
	if !isFault(r) {
		panic(r)
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err != nil || st.Size < l.chunk+logWindow {
		l.dead = ErrGone
	}
}

type recordState int

const (
	recordNone     recordState = iota // nothing, or not whole yet
	recordDoorbell                    // a doorbell
	recordGarbage                     // something else
)

// next looks at the record at l.off. The kernel copies a record in no promised order, so it counts
// when its first and last words and the handle are there; something less is half a doorbell, unless
// another record stands behind it already: writes through one open file do not overlap.
func (l *Log) next() (handle uint32, s recordState) {
	r := l.mem[l.off : l.off+2*RecordSize]
	last := load32(r[offWQESize:])
	cmd := load32(r[offCommand:])
	handle = load32(r[offHandle:])
	if last != 0 && cmd != 0 && handle != 0 {
		if cmd != cmdPostSend {
			return 0, recordGarbage
		}
		return handle, recordDoorbell
	}
	if empty(r[:RecordSize]) || empty(r[RecordSize:]) {
		return 0, recordNone
	}
	return 0, recordGarbage
}

func empty(r []byte) bool {
	for i := 0; i < RecordSize; i += 8 {
		if binary.NativeEndian.Uint64(r[i:]) != 0 {
			return false
		}
	}
	return true
}

// Arm watches the log with an inotify descriptor: the next doorbell makes it readable
// (IN_MODIFY).
func (l *Log) Arm(inotify int) error {
	wd, err := unix.InotifyAddWatch(inotify, procPath(l.fd), unix.IN_MODIFY)
	if err != nil {
		return fmt.Errorf("watching a doorbell log (fs.inotify.max_user_watches too small?): %w", err)
	}
	l.watch[inotify] = wd
	return nil
}

// Disarm takes the watch away.
func (l *Log) Disarm(inotify int) {
	if wd, ok := l.watch[inotify]; ok {
		_, _ = unix.InotifyRmWatch(inotify, uint32(wd))
		delete(l.watch, inotify)
	}
}

// rest notes a Drain that found no more than n doorbells, and looks for the program's position now
// and then.
func (l *Log) rest(n int) {
	if n > 0 {
		l.idle, l.look = 0, firstLook
		return
	}
	if l.idle++; l.idle >= l.look {
		l.idle, l.look = 0, min(2*l.look, lastLook)
		l.resync()
	}
}

// resync moves to the program's writes if they go on ahead of where they are expected: further on
// in the window, or behind it, which the size of the file shows.
func (l *Log) resync() {
	if l.skipEmpty(logWindow) {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(l.fd, &st) != nil || st.Size <= l.seen {
		return
	}
	seen := l.seen
	l.seen = st.Size
	read := l.chunk
	at, err := unix.Seek(l.fd, seen, unix.SEEK_DATA)
	if err != nil || l.mapAt(at&^(pageSize-1)) != nil {
		return // grown, but not written; or out of reach
	}
	l.punch(read)
	l.skipEmpty(pageSize)
}

// skipEmpty moves to the first record before window offset to that is not empty.
func (l *Log) skipEmpty(to int) bool {
	for off := l.off; off < min(to, logChunk); off += RecordSize {
		if !empty(l.mem[off:]) {
			l.off = off
			return true
		}
	}
	return false
}

func (l *Log) close() {
	if l.mem != nil {
		unix.Munmap(l.mem)
		l.mem = nil
	}
	if l.dead == nil {
		l.dead = unix.EBADF
	}
}
