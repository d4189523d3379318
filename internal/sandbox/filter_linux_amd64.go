package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

var oldCalls = []numbered{
	{unix.SYS_OPEN, callOpen},
	{unix.SYS_STAT, callStat},
	{unix.SYS_LSTAT, callLstat},
	{unix.SYS_ACCESS, callAccess},
	{unix.SYS_READLINK, callReadlink},
	{unix.SYS_DUP2, callDup2},
}
