package doctor

import (
	"fmt"
	"strings"
)

func checkMemory(s *System) []Finding {
	const check = "process memory"
	m := s.Memory()
	if m.Started != nil {
		return []Finding{{check, Warning, fmt.Sprintf("not looked at: %v", m.Started), "Starting a process of this binary failed.", nil}}
	}
	err := m.Read
	if err == nil {
		err = m.Write
	}
	if err != nil {
		f := Finding{check, Problem, fmt.Sprintf("process_vm_readv and process_vm_writev on a child: %v", err),
			"The NIC cannot reach the buffers of programs.", nil}
		switch scope := strings.TrimSpace(s.read(yamaFile)); {
		case scope == "2" || scope == "3":
			f.Means += " Yama forbids it, see below."
			f.Fix = yamaFix
		default:
			f.Means += " The profile of a container does so (that of Docker before 23, Podman before 4.1 and containerd before 1.7), or a security module."
			f.Fix = containerFix
		}
		return []Finding{f}
	}
	found := "a child's is reached by process_vm_readv and process_vm_writev"
	if m.ProcMem == nil {
		found += " and by /proc/PID/mem"
	}
	all := ok(check, "%s; another process's: %s", found, yesOr(m.NonChild))
	if m.ProcMem != nil {
		all = append(all, Finding{"/proc/PID/mem", Warning, fmt.Sprintf("of a child: %v", m.ProcMem),
			"Two rnic run may not be able to share a NIC; one alone works.", containerFix})
	}
	if m.GetFD != nil {
		all = append(all, Finding{"pidfd_getfd", Warning, fmt.Sprintf("on a child: %v", m.GetFD),
			"Docker's default profile refuses it. A program that duplicates the descriptor of its device (dup, F_DUPFD) gets one that fstat(2) shows as " +
				"a regular file; everything else works.", containerFix[:1]})
	}
	return all
}

func yesOr(err error) string {
	if err == nil {
		return "too"
	}
	return fmt.Sprintf("not (%v), nor is that needed", err)
}

const yamaFile = "/proc/sys/kernel/yama/ptrace_scope"

var yamaFix = []string{
	"sysctl -w kernel.yama.ptrace_scope=1     # 3 lasts until the next boot",
	"sudo setcap cap_sys_ptrace+ep $(command -v rnic)     # or start it as root",
}

func checkYama(s *System) []Finding {
	const check = "Yama"
	switch scope := strings.TrimSpace(s.read(yamaFile)); scope {
	case "":
		return ok(check, "not in this kernel: processes of one user may reach each other's memory")
	case "0":
		return ok(check, "ptrace_scope 0")
	case "1":
		return ok(check, "ptrace_scope 1: a process reaches its descendants only, which is what rnic run needs")
	case "2":
		level, means := Problem, "Only processes with CAP_SYS_PTRACE reach the memory of others."
		if s.worked {
			level, means = OK, ""
		}
		return []Finding{{check, level, "ptrace_scope 2", means, fixUnless(level == OK, yamaFix)}}
	case "3":
		return []Finding{{check, Problem, "ptrace_scope 3", "Nobody reaches the memory of another process, until the next boot.",
			[]string{"# set kernel.yama.ptrace_scope=1 below /etc/sysctl.d and boot"}}}
	default:
		return ok(check, "ptrace_scope %s is not known", scope)
	}
}

func fixUnless(not bool, fix []string) []string {
	if not {
		return nil
	}
	return fix
}

// checkForceOverride says what the kernel's parameter proc_mem.force_override (Linux 6.12) means here.
func checkForceOverride(s *System) []Finding {
	const check = "proc_mem"
	m := s.Memory()
	if m.Started != nil || m.ProcMem != nil {
		return nil
	}
	setting := "not given"
	for _, w := range strings.Fields(s.read("/proc/cmdline")) {
		if v, found := strings.CutPrefix(w, "proc_mem.force_override="); found {
			setting = v
		}
	}
	if m.Override {
		return ok(check, "/proc/PID/mem writes read-only pages too (proc_mem.force_override %s); protections are looked at when a program registers memory", setting)
	}
	return ok(check, "/proc/PID/mem respects page protections (proc_mem.force_override %s)", setting)
}
