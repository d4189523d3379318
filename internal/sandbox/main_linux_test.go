//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays every part: `test front CONFIG CMD...` is rnic run, the supervisor and the
// helper are re-executed by it, and `test client NAME ARGS...` is a program under the filter.
func TestMain(m *testing.M) {
	notKillable = os.Getenv("SANDBOX_TEST_NOT_KILLABLE") != ""
	MaybeHelper(superviseNull)
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "front":
			nice, _ := strconv.Atoi(os.Getenv("SANDBOX_TEST_NICE"))
			code, err := Run(Options{Command: os.Args[3:], Config: []byte(os.Args[2]), Nice: nice})
			if err != nil {
				fmt.Fprintln(os.Stderr, "rnic run:", err)
			}
			os.Exit(code)
		case "client":
			if err := clients[os.Args[2]](os.Args[3:]); err != nil {
				fmt.Fprintf(os.Stderr, "client %s: %v\n", os.Args[2], err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(testMain(m))
}

// ordinaryBinary is a copy of the test binary where every user finds it: go test's own directory is closed
// to others.
var ordinaryBinary string

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sandbox-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ordinaryBinary = filepath.Join(dir, "test")
	b, err := os.ReadFile(selfExe)
	// Before any test forks: a child that has the file open for writing would make it ETXTBSY.
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(ordinaryBinary, b, 0o755)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// The null device's ioctls: object and method do not matter, the "length" field of the header
// is the operation and the 8 bytes behind the header the argument or result.
const (
	nullCreate  = 1 + iota // result: a new handle
	nullDestroy            // argument: a handle; ENOENT if there is none
	nullLive               // result: number of objects
	nullRegion             // asks for Call.PID, as a memory registration does; result: that
	nullLater              // as nullCreate, answered from another goroutine
	nullSocket             // result: a low descriptor, the end of a socket pair with "event" to read
	nullGone               // result: number of MemoryGone so far
	nullWait               // waits for a signal, as a blocking command does, and fails with EINTR then
	nullFlags              // argument: descriptor number; result: 1 if it is non-blocking
	nullPanic              // an error in the device
	nullFile               // argument: descriptor number; result: 1 if it is one of the null device's files
)

// nullSummary is what the supervisor writes at the end of the run.
type nullSummary struct {
	Opened, Closed, Created, Destroyed, Live int
	MemoryGone                               []int
	Writes                                   []string
}

// nullDevice is a device whose objects are numbers. They belong to the file they were created on.
type nullDevice struct {
	place Range

	mu   sync.Mutex
	next uint64
	live map[uint64]*File
	sum  nullSummary
	hold map[*File]int // our own open of each file
}

func (d *nullDevice) Open(c Call, flags int) {
	f, err := os.CreateTemp("/dev/shm", "null-")
	if err != nil {
		c.Fail(syscall.EIO)
		return
	}
	defer f.Close()
	os.Remove(f.Name())
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		c.Fail(syscall.EIO)
		return
	}
	n, file, err := c.Inject(int(f.Fd()), d.place, flags&unix.O_CLOEXEC != 0, d)
	if err != nil {
		unix.Close(own)
		c.Fail(errnoOf(err))
		return
	}
	d.mu.Lock()
	d.sum.Opened++
	d.hold[file] = own
	d.mu.Unlock()
	c.Reply(int64(n))
}

func (d *nullDevice) Ioctl(c Call, f *File, arg uint64) {
	var b [32]byte
	if err := c.ReadMem(arg, b[:]); err != nil {
		c.Fail(syscall.EFAULT)
		return
	}
	if !c.Valid() {
		c.Fail(syscall.EINTR)
		return
	}
	v := le.Uint64(b[24:])
	result := func(v uint64) {
		if c.WriteMem(arg+24, le.AppendUint64(nil, v)) != nil {
			c.Fail(syscall.EFAULT)
			return
		}
		c.Reply(0)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch le.Uint16(b[:]) {
	case nullCreate:
		result(d.create(f))
	case nullLater:
		go func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			result(d.create(f))
		}()
	case nullDestroy:
		if d.live[v] == nil {
			c.Fail(syscall.ENOENT)
			return
		}
		delete(d.live, v)
		d.sum.Destroyed++
		c.Reply(0)
	case nullLive:
		result(uint64(len(d.live)))
	case nullRegion:
		result(uint64(c.PID()))
	case nullGone:
		result(uint64(len(d.sum.MemoryGone)))
	case nullFile:
		if g := c.File(int(v)); g != nil && g.Data == any(d) {
			result(1)
			return
		}
		result(0)
	case nullWait:
		go func() {
			for c.Valid() {
				if c.SignalPending() {
					c.Fail(syscall.EINTR)
					return
				}
				time.Sleep(time.Millisecond)
			}
			c.Fail(syscall.EINTR)
		}()
	case nullFlags:
		if c.Nonblocking(int(v)) {
			result(1)
			return
		}
		result(0)
	case nullPanic:
		panic("the null device is broken")
	case nullSocket:
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			c.Fail(errnoOf(err))
			return
		}
		unix.Write(p[1], []byte("event"))
		n, _, err := c.Inject(p[0], RangeLow, true, d)
		unix.Close(p[0])
		if err != nil {
			c.Fail(errnoOf(err))
			return
		}
		result(uint64(n))
	default:
		c.Fail(syscall.ENOTTY)
	}
}

func (d *nullDevice) create(f *File) uint64 {
	d.next++
	d.live[d.next] = f
	d.sum.Created++
	return d.next
}

func (d *nullDevice) Write(c Call, f *File, addr, n uint64) {
	if n > 1<<16 {
		c.Fail(syscall.EINVAL)
		return
	}
	b := make([]byte, n)
	if c.ReadMem(addr, b) != nil {
		c.Fail(syscall.EFAULT)
		return
	}
	d.mu.Lock()
	d.sum.Writes = append(d.sum.Writes, string(b))
	d.mu.Unlock()
	c.Reply(int64(n))
}

func (d *nullDevice) Closed(f *File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if own, ok := d.hold[f]; ok { // not the sockets
		d.sum.Closed++
		unix.Close(own)
		delete(d.hold, f)
	}
	for h, owner := range d.live {
		if owner == f {
			delete(d.live, h)
		}
	}
}

func (d *nullDevice) MemoryGone(pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.MemoryGone = append(d.sum.MemoryGone, pid)
}

func newNullDevice(r Range) *nullDevice {
	return &nullDevice{place: r, live: map[uint64]*File{}, hold: map[*File]int{}}
}

// nullTree is what libibverbs needs to list a device (rdma-core, libibverbs/init.c and sysfs.c).
var nullTree = map[string]string{
	"/sys/class/infiniband_verbs/abi_version":         "6\n",
	"/sys/class/infiniband_verbs/uverbs0/ibdev":       "rxe0\n",
	"/sys/class/infiniband_verbs/uverbs0/abi_version": "2\n",
	"/sys/class/infiniband_verbs/uverbs0/dev":         "231:192\n",
	"/sys/class/infiniband/rxe0/node_type":            "1: CA\n",
	"/sys/class/infiniband/rxe0/node_guid":            "0200:00ff:fe00:0001\n",
	"/sys/class/infiniband/rxe0/fw_ver":               "\n",
	"/sys/class/misc/rdma_cm/abi_version":             "4\n",
}

// superviseNull is the supervisor: a verbs device and a CM device. The configuration is the file
// for the summary, "fail", "wait" and a FIFO, or "".
func superviseNull(s *Supervisor) error {
	if string(s.Config()) == "fail" {
		return errors.New("the null device is out of order")
	}
	if fifo, ok := strings.CutPrefix(string(s.Config()), "wait "); ok { // as for a NIC that does not answer
		if _, err := os.ReadFile(fifo); err != nil {
			return err
		}
	}
	for p, content := range nullTree {
		if err := s.AddFile(p, content); err != nil {
			return err
		}
	}
	if err := s.AddSymlink("/sys/class/infiniband/link", "rxe0"); err != nil {
		return err
	}
	for _, p := range []string{liveFile, liveOther} {
		var reads atomic.Int64
		reads.Store(97)
		if err := s.AddLive(p, func() (string, error) { return fmt.Sprintf("%d\n", reads.Add(1)), nil }); err != nil {
			return err
		}
	}
	verbs, cm := newNullDevice(RangeVerbs), newNullDevice(RangeCM)
	if err := s.AddDevice("/dev/infiniband/uverbs0", 231, 192, verbs); err != nil {
		return err
	}
	if err := s.AddDevice("/dev/infiniband/rdma_cm", 10, 58, cm); err != nil {
		return err
	}
	if os.Getenv("SANDBOX_TEST_NO_NETLINK") == "" {
		if err := s.AnswerNetlink(echo); err != nil {
			return err
		}
	}
	if err := s.Serve(); err != nil {
		return err
	}
	if len(s.Config()) == 0 {
		return nil
	}
	verbs.sum.Live = len(verbs.live)
	verbs.sum.Writes = append(verbs.sum.Writes, cm.sum.Writes...)
	b, err := json.Marshal(verbs.sum)
	if err != nil {
		return err
	}
	return os.WriteFile(string(s.Config()), b, 0o644)
}

// testRun is a run of the front process.
type testRun struct {
	*exec.Cmd
	out, err bytes.Buffer
	summary  string
	tmp      string // TMPDIR
}

// launch prepares a run of argv, whose first element may be "client".
func launch(t *testing.T, argv ...string) *testRun {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if argv[0] == "client" {
		argv = append([]string{self}, argv...)
	}
	r := &testRun{summary: filepath.Join(t.TempDir(), "summary.json")}
	r.Cmd = exec.Command(self, append([]string{"front", r.summary}, argv...)...)
	r.Stdout, r.Stderr = &r.out, &r.err
	// The emulated tree goes there, and must be gone afterwards.
	tmp := t.TempDir()
	os.Chmod(tmp, 0o777)
	r.tmp = tmp
	r.Env = append(os.Environ(), "TMPDIR="+tmp, "SELF="+self,
		"GORACE=atexit_sleep_ms=0") // a second for each process of each run
	t.Cleanup(func() {
		if left, _ := filepath.Glob(tmp + "/*"); len(left) > 0 {
			t.Errorf("temporary files left: %v", left)
		}
	})
	return r
}

// code waits for the end of a started run and returns the exit code.
func (r *testRun) code(t *testing.T) int {
	t.Helper()
	err := r.Wait()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	return r.ProcessState.ExitCode()
}

func (r *testRun) run(t *testing.T) int {
	t.Helper()
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	return r.code(t)
}

// must runs argv, which has to succeed silently, and returns its output and the device's summary.
func must(t *testing.T, argv ...string) (string, nullSummary) {
	t.Helper()
	return mustRun(t, launch(t, argv...))
}

func mustRun(t *testing.T, r *testRun) (string, nullSummary) {
	t.Helper()
	if code := r.run(t); code != 0 || r.err.Len() > 0 {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, r.out.String(), r.err.String())
	}
	var sum nullSummary
	b, err := os.ReadFile(r.summary)
	if err == nil {
		err = json.Unmarshal(b, &sum)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.out.String(), sum
}

// lines counts the lines of stderr.
func lines(s string) int { return strings.Count(s, "\n") }
