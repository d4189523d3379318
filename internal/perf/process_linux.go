package perf

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/dma"
	"rnic/verbs"
)

// ChildCommand is the hidden command that holds the target buffer of --memory=process.
const ChildCommand = "perf-memory-child"

// RunChild is that command: it maps a buffer of size bytes, tells its address, and unmaps what it is
// told to unmap, until its input ends.
func RunChild(size int, in io.Reader, out io.Writer) error {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d\n", dma.NewSlice(b).Base())
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var addr, length uintptr
		if _, err := fmt.Sscanf(lines.Text(), "unmap %d %d", &addr, &length); err != nil {
			return err
		}
		if _, _, e := unix.RawSyscall(unix.SYS_MUNMAP, addr, length, 0); e != 0 {
			return e
		}
		fmt.Fprintln(out, "ok")
	}
	return lines.Err()
}

// child is the process that holds the target buffer.
type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	addr uint64
}

func startChild(ctx context.Context, size int) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, "/proc/self/exe", ChildCommand, fmt.Sprint(size))}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the process that holds the target buffer: %w", err)
	}
	c.out = bufio.NewReader(out)
	if _, err := fmt.Fscanf(c.out, "%d\n", &c.addr); err != nil {
		c.close()
		return nil, fmt.Errorf("the process that holds the target buffer: %w", err)
	}
	return c, nil
}

func (c *child) unmap(addr uint64, length int) error {
	if _, err := fmt.Fprintf(c.in, "unmap %d %d\n", addr, length); err != nil {
		return err
	}
	line, err := c.out.ReadString('\n')
	if err == nil && strings.TrimSpace(line) != "ok" {
		err = fmt.Errorf("unmap: %q", line)
	}
	return err
}

func (c *child) close() {
	c.in.Close()
	_ = c.cmd.Wait()
}

// runProcess shows that batching across packets into another process's memory works, and that a fault in the
// middle of a batch hits its own packet only.
func runProcess(ctx context.Context, o *Options, p *Printer) error {
	a, b, err := o.loopbackAddrs()
	if err != nil {
		return err
	}
	if !p.JSON {
		fmt.Fprintf(p.W, "RDMA WRITE of %d bytes into the memory of another process, %d queue pairs\n", o.Size, o.QueuePairs)
	}
	for _, segments := range []int{1, 8, 32} {
		err := withProcess(ctx, o, a, b, segments, func(t *processTarget) error {
			r := o.result(t.client)
			end := o.Progress.start(o)
			err := newBandwidth(t.client, t.remote, nil).measure(r)
			end()
			if err != nil {
				return err
			}
			if p.JSON {
				return p.Print(r)
			}
			fmt.Fprintf(p.W, "%3d segments a call: %6.2f GB/s (%d messages, resent %d, timeouts %d, errors %d)\n", segments,
				r.BytesPerSecond/1e9, r.Iterations, r.RetransmittedPackets, r.Timeouts, r.Errors)
			return nil
		})
		if err != nil {
			return fmt.Errorf("%d segments a call: %w", segments, err)
		}
	}
	faulty := *o
	faulty.QueuePairs = max(4, o.QueuePairs)
	return withProcess(ctx, &faulty, a, b, 32, func(t *processTarget) error { return t.unmapInMidRun(p) })
}

// processTarget is a client, and a server whose buffer is in a child process.
type processTarget struct {
	o      *Options
	client *endpoint
	server *endpoint
	remote remote
	child  *child
	space  *dma.Process
}

func withProcess(ctx context.Context, o *Options, sa, ca netip.Addr, segments int, f func(*processTarget) error) (err error) {
	sdev, err := open(o, []netip.Addr{sa}, 0)
	if err != nil {
		return err
	}
	defer closeDevice(sdev, &err)
	defer o.report(sdev)
	cdev, err := open(o, []netip.Addr{ca}, 1)
	if err != nil {
		return err
	}
	defer closeDevice(cdev, &err)
	defer o.report(cdev)
	s, c, err := pair(o, sdev, cdev)
	if err != nil {
		return err
	}
	defer s.close()
	defer c.close()
	size := o.QueuePairs * o.slots() * o.stride()
	held, err := startChild(ctx, size)
	if err != nil {
		return err
	}
	defer held.close()
	space := dma.NewProcessLimit(held.cmd.Process.Pid, segments)
	mr, err := s.pd.RegSpace(space, held.addr, uint64(size), held.addr,
		verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	if err != nil {
		return err
	}
	server, err := s.local()
	if err != nil {
		return err
	}
	server.Addr, server.RKey = held.addr, mr.RKey()
	return f(&processTarget{o: o, client: c, server: s, remote: server, child: held, space: space})
}

// unmapInMidRun runs four queue pairs and takes one page of the second one's buffer away.
func (t *processTarget) unmapInMidRun(p *Printer) error {
	const victim = 1
	c := newBandwidth(t.client, t.remote, nil)
	v := newVictimWatch(c, victim)
	slot := t.o.slots() / 2
	page := uint64(os.Getpagesize())
	addr := (t.remote.Addr + uint64(t.client.off(victim, slot)) + page - 1) &^ (page - 1)
	if addr+page > t.remote.Addr+uint64(t.client.off(victim, slot)+t.o.Size) {
		return usage("--memory=process: messages of %d bytes do not cover a page: use -s 16384 or more", t.o.Size)
	}
	unmapped := make(chan error, 1)
	go func() {
		time.Sleep(100 * time.Millisecond)
		unmapped <- t.child.unmap(addr, int(page))
	}()
	if err := v.run(300 * time.Millisecond); err != nil {
		return err
	}
	if err := <-unmapped; err != nil {
		return err
	}
	report, err := v.judge(t.o, slot, t.space, t.remote.Addr)
	if !p.JSON && report != "" {
		fmt.Fprintln(p.W, report)
	}
	return err
}
