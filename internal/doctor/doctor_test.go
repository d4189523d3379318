package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"rnic/internal/netdev"
)

// machine is a System made of files and answers; tests change what they want to see found.
type machine struct {
	files   map[string]string
	links   map[string]string
	env     map[string]string
	seccomp Seccomp
	memory  Memory
	shm     Shm
	limits  Limits
	socket  Socket
	temp    error
	inotify error
	network error
	entries []netdev.Entry
	cpus    int
	trial   error
	stock   string
	stocked error
}

const libDir = "/usr/lib/x86_64-linux-gnu"

// healthy is a machine on which everything is as it should be.
func healthy() *machine {
	return &machine{
		files: map[string]string{
			"/proc/sys/kernel/osrelease":              "6.12.9-amd64\n",
			"/proc/self/status":                       "Name:\trnic\nPPid:\t40\nSeccomp:\t0\nSeccomp_filters:\t0\n",
			"/proc/40/status":                         "Name:\tbash\nPPid:\t1\n",
			"/proc/1/status":                          "Name:\tsystemd\nPPid:\t0\n",
			"/proc/sys/net/core/rmem_max":             "4194304\n",
			"/proc/sys/fs/inotify/max_user_watches":   "65536\n",
			"/proc/sys/fs/inotify/max_user_instances": "128\n",
			"/proc/sys/kernel/yama/ptrace_scope":      "1\n",
			"/etc/os-release":                         "ID=ubuntu\nID_LIKE=debian\n",
			"/etc/libibverbs.d/rxe.driver":            "driver rxe\n",
			libDir + "/libibverbs.so.1":               "",
			libDir + "/libibverbs/librxe-rdmav34.so":  "",
		},
		links:   map[string]string{libDir + "/libibverbs.so.1": "libibverbs.so.1.14.44.0"},
		env:     map[string]string{},
		seccomp: Seccomp{WaitKillable: true, AddFD: true, SyncWakeUp: true},
		memory:  Memory{NonChild: syscall.EPERM, Override: true},
		shm:     Shm{Type: "tmpfs", Size: 8 << 30, Free: 8 << 30},
		limits:  Limits{Unlimited, 1024, 4096},
		socket:  Socket{ReceiveBuffer: 8 << 20, Segment: true, GRO: true},
		entries: []netdev.Entry{{Addr: netip.MustParseAddr("10.0.0.1"), IfName: "eth0", MTU: 1500, PathMTU: 1024}},
		cpus:    8,
		stock:   "    device\n    rxe0\n",
	}
}

func (m *machine) system() *System {
	s := &System{
		ReadFile: func(p string) ([]byte, error) {
			if c, ok := m.files[p]; ok {
				return []byte(c), nil
			}
			return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		},
		ReadDir: func(dir string) (names []string, err error) {
			for _, set := range []map[string]string{m.files, m.links} {
				for p := range set {
					if rest, below := strings.CutPrefix(p, dir+"/"); below {
						name, _, _ := strings.Cut(rest, "/")
						names = append(names, name)
					}
				}
			}
			slices.Sort(names)
			if names = slices.Compact(names); len(names) == 0 {
				return nil, fs.ErrNotExist
			}
			return names, nil
		},
		Readlink: func(p string) (string, error) {
			if to, ok := m.links[path.Clean(p)]; ok {
				return to, nil
			}
			return "", fs.ErrInvalid
		},
		Getenv:       func(n string) string { return m.env[n] },
		Seccomp:      func() Seccomp { return m.seccomp },
		Memory:       func() Memory { return m.memory },
		Shm:          func() Shm { return m.shm },
		Limits:       func() Limits { return m.limits },
		Socket:       func(int) Socket { return m.socket },
		TempDir:      func() error { return m.temp },
		Inotify:      func() error { return m.inotify },
		Network:      func() (*netdev.Table, error) { return &netdev.Table{Entries: m.entries}, m.network },
		Segmentation: func(string) (bool, error) { return true, nil },
		Processors:   func() int { return m.cpus },
		Trial:        func() error { return m.trial },
		Stock:        func(string) (string, error) { return m.stock, m.stocked },
	}
	return s
}

func TestHealthyMachine(t *testing.T) {
	r := Examine(healthy().system())
	if !r.Works || len(r.Findings) < len(checks) {
		t.Errorf("works %v, %d findings of %d checks", r.Works, len(r.Findings), len(checks))
	}
	for _, f := range r.Findings {
		if f.Level != OK || f.Found == "" || f.Fix != nil {
			t.Errorf("%+v on a machine that lacks nothing", f)
		}
	}
}

// Each lack is found by its check, at its level, with words and a fix that a user can act on, and nothing else is.
func TestFindings(t *testing.T) {
	inUse := func(m *machine) {
		m.socket.BindErr4, m.trial = syscall.EADDRINUSE, errors.New("rnic: address already in use")
	}
	for _, test := range []struct {
		name  string
		lack  func(*machine)
		check string
		level Level
		says  string // in what was found, what it means, or the fix
	}{
		{"old kernel", func(m *machine) { m.files["/proc/sys/kernel/osrelease"] = "5.4.0-100\n" }, "kernel", Problem, "needs Linux 5.9"},
		{"kernel before 5.19", func(m *machine) { m.files["/proc/sys/kernel/osrelease"] = "5.15.0\n" }, "kernel", Warning, "Before 5.19"},
		{"no Linux", func(m *machine) { delete(m.files, "/proc/sys/kernel/osrelease") }, "kernel", Warning, "gVisor"},
		{"nested in a container", func(m *machine) { m.seccomp.Err = syscall.EBUSY }, "seccomp", Problem, "runtime of this container"},
		{"nested in rnic run", func(m *machine) {
			m.seccomp.Err = syscall.EBUSY
			m.files["/proc/40/status"] = "Name:\trnic-supervisor\nPPid:\t1\n"
		}, "seccomp", Problem, "start RDMA programs directly"},
		{"seccomp refused", func(m *machine) { m.seccomp.Err = syscall.EPERM }, "seccomp", Problem, "seccomp=unconfined"},
		{"seccomp missing", func(m *machine) { m.seccomp.Err = syscall.ENOSYS }, "seccomp", Problem, "CONFIG_SECCOMP_FILTER"},
		{"no ADDFD", func(m *machine) { m.seccomp.AddFD = false }, "seccomp", Problem, "ADDFD"},
		{"no WAIT_KILLABLE", func(m *machine) { m.seccomp.WaitKillable = false }, "seccomp", Warning, "WAIT_KILLABLE_RECV (Linux 5.19)"},
		{"no SYNC_WAKE_UP", func(m *machine) { m.seccomp.SyncWakeUp = false }, "seccomp", Warning, "SYNC_WAKE_UP (Linux 6.6)"},
		{"memory refused by a profile", func(m *machine) { m.memory.Read = syscall.EPERM }, "process memory", Problem, "--cap-add SYS_PTRACE"},
		{"writing refused", func(m *machine) { m.memory.Write = syscall.EPERM }, "process memory", Problem, "--cap-add SYS_PTRACE"},
		{"no child", func(m *machine) { m.memory.Started = syscall.EAGAIN }, "process memory", Warning, "not looked at"},
		{"no /proc/PID/mem", func(m *machine) { m.memory.ProcMem = syscall.EACCES }, "/proc/PID/mem", Warning, "share a NIC"},
		{"no pidfd_getfd", func(m *machine) { m.memory.GetFD = syscall.EPERM }, "pidfd_getfd", Warning, "Docker's default profile"},
		{"Yama 2", func(m *machine) {
			m.files["/proc/sys/kernel/yama/ptrace_scope"], m.trial = "2\n", errors.New("no device")
		}, "Yama", Problem, "sysctl -w kernel.yama.ptrace_scope=1"},
		{"Yama 3", func(m *machine) { m.files["/proc/sys/kernel/yama/ptrace_scope"] = "3\n" }, "Yama", Problem, "next boot"},
		{"no library", func(m *machine) {
			delete(m.files, libDir+"/libibverbs.so.1")
			delete(m.links, libDir+"/libibverbs.so.1")
		},
			"libibverbs", Problem, "apt-get install libibverbs1 ibverbs-providers"},
		{"no library on Fedora", func(m *machine) {
			delete(m.files, libDir+"/libibverbs.so.1")
			delete(m.links, libDir+"/libibverbs.so.1")
			m.files["/etc/os-release"] = "ID=fedora\n"
		}, "libibverbs", Problem, "dnf install rdma-core"},
		{"old library", func(m *machine) { m.links[libDir+"/libibverbs.so.1"] = "libibverbs.so.1.1.17.1" }, "libibverbs", Warning, "rdma-core 17.1"},
		{"no provider", func(m *machine) { delete(m.files, libDir+"/libibverbs/librxe-rdmav34.so") }, "rxe provider", Problem, "ibverbs-providers"},
		{"provider not configured", func(m *machine) { m.files["/etc/libibverbs.d/rxe.driver"] = "driver mlx5\n" }, "rxe provider", Problem, "tee /etc/libibverbs.d/rxe.driver"},
		{"no address", func(m *machine) { m.network = netdev.ErrNoAddress }, "addresses", Problem, "ip link set lo up"},
		{"small MTU", func(m *machine) {
			m.entries = append(m.entries, netdev.Entry{Addr: netip.MustParseAddr("10.0.0.2"), IfName: "wg0", MTU: 900, PathMTU: 512})
		}, "addresses", Warning, "rnic run --interface eth0"},
		{"port held", func(m *machine) {
			inUse(m)
			m.files["/proc/net/udp"] = udpTable("100007F:12B7", "4711")
			m.links["/proc/77/fd/5"], m.files["/proc/77/comm"] = "socket:[4711]", "iperf\n"
		}, "UDP port 4791", Problem, "held by process 77 (iperf)"},
		{"port held by the kernel", func(m *machine) {
			inUse(m)
			m.files["/proc/net/udp6"] = udpTable(strings.Repeat("0", 32)+":12B7", "0")
		}, "UDP port 4791", Problem, "rdma link delete"},
		{"port held by another user", func(m *machine) {
			inUse(m)
			m.files["/proc/net/udp"] = udpTable("00000000:12B7", "4711")
		}, "UDP port 4791", Problem, "another user"},
		{"port refused", func(m *machine) { m.socket.BindErr4 = syscall.EACCES }, "UDP port 4791", Problem, "permission denied"},
		{"small buffers", func(m *machine) { m.socket.ReceiveBuffer = 425984 }, "socket buffers", Warning, "net.core.rmem_max=4194304"},
		{"no GRO", func(m *machine) { m.socket.GRO = false }, "offloads", Warning, "UDP_GRO cannot be set"},
		{"no /dev/shm", func(m *machine) { m.shm.Err = syscall.ENOENT }, "/dev/shm", Problem, "mount -t tmpfs"},
		{"/dev/shm read-only", func(m *machine) { m.shm.CreateErr, m.shm.ReadOnly = syscall.EROFS, true }, "/dev/shm", Problem, "remount,rw"},
		{"/dev/shm of root", func(m *machine) { m.shm.CreateErr = syscall.EACCES }, "/dev/shm", Problem, "chmod 1777"},
		{"/dev/shm full", func(m *machine) { m.shm.Size, m.shm.Free = 64<<20, 1<<20 }, "/dev/shm", Problem, "Something else fills it"},
		{"/dev/shm tiny", func(m *machine) { m.shm.Size, m.shm.Free, m.shm.AllocateErr = 1<<20, 1<<20, syscall.ENOSPC }, "/dev/shm", Problem, "remount,size=1g"},
		{"/dev/shm small", func(m *machine) { m.shm.Size, m.shm.Free = 16<<20, 16<<20 }, "/dev/shm", Warning, "--shm-size"},
		{"/dev/shm on a disk", func(m *machine) { m.shm.Type = "a file system of type 0xef53" }, "/dev/shm", Warning, "0xef53"},
		{"no temporary files", func(m *machine) { m.temp = syscall.EROFS }, "temporary files", Problem, "TMPDIR"},
		{"file size", func(m *machine) { m.limits.FileSize = 1 << 20 }, "file size", Problem, "ulimit -f unlimited"},
		{"file size, little", func(m *machine) { m.limits.FileSize = 32 << 20 }, "file size", Warning, "32 MiB"},
		{"open files", func(m *machine) { m.limits.Files = 16 }, "open files", Problem, "ulimit -n"},
		{"open files, few", func(m *machine) { m.limits.Files = 100 }, "open files", Warning, "open 12 devices"},
		{"processes", func(m *machine) { m.limits.Processes = 20 }, "processes", Warning, "ulimit -u"},
		{"inotify", func(m *machine) { m.inotify = syscall.EMFILE }, "inotify", Problem, "fs.inotify.max_user_instances=1024"},
		{"one processor", func(m *machine) { m.cpus = 1 }, "processors", Warning, "-e"},
		{"two processors", func(m *machine) { m.cpus = 2 }, "processors", Warning, "nice 19"},
		{"quota", func(m *machine) { m.files["/sys/fs/cgroup/cpu.max"] = "150000 100000\n" }, "processors", Warning, "leaves 1.5"},
		{"trial", func(m *machine) { m.trial = errors.New("no such luck") }, "trial", Problem, "no such luck"},
		{"stock program fails", func(m *machine) { m.stocked = errors.New("exit status 1") }, "stock program", Problem, "exit status 1"},
		{"stock program finds nothing", func(m *machine) { m.stock = "device\n" }, "stock program", Problem, "lists no rxe device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := healthy()
			test.lack(m)
			r := Examine(m.system())
			found := false
			for _, f := range r.Findings {
				text := f.Found + " " + f.Means + " " + strings.Join(f.Fix, " ")
				if f.Check == test.check && f.Level == test.level && strings.Contains(text, test.says) {
					found = f.Means != ""
				} else if f.Level > OK && f.Check != "trial" { // which fails with others
					t.Errorf("%s %s: %s", f.Level, f.Check, text)
				}
			}
			if !found {
				t.Errorf("no %s of %s that says %q and what it means, in %+v", test.level, test.check, test.says, r.Findings)
			}
			if r.Works != (test.level != Problem) {
				t.Errorf("works: %v", r.Works)
			}
		})
	}
}

func udpTable(local, inode string) string {
	return "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n" +
		"  312: " + local + " 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 2 0000000000000000 0\n"
}

// What works in spite of a setting is no problem: the trial is the proof.
func TestTrialOverrules(t *testing.T) {
	m := healthy()
	m.files[yamaFile] = "2\n" // but we have CAP_SYS_PTRACE
	m.socket.BindErr4 = syscall.EADDRINUSE
	m.files["/proc/net/udp"] = udpTable("00000000:12B7", "4711")
	m.links["/proc/77/fd/5"], m.files["/proc/77/comm"] = "socket:[4711]", "rnic-nic\n"
	if r := Examine(m.system()); !r.Works {
		t.Errorf("%+v", r.Findings)
	}
}

// Without a filter no program can be started: none is tried.
func TestNoTrialWhereNested(t *testing.T) {
	s := healthy().system()
	s.Seccomp = func() Seccomp { return Seccomp{Err: syscall.EBUSY} }
	s.Trial = func() error { t.Error("a program was started"); return nil }
	if Examine(s).Works {
		t.Error("works under another listener")
	}
}

func TestReportText(t *testing.T) {
	long := strings.Repeat("word ", 60)
	r := NewReport([]Finding{{"a", OK, "fine", "", nil}, {"b", Problem, "broken", long, []string{"mend --" + strings.Repeat("x", 150), "# or leave it"}}})
	var b bytes.Buffer
	r.Text(&b, "yes", "no")
	out := b.String()
	for _, want := range []string{"ok       a ", "problem  b ", "broken\n", "# or leave it\n", "    mend --xxx", "\nno: 1 ok, 0 warnings, 1 problem.\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	for line := range strings.Lines(out) {
		if len(line) > textWidth+1 && !strings.Contains(line, "mend") {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
	}
}

func TestReportJSON(t *testing.T) {
	r := NewReport([]Finding{{"b", Warning, "slow & <old>", "means", []string{"fix"}}})
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || !back.Works || back.Findings[0].Level != Warning || back.Findings[0].Fix[0] != "fix" {
		t.Errorf("%v: %+v of %s", err, back, &b)
	}
	if !strings.Contains(b.String(), `"level": "warning"`) || !strings.Contains(b.String(), "slow & <old>") {
		t.Error(b.String())
	}
}
