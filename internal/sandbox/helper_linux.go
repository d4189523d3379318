//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// helperMain puts its thread under the filter, hands the listener over and becomes the program.
// Arguments: the nice value, whether SIGTTOU gets its default action back, the path of the program, its argv.
func helperMain(sock int, args []string) {
	nice, _ := strconv.Atoi(args[0])
	if args[1] == "true" {
		defaultAction(unix.SIGTTOU)
	}
	f := failureOf(become(sock, nice, args[2], args[3:]))
	tell(sock, msgFailed, f.encode(), -1)
	os.Exit(f.code)
}

// become returns only if it failed.
func become(sock, nice int, program string, argv []string) error {
	runtime.LockOSThread() // the filter and no_new_privs are the thread's
	limit, err := descriptorLimit()
	if err != nil {
		return fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	if nice != 0 {
		unix.Setpriority(unix.PRIO_PROCESS, 0, nice) // a preference: going without is no failure
	}
	r := rangesFor(limit)
	l, killable, err := installFilter(filter(r))
	if err != nil {
		return filterFailure(err)
	}
	// sendmsg is not filtered; from here on paths are.
	if err := tell(sock, msgStarted, started{r, killable}.encode(), int(l)); err != nil {
		return fmt.Errorf("pass the listener to the supervisor: %w", err)
	}
	err = syscall.Exec(program, argv, os.Environ())
	if err == syscall.ENOEXEC { // a script without #!, as execvp(3) and the shells run it
		err = syscall.Exec("/bin/sh", append([]string{"sh", program}, argv[1:]...), os.Environ())
	}
	return execFailure(program, err)
}

// filterFailure says why installFilter failed.
func filterFailure(err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return &failure{ExitFailure, ErrNested, "already under a system-call listener, and the kernel allows one: " +
			"inside rnic run start the program directly, it uses the outer NIC; a container may have a listener of its own"}
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("install the seccomp filter: %w (%v)", ErrUnsupported, err)
	}
	return fmt.Errorf("install the seccomp filter: %w", err)
}

// tryFilter installs a filter that allows everything on a thread that ends with it: the devices need
// not be made if the program cannot be started.
func tryFilter() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread goes with the goroutine
		l, _, err := installFilter([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
		if err != nil {
			result <- filterFailure(err)
			return
		}
		unix.Close(int(l))
		result <- nil
	}()
	return <-result
}

// descriptorLimit is the soft RLIMIT_NOFILE that the program will have. The Go runtime has raised
// ours and puts the original back in syscall.Exec, even if that fails, as this one must.
func descriptorLimit() (uint64, error) {
	syscall.Exec("", []string{""}, nil)
	var lim unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)
	return lim.Cur, err
}
