package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The network of the tests: the namespace that the runner is in, and another, with a veth pair between them.
const (
	vethHere, vethThere   = "rnic0", "rnic1"
	addrHere, addrThere   = "10.91.0.1", "10.91.0.2"
	addr6Here, addr6There = "fd91::1", "fd91::2"
)

// In the environment, inNamespaces makes this binary the runner proper, which is in namespaces of its own; its value is the
// directory that the runner works in. asRoot says that root started it.
const (
	inNamespaces = "RNIC_CONFORMANCE_IN_NAMESPACES"
	asRoot       = "RNIC_CONFORMANCE_AS_ROOT"
)

// enterNamespaces runs this program again, in network and mount namespaces of its own - and in a user namespace
// where it is no root - and returns its exit code.
//
// The directory is made and removed out here, where what the runner mounts in it cannot be seen: removing it in
// there would remove what is behind its mounts.
func enterNamespaces(ctx context.Context) (code int, err error) {
	dir, err := os.MkdirTemp("", "rnic-conformance-")
	if err != nil {
		return 1, err
	}
	defer func() {
		// One file system: should a mount have come out here after all, it is left alone.
		if out, rmErr := exec.Command("rm", "-rf", "--one-file-system", dir).CombinedOutput(); rmErr != nil {
			err = errors.Join(err, fmt.Errorf("removing %s: %s", dir, tail(string(out))))
		}
	}()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inNamespaces+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if os.Geteuid() == 0 {
		cmd.Env = append(cmd.Env, asRoot+"=1")
	} else {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 1, fmt.Errorf("%w: %w; conformance needs root or unprivileged user namespaces", errNoNamespaces, err)
	}
	return 0, nil
}

// errNoNamespaces says that this machine does not let the tests run.
var errNoNamespaces = errors.New("starting in namespaces of its own")

// other is the second network namespace: a process holds it, which ends when its standard input does.
type other struct {
	holder *exec.Cmd
	input  io.Closer
	path   string
}

// makeNetwork sets up both namespaces.
func makeNetwork() (*other, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("making mounts private: %w", err)
	}
	o, err := holdNamespace()
	if err != nil {
		return nil, err
	}
	enter := "nsenter --net=" + o.path + " "
	commands := "ip link set lo up\nip link add " + vethHere + " type veth peer name " + vethThere + "\n" +
		fmt.Sprintf("ip link set %s netns %d\n", vethThere, o.holder.Process.Pid) +
		side("", vethHere, addrHere, addr6Here) + enter + "ip link set lo up\n" + side(enter, vethThere, addrThere, addr6There)
	// The system's own directories are of another namespace than this one's.
	commands += "mount -t sysfs sysfs /sys 2>/dev/null || true\n"
	out, err := exec.Command("sh", "-ec", commands).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("making the network of the tests: %w\n%s", err, out)
	}
	return o, nil
}

// holdNamespace makes a network namespace with nothing in it.
func holdNamespace() (*other, error) {
	o := &other{holder: exec.Command("unshare", "-n", "sh", "-c", "echo ready; read line")}
	input, err := o.holder.StdinPipe()
	if err != nil {
		return nil, err
	}
	ready, err := o.holder.StdoutPipe()
	if err != nil {
		return nil, err
	}
	o.input = input
	if err := o.holder.Start(); err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	if _, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	o.path = fmt.Sprintf("/proc/%d/ns/net", o.holder.Process.Pid)
	return o, nil
}

// side are the commands that set an interface up. IPv6 addresses are good at once, and stay when the link goes down.
func side(enter, name, addr, addr6 string) string {
	var b strings.Builder
	for _, s := range []string{"net.ipv6.conf." + name + ".accept_dad=0", "net.ipv6.conf." + name + ".keep_addr_on_down=1"} {
		fmt.Fprintf(&b, "%ssh -c 'echo %s >/proc/sys/%s'\n", enter, s[strings.Index(s, "=")+1:], strings.ReplaceAll(s[:strings.Index(s, "=")], ".", "/"))
	}
	fmt.Fprintf(&b, "%[1]sip link set %[2]s mtu 9000 up\n%[1]sip addr add %[3]s/24 dev %[2]s\n%[1]sip addr add %[4]s/64 dev %[2]s nodad\n", enter, name, addr, addr6)
	return b.String()
}

func (o *other) close() {
	o.input.Close()
	o.holder.Wait()
}
