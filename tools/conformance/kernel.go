package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"rnic/test/guest"
)

// kernelPeer is a virtual machine with the kernel's Soft-RoCE, which says whether what does not work on our NIC
// works on any.
type kernelPeer struct {
	machine *guest.Machine
	network *guest.Network
	dir     string
	version string
	err     error // why it is not there
	said    map[string]answer
}

// answer is what the kernel's machine has said to a script.
type answer struct {
	out string
	err error
}

// kernelPrograms are those of the cases that go to the kernel too.
func kernelPrograms(cases []testCase) (paths []string) {
	for _, c := range cases {
		if c.limit == nil || !c.limit.kernel {
			continue
		}
		wanted := c.limit.extra
		if path, err := exec.LookPath(c.server[0]); err == nil {
			wanted = append([]string{path}, wanted...)
		}
		for _, path := range wanted {
			if _, err := os.Stat(path); err == nil && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// prepareKernel fetches the kernel into the cache, where the network is.
func prepareKernel(ctx context.Context) {
	if err := guest.Available(); err != nil {
		return
	}
	dir, err := os.MkdirTemp("", "rnic-conformance-")
	if err == nil {
		defer os.RemoveAll(dir)
		_, err = guest.BuildImage(ctx, dir)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "conformance: the kernel's Soft-RoCE is not compared: %v\n", err)
	}
}

// kernelPeer boots the machine at its first use.
func (r *runner) peer(ctx context.Context) *kernelPeer {
	if r.kernel != nil {
		return r.kernel
	}
	k := &kernelPeer{said: map[string]answer{}}
	r.kernel = k
	if k.err = guest.Available(); k.err != nil {
		return k
	}
	if k.dir, k.err = os.MkdirTemp("", "rnic-conformance-"); k.err != nil {
		return k
	}
	var image *guest.Image
	if image, k.err = guest.BuildImage(ctx, k.dir, kernelPrograms(allCases())...); k.err != nil {
		return k
	}
	k.version = image.Version
	if k.network, k.err = guest.NewNetwork(ctx); k.err != nil {
		return k
	}
	k.machine, k.err = guest.Boot(ctx, image, k.network)
	return k
}

func (k *kernelPeer) close() {
	if k.machine != nil {
		k.machine.Close()
	}
	if k.network != nil {
		k.network.Close()
	}
	if k.dir != "" {
		os.RemoveAll(k.dir)
	}
}

// beside gives a case that failed as expected to the kernel's Soft-RoCE.
func (r *runner) beside(ctx context.Context, c *testCase, reason string) (status, string) {
	k := r.peer(ctx)
	if k.err != nil {
		return limited, fmt.Sprintf("%s; the kernel's rxe was not asked: %v", reason, k.err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	script := c.inGuest()
	said, known := k.said[script]
	if !known {
		var exit *guest.ExitError
		for range 2 { // a shell whose connection broke says nothing of the kernel
			if said.out, said.err = k.machine.Run(ctx, script); said.err == nil || errors.As(said.err, &exit) || ctx.Err() != nil {
				break
			}
		}
		k.said[script] = said
	}
	out, err := said.out, said.err
	var exit *guest.ExitError
	switch says := c.limit.pattern().FindString(out); {
	case err == nil:
		return failed, fmt.Sprintf("%s; but it works on the rxe of kernel %s: %s", reason, k.version, tail(out))
	case !errors.As(err, &exit):
		return failed, fmt.Sprintf("%s; asking the rxe of kernel %s: %v", reason, k.version, err)
	case says == "":
		return failed, fmt.Sprintf("%s; the rxe of kernel %s fails in another way: %s", reason, k.version, tail(out))
	}
	same := "the same"
	if c.limit.instead != "" {
		same += ", with " + c.limit.instead
	}
	return limited, fmt.Sprintf("%s; the rxe of kernel %s: %s", reason, k.version, same)
}

// inGuest is the script that asks the kernel's Soft-RoCE.
func (c *testCase) inGuest() string {
	switch server := strings.Join(c.server, " "); {
	case c.limit.script != "":
		return c.limit.script
	case c.limit.instead != "":
		return pairInGuest(c.limit.instead, c.limit.instead+" 127.0.0.1")
	case len(c.client) > 0:
		return pairInGuest(server, strings.ReplaceAll(strings.Join(c.client, " "), serverAddress, "127.0.0.1"))
	default:
		return server
	}
}

// pairInGuest is a script that ends with the client's status, and with 143 if that did not end in half a minute.
func pairInGuest(server, client string) string {
	return fmt.Sprintf("%s & s=$!; sleep 2; timeout 30 %s; c=$?; kill $s 2>/dev/null; echo client status $c; exit $c", server, client)
}
