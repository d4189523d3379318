package dma

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/hostmem"
)

// Files are the memory of a process and the list of its mappings as open files (/proc/PID/mem and maps, proc(5)).
// Whoever has ptrace rights over the process opens them and may pass them on: they stay usable by a NIC that
// has none, and mean that memory alone, whatever becomes of the number of the process.
type Files struct{ Mem, Maps *os.File }

// OpenFiles opens the memory of process pid. The error wraps ErrRefused where the kernel does not allow it.
func OpenFiles(pid int) (Files, error) {
	dir := taskDir(pid)
	mem, err := os.OpenFile(dir+"/mem", os.O_RDWR, 0)
	if err != nil {
		return Files{}, (&Process{pid: pid}).refused(err)
	}
	maps, err := os.Open(dir + "/maps")
	if err != nil {
		mem.Close()
		return Files{}, (&Process{pid: pid}).refused(err)
	}
	return Files{mem, maps}, nil
}

// Close closes both files.
func (f Files) Close() {
	if f.Mem != nil {
		f.Mem.Close()
	}
	if f.Maps != nil {
		f.Maps.Close()
	}
}

// Reachable tells whether the kernel lets this process read and write the memory of process pid by
// process_vm_readv and process_vm_writev.
func Reachable(pid int) bool {
	var b [1]byte
	local := unix.Iovec{Base: &b[0], Len: 1}
	remote := unix.RemoteIovec{Base: 0, Len: 1} // never mapped: rights are looked at first
	_, _, e := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1,
		uintptr(unsafe.Pointer(&remote)), 1, 0)
	return e == 0 || e == unix.EFAULT
}

// NewProcessFiles returns the memory of process pid by its files, which belong to the caller and must
// stay open while it is used.
//
// Unlike process_vm_writev, a write through /proc/PID/mem does not obey page protections. So they count when a
// region is registered (Check), as they do where a kernel pins the pages of a region; what the program protects later is
// written all the same.
func NewProcessFiles(pid int, f Files) *Process {
	p := NewProcess(pid)
	p.files.Store(&f)
	return p
}

// transferFiles is transfer by the process's memory file: a call for each run of neighbours.
func (p *Process) transferFiles(files *Files, segs []hostmem.Segment, write bool) (int, error) {
	mem := files.Mem.Fd()
	defer runtime.KeepAlive(files)
	v := p.scratch.Get().(*vectors)
	defer func() {
		clear(v.local)
		p.scratch.Put(v)
	}()
	for done := 0; done < len(segs); {
		end, want := v.neighbours(segs[done:])
		got, err := 0, error(nil)
		if want > 0 {
			got, err = moveFile(mem, v, segs[done].Addr, want, write)
		}
		if got == want {
			done += end
			continue
		}
		for got >= len(segs[done].Buf) {
			got -= len(segs[done].Buf)
			done++
		}
		return done, err
	}
	return len(segs), nil
}

// neighbours takes the first segments that follow each other in the program's memory, and returns how many they are and
// their bytes.
func (v *vectors) neighbours(segs []hostmem.Segment) (n, bytes int) {
	v.local = v.local[:0]
	for n < len(segs) && len(v.local) < maxVec {
		b := segs[n].Buf
		if n > 0 && segs[n].Addr != segs[0].Addr+uint64(bytes) {
			break
		}
		n++
		if len(b) == 0 {
			continue
		}
		l := unix.Iovec{Base: &b[0]}
		l.SetLen(len(b))
		v.local = append(v.local, l)
		bytes += len(b)
	}
	return n, bytes
}

// moveFile moves bytes between the local vectors and the memory at addr. The last word that it writes lands last.
func moveFile(mem uintptr, v *vectors, addr uint64, bytes int, write bool) (int, error) {
	if !write {
		return fileCall(mem, unix.SYS_PREADV, v.local, addr, bytes)
	}
	last := &v.local[len(v.local)-1]
	tail := int((addr + uint64(bytes)) & 7)
	if tail == 0 {
		tail = 8
	}
	tail = min(tail, int(last.Len))
	head := v.local
	end := unix.Iovec{Base: (*byte)(unsafe.Add(unsafe.Pointer(last.Base), int(last.Len)-tail))}
	end.SetLen(tail)
	if int(last.Len) > tail {
		last.SetLen(int(last.Len) - tail)
	} else {
		head = head[:len(head)-1]
	}
	done := 0
	if bytes > tail {
		n, err := fileCall(mem, unix.SYS_PWRITEV, head, addr, bytes-tail)
		if n != bytes-tail {
			return n, err
		}
		done = n
	}
	v.tail[0] = end
	n, err := fileCall(mem, unix.SYS_PWRITEV, v.tail[:], addr+uint64(done), tail)
	return done + n, err
}

// fileCall is one preadv or pwritev of want bytes; less is a fault behind what was moved.
func fileCall(mem, nr uintptr, local []unix.Iovec, addr uint64, want int) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(nr, mem, uintptr(unsafe.Pointer(&local[0])), uintptr(len(local)), uintptr(addr), 0, 0)
		switch {
		case e == unix.EINTR:
			continue
		case e != 0:
			return 0, hostmem.ErrFault
		case n == 0: // end of file: nothing is left of that memory
			return 0, hostmem.ErrGone
		case int(n) < want:
			return int(n), hostmem.ErrFault
		}
		return int(n), nil
	}
}
