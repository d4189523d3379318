package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rnic/test/interop"
)

// Addresses of the link between host and guest. Each link has a network
// namespace of its own, so that all can have the same.
const (
	HostAddress   = "10.7.0.1"
	GuestAddress  = "10.7.0.2"
	HostAddress6  = "fd07::1"
	GuestAddress6 = "fd07::2"
	prefix        = "/24"
	prefix6       = "/64"
	tapName       = "tap0"
	linkMTU       = 1500 // bytes, at first: a RoCE path MTU of 1024
	LargestMTU    = 4200 // bytes: a RoCE path MTU of 4096

	namespacePrefix = "rnic-guest-" // then the process, then a number
	namespaceDir    = "/run/netns/" // where ip netns keeps them
)

// Link has the addresses of both ends.
var Link = interop.Link{
	Here:  [2]netip.Addr{netip.MustParseAddr(HostAddress), netip.MustParseAddr(HostAddress6)},
	There: [2]netip.Addr{netip.MustParseAddr(GuestAddress), netip.MustParseAddr(GuestAddress6)},
}

// Network is a network namespace with a tap device, which is the host's end
// of a guest's link.
type Network struct {
	Namespace string // as "ip netns" names it
}

var networks atomic.Int32

// NewNetwork makes a namespace. It needs root; where root may not make
// namespaces or devices, as in many containers, the error wraps
// ErrUnavailable.
func NewNetwork(ctx context.Context) (*Network, error) {
	removeAbandoned(ctx)
	n := &Network{Namespace: fmt.Sprintf("%s%d-%d", namespacePrefix, os.Getpid(), networks.Add(1))}
	if _, err := run(ctx, "", "ip", "netns", "add", n.Namespace); err != nil {
		return nil, refused(err)
	}
	for _, args := range []string{
		"link set lo up",
		"tuntap add " + tapName + " mode tap",
		"addr add " + HostAddress + prefix + " dev " + tapName,
		"addr add " + HostAddress6 + prefix6 + " dev " + tapName + " nodad",
		// An emulated guest takes packets slowly: what is not reliable must find room here.
		"link set " + tapName + " txqueuelen 10000",
		"link set " + tapName + " up",
	} {
		if _, err := run(ctx, "", "ip", append([]string{"-n", n.Namespace}, strings.Fields(args)...)...); err != nil {
			n.Close()
			return nil, refused(err)
		}
	}
	return n, nil
}

// refused wraps ErrUnavailable around what a command says that lacks a capability.
func refused(err error) error {
	if strings.Contains(err.Error(), "not permitted") || strings.Contains(err.Error(), "Permission denied") {
		return fmt.Errorf("%w: root lacks the rights (CAP_NET_ADMIN, CAP_SYS_ADMIN): %w", ErrUnavailable, err)
	}
	return err
}

// removeAbandoned removes the namespaces of processes that were killed before they could.
func removeAbandoned(ctx context.Context) {
	names, _ := filepath.Glob(namespaceDir + namespacePrefix + "*-*")
	for _, path := range names {
		name := filepath.Base(path)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, namespacePrefix), "-")
		n, err := strconv.Atoi(pid)
		if err == nil && errors.Is(unix.Kill(n, 0), unix.ESRCH) {
			run(ctx, "", "ip", "netns", "del", name)
		}
	}
}

// Command returns a command that runs in the namespace.
func (n *Network) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.Namespace}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Dial connects from inside the namespace to a TCP port of the guest.
func (n *Network) Dial(ctx context.Context, port string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// The thread belongs to the namespace from here on: never unlocked, it ends with the goroutine.
		runtime.LockOSThread()
		conn, err := dialHere(ctx, n.Namespace, net.JoinHostPort(GuestAddress, port))
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// dialHere moves the calling thread into the namespace and connects.
func dialHere(ctx context.Context, namespace, address string) (net.Conn, error) {
	f, err := os.Open(namespaceDir + namespace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("entering network namespace %s: %w", namespace, err)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp4", address)
}

// Close removes the namespace and with it the tap device.
func (n *Network) Close() error {
	_, err := run(context.Background(), "", "ip", "netns", "del", n.Namespace)
	return err
}
