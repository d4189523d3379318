package dma

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/hostmem"
)

// ErrRefused says that the kernel does not let the NIC reach a program's memory.
var ErrRefused = errors.New("dma: access to the program's memory is refused (ptrace rights are needed: same user, " +
	"and with Yama's ptrace_scope 1 the NIC's process must be an ancestor of the program)")

// Process is a Space over the memory of another process, by process_vm_readv and
// process_vm_writev: they obey the program's own page protections. Calls of several goroutines may
// overlap.
type Process struct {
	ended   atomic.Bool
	pid     int
	scratch sync.Pool // *vectors
	words   sync.Pool // *word
	limit   int       // segments a call

	files  atomic.Pointer[Files] // where it is reached by files: see NewProcessFiles, and survivor
	mapsMu sync.Mutex            // guards the position of files.Maps
}

type word struct {
	buf [8]byte
	seg [1]hostmem.Segment
}

// maxVec is the kernel's limit of vectors a call (UIO_MAXIOV).
const maxVec = 1024

type vectors struct {
	local  []unix.Iovec
	remote []unix.RemoteIovec
	tail   [1]unix.Iovec
}

// NewProcess returns the memory of process pid.
func NewProcess(pid int) *Process { return NewProcessLimit(pid, maxVec/2-1) }

// NewProcessLimit is NewProcess with at most segments segments a system call, to measure what
// batching gains.
func NewProcessLimit(pid, segments int) *Process {
	p := &Process{pid: pid, limit: max(1, min(segments, maxVec/2-1))}
	p.words.New = func() any { return new(word) }
	p.scratch.New = func() any {
		return &vectors{local: make([]unix.Iovec, 0, maxVec), remote: make([]unix.RemoteIovec, 0, maxVec)}
	}
	return p
}

// PID is the process's number.
func (p *Process) PID() int { return p.pid }

// ReadV implements hostmem.Space.
func (p *Process) ReadV(segs []hostmem.Segment) (int, error) {
	if p.ended.Load() {
		return 0, hostmem.ErrGone
	}
	return p.transfer(unix.SYS_PROCESS_VM_READV, segs, false)
}

// WriteV implements hostmem.Space.
func (p *Process) WriteV(segs []hostmem.Segment) (int, error) {
	if p.ended.Load() {
		return 0, hostmem.ErrGone
	}
	return p.transfer(unix.SYS_PROCESS_VM_WRITEV, segs, true)
}

func (p *Process) transfer(call uintptr, segs []hostmem.Segment, write bool) (int, error) {
	if files := p.byFiles(); files != nil {
		return p.transferFiles(files, segs, write)
	}
	v := p.scratch.Get().(*vectors)
	defer func() {
		clear(v.local)
		p.scratch.Put(v)
	}()
	done := 0
	for done < len(segs) {
		run := segs[done:min(len(segs), done+p.limit)]
		want := v.fill(run, write)
		if want == 0 {
			done += len(run)
			continue
		}
		got, err := p.call(call, v)
		if err == nil && got == want {
			done += len(run)
			continue
		}
		// A short transfer: the segments before the fault are whole. The one that faulted is tried
		// alone, so that the answer names it and not a neighbour.
		whole := 0
		for whole < len(run) && got >= len(run[whole].Buf) {
			got -= len(run[whole].Buf)
			whole++
		}
		done += whole
		if whole == len(run) {
			continue
		}
		want = v.fill(segs[done:done+1], write)
		if got, err = p.call(call, v); err != nil || got != want {
			if err == unix.ESRCH && p.survivor() {
				n, err := p.transferFiles(p.byFiles(), segs[done:], write)
				return done + n, err
			}
			return done, p.explain(err)
		}
		done++
	}
	return done, nil
}

// fill builds the vectors of segs and returns their length in bytes. Segments that are neighbours in
// the program's memory become one remote vector, which the kernel then walks once. The last word
// that a run of neighbours writes is a vector of its own at the end: it lands last.
func (v *vectors) fill(segs []hostmem.Segment, write bool) int {
	v.local, v.remote = v.local[:0], v.remote[:0]
	total := 0
	for i := range segs {
		b := segs[i].Buf
		if len(b) == 0 {
			continue
		}
		total += len(b)
		l := unix.Iovec{Base: &b[0]}
		l.SetLen(len(b))
		v.local = append(v.local, l)
		addr := uintptr(segs[i].Addr)
		if k := len(v.remote); k > 0 && v.remote[k-1].Base+uintptr(v.remote[k-1].Len) == addr {
			v.remote[k-1].Len += len(b)
			continue
		}
		if k := len(v.remote); write && k > 0 {
			v.splitTail()
		}
		v.remote = append(v.remote, unix.RemoteIovec{Base: addr, Len: len(b)})
	}
	if write && len(v.remote) > 0 {
		v.splitTail()
	}
	return total
}

// splitTail makes the last word of the last remote vector a vector of its own.
func (v *vectors) splitTail() {
	r := &v.remote[len(v.remote)-1]
	end := r.Base + uintptr(r.Len)
	tail := int(end & 7)
	if tail == 0 {
		tail = 8
	}
	if r.Len <= tail {
		return
	}
	r.Len -= tail
	v.remote = append(v.remote, unix.RemoteIovec{Base: end - uintptr(tail), Len: tail})
}

func (p *Process) call(nr uintptr, v *vectors) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(nr, uintptr(p.pid), uintptr(unsafe.Pointer(&v.local[0])), uintptr(len(v.local)),
			uintptr(unsafe.Pointer(&v.remote[0])), uintptr(len(v.remote)), 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
			continue
		default:
			return 0, e
		}
	}
}

func (p *Process) explain(err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return hostmem.ErrGone
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("process %d: %w", p.pid, ErrRefused)
	}
	return hostmem.ErrFault
}

// Atomic implements hostmem.Space. It is atomic among the operations of the NIC, which calls it
// from one place at a time: IBV_ATOMIC_HCA.
func (p *Process) Atomic(addr uint64, op hostmem.AtomicOp, operand, compare uint64) (uint64, error) {
	w := p.words.Get().(*word)
	defer p.words.Put(w)
	w.seg[0] = hostmem.Segment{Addr: addr, Buf: w.buf[:]}
	if _, err := p.ReadV(w.seg[:]); err != nil {
		return 0, err
	}
	old := binary.NativeEndian.Uint64(w.buf[:])
	binary.NativeEndian.PutUint64(w.buf[:], op.Apply(old, operand, compare))
	// Also where the word stays the same: a region without write permission must refuse.
	if _, err := p.WriteV(w.seg[:]); err != nil {
		return 0, err
	}
	return old, nil
}

// Check implements hostmem.Space by /proc/PID/maps.
func (p *Process) Check(addr, length uint64, write bool) error {
	if length == 0 {
		return nil
	}
	if addr+length < addr {
		return hostmem.ErrFault
	}
	f, done, err := p.openMaps()
	if err != nil {
		return p.refused(err)
	}
	defer done()
	end := addr + length
	lines := bufio.NewScanner(f)
	none := true
	for lines.Scan() {
		none = false
		lo, hi, perm, ok := parseMapping(lines.Text())
		if !ok || hi <= addr {
			continue
		}
		if lo > addr || perm[0] != 'r' || write && perm[1] != 'w' {
			return hostmem.ErrFault
		}
		if hi >= end {
			return nil
		}
		addr = hi
	}
	if err := lines.Err(); err != nil {
		return p.refused(err)
	}
	if none {
		return hostmem.ErrGone
	}
	return hostmem.ErrFault
}

func (p *Process) refused(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return hostmem.ErrGone
	}
	return fmt.Errorf("process %d: %w: %v", p.pid, ErrRefused, err)
}

// parseMapping takes a line of /proc/PID/maps apart: "lo-hi perm ...".
func parseMapping(line string) (lo, hi uint64, perm string, ok bool) {
	span, rest, ok := strings.Cut(line, " ")
	a, b, ok2 := strings.Cut(span, "-")
	if !ok || !ok2 || len(rest) < 4 {
		return 0, 0, "", false
	}
	lo, err1 := strconv.ParseUint(a, 16, 64)
	hi, err2 := strconv.ParseUint(b, 16, 64)
	return lo, hi, rest[:4], err1 == nil && err2 == nil
}
