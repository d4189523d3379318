// Package guest boots a Debian kernel with Soft-RoCE (rdma_rxe) in QEMU, as a
// peer that is not ours. It emulates the processor, so that it needs no KVM;
// a guest is up in about five seconds. Its one network card ends in a tap
// device inside a network namespace made for it, where programs of the host
// reach it through plain sockets.
//
// Nothing is installed: the kernel package is fetched from the configured
// Debian archive and unpacked below the user's cache directory, and the
// programs in the guest are the host's own.
package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// ErrUnavailable is wrapped by the errors that say that guests cannot run on
// this machine, as opposed to those that say that something went wrong.
var ErrUnavailable = errors.New("virtual machine tests are not possible here")

const qemu = "qemu-system-x86_64"

// Available returns nil where guests can run, and otherwise an error wrapping
// ErrUnavailable that says what is missing and how to get it.
func Available() error {
	missing := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrUnavailable, fmt.Sprintf(format, args...))
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return missing("the tooling knows Linux on amd64, not %s on %s", runtime.GOOS, runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return missing("a network namespace with a tap device needs root; run the tests as root")
	}
	for _, name := range []string{qemu, "busybox", "ip", "depmod", "xz", "apt-get", "dpkg-deb", "gcc", "tshark"} {
		if _, err := exec.LookPath(name); err != nil {
			return missing("no %s; run scripts/packages.sh build guest", name)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return missing("no /dev/net/tun; load the module tun, or give the container the device")
	}
	return nil
}

// CacheDir returns the directory that keeps unpacked kernels.
func CacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "rnic")
}
