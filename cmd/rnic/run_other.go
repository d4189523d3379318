//go:build !linux

package main

import "rnic/internal/sandbox"

// supervise is never called where there is no sandbox.
func supervise(*sandbox.Supervisor, *runConfig) error { return sandbox.ErrUnsupported }
