package dma

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"rnic/internal/hostmem"
)

// The first thread of a process may end before the others (pthread_exit(3) in main). The process lives on, and its memory with it, but the
// kernel reaches memory by a thread: what names the process by its number names that thread, which has none any more (ESRCH, and
// an empty list of mappings). Then the memory is reached by its file, which another thread of the process opens the way to: the file is
// that memory's for good, whereas the number of a thread may be another process's as soon as the thread ends.

// taskDir is the directory of the process in /proc, or of a thread of it that lives where the first one has ended.
func taskDir(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	if state, _ := taskState(dir); state == 'Z' || state == 'X' {
		if task := otherThread(pid); task != "" {
			return task
		}
	}
	return dir
}

// otherThread is the directory of a thread of the process that lives and is not its first; "" if there is none.
func otherThread(pid int) string {
	first := strconv.Itoa(pid)
	dir := "/proc/" + first + "/task/"
	tasks, _ := os.ReadDir(dir)
	for _, t := range tasks {
		if t.Name() == first {
			continue
		}
		if state, _ := taskState(dir + t.Name()); state != 0 && state != 'Z' && state != 'X' {
			return dir + t.Name()
		}
	}
	return ""
}

// taskState is the state of a process's first thread, or of a thread, and how many threads the process has; 0 if there is none (proc(5), stat).
func taskState(dir string) (state byte, threads int) {
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, 0
	}
	// "pid (name) state ...": the name may hold anything.
	const stateField, threadsField = 0, 17
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= threadsField || len(fields[stateField]) != 1 {
		return 0, 0
	}
	threads, _ = strconv.Atoi(string(fields[threadsField]))
	return fields[stateField][0], threads
}

// Exited tells whether process pid is no more, but for its number: it is a zombie, or has been waited for. A process whose first
// thread alone has ended lives.
func Exited(pid int) bool {
	switch state, threads := taskState("/proc/" + strconv.Itoa(pid)); state {
	case 'Z':
		return threads < 2
	case 0, 'X':
		return true
	}
	return false
}

// byFiles is the memory's files where it is reached by them, nil where by the process's number.
func (p *Process) byFiles() *Files { return p.files.Load() }

// survivor goes over to the memory's file if other threads live than the process's first, which has no memory any more. That one need not be a
// zombie yet.
func (p *Process) survivor() bool {
	if p.ended.Load() {
		return false
	}
	task := otherThread(p.pid)
	if task == "" {
		return false
	}
	mem, err := os.OpenFile(task+"/mem", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	// Not the mappings: their file ends with the thread. The memory's is closed when nobody refers to it any more.
	if !p.files.CompareAndSwap(nil, &Files{Mem: mem}) {
		mem.Close()
	}
	return true
}

// touchFile is Touch by the memory's file.
func touchFile(f *Files, addr uint64) error {
	// ReadAt takes no offset of 2^63 and beyond, where no program has memory.
	if int64(addr) < 0 {
		return hostmem.ErrFault
	}
	var b [1]byte
	if _, err := f.Mem.ReadAt(b[:], int64(addr)); err != nil {
		return hostmem.ErrFault
	}
	return nil
}

// openMaps is the list of mappings, to be read from its beginning.
func (p *Process) openMaps() (*os.File, func(), error) {
	if files := p.byFiles(); files != nil && files.Maps != nil {
		p.mapsMu.Lock()
		if _, err := files.Maps.Seek(0, 0); err != nil {
			p.mapsMu.Unlock()
			return nil, nil, err
		}
		return files.Maps, p.mapsMu.Unlock, nil
	}
	f, err := os.Open(fmt.Sprintf("%s/maps", taskDir(p.pid)))
	return f, func() { f.Close() }, err
}
