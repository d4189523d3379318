package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// kernelVersion takes major and minor number out of /proc/sys/kernel/osrelease.
func (s *System) kernelVersion() (release string, major, minor int) {
	release = strings.TrimSpace(s.read("/proc/sys/kernel/osrelease"))
	if m := regexp.MustCompile(`^(\d+)\.(\d+)`).FindStringSubmatch(release); m != nil {
		major, _ = strconv.Atoi(m[1])
		minor, _ = strconv.Atoi(m[2])
	}
	return release, major, minor
}

func checkKernel(s *System) []Finding {
	const check = "kernel"
	release, major, minor := s.kernelVersion()
	before := func(a, b int) bool { return major < a || major == a && minor < b }
	switch {
	case major == 0:
		return []Finding{{check, Warning, "release " + strconv.Quote(release) + " is not known", "Some sandboxes (gVisor, for one) are no " +
			"Linux kernel: the checks below say what is there.", nil}}
	case before(5, 9):
		return []Finding{{check, Problem, "Linux " + release, "rnic run needs Linux 5.9, where descriptors can be handed to a program " +
			"that waits for the answer to its system call.", []string{"# install a newer kernel of your distribution, and boot it"}}}
	case before(5, 19):
		return []Finding{{check, Warning, "Linux " + release, "Before 5.19 a signal interrupts a command of the program, which is then " +
			"recognized when it is repeated: rarely noticed.", nil}}
	}
	return ok(check, "Linux %s", release)
}

func checkSeccomp(s *System) []Finding {
	const check = "seccomp"
	p := s.Seccomp()
	switch {
	case errors.Is(p.Err, syscall.EBUSY):
		means := "The kernel allows one listener of system calls: the runtime of this container has one."
		fix := []string{"# run the container without interception of system calls (LXC, Incus: security.syscalls.intercept.*)"}
		if s.insideRun() {
			means = "This is a program of rnic run already."
			fix = []string{"# start RDMA programs directly, without rnic run: they have the outer NIC"}
		}
		return []Finding{{check, Problem, "a listener is there already", means, fix}}
	case errors.Is(p.Err, syscall.EPERM), errors.Is(p.Err, syscall.EACCES):
		return []Finding{{check, Problem, fmt.Sprintf("a filter cannot be installed: %v", p.Err),
			"A policy of the system or the container refuses the call seccomp(2).", containerFix}}
	case p.Err != nil:
		return []Finding{{check, Problem, fmt.Sprintf("user notification cannot be used: %v", p.Err),
			"The kernel is built without CONFIG_SECCOMP_FILTER, or a container's profile hides seccomp(2).", containerFix}}
	case !p.AddFD:
		return []Finding{{check, Problem, "user notification without SECCOMP_IOCTL_NOTIF_ADDFD",
			"Descriptors cannot be handed to the program.", []string{"# Linux 5.9 or newer is needed"}}}
	}
	var missing []string
	if !p.WaitKillable {
		missing = append(missing, "WAIT_KILLABLE_RECV (Linux 5.19): a signal interrupts commands, which are then repeated")
	}
	if !p.SyncWakeUp {
		missing = append(missing, "SYNC_WAKE_UP (Linux 6.6): path calls of programs, many when they start, take more than twice as long")
	}
	if missing != nil {
		return []Finding{{check, Warning, "user notification, with ADDFD", "Not there: " + strings.Join(missing, "; ") + ".",
			[]string{"# a newer kernel has it; nothing else is needed"}}}
	}
	return ok(check, "user notification, with ADDFD, WAIT_KILLABLE_RECV and SYNC_WAKE_UP; no other listener")
}

// containerFix is how containers are started so that nothing is refused.
var containerFix = []string{
	"docker run --cap-add SYS_PTRACE ...                      # or podman run",
	"docker run --security-opt seccomp=unconfined ...         # if that is not enough",
}

// insideRun reports that an ancestor is rnic run's.
func (s *System) insideRun() bool {
	pid := "self"
	for range 64 { // a chain of parents
		status := s.read("/proc/" + pid + "/status")
		if name := field(status, "Name:"); strings.HasPrefix(name, "rnic-") {
			return true
		}
		pid = field(status, "PPid:")
		if pid == "" || pid == "0" {
			return false
		}
	}
	return false
}

// field is the rest of the line that begins with name, in a file such as /proc/PID/status.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name); found {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// checkKernelDevices says what becomes of devices that the kernel has.
func checkKernelDevices(s *System) []Finding {
	const check = "RDMA devices"
	names, err := s.ReadDir("/sys/class/infiniband")
	if err != nil || len(names) == 0 {
		return ok(check, "none of the kernel's: programs have rnic's alone")
	}
	if s.insideRun() {
		return ok(check, "%s, of the outer rnic run", strings.Join(names, ", "))
	}
	return ok(check, "the kernel has %s: a program in rnic run sees the device of rnic in their place; start it without rnic run to use them",
		strings.Join(names, ", "))
}

func checkProcessors(s *System) []Finding {
	const check = "processors"
	n := s.Processors()
	found := fmt.Sprintf("%d to run on", n)
	share := float64(n)
	// cgroup v2: quota and period in microseconds, or max.
	if f := strings.Fields(s.read("/sys/fs/cgroup/cpu.max")); len(f) == 2 {
		quota, err1 := strconv.ParseFloat(f[0], 64)
		period, err2 := strconv.ParseFloat(f[1], 64)
		if err1 == nil && err2 == nil && period > 0 && quota/period < share {
			share = quota / period
			found += fmt.Sprintf(", of which the control group leaves %.2g", share)
		}
	}
	const means = "Programs that poll take a processor each, and the NIC wants its own: with fewer, packets wait, and latencies are of milliseconds. "
	switch {
	case share < 2:
		return []Finding{{check, Warning, found, means + "Use events instead of polling where the program can (perftest: -e).",
			[]string{"docker run --cpus 4 ...     # or more processors for the machine"}}}
	case share < 3:
		return []Finding{{check, Warning, found, means + "rnic run therefore starts the program at nice 19; leave that as it is.", nil}}
	}
	return ok(check, "%s", found)
}

// containerKind names the container that this is, empty if it seems to be none.
func (s *System) containerKind() string {
	switch {
	case s.exists("/run/.containerenv"):
		return "podman"
	case s.exists("/.dockerenv"):
		return "docker"
	case s.Getenv("KUBERNETES_SERVICE_HOST") != "":
		return "kubernetes"
	}
	return s.Getenv("container") // set by systemd-nspawn, LXC and others
}

func checkContainer(s *System) []Finding {
	const check = "container"
	status := s.read("/proc/self/status")
	kind := s.containerKind()
	filtered := field(status, "Seccomp:") == "2"
	switch {
	case kind == "" && !filtered:
		return ok(check, "none")
	case kind == "":
		return ok(check, "none known, but a system-call filter is on this process (%s of them)", orUnknown(field(status, "Seccomp_filters:")))
	case filtered:
		return ok(check, "%s, with a system-call filter; what it refuses is said above", kind)
	}
	return ok(check, "%s, without a system-call filter", kind)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown number"
	}
	return s
}

func checkTrial(s *System) []Finding {
	const check = "trial"
	switch {
	case !s.tried:
		return nil
	case s.worked:
		return ok(check, "a program started by rnic run has its device, and can open it")
	}
	return []Finding{{check, Problem, strings.TrimSpace(s.trialErr.Error()),
		"A program was started by rnic run and did not get its device. Findings above give the reason; if none does, this message is it.", nil}}
}

func checkStock(s *System) []Finding {
	const check, command = "stock program", "ibv_devices"
	if !s.worked {
		return nil
	}
	out, err := s.Stock(command)
	switch {
	case errors.Is(err, errNotInstalled):
		return ok(check, "%s is not installed: nothing was tried", command)
	case err != nil:
		return []Finding{{check, Problem, fmt.Sprintf("rnic run -- %s: %v", command, err),
			"libibverbs does not work under the NIC, though the device is there.", s.install()}}
	case !strings.Contains(out, "rxe"):
		return []Finding{{check, Problem, fmt.Sprintf("rnic run -- %s lists no rxe device", command),
			"libibverbs sees the device, but has no provider for it.", s.install()}}
	}
	return ok(check, "rnic run -- %s lists the device", command)
}

// errNotInstalled: the stock program is not in PATH.
var errNotInstalled = errors.New("not installed")
