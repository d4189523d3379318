package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/test/guest"
)

// Words that make this binary one side of a move of a virtual machine: it runs QEMU and tells it what to do. After them comes the URI that QEMU
// listens to or moves to, and options.
const (
	movesFrom = "qemu-source"
	movesTo   = "qemu-destination"

	withPinAll      = "rdma-pin-all"
	destinationDies = "destination-dies" // QEMU at the destination is killed while the guest is moved, which goes on where it was
)

// Files in the runner's directory, and the guest's memory in mebibytes: what the kernel needs to boot, and no more.
const (
	bareKernel, bareInitrd = "qemu-kernel", "qemu-initrd"
	bareMemory             = 128
)

// The consoles of both machines, in the scratch directory.
const (
	sourceConsole, destinationConsole = "source.console", "destination.console"
)

// rounds is how many rounds the guest goes on before it is moved, and after.
const rounds = 3

// migrationPort is where the destination listens, a port of the connection manager.
const migrationPort = "4444"

// qemuCases are moves of a running guest from one QEMU to another over RDMA.
func qemuCases() (cases []testCase) {
	add := func(id string, l layout, address, option string, run ...string) {
		words := []string{"rdma:" + address + ":" + migrationPort}
		if option != "" {
			words = append(words, option)
		}
		cases = append(cases, testCase{id: "qemu/" + id, layout: l, run: run, timeout: 3 * time.Minute, needs: []need{installed("qemu-system-x86_64"), bareGuest},
			server: append([]string{"@DIR/conformance", movesTo}, words[0]), client: append([]string{"@DIR/conformance", movesFrom}, words...),
			check: all(shows(`RDMA Device opened: kernel name rxe0`), wentOn)})
	}
	for _, option := range []string{"", withPinAll} {
		name := strings.TrimSuffix("migrate_"+option, "_")
		add(name+"/loopback", oneNIC, "127.0.0.1", option)
		add(name+"/two_runs_joined", joined, addrHere, option)
		add(name+"/two_NICs", twoNICs, serverAddress, option)
		add(name+"/loss", twoNICs, serverAddress, option, "--fault", "drop=1%,seed=5")
	}
	add("destination_dies/two_runs_joined", joined, addrHere, destinationDies)
	add("destination_dies/two_NICs", twoNICs, serverAddress, destinationDies)
	for i := range cases[len(cases)-2:] {
		c := &cases[len(cases)-2+i]
		c.server, c.check = append(c.server, destinationDies), all(clientShows(`RDMA Device opened: kernel name rxe0`, `not moved`), stayed)
	}
	return cases
}

// bareGuest is the need of the guest's image, which it builds.
var bareGuest = need{func(r *runner) string {
	if err := r.buildBare(context.Background()); err != nil {
		return "the guest to move cannot be made: " + err.Error()
	}
	return ""
}}

// buildBare makes the image where an ordinary user can read it.
func (r *runner) buildBare(ctx context.Context) error {
	kernel, initrd := filepath.Join(r.dir, bareKernel), filepath.Join(r.dir, bareInitrd)
	if _, err := os.Stat(initrd); err == nil {
		return nil
	}
	init := filepath.Join(r.dir, "countmemory")
	if err := command(ctx, "gcc", "-O1", "-Wall", "-static", "-o", init, "tools/conformance/testdata/countmemory.c"); err != nil {
		return err
	}
	first, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	image, err := guest.BuildBare(ctx, r.dir, first)
	if err != nil {
		return err
	}
	return errors.Join(copyBinary(image.Kernel, kernel), os.Rename(image.Initrd, initrd), os.Chmod(initrd, 0o644))
}

var countLine = regexp.MustCompile(`^round (\d+)$`)

// wentOn checks that the destination's guest goes on exactly where the source's was stopped: both consoles, one after the other, are one count from 0 on.
func wentOn(o *outcome) error {
	before, err1 := os.ReadFile(filepath.Join(o.scratch, sourceConsole))
	after, err2 := os.ReadFile(filepath.Join(o.scratch, destinationConsole))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return oneCount(string(before), string(after))
}

// oneCount is wentOn for two texts. A line may have been cut in two.
func oneCount(before, after string) error {
	if n := counted(before); n < rounds {
		return fmt.Errorf("the guest had counted %d rounds only when it was moved: %s", n, tail(before))
	}
	if n := counted(after); n < rounds {
		return fmt.Errorf("the guest counted %d rounds only when it had been moved: %s", n, tail(after))
	}
	return counts(before + after)
}

// stayed checks that the source's guest goes on.
func stayed(o *outcome) error {
	console, err := os.ReadFile(filepath.Join(o.scratch, sourceConsole))
	if err != nil {
		return err
	}
	return counts(string(console))
}

// counts checks that a console shows one count from 0 on.
func counts(console string) error {
	lines := strings.Split(strings.ReplaceAll(console, "\r", ""), "\n")
	first := slices.Index(lines, "round 0")
	if first < 0 {
		return fmt.Errorf("the guest did not begin to count: %s", tail(console))
	}
	for n, line := range lines[first : len(lines)-1] { // the last may not be whole
		if line != fmt.Sprintf("round %d", n) {
			return fmt.Errorf("the guest says %q in place of round %d: %s", line, n, tail(console))
		}
	}
	return nil
}

// counted is the number of rounds that a console shows.
func counted(console string) (n int) {
	for line := range strings.SplitSeq(console, "\n") {
		if countLine.MatchString(strings.TrimSuffix(line, "\r")) {
			n++
		}
	}
	return n
}

// qemuSide is QEMU with its monitor (QMP, docs/interop/qmp-spec of QEMU).
type qemuSide struct {
	cmd     *exec.Cmd
	monitor *os.File
	answers *json.Decoder
	console string // path
}

// runQEMU is the process that movesFrom or movesTo asks for. It works in the scratch directory.
func runQEMU(role string, args []string) error {
	runtime.LockOSThread() // for the death signal of QEMU
	uri, options := args[0], args[1:]
	self, err := os.Executable()
	if err != nil {
		return err
	}
	image := guest.Image{Kernel: filepath.Join(filepath.Dir(self), bareKernel), Initrd: filepath.Join(filepath.Dir(self), bareInitrd)}
	scratch := filepath.Join(filepath.Dir(self), "scratch")
	var q *qemuSide
	if role == movesTo {
		q, err = startQEMU(&image, filepath.Join(scratch, destinationConsole), "-incoming", uri)
	} else {
		q, err = startQEMU(&image, filepath.Join(scratch, sourceConsole))
	}
	if err != nil {
		return err
	}
	pinAll, dies := slices.Contains(options, withPinAll), slices.Contains(options, destinationDies)
	switch {
	case role == movesTo && dies:
		return q.dieWhileMoving()
	case role == movesTo:
		err = q.await(rounds)
	case dies:
		err = errors.Join(q.await(rounds), q.stay(uri))
	default:
		err = errors.Join(q.await(rounds), q.move(uri, pinAll, fast))
	}
	return errors.Join(err, q.end())
}

// dieWhileMoving waits until the guest's memory comes, and kills QEMU.
func (q *qemuSide) dieWhileMoving() error {
	for m := (migration{}); m.Status != "active"; time.Sleep(50 * time.Millisecond) {
		if err := q.do("query-migrate", nil, &m); err != nil {
			return err
		}
	}
	time.Sleep(time.Second)
	if err := q.cmd.Process.Kill(); err != nil {
		return err
	}
	q.cmd.Wait()
	return nil
}

// stay moves the guest away so slowly that it is not gone when the destination dies, and waits until it goes on.
func (q *qemuSide) stay(uri string) error {
	err := q.move(uri, false, slow)
	if !errors.Is(err, errNotMoved) {
		return fmt.Errorf("the destination was to die, and: %w", err)
	}
	fmt.Println(err)
	text, err := os.ReadFile(q.console)
	if err != nil {
		return err
	}
	return q.await(counted(string(text)) + rounds)
}

// startQEMU starts QEMU and greets its monitor. What QEMU and its RDMA write goes to the outputs of this process.
func startQEMU(image *guest.Image, console string, more ...string) (*qemuSide, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "monitor"), os.NewFile(uintptr(pair[1]), "monitor")
	defer theirs.Close()
	// ExtraFiles begin with descriptor 3.
	args := slices.Concat(image.Bare(bareMemory), []string{"-serial", "file:" + console, "-chardev", "socket,id=monitor,fd=3", "-mon", "chardev=monitor,mode=control"}, more)
	q := &qemuSide{cmd: exec.Command(args[0], args[1:]...), monitor: ours, answers: json.NewDecoder(ours), console: console}
	q.cmd.Stdout, q.cmd.Stderr, q.cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{theirs}
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := q.cmd.Start(); err != nil {
		return nil, err
	}
	theirs.Close()
	if err := q.do("qmp_capabilities", nil, nil); err != nil {
		return nil, errors.Join(err, q.cmd.Wait())
	}
	return q, nil
}

// end ends QEMU, which then writes out what it has to say.
func (q *qemuSide) end() error {
	q.do("quit", nil, nil) // how it ended is what counts
	if err := q.cmd.Wait(); err != nil {
		return fmt.Errorf("QEMU, told to quit, ended with %w", err)
	}
	return nil
}

// do gives the monitor a command and takes its answer; greetings and events before it are passed over.
func (q *qemuSide) do(command string, arguments, answer any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	b, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := q.monitor.Write(b); err != nil {
		return fmt.Errorf("telling QEMU to %s: %w", command, err)
	}
	for {
		var m struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := q.answers.Decode(&m); err != nil {
			return fmt.Errorf("QEMU has ended before it answered %s: %w", command, err)
		}
		switch {
		case m.Error != nil:
			return fmt.Errorf("QEMU on %s: %s", command, m.Error.Desc)
		case m.Return != nil && answer != nil:
			return json.Unmarshal(m.Return, answer)
		case m.Return != nil:
			return nil
		}
	}
}

// await waits until the guest has counted so many rounds here. The case's time limit ends it otherwise.
func (q *qemuSide) await(n int) error {
	for {
		text, err := os.ReadFile(q.console)
		switch {
		case err != nil:
			return err
		case strings.Contains(string(text), "memory is wrong"):
			return errors.New(tail(string(text)))
		case counted(string(text)) >= n:
			fmt.Printf("%d rounds\n", counted(string(text)))
			return nil
		}
		var s struct{ Status string }
		if err := q.do("query-status", nil, &s); err != nil {
			return fmt.Errorf("%w; the guest: %s", err, tail(string(text)))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// migration is the answer to query-migrate, as far as it is needed.
type migration struct {
	Status    string
	ErrorDesc string `json:"error-desc"`
	TotalTime int    `json:"total-time"` // ms
	RAM       struct{ Transferred int }
}

// Paces of a move in bytes a second.
const (
	fast = 1 << 30
	slow = 2 << 20
)

var errNotMoved = errors.New("the guest is not moved")

// move moves the guest away, fast or slow. Fast, it stops for as long as it takes on a slow machine, where it would change memory faster than that is moved.
func (q *qemuSide) move(uri string, pinAll bool, bandwidth int) error {
	downtime := 30_000 // ms that the guest may stand still
	if bandwidth == slow {
		downtime = 10 // so that it does not come to that
	}
	capability := map[string]any{"capability": withPinAll, "state": pinAll}
	err := errors.Join(q.do("migrate-set-capabilities", map[string]any{"capabilities": []any{capability}}, nil),
		q.do("migrate-set-parameters", map[string]any{"downtime-limit": downtime, "max-bandwidth": bandwidth}, nil),
		q.do("migrate", map[string]any{"uri": uri}, nil))
	if err != nil {
		return err
	}
	for {
		var m migration
		if err := q.do("query-migrate", nil, &m); err != nil {
			return err
		}
		switch m.Status {
		case "completed":
			fmt.Printf("moved: %d bytes of memory in %d ms\n", m.RAM.Transferred, m.TotalTime)
			return nil
		case "failed":
			return fmt.Errorf("%w: QEMU says %q", errNotMoved, m.ErrorDesc)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
