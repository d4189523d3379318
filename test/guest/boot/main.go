// Command boot boots a guest with the kernel's Soft-RoCE, runs a shell script
// in it and ends with its status; without a script it only makes the image.
//
//	go run ./test/guest/boot 'rdma link; ibv_devinfo'
//	RNIC_GUEST_SUITE=sid go run ./test/guest/boot 'uname -r' # with the kernel of another release of Debian
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"rnic/test/guest"
)

func main() {
	err := run(context.Background(), strings.Join(os.Args[1:], " "))
	var exit *guest.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.Status)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, script string) error {
	if err := guest.Available(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rnic-guest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	begin := time.Now()
	image, err := guest.BuildImageOf(ctx, os.Getenv("RNIC_GUEST_SUITE"), dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "image of %s ready after %.1f s\n", image.Version, time.Since(begin).Seconds())
	if script == "" {
		return nil
	}
	network, err := guest.NewNetwork(ctx)
	if err != nil {
		return err
	}
	defer network.Close()
	machine, err := guest.Boot(ctx, image, network)
	if err != nil {
		return err
	}
	defer machine.Close()
	fmt.Fprintf(os.Stderr, "guest ready after %.1f s\n", time.Since(begin).Seconds())
	out, err := machine.Run(ctx, script)
	fmt.Print(out)
	return err
}
