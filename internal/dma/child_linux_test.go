package dma

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/hostmem"
)

// The program whose memory the tests reach: this test binary again, told so by an environment
// variable. It maps childPages pages, whose byte i is childByte(i), and obeys commands.
const (
	childEnv   = "RNIC_DMA_TEST_CHILD"
	childPages = 16
)

var pageSize = uint64(os.Getpagesize())

func childByte(i uint64) byte { return byte(i*7 + i>>8) }

func init() {
	if os.Getenv(childEnv) != "" {
		runtime.LockOSThread() // main stays on the first thread
	}
}

// leave is closed when the child's first thread shall end.
var leave = make(chan struct{})

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		go func() {
			if err := childMain(os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, "child:", err)
				os.Exit(1)
			}
			os.Exit(0)
		}()
		<-leave
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // the thread alone, as pthread_exit(3)
	}
	os.Exit(m.Run())
}

func childMain(in io.Reader, out io.Writer) error {
	mem, err := unix.Mmap(-1, 0, int(childPages*pageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	for i := range mem {
		mem[i] = childByte(uint64(i))
	}
	base := addressOf(mem)
	fmt.Fprintln(out, base)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var word string
		var addr, length uint64
		if _, err := fmt.Sscan(lines.Text(), &word, &addr, &length); err != nil {
			return err
		}
		answer := "ok"
		switch word {
		case "unmap":
			if _, _, e := unix.RawSyscall(unix.SYS_MUNMAP, uintptr(addr), uintptr(length), 0); e != 0 {
				return e
			}
		case "readonly", "none":
			prot := uintptr(unix.PROT_READ)
			if word == "none" {
				prot = unix.PROT_NONE
			}
			if _, _, e := unix.RawSyscall(unix.SYS_MPROTECT, uintptr(addr), uintptr(length), prot); e != 0 {
				return e
			}
		case "leave":
			close(leave)
		case "dump":
			answer = hex.EncodeToString(mem[addr-base : addr-base+length])
		case "poll":
			answer = pollRounds(mem[addr-base:], int(length))
		}
		fmt.Fprintln(out, answer)
	}
	return lines.Err()
}

// pollRounds is a program that polls the last byte of what is written to it. Word 0 of mem is the
// round that it has seen: the writer waits for it. A message begins at byte 64, its length is
// roundLength of the round, all its bytes are the round's number.
func pollRounds(mem []byte, rounds int) string {
	seen := (*uint64)(unsafe.Pointer(&mem[0]))
	for r := 1; r <= rounds; r++ {
		n := roundLength(r)
		msg := mem[64 : 64+n]
		for i := range msg {
			msg[i] = ^byte(r)
		}
		atomic.StoreUint64(seen, uint64(r-1))
		for loadByte(&msg[n-1]) != byte(r) {
			runtime.Gosched()
		}
		for i, b := range msg {
			if b != byte(r) {
				return fmt.Sprintf("round %d: the last of %d bytes is there, byte %d is not", r, n, i)
			}
		}
	}
	return "ok"
}

// roundLength is the length of the message of a round: whole words, and not.
func roundLength(r int) int { return 1 + (r*131)%(3*4096) }

type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	base uint64
	*Process
}

func startChild(t *testing.T) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), childEnv+"=1", "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	// The kernel sends the death signal when the starting thread ends, not the process.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	c.out = bufio.NewReader(out)
	if _, err := fmt.Fscanf(c.out, "%d\n", &c.base); err != nil {
		t.Fatal(err)
	}
	c.Process = reach(t, c.cmd.Process.Pid, maxVec)
	return c
}

// end ends the program and waits until it is gone.
func (c *child) end() {
	if c.cmd.ProcessState == nil {
		c.in.Close()
		_ = c.cmd.Wait()
	}
}

func (c *child) tell(word string, addr, length uint64) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, word, addr, length); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) answer() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// do gives one command and waits for ok.
func (c *child) do(word string, addr, length uint64) {
	c.t.Helper()
	c.tell(word, addr, length)
	if a := c.answer(); a != "ok" {
		c.t.Fatalf("%s: %s", word, a)
	}
}

// dump is the program's own view of its memory.
func (c *child) dump(addr, length uint64) []byte {
	c.t.Helper()
	c.tell("dump", addr, length)
	b, err := hex.DecodeString(c.answer())
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

func (c *child) segment(off, length uint64) hostmem.Segment {
	return hostmem.Segment{Space: c.Process, Addr: c.base + off, Buf: make([]byte, length)}
}
