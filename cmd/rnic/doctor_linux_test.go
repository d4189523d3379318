//go:build amd64 || arm64

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/doctor"
)

// denied in the environment makes this test binary refuse itself system calls, as profiles of containers do, before it
// becomes its arguments.
const denied = "RNIC_TEST_DENY"

func init() {
	names, found := os.LookupEnv(denied)
	if !found {
		return
	}
	os.Unsetenv(denied)
	numbers := map[string]uint32{"process_vm_readv": unix.SYS_PROCESS_VM_READV, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV,
		"pidfd_getfd": unix.SYS_PIDFD_GETFD, "seccomp": unix.SYS_SECCOMP}
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	for name := range strings.SplitSeq(names, ",") {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: numbers[name], Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	fmt.Fprintln(os.Stderr, syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	os.Exit(1)
}

// examined runs rnic doctor by way of a shell script in namespaces of its own, in which $RNIC is rnic and the loopback
// interface is up, and wants this exit code.
func examined(t *testing.T, code int, script string) doctor.Report {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "-Urnm", "sh", "-c", "set -e; ip link set lo up; "+script)
	cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0", "RNIC="+self)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	var r doctor.Report
	if json.Unmarshal(out, &r) != nil {
		if strings.Contains(errOut.String(), "unshare: ") {
			t.Skipf("no namespaces can be made: %s", &errOut)
		}
		t.Fatalf("%v: %s%s", err, out, &errOut)
	}
	if c := cmd.ProcessState.ExitCode(); c != code {
		t.Errorf("exit code %d, want %d: %+v", c, code, r.Findings)
	}
	return r
}

// The examination agrees with what the environment really lacks: no problem where a run works, the right one where it does not.
func TestDoctor(t *testing.T) {
	const look = "$RNIC doctor --json"
	for _, test := range []struct {
		name, script string
		problem      string // the check that finds it; empty: none
		warning      string // likewise
	}{
		{"as it is", look, "", ""},
		{"container", "mount -t tmpfs -o size=64m,noexec shm /dev/shm; exec setpriv --bounding-set=-all --inh-caps=-all $RNIC doctor --json", "", ""},
		{"small /dev/shm", "mount -t tmpfs -o size=1m shm /dev/shm; " + look, "/dev/shm", ""},
		{"no /dev/shm to write to", "mount -t tmpfs -o ro shm /dev/shm; " + look, "/dev/shm", ""},
		{"file size", "ulimit -f 1000; " + look, "file size", ""},
		{"open files", "ulimit -n 20; " + look, "open files", ""},
		{"few open files", "ulimit -n 100; " + look, "", "open files"},
		{"no directory for temporary files", "export TMPDIR=/nonexistent; " + look, "temporary files", ""},
		{"no interface", "ip link set lo down; " + look, "addresses", ""},
		{"nested", "$RNIC run -- $RNIC doctor --json", "seccomp", ""},
		{"profile of Docker before 23 and Podman before 4.1", "RNIC_TEST_DENY=process_vm_readv,process_vm_writev $RNIC doctor --json", "process memory", ""},
		{"profile of Docker", "RNIC_TEST_DENY=pidfd_getfd $RNIC doctor --json", "", "pidfd_getfd"},
		{"seccomp refused", "RNIC_TEST_DENY=seccomp $RNIC doctor --json", "seccomp", ""},
		{"provider not configured", "mount -t tmpfs none /etc/libibverbs.d; " + look, "rxe provider", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			code := 0
			if test.problem != "" {
				code = 1
			}
			r := examined(t, code, test.script)
			var problems, warnings []string
			for _, f := range r.Findings {
				switch f.Level {
				case doctor.Problem:
					problems = append(problems, f.Check)
				case doctor.Warning:
					warnings = append(warnings, f.Check)
				}
				if f.Level != doctor.OK && (f.Means == "" || f.Found == "") {
					t.Errorf("%s says nothing: %+v", f.Check, f)
				}
			}
			if test.problem != "" && !slices.Contains(problems, test.problem) || test.warning != "" && !slices.Contains(warnings, test.warning) {
				t.Errorf("problems %q, warnings %q in %+v", problems, warnings, r.Findings)
			}
			if test.problem == "" && len(problems) > 0 {
				t.Errorf("%+v", r.Findings)
			}
			// A run that fails is proof of the problem; but a stock program's alone fails where it misses its provider.
			if trial := slices.Contains(problems, "trial"); test.problem == "" && trial {
				t.Errorf("the trial fails without a finding: %+v", r.Findings)
			}
		})
	}
}

// Whom a port belongs to is said by process and program.
func TestDoctorPortHeld(t *testing.T) {
	r := examined(t, 1, `python3 -c '
import socket, subprocess, os
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 4791))
subprocess.run([os.environ["RNIC"], "doctor", "--json"]).check_returncode()'`)
	for _, f := range r.Findings {
		if f.Check == "UDP port 4791" && strings.Contains(f.Found, "(python3)") {
			return
		}
	}
	t.Errorf("%+v", r.Findings)
}

// Options that cannot work are refused in one line.
func TestDoctorBadArguments(t *testing.T) {
	for _, args := range [][]string{{"--peer", "x", "--listen"}, {"--listen", "--json"}, {"--addr", "127.0.0.1"}, {"--port", "0", "--listen"}, {"--port", "5"}, {"x"}} {
		p := run(t, 2, append([]string{"doctor"}, args...)...)
		if e := p.errOut.String(); !strings.HasPrefix(e, "rnic: ") || strings.Count(e, "\n") != 1 || p.out.Len() > 0 {
			t.Errorf("rnic doctor %s:\nstdout %q\nstderr %q", strings.Join(args, " "), &p.out, e)
		}
	}
}

// Where a profile refuses to copy the memory of processes, the program is not started to find no device: the reason is told, and what to do.
func TestRunWhereMemoryIsRefused(t *testing.T) {
	for _, call := range []string{"process_vm_readv", "process_vm_writev"} {
		t.Setenv(denied, call)
		p := run(t, 125, "run", "--addr", address(4), "--", "echo", "started")
		if e := p.errOut.String(); !strings.Contains(e, "access to the program's memory is refused") || !strings.Contains(e, "--cap-add SYS_PTRACE") || strings.Count(e, "\n") != 1 || p.out.Len() > 0 {
			t.Errorf("%s: stdout %q, stderr %q", call, &p.out, e)
		}
	}
}

// A run that cannot make its NIC names the command that looks for the reason; the doctor's own trial does not.
func TestRunPointsToDoctor(t *testing.T) {
	p := run(t, 125, "run", "--addr", "198.51.100.77", "--", "true")
	if e := p.errOut.String(); !strings.Contains(e, "(rnic doctor ") || strings.Count(e, "\n") != 1 {
		t.Error(e)
	}
}
