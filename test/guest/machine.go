package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How long a boot may take: it is five seconds on an idle machine.
const bootTimeout = 2 * time.Minute

// Machine is a running guest. Its Soft-RoCE device is rxe0, over eth0 with
// GuestAddress and GuestAddress6.
type Machine struct {
	network *Network
	cmd     *exec.Cmd
	console *console
	exited  chan struct{} // closed when QEMU has ended
}

// ExitError says that a command in the guest ended with a status other than 0.
type ExitError struct {
	Status int
}

func (e *ExitError) Error() string { return fmt.Sprintf("exit status %d in the guest", e.Status) }

// Boot starts a guest on the network and returns when it is ready. A boot that
// fails is tried once more: emulation on a busy machine can make the guest's
// kernel give up.
func Boot(ctx context.Context, image *Image, network *Network) (*Machine, error) {
	m, first := boot(ctx, image, network)
	if first == nil || ctx.Err() != nil {
		return m, first
	}
	m, err := boot(ctx, image, network)
	if err != nil {
		return nil, fmt.Errorf("%w\nand at the first try: %w", err, first)
	}
	return m, nil
}

func boot(ctx context.Context, image *Image, network *Network) (*Machine, error) {
	m := &Machine{network: network, console: newConsole("guest is ready"), exited: make(chan struct{})}
	m.cmd = network.Command(context.Background(), qemuArgs(image)...)
	m.cmd.Stdout = m.console
	m.cmd.Stderr = m.console
	// QEMU must not outlive a test that is killed.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go m.supervise(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting QEMU: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	select {
	case <-m.console.seen:
	case <-m.exited:
		return nil, fmt.Errorf("the guest ended before it was ready; its console:\n%s", m.Console())
	case <-ctx.Done():
		m.Close()
		return nil, fmt.Errorf("the guest is not ready: %w; its console:\n%s", ctx.Err(), m.Console())
	}
	if strings.Contains(m.Console(), "insmod: ") {
		m.Close()
		return nil, fmt.Errorf("the guest lacks a module; its console:\n%s", m.Console())
	}
	if err := m.greet(ctx); err != nil {
		m.Close()
		return nil, fmt.Errorf("the guest does not answer: %w; its console:\n%s", err, m.Console())
	}
	return m, nil
}

// greet waits for the guest's shell: its link comes up a little after its console says so.
func (m *Machine) greet(ctx context.Context) error {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := m.Run(try, "true")
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// supervise starts QEMU and waits for it, on a thread that lives as long: the
// death signal of a process is that of the thread which started it.
func (m *Machine) supervise(started chan<- error) {
	runtime.LockOSThread()
	err := m.cmd.Start()
	started <- err
	if err == nil {
		m.cmd.Wait()
		close(m.exited)
	}
}

// qemuArgs returns the command that boots the image.
func qemuArgs(image *Image) []string {
	off := "csum=off,guest_csum=off,gso=off,host_tso4=off,host_tso6=off,host_ufo=off," +
		"guest_tso4=off,guest_tso6=off,guest_ufo=off,mrg_rxbuf=off,host_mtu=" + strconv.Itoa(LargestMTU)
	// Emulated, the counter of cycles is the host's. The guest would measure its rate against a clock
	// that a busy host does not serve in time, and hang; so it is told the rate.
	params := fmt.Sprintf("console=ttyS0 quiet panic=-1 reboot=t nokaslr mitigations=off random.trust_cpu=on "+
		"tsc=reliable tsc_early_khz=%d cryptomgr.notests pci=off GUEST_ADDRESS=%s GUEST_ADDRESS6=%s GUEST_MTU=%d",
		cyclesPerMillisecond(), GuestAddress+prefix, GuestAddress6+prefix6, linkMTU)
	// On a busy machine the guest would stand still for longer than programs wait for an answer (ibv_rc_pingpong: half a
	// second); nice goes on without where that is not allowed.
	return []string{"nice", "-n", "-5", qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "microvm,rtc=on", "-global", "virtio-mmio.force-legacy=off",
		"-accel", "tcg,tb-size=128", "-cpu", "max", "-smp", "1", "-m", "512",
		"-kernel", image.Kernel, "-initrd", image.Initrd, "-append", params, "-serial", "stdio",
		"-netdev", "tap,id=net0,ifname=" + tapName + ",script=no,downscript=no",
		"-device", "virtio-net-device,netdev=net0,mac=52:54:00:00:00:02," + off}
}

var (
	detectedTSC = regexp.MustCompile(`tsc: Detected (\d+)\.(\d{3}) MHz processor`)
	cpuMHz      = regexp.MustCompile(`(?m)^cpu MHz\s*: (\d+)\.(\d{3})`)
)

// cyclesPerMillisecond returns the rate of the host's time stamp counter, as
// its kernel found it, or else the processor's.
func cyclesPerMillisecond() int {
	log, _ := exec.Command("dmesg").Output()
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	for _, match := range [][][]byte{detectedTSC.FindSubmatch(log), cpuMHz.FindSubmatch(cpu)} {
		if match != nil {
			khz, _ := strconv.Atoi(string(match[1]) + string(match[2]))
			return khz
		}
	}
	return 2_000_000
}

var exitLine = regexp.MustCompile(`(?m)\n?^@exit (\d+)\n`)

// cutStatus takes the line with the script's status out of what has come from a shell. It need not be the last: a program
// that the script has left behind holds the connection too, and may write until it ends.
func cutStatus(out []byte) (text []byte, status int, found bool) {
	at := exitLine.FindSubmatchIndex(out)
	if at == nil {
		return out, 0, false
	}
	status, _ = strconv.Atoi(string(out[at[2]:at[3]]))
	return slices.Concat(out[:at[0]], out[at[1]:]), status, true
}

// Run runs a shell script in the guest and returns what it wrote to standard
// output and standard error. The error is an *ExitError if it ran to its end
// with another status than 0.
func (m *Machine) Run(ctx context.Context, script string) (string, error) {
	conn, err := m.network.Dial(ctx, "7000")
	if err != nil {
		return "", fmt.Errorf("connecting to the guest's shell: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	quoted := "'" + strings.ReplaceAll(script, "'", `'\''`) + "'"
	if _, err := fmt.Fprintf(conn, "sh -c %s </dev/null 2>&1; status=$?; printf '\\n@exit %%d\\n' $status\nexit\n", quoted); err != nil {
		return "", fmt.Errorf("talking to the guest's shell: %w", err)
	}
	out, err := io.ReadAll(conn)
	if ctx.Err() != nil {
		return string(out), fmt.Errorf("running %q in the guest: %w", script, ctx.Err())
	}
	out, status, found := cutStatus(out)
	if !found {
		return string(out), fmt.Errorf("the guest's shell ended before %q (%w); the console:\n%s", script,
			errors.Join(err, io.ErrUnexpectedEOF), m.Console())
	}
	if status != 0 {
		return string(out), &ExitError{status}
	}
	return string(out), nil
}

// SetMTU sets the MTU of both ends of the link, up to LargestMTU; the path MTU of the guest's device follows.
func (m *Machine) SetMTU(ctx context.Context, bytes int) error {
	if _, err := run(ctx, "", "ip", "-n", m.network.Namespace, "link", "set", tapName, "mtu", strconv.Itoa(bytes)); err != nil {
		return err
	}
	_, err := m.Run(ctx, fmt.Sprintf("ip link set eth0 mtu %d", bytes))
	return err
}

// Console returns what the guest's kernel and its first process have said.
func (m *Machine) Console() string { return m.console.String() }

// Close ends the guest.
func (m *Machine) Close() {
	m.cmd.Process.Kill()
	<-m.exited
}

// console keeps what is written to it and notices a text.
type console struct {
	text string
	seen chan struct{} // closed when text has been written

	mu  sync.Mutex
	buf bytes.Buffer
}

func newConsole(text string) *console {
	return &console{text: text, seen: make(chan struct{})}
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := bytes.Contains(c.buf.Bytes(), []byte(c.text))
	c.buf.Write(p)
	if !before && bytes.Contains(c.buf.Bytes(), []byte(c.text)) {
		close(c.seen)
	}
	return len(p), nil
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}
