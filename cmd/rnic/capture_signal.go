//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// dumpSignal tells when the user wants what is kept in memory.
func dumpSignal() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	return c
}
