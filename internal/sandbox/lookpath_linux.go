//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lookPath finds a command as execvp(3) does: a name with a slash is a path, any other is looked
// for in PATH, whose empty elements mean the current directory.
func lookPath(name string) (string, error) {
	if name == "" {
		return "", &failure{ExitNotFound, ErrNotFound, `"": command not found`}
	}
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	var refused error
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" {
			dir = "."
		}
		p := dir + "/" + name
		if unix.Access(p, unix.F_OK) != nil {
			continue // a directory that may not be searched counts as one without it
		}
		switch err := executable(p); {
		case err == nil:
			return p, nil
		case failureOf(err).kind == ErrNotExecutable && refused == nil:
			refused = err
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", &failure{ExitNotFound, ErrNotFound, fmt.Sprintf("%s: command not found in PATH", name)}
}

// executable is nil or the failure of running p.
func executable(p string) error {
	var st unix.Stat_t
	err := unix.Stat(p, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return &failure{ExitNotExecutable, ErrNotExecutable, p + ": is a directory"}
	}
	if err == nil {
		err = unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS)
	}
	return execFailure(p, err)
}

// execFailure is the failure for the error of stat or execve on p, nil for nil.
func execFailure(p string, err error) error {
	switch err {
	case nil:
		return nil
	case unix.ENOENT, unix.ENOTDIR:
		return &failure{ExitNotFound, ErrNotFound, fmt.Sprintf("%s: command not found (%v)", p, err)}
	}
	return &failure{ExitNotExecutable, ErrNotExecutable, fmt.Sprintf("%s: cannot be executed (%v)", p, err)}
}
