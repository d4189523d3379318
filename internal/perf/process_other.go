//go:build !linux

package perf

import (
	"context"
	"errors"
	"io"
)

// ChildCommand is the hidden command that holds the target buffer of --memory=process.
const ChildCommand = "perf-memory-child"

var errNoProcess = errors.New("--memory=process needs Linux: the memory of another process is reached by process_vm_writev")

// RunChild is that command.
func RunChild(int, io.Reader, io.Writer) error { return errNoProcess }

func runProcess(context.Context, *Options, *Printer) error { return errNoProcess }
