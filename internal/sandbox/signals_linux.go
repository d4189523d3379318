//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// passed are the signals that go on to the program.
var passed = []os.Signal{
	unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
	unix.SIGTSTP, unix.SIGCONT, unix.SIGALRM,
}

// catch takes the passed signals instead of their default actions. A signal that is ignored (nohup)
// stays so, for the program too; the others are reset to the default by the program's exec.
func catch() chan os.Signal {
	ch := make(chan os.Signal, 64)
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(ch, s)
		}
	}
	return ch
}

// fromTerminal reports that the program has had sig already: the terminal sends these to the whole
// foreground process group, to which front and program both belong.
func fromTerminal(sig syscall.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGWINCH:
	default:
		return false
	}
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false // no controlling terminal
	}
	defer unix.Close(tty)
	pgrp, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// endsByDefault tells whether a passed signal ends a process that does not catch it (signal(7)).
func endsByDefault(sig syscall.Signal) bool {
	switch sig {
	case unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT:
		return false
	}
	return true
}

// defaultAction undoes that sig is ignored, for the program: os/signal leaves an inherited SIG_IGN as it is.
func defaultAction(sig syscall.Signal) {
	var action [32]byte // struct sigaction of the kernel, with SIG_DFL
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}
