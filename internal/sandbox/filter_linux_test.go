//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// decide runs the filter as the kernel does (struct seccomp_data, seccomp(2)).
func decide(t *testing.T, prog []unix.SockFilter, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	var data [64]byte
	binary.LittleEndian.PutUint32(data[0:], nr)
	binary.LittleEndian.PutUint32(data[4:], arch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[16+8*i:], a)
	}
	acc := uint32(0)
	for pc := 0; pc < len(prog); pc++ {
		in := prog[pc]
		taken := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = binary.LittleEndian.Uint32(data[in.K:])
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		case jeq:
			taken = acc == in.K
		case jge:
			taken = acc >= in.K
		case jset:
			taken = acc&in.K != 0
		default:
			t.Fatalf("instruction %d: unknown code %#x", pc, in.Code)
		}
		if taken {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

func TestFilter(t *testing.T) {
	const (
		allow  = unix.SECCOMP_RET_ALLOW
		notify = unix.SECCOMP_RET_USER_NOTIF
		cwd    = 0xffffffffffffff9c // AT_FDCWD
		empty  = unix.AT_EMPTY_PATH
	)
	prog := filter(ranges{800, 880, 960})
	if len(prog) > 4096 {
		t.Fatalf("%d instructions: more than BPF_MAXINSNS", len(prog))
	}
	for _, c := range []struct {
		what string
		want uint32
		nr   uint32
		args []uint64
	}{
		{"read", allow, unix.SYS_READ, []uint64{800, 0, 0}},
		{"openat", notify, unix.SYS_OPENAT, nil},
		{"openat2", notify, unix.SYS_OPENAT2, nil},
		{"readlinkat", notify, unix.SYS_READLINKAT, nil},
		{"faccessat", notify, unix.SYS_FACCESSAT, nil},
		{"faccessat2", notify, unix.SYS_FACCESSAT2, nil},
		{"execve", notify, unix.SYS_EXECVE, nil},
		{"execveat", notify, unix.SYS_EXECVEAT, nil},
		{"fstatat of a path", notify, unix.SYS_NEWFSTATAT, []uint64{cwd, 1, 1, 0}},
		{"fstatat of a path below a descriptor", notify, unix.SYS_NEWFSTATAT, []uint64{3, 1, 1, 0}},
		{"fstatat of an ordinary descriptor", allow, unix.SYS_NEWFSTATAT, []uint64{3, 1, 1, empty}},
		{"fstatat of a device", notify, unix.SYS_NEWFSTATAT, []uint64{800, 1, 1, empty}},
		{"fstatat of the directory, empty path", notify, unix.SYS_NEWFSTATAT, []uint64{cwd, 1, 1, empty}},
		{"statx of a path", notify, unix.SYS_STATX, []uint64{cwd, 1, 0, 0}},
		{"statx of an ordinary descriptor", allow, unix.SYS_STATX, []uint64{799, 1, empty, 0}},
		{"statx of a device", notify, unix.SYS_STATX, []uint64{959, 1, empty, 0}},
		{"statx after the ranges", allow, unix.SYS_STATX, []uint64{960, 1, empty, 0}},
		{"fstat of a device", notify, unix.SYS_FSTAT, []uint64{800}},
		{"fstat of a device, upper half ignored", notify, unix.SYS_FSTAT, []uint64{1<<32 | 800}},
		{"fstat before the ranges", allow, unix.SYS_FSTAT, []uint64{799}},
		{"fstat after the ranges", allow, unix.SYS_FSTAT, []uint64{960}},
		{"fstat(-1)", allow, unix.SYS_FSTAT, []uint64{0xffffffff}},
		{"doorbell", allow, unix.SYS_WRITE, []uint64{800, 1, 32}},
		{"last doorbell", allow, unix.SYS_WRITE, []uint64{879, 1, 32}},
		{"command of 31 bytes", notify, unix.SYS_WRITE, []uint64{879, 1, 31}},
		{"write of 4 GiB and 32", notify, unix.SYS_WRITE, []uint64{800, 1, 1<<32 | 32}},
		{"CM command of 32 bytes", notify, unix.SYS_WRITE, []uint64{880, 1, 32}},
		{"last CM command", notify, unix.SYS_WRITE, []uint64{959, 1, 32}},
		{"write before the ranges", allow, unix.SYS_WRITE, []uint64{799, 1, 100}},
		{"write after the ranges", allow, unix.SYS_WRITE, []uint64{960, 1, 100}},
		{"verbs ioctl anywhere", notify, unix.SYS_IOCTL, []uint64{3, VerbsIoctl}},
		{"other ioctl on a device", allow, unix.SYS_IOCTL, []uint64{800, 0x5401}},
		{"dup of a device", notify, unix.SYS_DUP, []uint64{800}},
		{"dup of another", allow, unix.SYS_DUP, []uint64{3}},
		{"dup3 of a device", notify, unix.SYS_DUP3, []uint64{900, 3}},
		{"dup3 of another onto a device", allow, unix.SYS_DUP3, []uint64{3, 900}},
		{"F_DUPFD of a device", notify, unix.SYS_FCNTL, []uint64{800, unix.F_DUPFD}},
		{"F_DUPFD_CLOEXEC of a device", notify, unix.SYS_FCNTL, []uint64{959, unix.F_DUPFD_CLOEXEC}},
		{"F_DUPFD of another", allow, unix.SYS_FCNTL, []uint64{1008, unix.F_DUPFD}},
		{"F_DUPFD of a netlink socket", notify, unix.SYS_FCNTL, []uint64{975, unix.F_DUPFD}},
		{"dup of a netlink socket", notify, unix.SYS_DUP, []uint64{960}},
		{"dup of a live file", notify, unix.SYS_DUP, []uint64{1007}},
		{"dup behind the ranges", allow, unix.SYS_DUP, []uint64{1008}},
		{"read of the last live file", notify, unix.SYS_READ, []uint64{1007}},
		{"read before the live files", allow, unix.SYS_READ, []uint64{975}},
		{"read behind the ranges", allow, unix.SYS_READ, []uint64{1008}},
		{"pread of a live file", notify, unix.SYS_PREAD64, []uint64{976}},
		{"pread of another", allow, unix.SYS_PREAD64, []uint64{3}},
		{"read of a live file", notify, unix.SYS_READ, []uint64{976}},
		{"F_SETFL of a device", allow, unix.SYS_FCNTL, []uint64{800, unix.F_SETFL}},
		{"NETLINK_RDMA", notify, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, 20}},
		{"NETLINK_ROUTE", allow, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, 0}},
		{"TCP with a protocol number of 20", allow, unix.SYS_SOCKET, []uint64{unix.AF_INET, 1, 20}},
		{"sendto on a netlink socket", notify, unix.SYS_SENDTO, []uint64{960}},
		{"sendmsg on the last netlink socket", notify, unix.SYS_SENDMSG, []uint64{975}},
		{"recvmsg on a netlink socket", notify, unix.SYS_RECVMSG, []uint64{960}},
		{"recvfrom on a netlink socket", notify, unix.SYS_RECVFROM, []uint64{975}},
		{"connect of a netlink socket", notify, unix.SYS_CONNECT, []uint64{970}},
		{"sendto before the range", allow, unix.SYS_SENDTO, []uint64{959}},
		{"recvmsg after the range", allow, unix.SYS_RECVMSG, []uint64{976}},
		{"fstat of a netlink socket", allow, unix.SYS_FSTAT, []uint64{960}},
		{"x32 openat", allow, 0x40000000 | unix.SYS_OPENAT, nil},
	} {
		if got := decide(t, prog, auditArch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, got, c.want)
		}
		if got := decide(t, prog, unix.AUDIT_ARCH_I386, c.nr, c.args...); got != allow {
			t.Errorf("%s under another architecture: %#x, want allow", c.what, got)
		}
	}
	for _, list := range [][]numbered{commonCalls, oldCalls} {
		for _, c := range list {
			if kinds[c.nr] != c.kind {
				t.Errorf("system call %d: kind %d, want %d", c.nr, kinds[c.nr], c.kind)
			}
		}
	}
}

func TestRanges(t *testing.T) {
	for limit, want := range map[uint64]ranges{
		1 << 30: {800, 880, 960},
		1008:    {800, 880, 960},
		512:     {348, 412, 476},
		64:      {36, 44, 52},
		8:       {5, 6, 7},
		0:       {0, 0, 0},
	} {
		if got := rangesFor(limit); got != want {
			t.Errorf("limit %d: %v, want %v", limit, got, want)
		}
	}
}
