//go:build linux && (amd64 || arm64)

package sandbox

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// netlinkRDMA is NETLINK_RDMA (linux/netlink.h).
const netlinkRDMA = 20

// ranges are the descriptor numbers that the filter knows: verbs files at [verbs, cm), connection
// manager files at [cm, end), netlink sockets behind them, and live files behind those.
type ranges struct{ verbs, cm, end uint32 }

// netlink is the range of netlink sockets: few, because programs close them soon.
func (r ranges) netlink() (lo, hi uint32) { return r.end, r.end + netlinkNumbers(r.end-r.cm) }

// netlinkNumbers is the size of that range beside others of a size. The rdma tool has two open.
func netlinkNumbers(size uint32) uint32 { return max(size/5, min(size, 4)) }

// live is the range of live files (AddLive). Where it is full, or there is none, they have ordinary numbers.
func (r ranges) live() (lo, hi uint32) {
	_, lo = r.netlink()
	return lo, lo + liveNumbers(r.end-r.cm)
}

// liveNumbers is the size of that range beside others of a size.
func liveNumbers(size uint32) uint32 {
	if size < 8 {
		return 0
	}
	return 2 * netlinkNumbers(size)
}

// rangesFor chooses below a soft RLIMIT_NOFILE of limit. 1024 is the usual one, and the most that
// select(2) can handle.
func rangesFor(limit uint64) ranges {
	if limit >= 1008 {
		return ranges{800, 880, 960}
	}
	size := uint32(limit / 8)
	end := uint32(limit) - netlinkNumbers(size) - liveNumbers(size)
	return ranges{end - 2*size, end - size, end}
}

// contains reports that descriptor number fd is in one of the ranges. The kernel looks at the low 32
// bits of a descriptor argument only, and so does the filter.
func (r ranges) contains(fd uint64) bool {
	return uint32(fd) >= r.verbs && uint32(fd) < r.end
}

// of gives the numbers of one range.
func (r ranges) of(which Range) (lo, hi uint32) {
	switch which {
	case RangeVerbs:
		return r.verbs, r.cm
	case RangeCM:
		return r.cm, r.end
	case rangeNetlink:
		return r.netlink()
	case rangeLive:
		return r.live()
	}
	return 0, 0
}

// rangeNetlink is where sockets of NETLINK_RDMA are, and rangeLive where live files are: no Device's files.
const (
	rangeNetlink = RangeCM + 1 + iota
	rangeLive
)

// callKind says what a notified system call is, whatever its number on this architecture.
type callKind uint8

const (
	callOther callKind = iota
	callOpen
	callOpenat
	callOpenat2
	callStat
	callLstat
	callFstatat
	callStatx
	callAccess
	callFaccessat
	callReadlink
	callReadlinkat
	callGetxattr
	callListxattr
	callFstat
	callDup
	callDup2
	callFcntl
	callIoctl
	callWrite
	callSocket
	callExecve
	callExecveat
	callSendto
	callSendmsg
	callConnect
	callRecvfrom
	callRecvmsg
	callRead
	callPread
)

type numbered struct {
	nr   uint32
	kind callKind
}

// commonCalls exist on every architecture; oldCalls are those which only amd64 has.
var commonCalls = []numbered{
	{unix.SYS_READ, callRead}, // first, because the commonest
	{unix.SYS_PREAD64, callPread},
	{unix.SYS_OPENAT, callOpenat},
	{unix.SYS_NEWFSTATAT, callFstatat},
	{unix.SYS_STATX, callStatx},
	{unix.SYS_READLINKAT, callReadlinkat},
	{unix.SYS_FACCESSAT, callFaccessat},
	{unix.SYS_FACCESSAT2, callFaccessat},
	{unix.SYS_OPENAT2, callOpenat2},
	{unix.SYS_WRITE, callWrite},
	{unix.SYS_IOCTL, callIoctl},
	{unix.SYS_FCNTL, callFcntl},
	{unix.SYS_FSTAT, callFstat},
	{unix.SYS_DUP, callDup},
	{unix.SYS_DUP3, callDup2},
	{unix.SYS_SOCKET, callSocket},
	{unix.SYS_GETXATTR, callGetxattr},
	{unix.SYS_LGETXATTR, callGetxattr},
	{unix.SYS_LISTXATTR, callListxattr},
	{unix.SYS_LLISTXATTR, callListxattr},
	{unix.SYS_EXECVE, callExecve},
	{unix.SYS_EXECVEAT, callExecveat},
	{unix.SYS_SENDTO, callSendto},
	{unix.SYS_SENDMSG, callSendmsg},
	{unix.SYS_CONNECT, callConnect},
	{unix.SYS_RECVFROM, callRecvfrom},
	{unix.SYS_RECVMSG, callRecvmsg},
}

// kinds maps system call numbers of this architecture.
var kinds = func() (k [512]callKind) {
	for _, list := range [][]numbered{commonCalls, oldCalls} {
		for _, c := range list {
			k[c.nr] = c.kind
		}
	}
	return k
}()

// Offsets in struct seccomp_data; the low half of an argument comes first (little-endian).
const (
	dataNr   = uint32(0)
	dataArch = uint32(unsafe.Offsetof(notif{}.arch) - unsafe.Offsetof(notif{}.nr))
	dataArgs = uint32(unsafe.Offsetof(notif{}.args) - unsafe.Offsetof(notif{}.nr))
)

func argLow(i uint32) uint32  { return dataArgs + 8*i }
func argHigh(i uint32) uint32 { return dataArgs + 8*i + 4 }

// target is where a conditional jump goes: to the next instruction, or to one of the block's ends.
type target uint8

const (
	next target = iota
	allow
	notify
)

// instruction is a load (cond 0) of the word at k, or a comparison of what was loaded with k.
type instruction struct {
	cond    uint16
	k       uint32
	yes, no target
}

const (
	jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
)

func load(offset uint32) instruction { return instruction{k: offset} }

// block gives the decision for one kind of call. An empty block notifies always.
func block(k callKind, r ranges) []instruction {
	inRanges := []instruction{load(argLow(0)), {jge, r.verbs, next, allow}, {jge, r.end, allow, notify}}
	// A stat by descriptor (AT_EMPTY_PATH) of an ordinary file is fstat for newer C libraries, and
	// common: it passes. An absolute path together with a descriptor and AT_EMPTY_PATH passes too,
	// which nobody writes.
	byDescriptor := func(flagsArg uint32) []instruction {
		return append([]instruction{
			load(argLow(flagsArg)), {jset, unix.AT_EMPTY_PATH, next, notify},
			load(argLow(0)), {jge, 1 << 31, notify, next}, // AT_FDCWD
		}, inRanges...)
	}
	switch k {
	case callFstatat:
		return byDescriptor(3)
	case callStatx:
		return byDescriptor(2)
	case callFstat, callDup2:
		return inRanges
	case callDup:
		_, last := r.live()
		return []instruction{load(argLow(0)), {jge, r.verbs, next, allow}, {jge, last, allow, notify}}
	case callFcntl:
		// F_DUPFD is 0, F_DUPFD_CLOEXEC 1030: any other command passes.
		_, last := r.live()
		return append([]instruction{load(argLow(0)), {jge, r.verbs, next, allow}, {jge, last, allow, next}},
			load(argLow(1)), instruction{jeq, unix.F_DUPFD, notify, next}, instruction{jeq, unix.F_DUPFD_CLOEXEC, notify, allow})
	case callWrite:
		return []instruction{
			load(argLow(0)), {jge, r.verbs, next, allow}, {jge, r.end, allow, next}, {jge, r.cm, notify, next},
			load(argLow(2)), {jeq, DoorbellSize, next, notify},
			load(argHigh(2)), {jeq, 0, allow, notify},
		}
	case callIoctl:
		return []instruction{load(argLow(1)), {jeq, VerbsIoctl, notify, allow}}
	case callSocket:
		return []instruction{
			load(argLow(0)), {jeq, unix.AF_NETLINK, next, allow},
			load(argLow(2)), {jeq, netlinkRDMA, notify, allow},
		}
	case callSendto, callSendmsg, callConnect, callRecvfrom, callRecvmsg:
		lo, hi := r.netlink()
		return []instruction{load(argLow(0)), {jge, lo, next, allow}, {jge, hi, allow, notify}}
	case callRead, callPread:
		lo, hi := r.live()
		return []instruction{load(argLow(0)), {jge, lo, next, allow}, {jge, hi, allow, notify}}
	}
	return nil
}

// assemble turns a block into instructions that end in one of two returns.
func assemble(b []instruction) []unix.SockFilter {
	ret := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	if len(b) == 0 {
		return []unix.SockFilter{ret(unix.SECCOMP_RET_USER_NOTIF)}
	}
	var out []unix.SockFilter
	for i, in := range b {
		if in.cond == 0 {
			out = append(out, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: in.k})
			continue
		}
		jump := func(t target) uint8 {
			if t == next {
				return 0
			}
			return uint8(len(b) - i - 1 + int(t) - int(allow))
		}
		out = append(out, unix.SockFilter{Code: in.cond, K: in.k, Jt: jump(in.yes), Jf: jump(in.no)})
	}
	return append(out, ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_USER_NOTIF))
}

// filter is the program for ranges r. The kernel keeps a bitmap of the calls for which it allows
// whatever the arguments, so calls that are not listed do not even run it (Linux 5.11).
func filter(r ranges) []unix.SockFilter {
	ld := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	ret := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	p := []unix.SockFilter{ld(dataArch), {Code: jeq, K: auditArch, Jt: 1}, ret, ld(dataNr)}
	for _, list := range [][]numbered{commonCalls, oldCalls} {
		for _, c := range list {
			b := assemble(block(c.kind, r))
			p = append(p, unix.SockFilter{Code: jeq, K: c.nr, Jf: uint8(len(b))})
			p = append(p, b...)
		}
	}
	return append(p, ret)
}
